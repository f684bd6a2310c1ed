"""Workloads given as DataLoaders, and batches that are no plain containers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

import stoker

ROWS = TensorDataset(torch.rand(120, 8), torch.arange(120) % 2)


def net() -> nn.Module:
    return nn.Linear(8, 2)


def loader() -> "DataLoader[Any]":
    return DataLoader(ROWS, batch_size=10, shuffle=True, num_workers=1, prefetch_factor=3)


def from_loader() -> stoker.Workload:
    return stoker.Workload(model=net, loader=loader, loss=nn.CrossEntropyLoss())


class Whole(IterableDataset[Any]):
    """Whole batches of sixteen; every worker gives all of them."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(12):
            yield torch.rand(16, 8), torch.zeros(16, dtype=torch.long)


def whole_batches() -> stoker.Workload:
    return stoker.Workload(
        model=net, loader=DataLoader(Whole(), batch_size=None, num_workers=2), loss=nn.CrossEntropyLoss()
    )


def in_order(batch_size: int) -> BatchSampler:
    return BatchSampler(SequentialSampler(ROWS), batch_size, drop_last=True)


def sampler_of_a_size() -> stoker.Workload:
    return stoker.Workload(model=net, dataset=ROWS, batch_sampler=in_order, loss=nn.CrossEntropyLoss())


def fives(batch_size: int) -> BatchSampler:
    """Batches of five, whatever the size that is asked for."""
    return BatchSampler(SequentialSampler(ROWS), 5, drop_last=True)


def sampler_that_passes_over_the_size() -> stoker.Workload:
    return stoker.Workload(model=net, dataset=ROWS, batch_sampler=fives, loss=nn.CrossEntropyLoss())


class Opaque:
    """A batch that says nothing about itself."""

    __slots__ = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows


def opaque(items: list[Any]) -> Opaque:
    return Opaque(torch.stack([row for row, _ in items]))


def look(model: Any, batch: Opaque) -> None:
    model(batch.rows).sum().backward()


def opaque_without_a_step() -> stoker.Workload:
    return stoker.Workload(model=net, dataset=ROWS, collate_fn=opaque)


def opaque_batches() -> stoker.Workload:
    return stoker.Workload(model=net, dataset=ROWS, collate_fn=opaque, step=look)
