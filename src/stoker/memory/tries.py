"""Tries of batch sizes, each in a process forked from one that has made the model and touched no device."""

import re
import resource
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import util
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch

from stoker.machine import host
from stoker.measure.device import SleepDevice, parse_device
from stoker.measure.group import Place, RankGroup
from stoker.measure.steps import ModelStep
from stoker.memory.trace.fake_cuda import LazyBuild
from stoker.process import child, failures
from stoker.process.fork import Forked
from stoker.process.threads import limit_threads
from stoker.process.wire import Failure
from stoker.records import Attempt, Mode, Outcome, Problem, Record, Setting
from stoker.workload import calls
from stoker.workload.example import Example, worst_example
from stoker.workload.workload import Workload


class TryRules(Record, frozen=True):
    """Numbers of a try."""

    steps: int = 3
    """One step makes the optimizer's state and the workspaces; two are steady."""
    tiny_batch: int = 2
    """The batch that goes first in a primed try: the smallest for which layers with statistics over a batch run."""


RULES = TryRules()


class TryJob(Record, frozen=True):
    """What all tries of a search share. `budget_bytes` caps what tensors may take; None is no cap."""

    mode: Mode
    setting: Setting = Setting()
    device: str = "auto"
    budget_bytes: int | None = None
    validate: bool = False


class TryOrder(Record, frozen=True):
    """What one try runs. With `primed` a tiny batch goes first; with `expandable` the allocator's segments can grow.
    `weigh` asks for the bytes that go into the model and come out of it."""

    batch_size: int
    steps: int = RULES.steps
    primed: bool = False
    expandable: bool = False
    weigh: bool = False


class TryFactory:
    """Makes tries from a workload whose model has been made on the host, in a process that touches no device.

    The process computes with one thread: a pool of threads would not survive a fork. A `lazy` model has zeros for its
    large weights, which take neither time nor memory to make; use it if no outcome depends on what the model computes.
    """

    def __init__(self, workload: Workload, job: TryJob, *, lazy: bool = False) -> None:
        self._threads = limit_threads()
        self.workload, self.job = workload, job
        self.example: Example = worst_example(workload)
        self._model: torch.nn.Module | None = None
        self._lazy = lazy

    @property
    def model(self) -> torch.nn.Module:
        """The model on the host, made at the first use."""
        if self._model is None:
            with LazyBuild() if self._lazy else nullcontext():
                self._model = calls.make_model(self.workload)
        return self._model

    def look(self) -> Forked["DeviceMemory"]:
        """Begin to read the device's memory."""
        return Forked(lambda: read_memory(self.job.device), DeviceMemory)

    def attempt(self, order: TryOrder) -> Attempt:
        """Try a batch size and wait for the outcome."""
        return self.begin(order).result()

    def begin(self, order: TryOrder) -> "RunningTry":
        """Begin a try."""
        return RunningTry(self.fork(lambda: order, expandable=order.expandable), order.batch_size)

    def fork(self, order: Callable[[], TryOrder], *, expandable: bool = False) -> Forked[Attempt]:
        """Fork a process that brings the model to the device, asks for its order there, and carries it out."""
        model = self.model

        def run() -> Attempt:
            self._threads.release()
            return _Try(self, model, expandable).run(order)

        return Forked(run, Attempt)


class RunningTry:
    """A try under way in a process of its own."""

    def __init__(self, forked: Forked[Attempt], batch_size: int) -> None:
        self._forked, self._batch_size = forked, batch_size
        self._began = perf_counter()

    def result(self) -> Attempt:
        """Wait for the outcome. Raises what a `StokerError` in the child says; any other end is an outcome."""
        result = self._forked.result()
        seconds = perf_counter() - self._began
        if isinstance(result, Failure):
            if result.kind:
                raise child.error_of(result)
            problem = Problem(sentence=result.sentence, detail=result.trace or None)
            return Attempt(batch_size=self._batch_size, outcome="crashed", seconds=seconds, problem=problem)
        return msgspec.structs.replace(result, batch_size=self._batch_size, seconds=seconds)

    def stop(self) -> None:
        """End the try; its outcome is not needed any more."""
        self._forked.stop()


class _Try:
    """One try, in the process forked for it."""

    def __init__(self, factory: TryFactory, model: torch.nn.Module, expandable: bool) -> None:
        self._factory, self._job = factory, factory.job
        device = parse_device(self._job.device)
        assert not isinstance(device, SleepDevice)
        self._device = device
        self._memory: CudaMemory | HostMemory
        if device.type == "cuda":
            self._memory = CudaMemory(device, self._job.budget_bytes, expandable)
        else:
            self._memory = HostMemory(self._job.budget_bytes)
        self._model = model

    def run(self, get_order: Callable[[], TryOrder]) -> Attempt:
        """The model goes to the device before the order is there. If it does not fit, any order finds that."""
        step_s: list[float] = []
        reserved: list[int] = []
        weights = [0, 0]
        outcome: Outcome = "done"
        problem = None
        try:
            step = self._step()
            order = get_order()
            if order.weigh:
                self._model.register_forward_hook(lambda module, inputs, output: _weigh(weights, inputs, output))
            if order.primed:
                self._one(step, RULES.tiny_batch)
            batches_a_step = self._job.setting.accumulate if self._job.mode == "train" else 1
            for _ in range(order.steps * batches_a_step):
                began = perf_counter()
                self._one(step, order.batch_size)
                step_s.append(perf_counter() - began)
                reserved.append(self._memory.reserved())
            if self._job.validate:
                step.evaluate(order.batch_size)
                self._one(step, order.batch_size)
        except BaseException as error:
            outcome, problem = failures.of_error(error)
        return Attempt(
            batch_size=0,  # RunningTry knows it, even if no order came
            outcome=outcome,
            peak_bytes=self._memory.peak(),
            reserved_bytes=self._memory.reserved_peak(),
            retries=self._memory.retries(),
            free_bytes=self._memory.free_bytes,
            step_s=tuple(step_s),
            reserved_samples=tuple(reserved),
            input_bytes=weights[0],
            output_bytes=weights[1],
            problem=problem,
        )

    def _step(self) -> ModelStep:
        """A step that is called with a batch size. Batches are made on the device: a host copy would take as long
        again."""
        workload = self._factory.workload.with_(model=self._model)
        group = None
        if self._job.setting.ranks > 1 and self._job.mode == "train":  # one rank holds what each of several does
            folder = tempfile.mkdtemp(prefix="rank-", dir=util.get_temp_dir())
            group = RankGroup(Place(rank=0, of=1, meeting=str(Path(folder) / "meeting")), self._device)
            group.join()
            shutil.rmtree(folder)
        example, device, channels_last = self._factory.example, self._device, self._job.setting.channels_last
        return ModelStep(
            workload,
            self._job.mode,
            self._job.setting,
            device,
            make_batch=lambda batch_size: example.sized(batch_size, device, channels_last=channels_last),
            group=group,
        )

    def _one(self, step: ModelStep, batch_size: int) -> None:
        step(batch_size)
        self._memory.settle()


def _weigh(weights: list[int], inputs: Any, output: Any) -> None:
    weights[:] = calls.batch_bytes(inputs), calls.batch_bytes(calls.logits_of(output))


# ---------------------------------------------------------------- memory of a device


class DeviceMemory(Record, frozen=True):
    """What a process finds on a device: its name, its memory, and how much of that is free for tensors."""

    device: str
    total_bytes: int
    free_bytes: int


def read_memory(device_name: str) -> DeviceMemory:
    """Read a device's memory. The process has touched the device afterwards."""
    device = parse_device(device_name)
    assert not isinstance(device, SleepDevice)
    if device.type != "cuda":
        found = host.read()
        return DeviceMemory(device="host memory", total_bytes=found.limit_bytes, free_bytes=found.available_bytes)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(device=torch.cuda.get_device_name(device), total_bytes=total, free_bytes=free)


class CudaMemory:
    """The caching allocator's counters on a device, capped if there is a budget."""

    def __init__(self, device: torch.device, budget_bytes: int | None, expandable: bool) -> None:
        if expandable:
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.cuda.init()
        self._device = device
        self.free_bytes, total = torch.cuda.mem_get_info(device)
        if budget_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / total), device)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def reserved_peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    def retries(self) -> int:
        return allocator_retries(self._device)


def allocator_retries(device: torch.device) -> int:
    """How often the caching allocator returned its cache to serve a request."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


class HostMemory:
    """The process's own memory, beyond what it had when the try began."""

    def __init__(self, budget_bytes: int | None) -> None:
        self.free_bytes = host.available_bytes()
        self._before = _status("VmRSS")
        budget = self.free_bytes if budget_bytes is None else budget_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = _status("VmData") + budget
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))

    def settle(self) -> None:
        """The host computes in step: nothing is under way."""

    def reserved(self) -> int:
        return max(0, _status("VmRSS") - self._before)

    def peak(self) -> int:
        return max(0, _status("VmHWM") - self._before)

    def reserved_peak(self) -> int:
        return self.peak()

    def retries(self) -> int:
        return 0


def _status(name: str) -> int:
    """A line of this process's status, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
