"""Tries of batch sizes, each in a process forked for it from one that has made the model and touched no device."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any, TypedDict, Unpack

import msgspec
import torch

from stoker.measure.device import SleepDevice, parse_device
from stoker.measure.steps import ModelStep
from stoker.memory.device_memory import CudaMemory, HostMemory, Room, room_of
from stoker.memory.trace.fake_cuda import LazyBuild
from stoker.process import child, failures
from stoker.process.fork import Forked
from stoker.process.threads import limit_threads
from stoker.process.wire import Failure
from stoker.records import Attempt, Mode, Outcome, Precision, Problem, Record, Setting
from stoker.workload import calls
from stoker.workload.example import Example, worst_example
from stoker.workload.workload import Workload

STEPS = 3
"""One that makes the optimizer's state and the workspaces, and two steady ones."""
_TINY_BATCH = 2


class Job(Record, frozen=True):
    """How batches are tried. `budget_bytes` caps what tensors may take; None leaves them what the device has free."""

    mode: Mode
    precision: Precision = "fp32"
    device: str = "auto"
    budget_bytes: int | None = None
    validate: bool = False
    cudnn_benchmark: bool = False


class How(TypedDict, total=False):
    """`primed`: a tiny batch goes first; `expandable`: with segments that grow; `weigh`: what goes in and comes out."""

    steps: int
    primed: bool
    expandable: bool
    weigh: bool


class _Order(Record, frozen=True):
    """What a try is told once it stands at the device with the model: how large, and how."""

    batch_size: int
    steps: int = STEPS
    primed: bool = False
    expandable: bool = False
    weigh: bool = False


class TryFactory:
    """Where tries come from: a workload whose model has been made on the host, in a process that touches no device.

    It computes with one thread: a pool of them would not survive the fork. A `lazy` model has zeros for its large
    weights, which take neither time nor memory to make, where nobody asks what it computes.
    """

    def __init__(self, workload: Workload, job: Job, *, lazy: bool = False) -> None:
        self._threads = limit_threads()
        self.workload, self.job = workload, job
        self.example: Example = worst_example(workload)
        self._model: torch.nn.Module | None = None
        self._lazy = lazy
        self._ready: list[RunningAttempt] = []

    @property
    def model(self) -> torch.nn.Module:
        if self._model is None:
            with LazyBuild() if self._lazy else nullcontext():
                self._model = calls.make_model(self.workload)
        return self._model

    def room(self) -> Forked[Room]:
        """Begin to look at the device."""
        return Forked(lambda: room_of(self.job.device), Room)

    def attempt(self, batch_size: int, **how: Unpack[How]) -> Attempt:
        """Try a batch size."""
        return self.begin(batch_size, **how).probe()

    def begin(self, batch_size: int, **how: Unpack[How]) -> "RunningAttempt":
        """The same, under way."""
        order = _Order(batch_size=batch_size, **how)
        attempt = self._ready.pop(0) if self._ready and not order.expandable else self._new(order.expandable)
        attempt.order(order)
        return attempt

    def stand_by(self, count: int) -> None:
        """Have so many tries go to the device with the model, and wait there for their sizes."""
        self._ready += [self._new() for _ in range(count - len(self._ready))]

    def end(self) -> None:
        """Those that still wait are not wanted any more."""
        while self._ready:
            self._ready.pop().stop()

    def _new(self, expandable: bool = False) -> "RunningAttempt":
        model = self.model

        def run(ordered: Callable[[], _Order]) -> Attempt:
            self._threads.release()
            return _Try(self, model, expandable).run(ordered)

        return RunningAttempt(run)


class RunningAttempt:
    """A try under way in a process of its own, which waits for its order when it has come to the device."""

    def __init__(self, run: Callable[[Callable[[], _Order]], Attempt]) -> None:
        read, self._orders = os.pipe()
        self._batch_size, self._began = 0, 0.0
        self._forked = Forked(lambda: run(self._ordered(read)), Attempt)
        os.close(read)

    def _ordered(self, read: int) -> Callable[[], _Order]:
        """In the new process, which holds no end that it would wait for itself."""
        os.close(self._orders)

        def ordered() -> _Order:
            with open(read, "rb") as orders:
                return msgspec.json.decode(orders.readline(), type=_Order)

        return ordered

    def order(self, order: _Order) -> None:
        self._batch_size, self._began = order.batch_size, perf_counter()
        try:
            os.write(self._orders, msgspec.json.encode(order) + b"\n")  # later tries hold this end too: no end of file
        except BrokenPipeError:
            pass  # it is gone already, and its result says why
        finally:
            os.close(self._orders)
            self._orders = -1

    def probe(self) -> Attempt:
        """What came of it; waits for it."""
        result = self._forked.result()
        seconds = perf_counter() - self._began
        if isinstance(result, Failure):
            if result.kind:
                raise child.error_of(result)
            problem = Problem(sentence=result.sentence, detail=result.trace or None)
            return Attempt(batch_size=self._batch_size, outcome="crashed", seconds=seconds, problem=problem)
        return msgspec.structs.replace(result, batch_size=self._batch_size, seconds=seconds)

    def stop(self) -> None:
        if self._orders >= 0:
            os.close(self._orders)
        self._forked.stop()


class _Try:
    """One try, in the process forked for it."""

    def __init__(self, cradle: TryFactory, model: torch.nn.Module, expandable: bool) -> None:
        self._cradle, self._job = cradle, cradle.job
        device = parse_device(self._job.device)
        assert not isinstance(device, SleepDevice)
        self._device = device
        self._memory: CudaMemory | HostMemory
        if device.type == "cuda":
            self._memory = CudaMemory(device, self._job.budget_bytes, expandable)
        else:
            self._memory = HostMemory(self._job.budget_bytes)
        self._model = model

    def run(self, ordered: Callable[[], _Order]) -> Attempt:
        """The model goes to the device before the order is there; where it does not fit, any order finds that."""
        step_s: list[float] = []
        reserved: list[int] = []
        weights = [0, 0]
        outcome: Outcome = "done"
        problem = None
        try:
            step = self._step()
            order = ordered()
            if order.weigh:
                self._model.register_forward_hook(lambda module, inputs, output: _weigh(weights, inputs, output))
            if order.primed:
                self._one(step, _TINY_BATCH)
            for _ in range(order.steps):
                began = perf_counter()
                self._one(step, order.batch_size)
                step_s.append(perf_counter() - began)
                reserved.append(self._memory.reserved())
            if self._job.validate:
                self._validate(step, order.batch_size)
        except BaseException as error:
            outcome, problem = failures.of_error(error)
        return Attempt(
            batch_size=0,  # whoever gave the order knows it
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
        workload = self._cradle.workload.with_(model=self._model)
        setting = Setting(precision=self._job.precision, cudnn_benchmark=self._job.cudnn_benchmark)
        step = ModelStep(workload, self._job.mode, setting, self._device, pinned=False)
        step.on_device = True  # its batches are made there: a copy on the host would take as long again
        return step

    def _one(self, step: ModelStep, batch_size: int) -> None:
        step(self._cradle.example.sized(batch_size, self._device), _no_tick)
        self._memory.settle()

    def _validate(self, step: ModelStep, batch_size: int) -> None:
        """As a person evaluates between epochs: the same batch size, no gradients, then training goes on."""
        step.model.eval()
        inputs, _ = calls.split(self._cradle.example.sized(batch_size, self._device))
        with torch.inference_mode(), step.precision():
            calls.forward(self._cradle.workload, step.model, inputs)
        del inputs
        step.model.train(self._job.mode == "train")
        self._one(step, batch_size)


def _no_tick(name: str) -> None:
    """Nobody times the stages of a try."""


def _weigh(weights: list[int], inputs: Any, output: Any) -> None:
    weights[:] = calls.batch_bytes(inputs), calls.batch_bytes(calls.logits_of(output))
