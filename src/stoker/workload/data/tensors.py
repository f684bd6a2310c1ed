"""Preprocessed items as a dataset: one `.npy` file for each item, or one for all items of a part."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stoker.errors import InputError
from stoker.marks import stage
from stoker.workload.data.folders import Listing, Part, read_folder
from stoker.workload.data.images import CorruptItem, Transform, place_of

MANIFEST = "stoker.json"
SCHEMA = "stoker-tensors-1"


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True):
    """How an image was turned into its tensor."""

    resize: int
    crop: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a folder of tensors, as its `stoker.json` describes it."""

    schema: str = SCHEMA
    source: str
    packed: bool
    shape: tuple[int, int, int]
    dtype: str
    classes: tuple[str, ...]
    items: dict[Part, int]
    preprocessing: Preprocessing


class TensorFiles(Dataset[tuple[Tensor, int]]):
    """One `.npy` file for each item. The array uses the bytes that were read, without a second copy."""

    def __init__(self, listing: Listing, shape: tuple[int, ...], items: int | None = None) -> None:
        self.listing = listing
        self.transform: Transform | None = None
        self.items = len(listing) if items is None else items
        self.shape = shape
        self._header = npy_header(shape, np.dtype(np.float32))
        self._bytes = len(self._header) + int(np.prod(shape)) * 4

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = place_of(index, self.items, len(self.listing))
        path = self.listing.path(place)
        with stage("read"):
            buffer = read_at(path, 0, self._bytes)
        if buffer[: len(self._header)].tobytes() != self._header:
            raise CorruptItem(f"{path} is not a float32 array of shape {self.shape}: remove it or prepare it anew")
        item = torch.from_numpy(buffer[len(self._header) :].view(np.float32).reshape(self.shape))
        return item if self.transform is None else self.transform(item), self.listing.label(place)


class PackedTensors(Dataset[tuple[Tensor, int]]):
    """All items of a part in one `.npy` file. Each item is read at its offset."""

    def __init__(self, path: Path, labels: NDArray[np.int32], shape: tuple[int, ...], items: int | None = None) -> None:
        self.path = str(path)
        self.labels = labels
        self.transform: Transform | None = None
        self.items = len(labels) if items is None else items
        self.shape = shape
        self._start = len(npy_header((len(labels), *shape), np.dtype(np.float32)))
        self._bytes = int(np.prod(shape)) * 4

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = place_of(index, self.items, len(self.labels))
        with stage("read"):
            buffer = read_at(self.path, self._start + place * self._bytes, self._bytes)
        item = torch.from_numpy(buffer.view(np.float32).reshape(self.shape))
        return item if self.transform is None else self.transform(item), int(self.labels[place])


def open_tensors(
    folder: Path, part: Part, items: int | None, *, repeats: bool
) -> tuple[TensorFiles | PackedTensors, Callable[[], list[Path]], int]:
    """The dataset of a prepared folder, the files that it reads, and the number of classes.

    With `repeats` the items repeat if more are asked for than there are; without it the set ends there. Raises
    InputError if the folder was not prepared.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} has no {MANIFEST}: it holds no prepared tensors")
    stored = manifest.items.get(part, 0)
    if not stored:
        raise InputError(f"{folder} has no {part} part: its source had too few files")
    length = items if repeats else min(items or stored, stored)
    if manifest.packed:
        path = folder / f"{part}.npy"
        labels = np.load(folder / f"{part}-labels.npy", allow_pickle=False)
        return PackedTensors(path, labels, manifest.shape, length), partial(list, (path,)), len(manifest.classes)
    listing = read_folder(folder, ("tensors",)).parts[part]
    dataset = TensorFiles(listing, manifest.shape, length)
    return dataset, partial(listing.paths, length), len(manifest.classes)


def npy_header(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> bytes:
    """The bytes before the values in a `.npy` file of this shape."""
    file = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)
    return file.getvalue()


def read_at(path: str, offset: int, count: int) -> NDArray[np.uint8]:
    """`count` bytes of a file, in memory of their own."""
    buffer = np.empty(count, dtype=np.uint8)
    view, got = buffer.data, 0
    try:
        with Path(path).open("rb", buffering=0) as file:
            file.seek(offset)
            while got < count and (more := file.readinto(view[got:])):
                got += more
    except OSError as error:
        raise CorruptItem(f"{path} cannot be read ({error.strerror}): put it back, or prepare the set anew") from None
    if got < count:
        raise CorruptItem(
            f"{path} is truncated ({got} bytes of {count} at offset {offset}): remove it or prepare the set anew"
        )
    return buffer


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a prepared folder; None if it has none. Raises InputError if it cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} does not describe prepared tensors ({error}): prepare the set anew") from None
    if manifest.schema != SCHEMA:
        raise InputError(
            f"{path} has the schema {manifest.schema!r}, this version reads {SCHEMA!r}: prepare the set anew"
        )
    return manifest
