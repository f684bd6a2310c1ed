"""The largest batch of a model that lives in the caller's own process; all that is borrowed for it goes back."""

import copy
import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch import nn

from stoker.errors import InputError, StokerError
from stoker.events import AnyEvent, OnEvent, Phase
from stoker.measure.session import trial_server
from stoker.measure.steps import ModelStep
from stoker.memory import traced
from stoker.memory.bracket import Bracket, bisected, close, doubled
from stoker.memory.limit import Question
from stoker.memory.trace.gpus import is_known
from stoker.memory.tries import STEPS
from stoker.process import child, failures
from stoker.records import Attempt, Limit, Mode, Setting
from stoker.units import format_bytes
from stoker.workload import calls
from stoker.workload.batch import mapped
from stoker.workload.borrowed import borrowed, borrowed_optimizer
from stoker.workload.example import grown
from stoker.workload.workload import Workload

_CEILING = 2**20
_TINY_BATCH = 2


def limit_inside(
    model: Any, example: Any, question: Question, *, loss: Any, optimizer: Any, on_event: OnEvent | None
) -> Limit:
    """Try batches made from the example where the model is; a model on the host is tried in a process of its own."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"give a workload, a model's name, or a torch.nn.Module with an example batch, got {type(model).__name__}"
        )
    if example is None:
        raise InputError("a live model needs an example batch: stoker.limit(model, batch)")
    mode: Mode = question.mode or ("train" if loss is not None or optimizer is not None else "infer")
    question = msgspec.structs.replace(question, mode=mode)
    workload = _workload(model, example, loss, optimizer)
    device = _device(model)
    if device.type == "cuda" and question.method == "auto":
        return _Inside(workload, model, example, question, device, optimizer, on_event or _ignore).answer()
    from stoker.memory.limit import _elsewhere

    return _elsewhere(workload.with_(model=_on_host(model), optimizer=_made(optimizer)), question, on_event)


def prime(model: nn.Module, example: Any, *, loss: Any = None) -> None:
    """Run one tiny batch, so that what lasts (workspaces) is not carved out of the memory of the first large one.

    The model, its gradients and the random state are as they were afterwards.
    """
    device = _device(model)
    mode: Mode = "train" if loss is not None else "infer"
    with borrowed(model):
        step = _step(_workload(model, example, loss, None), model, mode, Question(method="auto", mode=mode), device)
        step(grown(example, calls.count_items(example), _TINY_BATCH, device), _no_tick)


def _workload(model: nn.Module, example: Any, loss: Any, optimizer: Any) -> Workload:
    """The live model as a workload whose items are those of the example."""
    items = _Items(example, calls.count_items(example))
    make = (lambda parameters: optimizer) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    return Workload(model=model, dataset=items, loss=loss, optimizer=make, name=type(model).__name__, from_example=True)


def _made(optimizer: Any) -> Any:
    """A live optimizer belongs to parameters that are not there in another process: one of its kind stands in."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    kind = type(optimizer)
    known = inspect.signature(kind).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in known}
    return lambda parameters: kind(parameters, **defaults)


class _Items:
    """The items of one batch, as a dataset."""

    def __init__(self, batch: Any, count: int) -> None:
        self._batch = mapped(batch, lambda tensor: tensor.detach().cpu())
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return mapped(self._batch, lambda tensor: tensor[index] if tensor.dim() else tensor)


def _device(model: nn.Module) -> torch.device:
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def _on_host(model: nn.Module) -> nn.Module:
    """A copy on the host that takes nothing more on the device."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
        for parameter in model.parameters()
    }
    memo |= {id(buffer): buffer.detach().cpu() for buffer in model.buffers()}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # whatever the person's own __deepcopy__ raises
        raise InputError(f"this model cannot be copied ({error}); give a function that makes it") from None


def _step(workload: Workload, model: nn.Module, mode: Mode, question: Question, device: torch.device) -> ModelStep:
    setting = Setting(precision=question.precision, cudnn_benchmark=question.cudnn_benchmark)
    step = ModelStep(workload.with_(model=model), mode, setting, device, pinned=False)
    step.on_device = True
    return step


class _Inside:
    """A search in this process, on the device that the model is on."""

    def __init__(
        self,
        workload: Workload,
        model: nn.Module,
        example: Any,
        question: Question,
        device: torch.device,
        optimizer: Any,
        emit: OnEvent,
    ) -> None:
        self._workload, self._model, self._example, self._question = workload, model, example, question
        self._device, self._optimizer, self._emit = device, optimizer, emit
        self._mode: Mode = question.mode or "infer"
        self._probes: dict[int, Attempt] = {}
        self._notes = ["run in this process as it stands: what else it holds on the device stays there"]

    def answer(self) -> Limit:
        gc.collect()
        torch.cuda.empty_cache()
        guess = self._guess()
        with borrowed(self._model), _capped(self._device, self._budget() if self._is_capped() else None):
            if guess:
                found = close(self._holds, guess=guess, ceiling=_CEILING, tolerance=self._question.tolerance)
            else:
                wide = doubled(self._holds, start=calls.count_items(self._example), ceiling=_CEILING)
                found = bisected(self._holds, wide, tolerance=self._question.tolerance)
        gc.collect()
        torch.cuda.empty_cache()
        if not found.ran:
            raise InputError(traced.too_large(self._probes[1].peak_bytes, self._budget()))
        return self._limit(found)

    def _is_capped(self) -> bool:
        return self._question.gpu_memory_bytes is not None or bool(self._question.reserve_bytes)

    def _budget(self) -> int:
        """What tensors of this process may take, those that it has now included."""
        free, total = torch.cuda.mem_get_info(self._device)
        room = free + torch.cuda.memory_reserved(self._device)
        asked = self._question.gpu_memory_bytes
        if asked is not None and asked > total:
            raise InputError(f"the GPU has {format_bytes(total)}, and {format_bytes(asked)} was asked for")
        return min(asked if asked is not None else room, room) - self._question.reserve_bytes

    def _guess(self) -> int | None:
        """What the trace says, less what this process holds beside the model."""
        beside = max(0, torch.cuda.memory_allocated(self._device) - calls.model_bytes(self._model))
        name = torch.cuda.get_device_name(self._device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(self._device)))
        question = msgspec.structs.replace(
            self._question, method="trace", gpu_memory_bytes=max(1, self._budget() - beside), reserve_bytes=0
        )
        question = msgspec.structs.replace(question, gpu=name if is_known(name) else capability)
        from stoker.memory.methods import answer

        try:
            workload = self._workload.with_(model=_on_host(self._model), optimizer=_made(self._optimizer))
            ended = child.run(answer, (workload, question), kind=Limit, server=trial_server(), stall_s=300)
            return child.value(ended).max_batch
        except StokerError as error:
            self._notes.append(f"found by trying alone: {error}")
            return None

    def _holds(self, batch_size: int) -> bool:
        self._emit(Phase(name="trying_batch", text=f"trying a batch of {batch_size}"))
        probe = self._try(batch_size)
        self._probes[batch_size] = probe
        if probe.outcome != "done" and probe.outcome != "oom":
            assert probe.problem is not None
            raise InputError(f"the step fails, and not for want of memory: {probe.problem.sentence}")
        return probe.outcome == "done"

    def _try(self, batch_size: int) -> Attempt:
        device = self._device
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = _retries(device)
        began = perf_counter()
        outcome, problem = "done", None
        try:
            with borrowed_optimizer(self._optimizer):
                self._steps(batch_size)
        except Exception as error:
            outcome, problem = failures.of_error(error)
        for parameter in self._model.parameters():
            parameter.grad = None
        probe = Attempt(
            batch_size=batch_size,
            outcome=outcome,  # type: ignore[arg-type]
            peak_bytes=torch.cuda.max_memory_allocated(device),
            reserved_bytes=torch.cuda.max_memory_reserved(device),
            retries=_retries(device) - before,
            seconds=perf_counter() - began,
            problem=problem,
        )
        gc.collect()
        return probe

    def _steps(self, batch_size: int) -> None:
        step = _step(self._workload, self._model, self._mode, self._question, self._device)
        items = calls.count_items(self._example)
        for _ in range(STEPS):
            step(grown(self._example, items, batch_size, self._device), _no_tick)
        torch.cuda.synchronize(self._device)

    def _limit(self, found: Bracket) -> Limit:
        done = sorted(size for size, probe in self._probes.items() if probe.outcome == "done")
        calm = [size for size in done if not self._probes[size].retries]
        peak = self._probes[found.ran].peak_bytes
        low, high = self._probes[done[0]], self._probes[done[-1]]
        span = high.batch_size - low.batch_size
        per_item = max(0, high.peak_bytes - low.peak_bytes) // span if span else 0
        return Limit(
            max_batch=found.ran,
            interval=(found.ran, max(done)),
            comfortable_batch=max(calm, default=None),
            method="auto",
            gpu_memory_bytes=self._budget(),
            peak_bytes_at_max=peak,
            bytes_per_item=per_item,
            fixed_bytes=max(0, peak - per_item * found.ran) if per_item else 0,
            workload=self._workload.name,
            mode=self._mode,
            precision=self._question.precision,
            optimizer=None,
            ran=True,
            probes=tuple(self._probes.values()),
            notes=tuple(self._notes),
        )


def _retries(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


@contextmanager
def _capped(device: torch.device, budget_bytes: int | None) -> Iterator[None]:
    """The allocator held to a budget, and let go whatever happens."""
    if budget_bytes is None:
        yield
        return
    read: Callable[..., float] = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    before = read(device)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def _no_tick(name: str) -> None:
    """Nobody times the stages of a try."""


def _ignore(_: AnyEvent) -> None:
    """Nobody watches."""
