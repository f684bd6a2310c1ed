"""A small convolutional net and pictures of stripes: a training that a CPU finishes in seconds, and that learns."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stoker.workload.workload import Workload

CLASSES = 10
SIZE = 24
_ITEMS, _VALIDATION = 1000, 500
_NOISE = 2.5
"""Beside stripes of height 1: so much that a training does not end with every picture right."""


def stripes(items: int, seed: int) -> TensorDataset:
    """Pictures of stripes in noise. The class is one of ten directions; where the stripes begin is random."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(items) % CLASSES
    angle = labels * torch.pi / CLASSES
    start = torch.rand(items, generator=random) * 2 * torch.pi
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    across = angle.cos()[:, None, None] * row + angle.sin()[:, None, None] * column
    pictures = torch.sin(across + start[:, None, None])
    noise = torch.randn(pictures.shape, generator=random)
    return TensorDataset((pictures + _NOISE * noise).unsqueeze(1), labels)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def accuracy(output: Tensor, target: Tensor) -> float:
    return (output.argmax(dim=1) == target).float().mean().item()


def workload() -> Workload:
    return Workload(
        model=net,
        dataset=partial(stripes, _ITEMS, 0),
        validation=partial(stripes, _VALIDATION, 1),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        metric=accuracy,
        name="patterns",
        data_name="stripes",
    )
