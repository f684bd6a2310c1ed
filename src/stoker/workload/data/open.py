"""Opens data by name: a synthetic set, which is built on first use, or a folder of the user's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from stoker.errors import InputError
from stoker.events import OnProgress, silent
from stoker.records import Mode
from stoker.workload.data.folders import Listing, Part, read_folder

if TYPE_CHECKING:
    from stoker.workload.data.random_items import Form

# Only the openers import torch, so that importing this module stays cheap.
Kind = Literal["jpeg", "tensors", "packed", "text", "video", "device-image", "device-text", "device-video"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_IMAGE_SIZE, _CLIP_SIZE = 224, 112
_RANDOM_ITEMS = 1024


@dataclass(frozen=True, kw_only=True)
class OpenedData:
    """An opened dataset. `files` lists the files that it reads. `collate_fn` None means PyTorch's default."""

    dataset: Any
    classes: int
    name: str
    path: Path | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    files: Callable[[], list[Path]] = list


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    part: Part
    mode: Mode
    items: int | None
    image_size: int | None
    files: int | None
    pad_id: int
    root: Path | None
    progress: OnProgress

    @property
    def transform_mode(self) -> Mode:
        """Augment only the training part, and only in training."""
        return "train" if self.mode == "train" and self.part == "train" else "infer"

    def building(self, default_files: int) -> dict[str, Any]:
        return {"files": self.files or default_files, "root": self.root, "progress": self.progress}


def open_data(
    kind: str,
    *,
    part: Part,
    mode: Mode,
    items: int | None = None,
    image_size: int | None = None,
    root: Path | None = None,
    files: int | None = None,
    pad_id: int = 0,
    progress: OnProgress = silent,
) -> OpenedData:
    """Open one of `KINDS`, or a folder of class folders of images or videos, or one that `prepare` made.

    `items` limits the size of the set; a synthetic set with fewer files repeats them. `image_size` defaults to 224 for
    images and 112 for videos. `root` replaces the user's cache folder for synthetic sets, `files` is how many files to
    build, and `pad_id` fills up short texts. Raises InputError for unknown names and unusable folders.
    """
    for name, value in (("items", items), ("image size", image_size), ("files", files)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    wanted = _Wanted(
        part=part,
        mode=mode,
        items=items,
        image_size=image_size,
        files=files,
        pad_id=pad_id,
        root=root,
        progress=progress,
    )
    opener = _OPENERS.get(kind)
    return opener(wanted) if opener else _open_path(kind, wanted)


def _open_jpeg(wanted: _Wanted) -> OpenedData:
    from stoker.workload.data.synthetic import FILES, build_jpegs

    path = build_jpegs(**wanted.building(FILES))
    return _open_images(read_folder(path).parts[wanted.part], wanted, wanted.items, "jpeg", path)


def _open_tensors(wanted: _Wanted, packed: bool) -> OpenedData:
    from stoker.workload.data.prepare import build_tensors
    from stoker.workload.data.synthetic import FILES

    size = wanted.image_size or _IMAGE_SIZE
    path = build_tensors(packed=packed, image_size=size, **wanted.building(FILES))
    return _open_prepared(path, wanted, "packed" if packed else "tensors", repeats=True)


def _open_text(wanted: _Wanted) -> OpenedData:
    from stoker.workload.data.text import CLASSES, FILES, Texts, build_texts, pad_batch

    path = build_texts(**wanted.building(FILES))
    dataset = Texts(path, wanted.part, wanted.items)
    return OpenedData(
        dataset=dataset,
        classes=CLASSES,
        name="text",
        path=path,
        collate_fn=partial(pad_batch, pad_id=wanted.pad_id),
        files=partial(list, (Path(dataset.path),)),
    )


def _open_video(wanted: _Wanted) -> OpenedData:
    from stoker.workload.data.video import FILES, build_videos

    path = build_videos(**wanted.building(FILES))
    return _open_clips(read_folder(path).parts[wanted.part], wanted, wanted.items, "video", path)


def _open_random(wanted: _Wanted, form: "Form") -> OpenedData:
    from stoker.workload.data import synthetic, text
    from stoker.workload.data.random_items import RandomItems

    size = wanted.image_size or (_CLIP_SIZE if form == "video" else _IMAGE_SIZE)
    classes = text.CLASSES if form == "text" else synthetic.CLASSES
    return OpenedData(
        dataset=RandomItems(form, items=wanted.items or _RANDOM_ITEMS, classes=classes, size=size),
        classes=classes,
        name=f"device-{form}",
        collate_fn=partial(text.pad_batch, pad_id=wanted.pad_id) if form == "text" else None,
    )


def _open_path(kind: str, wanted: _Wanted) -> OpenedData:
    path = Path(kind).expanduser()
    if not path.exists():
        known = [*(name for name in KINDS if not name.startswith("device-")), "device"]
        raise InputError(f"{kind!r} is neither a known kind of data nor an existing folder; known: {', '.join(known)}")
    from stoker.workload.data.tensors import read_manifest

    if not path.is_dir():
        raise InputError(f"{path} is a file; expected a folder of class folders of images or videos")
    name = path.absolute().name
    if read_manifest(path) is not None:
        return _open_prepared(path, wanted, name, repeats=False)
    folder = read_folder(path, parts=(wanted.part,))
    listing = folder.parts[wanted.part]
    if not len(listing):
        raise InputError(f"{path} has no validation part, and too few files to hold some out as one")
    opener = _open_images if folder.media == "images" else _open_clips
    items = min(wanted.items or len(listing), len(listing))
    return opener(listing, wanted, items, f"{name} (one class)" if folder.flat else name, path)


def _open_images(listing: Listing, wanted: _Wanted, items: int | None, name: str, path: Path) -> OpenedData:
    from stoker.workload.data.images import ImageFiles, transform_for

    transform = transform_for(wanted.transform_mode, wanted.image_size or _IMAGE_SIZE)
    return OpenedData(
        dataset=ImageFiles(listing, transform, items),
        classes=len(listing.classes),
        name=name,
        path=path,
        files=partial(listing.paths, items),
    )


def _open_clips(listing: Listing, wanted: _Wanted, items: int | None, name: str, path: Path) -> OpenedData:
    from stoker.workload.data.video import ClipFiles, transform_for

    mode = wanted.transform_mode
    transform = transform_for(mode, wanted.image_size or _CLIP_SIZE)
    return OpenedData(
        dataset=ClipFiles(listing, transform, anywhere=mode == "train", items=items),
        classes=len(listing.classes),
        name=name,
        path=path,
        files=partial(listing.paths, items),
    )


def _open_prepared(path: Path, wanted: _Wanted, name: str, *, repeats: bool) -> OpenedData:
    from stoker.workload.data.tensors import open_tensors

    dataset, files, classes = open_tensors(path, wanted.part, wanted.items, repeats=repeats)
    size = dataset.shape[-1]
    if wanted.image_size not in (None, size):
        raise InputError(f"{path} was prepared at {size} pixels, not {wanted.image_size}: prepare it anew")
    return OpenedData(dataset=dataset, classes=classes, name=name, path=path, files=files)


_OPENERS: dict[str, Callable[[_Wanted], OpenedData]] = {
    "jpeg": _open_jpeg,
    "tensors": partial(_open_tensors, packed=False),
    "packed": partial(_open_tensors, packed=True),
    "text": _open_text,
    "video": _open_video,
    "device-image": partial(_open_random, form="image"),
    "device-text": partial(_open_random, form="text"),
    "device-video": partial(_open_random, form="video"),
}
