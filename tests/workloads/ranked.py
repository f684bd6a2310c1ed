"""Workloads for runs of several ranks: delays and failures are planted in one of them, which `RANK` tells."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

import stoker

ITEM_S, STEP_S = 0.005, 0.030
SLOW = "1"
"""The rank that has the delay or the failure."""


def rank() -> str:
    return os.environ.get("RANK", "0")


def spend(seconds: float) -> None:
    """Sleep, and write down how long that was by this process' own clock, for whoever asked for it."""
    began = time.perf_counter()
    time.sleep(max(0.0, seconds - 0.0005))
    while time.perf_counter() < began + seconds:
        pass
    note(f"spent-{rank()}", f"{time.perf_counter() - began}\n")


def note(name: str, text: str) -> None:
    """Write into the folder that the caller named. The file stays open: to open it would be a delay of its own."""
    folder = os.environ.get("RANKED_NOTES")
    if folder:
        if name not in _files:
            _files[name] = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(_files[name], text.encode())


_files: dict[str, int] = {}


class Numbers(Dataset[Any]):
    size = 400

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), float(index)), index % 2


class SlowItems(Numbers):
    def __getitem__(self, index: int) -> Any:
        if rank() == SLOW:
            spend(ITEM_S)
        return super().__getitem__(index)


class BadItem(Numbers):
    def __getitem__(self, index: int) -> Any:
        if rank() == SLOW and index == 41:
            raise ValueError("label 'cat' is not a number")
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    """Rank 0 has five times as many items as the others."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(100 if rank() == "0" else 20):
            yield torch.full((8,), float(index)), index % 2


class Noted(Numbers):
    """Writes down which items each rank loads."""

    size = 30

    def __getitem__(self, index: int) -> Any:
        note(f"items-{rank()}", f"{index}\n")
        return super().__getitem__(index)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))


def with_data(dataset: Any, **parts: Any) -> stoker.Workload:
    return stoker.Workload(model=model, dataset=dataset, loss=torch.nn.CrossEntropyLoss(), **parts)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    inputs, target = batch
    return torch.nn.functional.cross_entropy(model(inputs), target)


def even() -> stoker.Workload:
    return with_data(Numbers)


def slow_items() -> stoker.Workload:
    return with_data(SlowItems)


def slow_step() -> stoker.Workload:
    def step(model: Any, batch: Any) -> torch.Tensor:
        if rank() == SLOW:
            spend(STEP_S)
        return loss_of(model, batch)

    return with_data(Numbers, step=step)


def own_updates() -> stoker.Workload:
    """A step that makes its backward pass itself, slowly in one rank."""

    def step(model: Any, batch: Any) -> None:
        if rank() == SLOW:
            spend(STEP_S)
        loss_of(model, batch).backward()

    return with_data(Numbers, step=step)


def noted() -> stoker.Workload:
    return with_data(Noted)


def with_sampler() -> stoker.Workload:
    return with_data(Noted, sampler=list(range(29, -1, -1)))


def with_batch_sampler() -> stoker.Workload:
    return with_data(Noted, batch_sampler=[[number, number + 1] for number in range(0, 30, 2)])


def with_distributed_sampler() -> stoker.Workload:
    data = Noted()
    return with_data(data, sampler=DistributedSampler(data, num_replicas=8, rank=3, shuffle=False))


def stream() -> stoker.Workload:
    return with_data(Stream)


def bad_item() -> stoker.Workload:
    return with_data(BadItem)


def unused_parameters(**ddp: Any) -> stoker.Workload:
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.used(x)

    return with_data(Numbers).with_(model=Half, ddp=ddp or None)


def unused_parameters_found() -> stoker.Workload:
    return unused_parameters(find_unused_parameters=True)


def long() -> stoker.Workload:
    """Long enough to be killed while it runs: each rank writes down its pid and its temporary folder."""

    def step(model: Any, batch: Any) -> torch.Tensor:
        folder = Path(os.environ["RANKED_NOTES"])
        if not (folder / f"pid-{rank()}").exists():
            note(f"folder-{rank()}", f"{util.get_temp_dir()}\n")
            (folder / f"pid-{rank()}.part").write_text(str(os.getpid()))
            (folder / f"pid-{rank()}.part").rename(folder / f"pid-{rank()}")
        time.sleep(0.005)
        return loss_of(model, batch)

    return with_data(Numbers, step=step)


def hangs() -> stoker.Workload:
    def step(model: Any, batch: Any) -> torch.Tensor:
        if rank() == SLOW and _count() == 6:
            threading.Event().wait()
        return loss_of(model, batch)

    return with_data(Numbers, step=step)


def stops() -> stoker.Workload:
    def step(model: Any, batch: Any) -> torch.Tensor:
        if rank() == SLOW and _count() == 6:
            os.kill(os.getpid(), signal.SIGSTOP)
        return loss_of(model, batch)

    return with_data(Numbers, step=step)


_calls = [0]


def _count() -> int:
    _calls[0] += 1
    return _calls[0]


def gone_before_it_begins() -> stoker.Workload:
    """The optimizer cannot be made in one rank."""

    def make(parameters: Any) -> Any:
        if rank() == SLOW:
            raise FileNotFoundError("no checkpoint here")
        return torch.optim.SGD(parameters, lr=0.1)

    return with_data(Numbers, optimizer=make)
