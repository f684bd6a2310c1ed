"""Turns a set of images into tensors, so that a run only has to read them."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from torch import Tensor

from stoker.atomic import CACHE_REMEDY, build_folder, data_root, in_parallel, write_file
from stoker.errors import InputError
from stoker.events import OnProgress, silent
from stoker.machine.cpu import worker_processes
from stoker.records import encode
from stoker.workload.data.folders import Folder, Part, read_folder
from stoker.workload.data.images import MEAN, STD, decode, read_bytes, resize_for, transform_for
from stoker.workload.data.synthetic import FILES, VERSION, build_jpegs
from stoker.workload.data.tensors import MANIFEST, Manifest, Preprocessing, npy_header, read_manifest

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The folder that `prepare` made."""

    path: Path
    packed: bool
    shape: tuple[int, int, int]
    items: dict[Part, int]
    classes: int
    stored_bytes: int


def prepare(
    source: Path, out: Path, *, packed: bool = False, image_size: int = 224, progress: OnProgress = silent
) -> Prepared:
    """Preprocess every image of `source` into the new folder `out`, with the same classes and parts.

    Raises InputError if `source` has no images or `out` is not empty, MachineError if the disk is full.
    """
    _check_out(source, out)
    if read_manifest(source) is not None:
        raise InputError(f"{source} holds prepared tensors already")
    folder = read_folder(source)
    if folder.media != "images":
        raise InputError(f"{source} holds {folder.media}; only images can be prepared")
    out = out.absolute()
    return _make(
        out,
        folder,
        source.absolute().name,
        packed,
        image_size,
        "free some, or choose a folder on another disk",
        progress,
    )


def build_tensors(
    files: int = FILES,
    *,
    packed: bool = False,
    image_size: int = 224,
    root: Path | None = None,
    progress: OnProgress = silent,
) -> Path:
    """The folder of the synthetic JPEGs as tensors, built if missing."""
    root = root or data_root()
    final = root / f"{'packed' if packed else 'tensors'}-v1-{image_size}px-of-jpeg-v{VERSION}-{files}"
    if not final.is_dir():
        folder = read_folder(build_jpegs(files, root=root, progress=progress))
        _make(final, folder, "jpeg", packed, image_size, CACHE_REMEDY, progress)
    return final


def _check_out(source: Path, out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder that is new or empty")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; give a folder that is new or empty")
    if out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{out} lies in {source}, where it would be taken for a class; give a folder elsewhere")


def _make(
    final: Path, folder: Folder, source: str, packed: bool, image_size: int, remedy: str, progress: OnProgress
) -> Prepared:
    shape = (3, image_size, image_size)
    items = {part: len(listing) for part, listing in folder.parts.items()}
    stored_bytes = sum(items.values()) * int(np.prod(shape)) * _FLOAT.itemsize
    manifest = Manifest(
        source=source,
        packed=packed,
        shape=shape,
        dtype=_FLOAT.name,
        classes=next(iter(folder.parts.values())).classes,
        items=items,
        preprocessing=Preprocessing(resize=resize_for(image_size), crop=image_size, mean=MEAN, std=STD),
    )

    def fill(target: Path) -> None:
        plan = _plan_packed if packed else _plan_files
        tasks = [task for part in folder.parts for task in plan(folder, part, target, shape)]
        work = partial(_prepare_one, image_size)
        in_parallel(work, tasks, what=f"preparing {source}", progress=progress, processes=worker_processes())
        write_file(target / MANIFEST, msgspec.json.format(encode(manifest), indent=2))

    build_folder(final, fill, needs_bytes=stored_bytes, remedy=remedy, progress=progress)
    return Prepared(
        path=final, packed=packed, shape=shape, items=items, classes=len(manifest.classes), stored_bytes=stored_bytes
    )


_Task = tuple[str, str, int | None]
"""Path of the image, file for its values, and offset in that file (None: a file for this image alone)."""


def _plan_files(folder: Folder, part: Part, target: Path, _: tuple[int, ...]) -> list[_Task]:
    listing = folder.parts[part]
    tasks: list[_Task] = []
    for index in range(len(listing)):
        # Keep the whole name, because there may be a.jpg and a.png. Files without a class folder get one.
        name = f"all{os.sep}{listing.name(index)}" if folder.flat else listing.name(index)
        tasks.append((listing.path(index), f"{target}{os.sep}{part}{os.sep}{name}.npy", None))
    for parent in {os.path.dirname(path) for _, path, _ in tasks}:  # noqa: PTH120 - a Path for each of a million names
        Path(parent).mkdir(parents=True, exist_ok=True)
    return tasks


def _plan_packed(folder: Folder, part: Part, target: Path, shape: tuple[int, ...]) -> list[_Task]:
    listing = folder.parts[part]
    header = npy_header((len(listing), *shape), _FLOAT)
    item_bytes = int(np.prod(shape)) * _FLOAT.itemsize
    path = target / f"{part}.npy"
    write_file(path, header)
    os.truncate(path, len(header) + len(listing) * item_bytes)
    labels = listing.labels
    write_file(target / f"{part}-labels.npy", npy_header(labels.shape, labels.dtype), labels.tobytes())
    return [(listing.path(place), str(path), len(header) + place * item_bytes) for place in range(len(listing))]


def _prepare_one(image_size: int, task: _Task) -> None:
    source, target, offset = task
    item: Tensor = transform_for("infer", image_size)(decode(read_bytes(source), source))
    values = memoryview(item.contiguous().numpy().tobytes())
    if offset is None:
        write_file(Path(target), npy_header(tuple(item.shape), _FLOAT), values)
    else:
        _write_at(target, values, offset)


def _write_at(path: str, values: memoryview, offset: int) -> None:
    with Path(path).open("r+b", buffering=0) as file:
        file.seek(offset)
        while values.nbytes:
            values = values[file.write(values) :]
