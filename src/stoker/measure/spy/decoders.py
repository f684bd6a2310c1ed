"""Times well-known readers and decoders where a dataset calls them without marks of its own.

Only functions that clearly read or clearly decode are timed; of PIL's lazy load the file is read first, then decoded.
A call inside a marked stage or a transform is left to that.
"""

import functools
import importlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from stoker import marks
from stoker.measure.spy.transforms import bytes_of

_FUNCTIONAL = ("torchvision.transforms.functional", "torchvision.transforms.v2.functional")
_OPERATIONS = (
    *("to_tensor", "pil_to_tensor", "to_image", "to_dtype", "convert_image_dtype", "normalize", "resize", "crop"),
    *("center_crop", "resized_crop", "pad", "hflip", "vflip", "rotate", "affine", "gaussian_blur"),
)
"""Operations that a dataset calls one by one, in place of a chain of transforms."""
# Module, name, stage. torchvision.io imports its functions by name, so they are patched there too. Some libraries read
# and decode in one call: the stage is then what takes most of the time.
_FUNCTIONS = (
    ("PIL.Image", "open", "read"),
    ("torchvision.io.image", "read_file", "read"),
    ("torchvision.io.image", "decode_image", "decode"),
    ("torchvision.io.image", "decode_jpeg", "decode"),
    ("torchvision.io.image", "decode_png", "decode"),
    ("torchvision.io", "read_file", "read"),
    ("torchvision.io", "decode_image", "decode"),
    ("torchvision.io", "decode_jpeg", "decode"),
    ("torchvision.io", "decode_png", "decode"),
    ("cv2", "imread", "decode"),
    ("cv2", "imdecode", "decode"),
    ("cv2", "cvtColor", "decode"),
    ("soundfile", "read", "decode"),
    ("h5py", "Dataset.__getitem__", "read"),
    ("numpy", "load", "read"),
    ("numpy", "fromfile", "read"),
    ("torch", "load", "read"),
    ("torchaudio", "load", "decode"),
    ("librosa", "load", "decode"),
    *((module, name, f"transform.{name}") for module in _FUNCTIONAL for name in _OPERATIONS),
    *(("cv2", name, f"transform.{name}") for name in ("resize", "warpAffine", "flip", "rotate", "GaussianBlur")),
)
_scratch = bytearray(1 << 20)


def patch(undo: ExitStack) -> None:
    """Patch what is imported already, and note in `undo` how to put it back; what is patched already stays as it is."""
    for module_name, name, stage in _FUNCTIONS:
        module = sys.modules.get(module_name)
        if module is not None:
            *classes, attribute = name.split(".")
            owner: Any = module
            for each in classes:
                owner = getattr(owner, each, None)
            _replace(owner, attribute, functools.partial(_timed, stage=stage), undo)
    image = importlib.import_module("PIL.Image")
    image_file = importlib.import_module("PIL.ImageFile")
    _replace(image_file.ImageFile, "load", _timed_load, undo)
    _replace(image.Image, "convert", functools.partial(_timed, stage="decode"), undo)


def _replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]], undo: ExitStack) -> None:
    function = getattr(owner, name, None)
    if function is None or hasattr(function, "_stoker"):
        return
    wrapper = wrap(function)
    setattr(owner, name, wrapper)
    undo.callback(_put_back, owner, name, wrapper, function)


def _put_back(owner: Any, name: str, wrapper: Any, function: Any) -> None:
    """Unless somebody else has replaced the function since: their wrapper calls this one, which times nothing now."""
    if getattr(owner, name, None) is wrapper:
        setattr(owner, name, function)


def _bare() -> marks.Recorder | None:
    """The recorder, if an item is being loaded and nothing inside it is marked."""
    active = marks.recorder()
    return active if active is not None and active.names and active.names[-1] == "item" else None


def _timed(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        active = _bare()
        if active is None:
            found, marked = function(*args, **kwargs), marks.recorder()
            if stage == "decode" and marked is not None and marked.names[-1:] == ["decode"]:
                marked.returned(stage, bytes_of(found))  # the user marked it, and knows its time
            return found
        active.enter(stage)
        try:
            found = function(*args, **kwargs)
        finally:
            active.leave()
        if stage == "decode":
            active.returned(stage, bytes_of(found))
        return found

    call._stoker = True  # type: ignore[attr-defined]
    return call


def _timed_load(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def call(image: Any, *args: Any, **kwargs: Any) -> Any:
        # `convert` is timed too and calls this function: the innermost mark is "decode" then.
        active = marks.recorder()
        if active is None or not active.names or active.names[-1] not in ("item", "decode") or not image.tile:
            return load(image, *args, **kwargs)
        active.enter("read")
        _read_whole(image.fp)
        active.leave()
        active.enter("decode")
        try:
            return load(image, *args, **kwargs)
        finally:
            active.leave()

    call._stoker = True  # type: ignore[attr-defined]
    return call


def _read_whole(file: Any) -> None:
    """Bring a file's pages into memory, so that what follows is decoding alone; its position stays.

    A part of another file is left alone, because the whole archive would be read.
    """
    if not isinstance(file, io.FileIO | io.BufferedReader | io.BufferedRandom):
        return
    try:
        descriptor, offset = file.fileno(), 0
        while count := os.preadv(descriptor, [_scratch], offset):
            offset += count
    except (AttributeError, OSError, ValueError):
        return
