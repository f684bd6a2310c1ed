"""Workloads that cost what they say, or break in ways that people's do. Each keeps no more state than it must."""

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

import stoker

READ_S, TRANSFORM_S, STEP_S = 0.004, 0.006, 0.030


def spend(seconds: float) -> float:
    """Sleep, then spin over the last stretch: what was planted is what was spent, however coarse the timer is. Returns
    what passed by the clock: on a busy machine a sleeper wakes up late."""
    began = time.perf_counter()
    time.sleep(max(0.0, seconds - 0.0005))
    while time.perf_counter() < began + seconds:
        pass
    return time.perf_counter() - began


class Slowly:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x[1] = spend(TRANSFORM_S)
        return x


class Planted(Dataset[Any]):
    """An item says what reading and transforming it took."""

    def __init__(self) -> None:
        self.transform = Slowly()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        item = torch.zeros(8, dtype=torch.float64)
        with stoker.stage("read"):
            item[0] = spend(READ_S)
        return self.transform(item)


def planted_step(model: torch.nn.Module, batch: torch.Tensor, log: Path | None = None) -> None:
    """The step; a line in `log` says what the batch's items, and the step, took by their own clocks."""
    took_s = (*batch.sum(0)[:2].tolist(), spend(STEP_S))
    if log is not None:
        with log.open("a") as file:
            print(*took_s, file=file)


def planted(log: Path | None = None) -> stoker.Workload:
    step = functools.partial(planted_step, log=log)
    return stoker.Workload(model=torch.nn.Identity(), dataset=Planted, step=step)


class Numbers(Dataset[Any]):
    """Eight numbers and a label each, from memory."""

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), float(index)), index % 2


def with_data(dataset: Any, **parts: Any) -> stoker.Workload:
    return stoker.Workload(
        model=lambda: torch.nn.Linear(8, 2), dataset=dataset, loss=torch.nn.CrossEntropyLoss(), **parts
    )


def plain() -> stoker.Workload:
    return with_data(Numbers)


def plain_long() -> stoker.Workload:
    return with_data(lambda: Numbers(5120))


class OneSlow(Numbers):
    """The first item comes long after the second."""

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            time.sleep(0.5)
        return super().__getitem__(index)


def one_slow() -> stoker.Workload:
    return with_data(OneSlow)


class Raises(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise ValueError("label 'cat' is not a number")
        return super().__getitem__(index)


def raises() -> stoker.Workload:
    return with_data(Raises)


class Hangs(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            threading.Event().wait()
        return super().__getitem__(index)


def hangs() -> stoker.Workload:
    return with_data(Hangs)


class Dies(Numbers):
    signal = signal.SIGKILL

    def __getitem__(self, index: int) -> Any:
        if index == 9:
            os.kill(os.getpid(), self.signal)
        return super().__getitem__(index)


class DiesOfABusError(Dies):
    signal = signal.SIGBUS


def dies() -> stoker.Workload:
    return with_data(Dies)


def dies_of_a_bus_error() -> stoker.Workload:
    return with_data(DiesOfABusError)


def step_of_its_own(model: torch.nn.Module, batch: Any) -> None:
    model(batch[0])


def updates_itself() -> stoker.Workload:
    return with_data(Numbers, step=step_of_its_own)


def step_out_of_memory(model: torch.nn.Module, batch: Any) -> None:
    torch.empty(2**60, dtype=torch.uint8)


def out_of_memory() -> stoker.Workload:
    return with_data(Numbers, step=step_out_of_memory)


def step_that_raises(model: torch.nn.Module, batch: Any) -> None:
    raise RuntimeError("shapes do not match")


def bad_step() -> stoker.Workload:
    return with_data(Numbers, step=step_that_raises)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.zeros(8), 1


def stream() -> stoker.Workload:
    return with_data(Stream)


def empty() -> stoker.Workload:
    return with_data(lambda: Numbers(0))


def batched() -> stoker.Workload:
    return with_data(Numbers, batch_sampler=[[0, 1, 2], [3, 4], [5]])


def sampled() -> stoker.Workload:
    return with_data(Numbers, sampler=[7, 5, 3, 1])


def scored() -> stoker.Workload:
    return with_data(
        Numbers, validation=Numbers, metric=lambda output, target: (output.argmax(1) == target).float().mean()
    )


class Files(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.paths = sorted(folder.iterdir())
        self.size = len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with stoker.stage("read"):
            self.paths[index].read_bytes()
        return super().__getitem__(index)


def files() -> stoker.Workload:
    folder = Path(os.environ["STOKER_TEST_FILES"])
    return with_data(Files(folder), files=sorted(folder.iterdir()))


def talks() -> stoker.Workload:
    os.write(1, b"a print of theirs\n")
    return plain()


def computes_when_opened() -> stoker.Workload:
    torch.set_num_threads(2)
    wide = torch.ones(2**20).exp().sum().log()  # enough for a pool of threads

    class Model(torch.nn.Module):
        """Each step is enough for one too."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2**18) * float(wide > 0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :2] + self.weight.exp().sum()

    return stoker.Workload(model=Model, dataset=Numbers, loss=torch.nn.CrossEntropyLoss())


def step_out_of_memory_above_16(model: torch.nn.Module, batch: Any) -> None:
    if len(batch[0]) > 16:
        torch.empty(2**60, dtype=torch.uint8)


def out_of_memory_above_16() -> stoker.Workload:
    return with_data(Numbers, step=step_out_of_memory_above_16)


class Hungry(Dataset[Any]):
    """Each worker takes 96 MiB for itself at its first item, and uses them all."""

    def __init__(self) -> None:
        self.taken: bytearray | None = None

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.taken is None:
            self.taken = bytearray(os.urandom(1)) * (96 << 20)
        return torch.zeros(8)


def hungry() -> stoker.Workload:
    return stoker.Workload(model=torch.nn.Identity(), dataset=Hungry, name="hungry")
