"""Workloads that are odd in ways that tuning must bear: tiny, uneven, or broken altogether."""

import concurrent.futures
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, get_worker_info

import stoker


class Few(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index >= self.size:
            raise IndexError(index)
        return torch.zeros(8), 0


class Uneven(Few):
    """One item in seven takes fifty times as long as the others."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01 if index % 7 == 0 else 0.0002)
        return super().__getitem__(index)


class Corrupt(Few):
    def __getitem__(self, index: int) -> Any:
        raise OSError(f"broken file {index}")


class BreaksLate(Few):
    """What is probed loads; the end of the set does not."""

    def __getitem__(self, index: int) -> Any:
        if index == self.size - 1:
            raise ValueError("the last page is missing")
        return super().__getitem__(index)


class DiesInAWorker(Few):
    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            os._exit(3)
        return super().__getitem__(index)


class NoItems(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def workload_of(dataset: Dataset[Any]) -> stoker.Workload:
    return stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=dataset, loss=torch.nn.CrossEntropyLoss())


def three_items() -> stoker.Workload:
    return workload_of(Few(3))


def dies_in_a_worker() -> stoker.Workload:
    return workload_of(DiesInAWorker(100))


def uneven() -> stoker.Workload:
    return workload_of(Uneven(1000))


def corrupt() -> stoker.Workload:
    return workload_of(Corrupt(100))


def breaks_late() -> stoker.Workload:
    return workload_of(BreaksLate(4000))


def empty_stream() -> stoker.Workload:
    return workload_of(NoItems())


def own_batches() -> stoker.Workload:
    """Batches of five, whatever is asked for."""
    data = Few(400)
    return workload_of(data).with_(batch_sampler=BatchSampler(SequentialSampler(data), 5, drop_last=False))


POOL = concurrent.futures.ThreadPoolExecutor(1)


class Pooled(Dataset[Any]):
    """Asks a thread that was there before for every item."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return POOL.submit(torch.full, (8,), float(index)).result(), index % 2


def pooled() -> stoker.Workload:
    POOL.submit(int).result()
    return stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=Pooled, loss=torch.nn.CrossEntropyLoss())


def exits(model: torch.nn.Module, batch: Any) -> None:
    if len(batch[0]) == 8:
        os._exit(3)


def made_slowly() -> torch.nn.Module:
    time.sleep(60)
    return torch.nn.Linear(8, 2)


def slow_model() -> stoker.Workload:
    return stoker.Workload(model=made_slowly, dataset=Few(64))


def leaves() -> stoker.Workload:
    return stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=Few(64), step=exits)
