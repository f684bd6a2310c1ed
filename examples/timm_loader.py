"""The loader of a timm training script: `create_dataset`, `create_loader`, RandAugment, random erasing."""

import tempfile
from pathlib import Path

import torch
from PIL import Image
from timm.data import create_dataset, create_loader
from torch import nn, optim

import stoker

FOLDER = Path(tempfile.gettempdir(), "stoker-examples", "small-images")


def loader() -> object:
    for number in range(64):
        path = FOLDER / f"class{number % 2}" / f"{number}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((96, 96), 60).convert("RGB").save(path)
    # Planted: twelve random operations on images that are enlarged to 768 × 768 first.
    return create_loader(
        create_dataset("", root=str(FOLDER)),
        input_size=(3, 768, 768),
        batch_size=8,
        is_training=True,
        auto_augment="rand-m9-n12-p1",
        re_prob=0.25,
        num_workers=0,
        device=torch.device("cpu"),
    )


def workload() -> stoker.Workload:
    model = nn.Sequential(nn.AvgPool2d(24), nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    return stoker.Workload(model=model, loader=loader, loss=nn.CrossEntropyLoss(), optimizer=optim.AdamW)
