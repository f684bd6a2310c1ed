"""Times well-known readers and decoders where a dataset calls them without marks of its own.

Only what is clearly one or the other is told apart: PIL's lazy load first reads the file, then decodes it. Installed in
processes that live for one trial; a call inside a marked stage or a transform is left to that.
"""

import functools
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from stoker import marks

# Module, name, stage. A name that is imported into another module by name is patched there too.
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
    ("cv2", "imdecode", "decode"),
    ("numpy", "load", "read"),
    ("numpy", "fromfile", "read"),
    ("torch", "load", "read"),
)
_scratch = bytearray(1 << 20)


def install() -> None:
    """Patch what is imported already, once; later imports of the rest stay as they are."""
    for module_name, name, stage in _FUNCTIONS:
        module = sys.modules.get(module_name)
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, "_stoker"):
            setattr(module, name, _timed(function, stage))
    image = importlib.import_module("PIL.Image")
    image_file = importlib.import_module("PIL.ImageFile")
    if not hasattr(image_file.ImageFile.load, "_stoker"):
        image_file.ImageFile.load = _timed_load(image_file.ImageFile.load)
        image.Image.convert = _timed(image.Image.convert, "decode")


def _bare() -> marks.Recorder | None:
    """The recorder, where an item is being loaded and nothing inside it is marked."""
    active = marks.recorder()
    return active if active is not None and active.names and active.names[-1] == "item" else None


def _timed(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        active = _bare()
        if active is None:
            return function(*args, **kwargs)
        active.enter(stage)
        try:
            return function(*args, **kwargs)
        finally:
            active.leave()

    call._stoker = True  # type: ignore[attr-defined]
    return call


def _timed_load(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def call(image: Any, *args: Any, **kwargs: Any) -> Any:
        # `convert` is timed too, and calls this one: its mark says "decode" already.
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
    """Bring a file's pages in, so that what follows is decoding alone; its position stays. Part of another file, as of
    an archive, is left alone: it would be the archive that is read."""
    if not isinstance(file, io.FileIO | io.BufferedReader | io.BufferedRandom):
        return
    try:
        descriptor, offset = file.fileno(), 0
        while count := os.preadv(descriptor, [_scratch], offset):
            offset += count
    except (AttributeError, OSError, ValueError):
        return
