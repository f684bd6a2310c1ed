"""Workloads by name: a model's name with data, or `train.py:workload`, a function in the user's own file."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import InputError
from stoker.events import OnProgress, silent
from stoker.records import Mode, WorkloadSpec
from stoker.workload.userfile import load_function
from stoker.workload.workload import Workload

if TYPE_CHECKING:
    from stoker.workload.models import ModelKind

# The kind of items that each name after --data gives. Any other value of --data is a folder.
_MEDIA = {
    "jpeg": "image",
    "tensors": "image",
    "packed": "image",
    "video": "video",
    "text": "text",
    "device-image": "image",
    "device-video": "video",
    "device-text": "text",
}
_LEARNING_RATE = 0.01


def load(
    spec: str,
    *,
    data: str | None = None,
    mode: Mode | None = None,
    items: int | None = None,
    weights: Path | None = None,
    progress: OnProgress = silent,
) -> Workload:
    """The workload that `spec` names.

    `data` and `weights` are only for a model's name. `items` limits the size of the set in both cases.

    Raises InputError if the name is unknown, if the user's file or function fails, or if model and data do not fit.
    """
    if items is not None and items < 1:
        raise InputError(f"items must be at least 1, got {items}")
    if not WorkloadSpec(spec=spec).from_function:
        return _load_named(spec, data=data, mode=mode, items=items, weights=weights, progress=progress)
    for flag, value in (("--data", data), ("--weights", weights)):
        if value is not None:
            raise InputError(f"{flag} goes with a model's name; {spec} brings its own, so change it there")
    workload = load_function(spec)
    return workload if items is None else bounded(workload, items)


def bounded(workload: Workload, items: int) -> Workload:
    """The same workload on its first `items` items."""
    if workload.sampler is not None or workload.batch_sampler is not None:
        raise InputError("--items cannot bound a workload that brings its own sampler; bound it there")
    return workload.with_(dataset=functools.partial(_first, workload.dataset, items))


def _first(dataset: Any, items: int) -> Any:
    from torch.utils.data import IterableDataset, Subset

    from stoker.workload import calls
    from stoker.workload.loaders import first_items, is_loader

    made = calls.make(dataset)
    if is_loader(made):
        return first_items(made, items)
    if isinstance(made, IterableDataset) or not hasattr(made, "__len__"):
        raise InputError(
            "--items can only bound a dataset that knows its length; bound an iterable one where it is made"
        )
    return Subset(made, range(min(items, len(made))))


# ---------------------------------------------------------------- models by name


def _load_named(
    name: str, *, data: str | None, mode: Mode | None, items: int | None, weights: Path | None, progress: OnProgress
) -> Workload:
    from torch import nn, optim

    from stoker.workload import calls, models
    from stoker.workload.data.open import open_data

    kind, mode, wanted = _fitting(name, data, mode)
    if weights is not None:
        weights = weights.expanduser().absolute()
        models.build(name, weights=weights)  # report a file that does not fit now, not in a trial
    open_part = functools.partial(open_data, wanted, mode=mode, image_size=kind.image_size, pad_id=kind.pad_id or 0)
    opened = open_part(part="train", items=items, progress=progress)
    _check_medium(kind, opened.dataset, wanted)
    return Workload(
        model=functools.partial(models.build, name, weights=weights, least_classes=opened.classes),
        dataset=opened.dataset,
        loss=nn.CrossEntropyLoss() if kind.trainable else None,
        optimizer=functools.partial(optim.SGD, lr=_LEARNING_RATE, momentum=0.9) if kind.trainable else None,
        validation=functools.partial(_validation, open_part, items) if kind.trainable else None,
        metric=calls.top1 if kind.trainable else None,
        collate_fn=opened.collate_fn,
        forward=models.forward_of(kind),
        files=opened.files,
        name=name,
        data_name=opened.name,
        on_device=wanted.startswith("device-"),
    )


def check_named(name: str, *, data: str | None, mode: Mode | None) -> None:
    """Raise InputError for a model's name that is unknown, or that cannot have these data or this mode. Nothing is
    opened or built."""
    _fitting(name, data, mode)


def _fitting(name: str, data: str | None, mode: Mode | None) -> tuple["ModelKind", Mode, str]:
    """The model, its mode and its kind of data."""
    from stoker.workload import models

    kind = models.describe(name)
    mode = mode or ("train" if kind.trainable else "infer")
    wanted = _data_kind(kind, data)
    _check_model(kind, mode, wanted)
    return kind, mode, wanted


def _validation(open_part: Callable[..., Any], items: int | None) -> Any:
    """The validation set, opened only if a run scores it. As in the synthetic sets, it has a tenth as many items."""
    return open_part(part="validation", items=None if items is None else max(1, items // 10)).dataset


def _data_kind(kind: "ModelKind", data: str | None) -> str:
    """The kind of data that `--data` means for this model. Raises InputError for a kind that the model cannot take."""
    if data is None:
        return kind.data
    if data == "device":
        return f"device-{kind.medium}"
    gives = _MEDIA.get(data, kind.medium if kind.medium != "text" else "image")  # a folder holds images or videos
    if gives != kind.medium:
        can_have = [name for name, medium in _MEDIA.items() if medium == kind.medium and not name.startswith("device-")]
        folder = "" if kind.medium == "text" else f" or a folder of {kind.medium}s"
        raise InputError(f"{kind.name} takes {kind.medium} data; --data can be: {', '.join(can_have)}, device{folder}")
    return data


def _check_model(kind: "ModelKind", mode: Mode, wanted: str) -> None:
    from stoker.workload.data import text

    if mode == "train" and not kind.trainable:
        raise InputError(
            f"{kind.name} is a {kind.family} model, which no loss fits by name; use --mode infer, or your own function"
        )
    for has, needs, what in (
        (kind.max_tokens, text.LONGEST, "takes texts of {} tokens at most, and the set's have up to {}"),
        (kind.vocabulary, text.VOCABULARY, "knows {} tokens, and the set has {}"),
    ):
        if wanted == "text" and has is not None and has < needs:
            raise InputError(f"{kind.name} {what.format(has, needs)}; bring data that suits it in a function of yours")


def _check_medium(kind: "ModelKind", dataset: Any, data: str) -> None:
    """Raise InputError if a folder holds images for a video model, or videos for an image model."""
    from stoker.workload.data.video import ClipFiles

    if kind.medium != "text" and data not in _MEDIA and isinstance(dataset, ClipFiles) != (kind.medium == "video"):
        other = "images" if kind.medium == "video" else "videos"
        raise InputError(f"{kind.name} takes {kind.medium}s, but the folder {data} holds {other}")
