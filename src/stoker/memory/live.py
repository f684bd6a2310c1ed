"""The largest batch of a model in the caller's own process. Everything borrowed for the search goes back."""

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
from stoker.events import AnyEvent, OnEvent
from stoker.measure.steps import ModelStep
from stoker.memory.bracket import Bracket, bisected, close, doubled
from stoker.memory.limit import LimitRequest, limit_in_child
from stoker.memory.search import RULES as SEARCH
from stoker.memory.search import Search
from stoker.memory.trace.gpus import is_known
from stoker.memory.tries import RULES as TRY
from stoker.memory.tries import TryOrder, allocator_retries
from stoker.process import failures
from stoker.records import Attempt, Limit, Mode, Outcome, Setting
from stoker.units import format_bytes
from stoker.workload import calls
from stoker.workload.batch import mapped
from stoker.workload.borrowed import borrowed, borrowed_optimizer
from stoker.workload.example import grown
from stoker.workload.optimizers import OPTIMIZERS
from stoker.workload.workload import Workload

_GUESS_STALL_S = 300.0


def limit_of_live_model(
    model: Any, example: Any, request: LimitRequest, *, loss: Any, optimizer: Any, on_event: OnEvent | None
) -> Limit:
    """Try batches made from the example where the model is. A model on the host is tried in a process of its own."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"give a workload, a model's name, or a torch.nn.Module with an example batch, got {type(model).__name__}"
        )
    if example is None:
        raise InputError("a live model needs an example batch: stoker.limit(model, batch)")
    learns = loss is not None or optimizer is not None
    request = msgspec.structs.replace(request, mode=request.mode or ("train" if learns else "infer"))
    if request.optimizer:
        optimizer = OPTIMIZERS[request.optimizer]
    workload = _workload(model, example, loss, optimizer)
    device = _device(model)
    if device.type == "cuda" and request.method == "auto":
        return LiveSearch(workload, model, example, request, device, optimizer, on_event or _ignore).answer()
    return limit_in_child(workload.with_(model=_on_host(model), optimizer=_same_kind(optimizer)), request, on_event)


def prime(model: nn.Module, example: Any, *, loss: Any = None) -> None:
    """Run one tiny batch, so that what lasts (workspaces) is not carved out of the memory of the first large one.

    The model, its gradients and the random state are as they were afterwards.
    """
    device = _device(model)
    mode: Mode = "train" if loss is not None else "infer"
    with borrowed(model):
        step = _step(_workload(model, example, loss, None), model, mode, Setting(), device, example)
        step(TRY.tiny_batch)


def _workload(model: nn.Module, example: Any, loss: Any, optimizer: Any) -> Workload:
    """The live model as a workload with the items of the example."""
    items = _Items(example, calls.count_items(example))
    make = (lambda parameters: optimizer) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    return Workload(model=model, dataset=items, loss=loss, optimizer=make, name=type(model).__name__, from_example=True)


def _same_kind(optimizer: Any) -> Any:
    """A live optimizer belongs to parameters that another process does not have: one of the same kind replaces it."""
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
    """A copy on the host. Takes no more memory on the device."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
        for parameter in model.parameters()
    }
    memo |= {id(buffer): buffer.detach().cpu() for buffer in model.buffers()}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # whatever a user's __deepcopy__ raises
        raise InputError(f"this model cannot be copied ({error}); give a function that makes it") from None


def _step(
    workload: Workload, model: nn.Module, mode: Mode, setting: Setting, device: torch.device, example: Any
) -> ModelStep:
    """A step that is called with a batch size."""
    items = calls.count_items(example)
    return ModelStep(
        workload.with_(model=model),
        mode,
        setting,
        device,
        make_batch=lambda batch_size: grown(example, items, batch_size, device),
    )


class LiveSearch(Search):
    """A search in this process, on the device that the model is on."""

    def __init__(
        self,
        workload: Workload,
        model: nn.Module,
        example: Any,
        request: LimitRequest,
        device: torch.device,
        optimizer: Any,
        emit: OnEvent,
    ) -> None:
        super().__init__(workload, workload.name, request.mode or "infer", request, emit)
        self._model, self._example, self._device, self._optimizer = model, example, device, optimizer
        self.notes.append("run in this process as it stands: what else it holds on the device stays there")

    def answer(self) -> Limit:
        _release_cache()
        self.budget_bytes = self._budget()
        request = self.request
        capped = request.gpu_memory_bytes is not None or request.reserve_bytes > 0
        guess = self._guess()
        with borrowed(self._model), _capped(self._device, self.budget_bytes if capped else None):
            found = self._closed(guess)
        _release_cache()
        self.need(found)
        limit = self.ran(found, max(self.without_retry(), default=None), None, "auto")
        return limit if limit.bytes_per_item else msgspec.structs.replace(limit, fixed_bytes=0)  # not known

    def _closed(self, guess: int | None) -> Bracket:
        ceiling, tolerance = SEARCH.ceiling, self.request.tolerance
        if guess:
            return close(self.holds, guess=guess, ceiling=ceiling, tolerance=tolerance)
        wide = doubled(self.holds, start=calls.count_items(self._example), ceiling=ceiling)
        return bisected(self.holds, wide, tolerance=tolerance)

    def _budget(self) -> int:
        """What tensors of this process may take, those that it has now included."""
        free, total = torch.cuda.mem_get_info(self._device)
        available = free + torch.cuda.memory_reserved(self._device)
        asked = self.request.gpu_memory_bytes
        if asked is not None and asked > total:
            raise InputError(f"the GPU has {format_bytes(total)}, and {format_bytes(asked)} was asked for")
        return min(asked if asked is not None else available, available) - self.request.reserve_bytes

    def _guess(self) -> int | None:
        """The answer of a trace for the budget, less the other memory of this process."""
        others_bytes = max(0, torch.cuda.memory_allocated(self._device) - calls.model_bytes(self._model))
        name = torch.cuda.get_device_name(self._device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(self._device)))
        request = msgspec.structs.replace(
            self.request,
            method="trace",
            gpu_memory=max(1, self.budget_bytes - others_bytes),
            reserve=0,
            gpu=name if is_known(name) else capability,
        )
        try:
            workload = self.workload.with_(model=_on_host(self._model), optimizer=_same_kind(self._optimizer))
            return limit_in_child(workload, request, None, stall_s=_GUESS_STALL_S).max_batch
        except StokerError as error:
            self.notes.append(f"found by trying alone: {error}")
            return None

    def run(self, order: TryOrder) -> Attempt:
        device = self._device
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = allocator_retries(device)
        began = perf_counter()
        outcome: Outcome = "done"
        problem = None
        try:
            with borrowed_optimizer(self._optimizer):
                self._steps(order)
        except Exception as error:
            outcome, problem = failures.of_error(error)
        for parameter in self._model.parameters():
            parameter.grad = None
        attempt = Attempt(
            batch_size=order.batch_size,
            outcome=outcome,
            peak_bytes=torch.cuda.max_memory_allocated(device),
            reserved_bytes=torch.cuda.max_memory_reserved(device),
            retries=allocator_retries(device) - before,
            seconds=perf_counter() - began,
            problem=problem,
        )
        gc.collect()
        return attempt

    def _steps(self, order: TryOrder) -> None:
        setting = self.request.setting
        step = _step(self.workload, self._model, self.mode, setting, self._device, self._example)
        for _ in range(order.steps * (setting.accumulate if self.mode == "train" else 1)):
            step(order.batch_size)
        torch.cuda.synchronize(self._device)


def _release_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def _capped(device: torch.device, budget_bytes: int | None) -> Iterator[None]:
    """Cap the allocator at a budget, and lift the cap whatever happens."""
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


def _ignore(_: AnyEvent) -> None:
    """For calls without `on_event`."""
