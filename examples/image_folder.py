"""An ImageNet-like script: a folder of photos, random crops, a small network."""

import tempfile
from pathlib import Path

from PIL import Image
from torch import nn, optim
from torchvision import transforms
from torchvision.datasets import ImageFolder

import stoker

FOLDER = Path(tempfile.gettempdir(), "stoker-examples", "photos")


def photos() -> ImageFolder:
    for number in range(32):
        path = FOLDER / f"class{number % 2}" / f"{number}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Planted: each photo has 4.3 million pixels and is decoded whole, for a crop of 64 × 64.
            Image.effect_noise((2400, 1800), 60).convert("RGB").save(path)
    steps = [transforms.RandomResizedCrop(64, (0.01, 0.05)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return ImageFolder(str(FOLDER), transforms.Compose(steps))


def workload() -> stoker.Workload:
    return stoker.Workload(
        model=nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 2)),
        dataset=photos,
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.SGD,
    )
