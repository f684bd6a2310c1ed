"""The workload of a model's name: the model of the zoo, the data it takes, and the loss that fits."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import InputError
from stoker.events import OnProgress
from stoker.records import Mode
from stoker.workload.workload import Workload

if TYPE_CHECKING:
    from stoker.workload.models import ModelKind

# What a name after --data gives; anything else is a folder.
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


def load_named(
    name: str, *, data: str | None, mode: Mode | None, items: int | None, weights: Path | None, progress: OnProgress
) -> Workload:
    from torch import nn, optim

    from stoker.workload import calls, models
    from stoker.workload.data.open import open_data

    kind = models.describe(name)
    mode = mode or ("train" if kind.trainable else "infer")
    wanted = _data_kind(kind, data)
    _check_model(kind, mode, wanted)
    if weights is not None:
        weights = weights.expanduser().absolute()
        models.build(name, weights=weights)  # a file that does not fit is told now, not by a trial
    open_part = functools.partial(open_data, wanted, mode=mode, image_size=kind.image_size, pad_id=kind.pad_id or 0)
    opened = open_part(part="train", items=items, progress=progress)
    _check_medium(kind, opened.dataset, wanted)
    return Workload(
        model=functools.partial(models.build, name, weights=weights, least_classes=opened.classes),
        dataset=opened.dataset,
        loss=nn.CrossEntropyLoss() if kind.trainable else None,
        optimizer=functools.partial(optim.SGD, lr=_LEARNING_RATE, momentum=0.9),
        validation=functools.partial(_validation, open_part, items) if kind.trainable else None,
        metric=calls.top1 if kind.trainable else None,
        collate_fn=opened.collate_fn,
        forward=models.forward_of(kind),
        files=opened.files,
        name=name,
        data_name=opened.name,
        facts={"on_device": True} if wanted.startswith("device-") else {},
    )


def _validation(open_part: Callable[..., Any], items: int | None) -> Any:
    """Opened only where it is scored; as in the synthetic sets, there is one item to score for ten to train on."""
    return open_part(part="validation", items=None if items is None else max(1, items // 10)).dataset


def _data_kind(kind: "ModelKind", data: str | None) -> str:
    """What `--data` means for this model; a kind that it cannot take is refused."""
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
    """Whether a folder turned out to hold what the model takes."""
    from stoker.workload.data.clips import ClipFiles

    if kind.medium != "text" and data not in _MEDIA and isinstance(dataset, ClipFiles) != (kind.medium == "video"):
        other = "images" if kind.medium == "video" else "videos"
        raise InputError(f"{kind.name} takes {kind.medium}s, but the folder {data} holds {other}")
