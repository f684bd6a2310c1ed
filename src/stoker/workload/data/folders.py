"""Reads folders of class folders: images or videos, their classes, and the parts for training and validation.

This is the layout of ImageNet, Imagenette and UCF101, with or without `train` and `val` folders above the classes.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError

Part = Literal["train", "validation"]
Media = Literal["images", "videos", "tensors", "texts"]

PARTS: tuple[Part, ...] = ("train", "validation")
EXTENSIONS: dict[Media, frozenset[str]] = {
    "images": frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"}),
    "videos": frozenset({".avi", ".mp4", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v"}),
    "tensors": frozenset({".npy"}),
    "texts": frozenset({".txt"}),
}
_VALIDATION_NAMES = ("val", "valid", "validation", "test")
_HELD_OUT = 10


class Listing:
    """The files of one part and their labels, with the classes interleaved, so that the first files have all classes.

    All names are in one array. With a million Python strings, reference counting would copy the memory pages that hold
    them into every worker process.
    """

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.root = str(root)
        self.classes = tuple(classes)
        self.labels: NDArray[np.int32] = np.asarray(labels, dtype=np.int32)
        self._names: NDArray[np.uint8] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        self._ends: NDArray[np.int64] = np.cumsum([0, *(len(name) for name in encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The path relative to the root."""
        return os.fsdecode(self._names[self._ends[index] : self._ends[index + 1]].tobytes())

    def path(self, index: int) -> str:
        return f"{self.root}{os.sep}{self.name(index)}"

    def label(self, index: int) -> int:
        return int(self.labels[index])

    def paths(self, items: int | None = None) -> list[Path]:
        count = len(self) if items is None else min(items, len(self))
        return [Path(self.path(index)) for index in range(count)]


@dataclass(frozen=True)
class Folder:
    """The content of a folder of class folders. `flat` means that there are files but no class folders."""

    media: Media
    flat: bool
    parts: dict[Part, Listing]


@dataclass(frozen=True)
class _Found:
    """The files of one media below one folder, by class name."""

    root: Path
    by_class: dict[str, list[str]]
    flat: bool


def read_folder(root: Path, media: Sequence[Media] = ("images", "videos"), *, parts: Sequence[Part] = PARTS) -> Folder:
    """List the parts of a folder. Without a validation part, one file in ten of each class is held out.

    Raises InputError if the folder has no such files, or if its parts do not have the same classes.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    below = {entry.name.lower(): Path(entry.path) for entry in _folders(root)}
    train_root = below.get("train", root)
    kind, train = _find(train_root, media)
    validation_root = next((below[name] for name in _VALIDATION_NAMES if name in below), None)
    if train_root == root or validation_root is None:
        return Folder(kind, train.flat, _split(train))
    listings: dict[Part, Listing] = {"train": _listing(train, train.by_class, sorted(train.by_class))}
    if "validation" in parts:
        listings["validation"] = _validation(validation_root, kind, train)
    return Folder(kind, train.flat, listings)


def read_labelled(root: Path, media: Media = "images", *, classes: int | None = None) -> Listing:
    """Every file of a folder of class folders; of its train part, where it has one. `classes` takes the first ones.

    Raises InputError if the folder has no such files, if it has no class folders, or too few of them.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    below = {entry.name.lower(): Path(entry.path) for entry in _folders(root)}
    _, found = _find(below.get("train", root), (media,))
    if found.flat:
        raise InputError(
            f"{root} has no class folders, so its {media} have no labels: sort them into one folder a class"
        )
    names = sorted(found.by_class)
    if classes is not None and classes > len(names):
        raise InputError(f"{root} has {len(names)} classes, and {classes} were asked for")
    names = names[:classes]
    if len(names) < 2:
        raise InputError(f"{root} has one class ({names[0]}), and nothing can be told apart: at least 2 are needed")
    return _listing(found, {name: found.by_class[name] for name in names}, names)


def _validation(root: Path, kind: Media, train: _Found) -> Listing:
    _, found = _find(root, (kind,))
    if found.flat and not train.flat:
        raise InputError(f"{root} has no class folders, but {train.root} has: sort its files into the same classes")
    unknown = sorted(set(found.by_class) - set(train.by_class))
    if unknown:
        raise InputError(f"{root} has classes that {train.root} has not: {', '.join(unknown[:5])}")
    return _listing(found, found.by_class, sorted(train.by_class))


def _find(root: Path, media: Sequence[Media]) -> tuple[Media, _Found]:
    """The files below a folder, of the media that most of them have."""
    found = [(kind, _find_media(root, EXTENSIONS[kind])) for kind in media]
    kind, best = max(found, key=lambda pair: sum(len(names) for names in pair[1].by_class.values()))
    if not best.by_class:
        wanted = " or ".join(media)
        raise InputError(
            f"{root} has no {wanted}; expected class folders, such as {root}/cat/1.jpg and {root}/dog/1.jpg"
        )
    return kind, best


def _find_media(root: Path, extensions: frozenset[str]) -> _Found:
    by_class = {entry.name: list(_files(entry.path, entry.name, extensions)) for entry in _folders(root)}
    by_class = {name: files for name, files in by_class.items() if files}
    if by_class:
        return _Found(root, by_class, flat=False)
    loose = list(_files(str(root), "", extensions))
    return _Found(root, {"all": loose} if loose else {}, flat=True)


def _folders(root: Path) -> list[os.DirEntry[str]]:
    with os.scandir(root) as entries:
        return sorted((e for e in entries if e.is_dir() and not e.name.startswith(".")), key=lambda e: e.name)


def _files(folder: str, prefix: str, extensions: frozenset[str]) -> Iterator[str]:
    """Sorted names, relative to the root, of the files below `folder` with one of the extensions."""
    with os.scandir(folder) as entries:
        ordered = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    for entry in ordered:
        name = f"{prefix}{os.sep}{entry.name}" if prefix else entry.name
        if entry.is_dir():
            yield from _files(entry.path, name, extensions)
        elif os.path.splitext(entry.name)[1].lower() in extensions and entry.is_file():  # noqa: PTH122 - a million names
            yield name


def _split(found: _Found) -> dict[Part, Listing]:
    classes = sorted(found.by_class)
    held = {name: files[_HELD_OUT - 1 :: _HELD_OUT] or files[1:][-1:] for name, files in found.by_class.items()}
    kept = {name: sorted(set(files) - set(held[name])) for name, files in found.by_class.items()}
    return {"train": _listing(found, kept, classes), "validation": _listing(found, held, classes)}


def _listing(found: _Found, by_class: dict[str, list[str]], classes: list[str]) -> Listing:
    """Interleave the classes: sort by rank within the class, then by class."""
    ranked = sorted(
        (rank, label, name) for label, own in enumerate(classes) for rank, name in enumerate(by_class.get(own, ()))
    )
    return Listing(found.root, [name for *_, name in ranked], [label for _, label, _ in ranked], classes)
