"""A workload of a few numbers: what a person's own file looks like, small enough for any test."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import stoker.workload.workload as stoker


class Squares(Dataset[tuple[Tensor, int]]):
    """Four numbers and whether their sum is positive, a function of the index alone."""

    def __init__(self, items: int = 64) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        values = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return values, int(values.sum() > 0)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def accuracy(output: Tensor, target: Tensor) -> float:
    return (output.argmax(dim=1) == target).float().mean().item()


def workload() -> stoker.Workload:
    return stoker.Workload(
        model=make_model,
        dataset=Squares,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        validation=partial(Squares, 16),
        metric=accuracy,
    )


def inference() -> stoker.Workload:
    return stoker.Workload(model=make_model, dataset=Squares, name="small inference")


def with_arguments(model: nn.Module, items: int) -> stoker.Workload:
    return stoker.Workload(model=model, dataset=Squares(items))


def not_a_workload() -> nn.Module:
    return make_model()


def failing() -> stoker.Workload:
    raise FileNotFoundError("no folder /data/imagenet")
