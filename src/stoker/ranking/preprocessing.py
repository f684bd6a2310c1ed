"""How each model wants its images: its own size, crop and normalisation, from the package that brings the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stoker.packages import optional
from stoker.workload.data.images import MEAN, STD, resize_for, transform_for
from stoker.workload.models import ModelKind


class Preparation(NamedTuple):
    """`transform` turns a decoded image into the model's input. Models with equal `key` can share prepared items."""

    transform: Callable[[Any], Any]
    key: str
    image_size: int


def preparation(kind: ModelKind) -> Preparation:
    """The preprocessing that belongs to a model: torchvision's for its default weights, timm's data configuration, the
    `preprocessor_config.json` in a folder of transformers. Otherwise ImageNet's usual one at the model's size."""
    if kind.source == "timm":
        return _of_timm(kind)
    if kind.source == "hf":
        return _of_folder(kind)
    return _of_torchvision(kind)


def _of_torchvision(kind: ModelKind) -> Preparation:
    from torchvision import models

    try:
        known = models.get_model_weights(kind.name)
    except ValueError:
        return _usual(kind.image_size)
    if not len(known):
        return _usual(kind.image_size)
    transform = known.DEFAULT.transforms()
    size = getattr(transform, "crop_size", None)
    if not isinstance(size, list | tuple) or not size:
        return _usual(kind.image_size)
    return Preparation(transform, repr(transform), int(size[-1]))


def _of_timm(kind: ModelKind) -> Preparation:
    data = optional("timm.data", extra="timm")
    timm = optional("timm", extra="timm")
    try:
        found = timm.models.get_pretrained_cfg(kind.name.removeprefix("timm/"))
    except RuntimeError:
        found = None
    if found is None:
        return _usual(kind.image_size)
    config = data.resolve_data_config(pretrained_cfg=found.to_dict())
    return Preparation(data.create_transform(**config), repr(sorted(config.items())), int(config["input_size"][-1]))


def _of_folder(kind: ModelKind) -> Preparation:
    try:
        told = json.loads((Path(kind.name.removeprefix("hf/")) / "preprocessor_config.json").read_text())
        mean, std = (tuple(float(each) for each in told[name]) for name in ("image_mean", "image_std"))
    except (OSError, ValueError, KeyError, TypeError):
        return _usual(kind.image_size)
    return _made(kind.image_size, mean, std)


def _usual(size: int) -> Preparation:
    return Preparation(transform_for("infer", size), repr((size, resize_for(size), MEAN, STD)), size)


def _made(size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Preparation:
    from torchvision import transforms

    steps = [transforms.Resize(resize_for(size)), transforms.CenterCrop(size), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize(mean, std)])
    return Preparation(transform, repr((size, resize_for(size), mean, std)), size)
