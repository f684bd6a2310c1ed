"""One rank of several that train one model together: its process group, and what it spends on exchanging gradients.

Nothing here listens beyond this machine: ranks find each other through a file, and gloo and NCCL use the loopback.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from mmap import mmap
from typing import Any

import psutil
import torch
import torch.distributed as dist

from stoker.errors import InputError, MachineError
from stoker.measure.device import Clock, Device, HostClock, clock_for
from stoker.records import Record

Tick = Callable[..., None]
"""Called at the end of each stage of a step, with its name, and with the mark of the device's clock if that is past."""


class GroupRules(Record, frozen=True):
    """How long ranks wait for each other."""

    timeout_s: float = 3600.0
    """The process that started the ranks sees one that hangs long before: this only ends ranks that nobody follows."""


RULES = GroupRules()


class Place(Record, frozen=True):
    """Which rank of how many this process is. The ranks meet at the file `meeting`, in a private folder."""

    rank: int
    of: int
    meeting: str


class Steps:
    """How far each rank is, in memory that all ranks and the process that started them share: how many times it has
    come to an exchange, and how many it has left."""

    def __init__(self, ranks: int) -> None:
        self._memory = mmap(-1, 16 * ranks)
        self._counts = memoryview(self._memory).cast("Q")

    def come(self, rank: int) -> None:
        self._counts[2 * rank] += 1

    def leave(self, rank: int) -> None:
        self._counts[2 * rank + 1] = self._counts[2 * rank]

    def read(self) -> list[tuple[int, int]]:
        """(came, left) of each rank."""
        counts = list(self._counts)
        return list(zip(counts[::2], counts[1::2], strict=True))

    def close(self) -> None:
        self._counts.release()
        self._memory.close()


class Alone:
    """What a model that trains alone does at each of its steps: it exchanges nothing."""

    def wrap(self, model: torch.nn.Module, options: Mapping[str, Any] | None = None) -> torch.nn.Module:
        """The model that a step calls."""
        return model

    def exchanges(self, *, adds: bool) -> AbstractContextManager[None]:
        """Around one step. A step that only `adds` to the gradients exchanges none."""
        return nullcontext()

    def tick_forward(self, tick: Tick) -> None:
        """The forward pass has ended."""
        tick("forward")

    def tick_backward(self, tick: Tick) -> None:
        """The backward pass has ended."""
        tick("backward")

    def tick_step(self, tick: Tick) -> None:
        """A step of the workload's own has ended."""
        tick("step")


class RankGroup(Alone):
    """The process group of a rank. `join` it before the model is made, in all ranks; `wrap` the model.

    During a step it notes when the rank handed over its last gradients. Raises MachineError if the ranks do not meet.
    """

    def __init__(self, place: Place, device: Device, steps: Steps | None = None) -> None:
        self.place, self._device, self._steps = place, device, steps
        self._clock: Clock = HostClock()
        self._handed: Any = None
        self._received: Any = None
        self._buffers: list[tuple[Any, Any]] = []
        self._wrapped: Any = None

    def join(self) -> None:
        """Meet the other ranks. Code of the user finds its rank where torchrun would put it."""
        place, on_gpu = self.place, self._device.type == "cuda"
        names = {"RANK": place.rank, "LOCAL_RANK": place.rank, "WORLD_SIZE": place.of, "LOCAL_WORLD_SIZE": place.of}
        os.environ.update({name: str(value) for name, value in names.items()})
        loopback = _loopback()
        os.environ.update({"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback})
        store = dist.FileStore(place.meeting, place.of)  # type: ignore[attr-defined]
        device = self._device if isinstance(self._device, torch.device) and on_gpu else None
        if device is not None:
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=store,
                rank=place.rank,
                world_size=place.of,
                timeout=timedelta(seconds=RULES.timeout_s),
                device_id=device,
            )
        except RuntimeError as error:
            raise MachineError(f"the ranks cannot reach each other: {error}") from error
        self._clock = clock_for(self._device)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def wrap(self, model: torch.nn.Module, options: Mapping[str, Any] | None = None) -> torch.nn.Module:
        """The model as DistributedDataParallel, with `options` for it."""
        on_gpu = self._device.type == "cuda"
        try:
            wrapped = torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[self._device] if on_gpu else None, **(options or {})
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"DistributedDataParallel does not take this model or Workload(ddp=...): {error}"
            ) from None
        wrapped.register_comm_hook(None, self._exchange)
        inner = getattr(wrapped, "_sync_buffers", None)
        if inner is not None:  # buffers, such as those of a BatchNorm, are sent before a forward pass
            vars(wrapped)["_sync_buffers"] = lambda: self._sync_buffers(inner)
        self._wrapped = wrapped
        return wrapped

    def meet(self, tick: Tick) -> None:
        """For a step without gradients: wait until all ranks have come this far."""
        self._come()
        dist.all_reduce(torch.zeros(1))
        self._leave()
        tick("exchange")

    @contextmanager
    def exchanges(self, *, adds: bool) -> Iterator[None]:
        """Around one step. What was noted before it is forgotten."""
        self._handed = self._received = None
        self._buffers.clear()
        with self._wrapped.no_sync() if adds else nullcontext():
            yield
        if self._handed is not None:
            self._leave()

    def tick_forward(self, tick: Tick) -> None:
        """The forward pass has ended; within it, buffers may have been received."""
        self._tick_buffers("forward", tick)
        tick("forward")

    def tick_backward(self, tick: Tick) -> None:
        """The backward pass has ended, and with it the exchange."""
        if self._handed is None:
            tick("backward")
            return
        tick("backward", at=self._handed)
        tick("exchange")

    def tick_step(self, tick: Tick) -> None:
        """A step of the workload's own has ended, with its exchanges somewhere in it."""
        self._tick_buffers("step", tick)
        if self._handed is not None and self._received is not None:
            tick("step", at=self._handed)
            tick("exchange", at=self._received)
        tick("step")

    def _tick_buffers(self, name: str, tick: Tick) -> None:
        for began, ended in self._buffers:
            tick(name, at=began)
            tick("exchange", at=ended)

    # ------------------------------------------------------------ within DistributedDataParallel

    def _exchange(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """The mean of a bucket's gradients over all ranks, as DistributedDataParallel itself makes it."""
        last = bucket.is_last()
        if last:
            self._handed = self._clock.mark()
            self._come()
        buffer = bucket.buffer().div_(self.place.of)
        future = dist.all_reduce(buffer, async_op=True).get_future()
        return future.then(self._mean_of_last if last else _mean)

    def _mean_of_last(self, future: Any) -> torch.Tensor:
        self._received = self._clock.mark()
        return _mean(future)

    def _sync_buffers(self, inner: Callable[[], None]) -> None:
        began = self._clock.mark()
        self._come()
        inner()
        self._leave()
        self._buffers.append((began, self._clock.mark()))

    def _come(self) -> None:
        if self._steps is not None:
            self._steps.come(self.place.rank)

    def _leave(self) -> None:
        if self._steps is not None:
            self._steps.leave(self.place.rank)


def _mean(future: Any) -> torch.Tensor:
    mean: torch.Tensor = future.value()[0]
    return mean


def _loopback() -> str:
    """The name of the loopback interface."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == "127.0.0.1" for each in addresses):
            return name
    raise MachineError("there is no loopback interface (127.0.0.1), over which ranks could exchange gradients")


def lost_another(sentence: str) -> bool:
    """Whether an error says only that another rank has gone. Torch has no class of its own for all such errors."""
    words = ("connection closed by peer", "connection reset by peer", "broken pipe", "nccl", "gloo/transport")
    return any(each in sentence.lower() for each in words)


def remedy_of(sentence: str) -> str | None:
    """What to do about an error that only a model within DistributedDataParallel raises."""
    if "Expected to have finished reduction" in sentence:
        return "some parameters get no gradient: say Workload(ddp={'find_unused_parameters': True})"
    if "'DistributedDataParallel' object has no attribute" in sentence:
        return "the step gets the model within DistributedDataParallel: call it, or use model.module"
    return None
