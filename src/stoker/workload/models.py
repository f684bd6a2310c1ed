"""Models by name: the data that each one takes, how to call it, and the model with random or loaded weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
import torchvision.models
from torch import nn

from stoker.errors import InputError
from stoker.packages import optional
from stoker.workload import checkpoint, huggingface

Source = Literal["torchvision", "timm", "hf"]
Family = Literal["image", "video", "text", "segmentation", "detection", "flow"]
DataKind = Literal["jpeg", "video", "text"]

_IMAGE_SIZE = 224
# Folders of torchvision, with their family and number of classes. All other models classify images.
_TORCHVISION_FOLDERS: Mapping[str, tuple[Family, int]] = {
    "detection": ("detection", 91),
    "segmentation": ("segmentation", 21),
    "optical_flow": ("flow", 0),
    "video": ("video", 400),
}


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """The data that a model takes. `classes` is the default size of its head."""

    name: str
    source: Source
    family: Family
    data: DataKind
    classes: int
    image_size: int = _IMAGE_SIZE
    pad_id: int | None = None
    max_tokens: int | None = None
    vocabulary: int | None = None

    @property
    def medium(self) -> Literal["image", "video", "text"]:
        """The kind of its items."""
        return "image" if self.data == "jpeg" else self.data

    @property
    def trainable(self) -> bool:
        """Whether cross entropy fits its output. The other families need their own losses and targets."""
        return self.family in ("image", "video", "text")


def describe(name: str) -> ModelKind:
    """The data that a named model takes. Does not build the model. Raises InputError for an unknown name."""
    source, rest = _parse(name)
    if source == "timm":
        return _describe_timm(rest)
    return _describe_hf(rest) if source == "hf" else _describe_torchvision(rest)


def build(
    name: str, *, weights: Path | None = None, classes: int | None = None, least_classes: int | None = None
) -> nn.Module:
    """The model, with random weights or those of a file.

    `classes` is the size of the head. Without it the head has the size of the file's or the model's own, but at least
    `least_classes`, which the targets need. Raises InputError if the file does not fit.
    """
    if weights is not None:
        return with_state(name, checkpoint.read(weights), path=weights, classes=classes, least_classes=least_classes)
    return _construct(describe(name), _head(describe(name), classes, least_classes))


def with_state(
    name: str,
    state: checkpoint.State,
    *,
    path: Path,
    classes: int | None = None,
    least_classes: int | None = None,
) -> nn.Module:
    """The model with weights that `checkpoint.read` gave, as `build` makes it; errors name the file `path`."""
    kind = describe(name)
    model = _construct(kind, _head(kind, classes, least_classes))
    state = checkpoint.rename(state, model)
    found = checkpoint.classes(state, model)
    if found is not None:
        _check_classes(found, classes=classes, least_classes=least_classes, weights=path)
        model = _construct(kind, found)
    checkpoint.load(state, model, path=path, name=name, head_may_be_new=kind.source == "hf")
    return model


def _head(kind: ModelKind, classes: int | None, least_classes: int | None) -> int | None:
    """The size of a head that is not the model's own; None for that."""
    too_few = classes is None and kind.trainable and kind.classes < (least_classes or 0)
    return least_classes if too_few else classes


def forward_of(kind: ModelKind) -> Callable[[Any, Any], Any] | None:
    """How to call a model that does not take a batch of images directly; None if it does."""
    return {"detection": detect, "flow": flow}.get(kind.family)


def detect(model: Any, images: torch.Tensor) -> Any:
    """Call a detector, which takes a list because its images may differ in size."""
    return model(list(images))


def flow(model: Any, images: torch.Tensor) -> Any:
    """Call a model of optical flow with two frames: each image and the next one in the batch."""
    return model(images, images.roll(1, dims=0))


def names() -> list[str]:
    """Every name that needs no download: all of torchvision, and the table of transformers' models."""
    return [*torchvision.models.list_models(), *(f"hf/{name}" for name in huggingface.names())]


def _parse(name: str) -> tuple[Source, str]:
    prefix, slash, rest = name.partition("/")
    if not slash:
        return "torchvision", name
    if prefix == "timm":
        return "timm", rest
    if prefix == "hf":
        return "hf", rest
    raise InputError(_unknown(name))


def _construct(kind: ModelKind, classes: int | None) -> nn.Module:
    if classes is not None and (classes < 1 or kind.family == "flow"):
        raise InputError(f"{kind.name} cannot have {classes} classes")
    if kind.source == "hf":
        return huggingface.build(_parse(kind.name)[1], classes)
    return _construct_timm(kind, classes) if kind.source == "timm" else _construct_torchvision(kind, classes)


def _check_classes(found: int, *, classes: int | None, least_classes: int | None, weights: Path) -> None:
    if classes is not None and found != classes:
        raise InputError(f"{weights} has a head of {found} classes, but {classes} were asked for")
    if least_classes is not None and found < least_classes:
        raise InputError(f"{weights} has a head of {found} classes, but the data has {least_classes}")


# ---------------------------------------------------------------- torchvision


def _describe_torchvision(name: str) -> ModelKind:
    module = _torchvision_builder(name).__module__.removeprefix("torchvision.models.")
    family, classes = _TORCHVISION_FOLDERS.get(module.partition(".")[0], ("image", 1000))
    size = _IMAGE_SIZE
    if "inception" in module:
        size = 299
    elif module == "video.resnet":
        size = 112
    return ModelKind(
        name=name.lower(),
        source="torchvision",
        family=family,
        data="video" if family == "video" else "jpeg",
        classes=classes,
        image_size=size,
    )


def _torchvision_builder(name: str) -> Callable[..., nn.Module]:
    try:
        builder: Callable[..., nn.Module] = torchvision.models.get_model_builder(name)
    except ValueError:
        raise InputError(_unknown(name)) from None
    return builder


def _construct_torchvision(kind: ModelKind, classes: int | None) -> nn.Module:
    options: dict[str, Any] = {"weights": None}
    if kind.family in ("detection", "segmentation"):
        options["weights_backbone"] = None  # the default would download weights
    if kind.name.startswith("quantized_"):
        options["quantize"] = False
    if kind.name.removeprefix("quantized_") in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # the default is slow and warns, for equally random weights
    if classes is not None:
        options["num_classes"] = classes
    return _torchvision_builder(kind.name)(**options)


def _unknown(name: str) -> str:
    near = get_close_matches(name, names(), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "torchvision's models go by their names there"
    elsewhere = "timm's are written timm/NAME, transformers' hf/NAME, your own FILE.py:FUNCTION"
    return f"no model is called {name!r}; {hint} ({elsewhere})"


# ---------------------------------------------------------------- timm


def _describe_timm(name: str) -> ModelKind:
    config = _timm_config(name)
    _, height, width = config.input_size
    least = max((config.min_input_size or (3, 0, 0))[1:])
    size = max(height, width) if config.fixed_input_size or least > _IMAGE_SIZE else _IMAGE_SIZE
    return ModelKind(
        name=f"timm/{name}", source="timm", family="image", data="jpeg", classes=config.num_classes, image_size=size
    )


def _timm_config(name: str) -> Any:
    timm = optional("timm", extra="timm")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(f'timm/{model}' for model in near)}?" if near else ""
        raise InputError(f"timm has no model called {name!r}{hint}")
    try:
        config = timm.models.get_pretrained_cfg(name)
    except RuntimeError:
        tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")[:5]
        raise InputError(f"timm has no {name!r}; it has: {', '.join(tags)}") from None
    return config if config is not None else timm.models.PretrainedCfg(num_classes=1000, input_size=(3, 224, 224))


def _construct_timm(kind: ModelKind, classes: int | None) -> nn.Module:
    timm = optional("timm", extra="timm")
    options = {} if classes is None else {"num_classes": classes}
    model: nn.Module = timm.create_model(_parse(kind.name)[1], pretrained=False, **options)
    return model


# ---------------------------------------------------------------- transformers


def _describe_hf(name: str) -> ModelKind:
    facts = huggingface.facts(name)
    return ModelKind(
        name=f"hf/{name}",
        source="hf",
        family=facts.family,
        data="text" if facts.family == "text" else "jpeg",
        classes=facts.classes,
        image_size=facts.image_size or _IMAGE_SIZE,
        pad_id=facts.pad_id,
        max_tokens=facts.max_tokens,
        vocabulary=facts.vocabulary,
    )
