"""Logs every storage that a step makes and drops on a fake CUDA device: no GPU, and no memory for what it logs."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.errors import InputError
from stoker.measure import attention, fake_cuda
from stoker.measure.allocation_log import AllocationLog, Kind, Storage
from stoker.measure.fake_cuda import CUDA, META, Engine
from stoker.records import Mode, Precision
from stoker.workload import passes
from stoker.workload.batches import mapped
from stoker.workload.definition import Workload

TRACED_BATCH = 251
"""A prime: a size that it divides grows with the batch, any other does not."""
_EXAMPLE_ITEMS = 3
_SEEN_ITEMS = 64

aten = torch.ops.aten
_DEVICE_QUESTION = torch.ops.prim.device.default
_MATRIX_PRODUCTS = frozenset(
    (
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.addbmm.default,
        aten.addmv.default,
    )
)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Log(TorchDispatchMode):
    """Sees every operation of a step, and with it every storage on the device."""

    def __init__(self) -> None:
        mode: Any = super()
        mode.__init__()
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self._numbers: dict[int, int] = {}
        self._passed_on: set[int] = set()
        self._fixed_sizes: set[int] = set()
        self._with_workspace: set[bool] = set()
        self._operator = "init"
        self._constant = True

    def steps_begin(self) -> None:
        """What was made so far is the model: its sizes, and those of its gradients, do not grow with the batch."""
        self._fixed_sizes = {storage.fixed_bytes for storage in self.storages}
        self._constant = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE_QUESTION:
            return self._where(args[0])
        if Engine.state == "root" and not torch.is_grad_enabled():
            Engine.state = "inside"
        device = kwargs.get("device")
        if device is not None and device.type == "meta":
            kwargs = {**kwargs, "device": CUDA}
        before, self._operator = self._operator, str(func)
        try:
            return self._run(func, args, kwargs)
        finally:
            self._operator = before

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.scaled_dot_product_attention.default:
            return attention.chosen(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:  # without autograd's keys composites arrive whole
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in _MATRIX_PRODUCTS:
            self._take_workspace()
        shortcut = _NORMS.get(func)
        result = shortcut(*args, **kwargs) if shortcut else func(*args, **kwargs)
        if self._summed_in_place(func, args, result):
            return result
        for tensor in _tensors(result):
            self._born(tensor)
        self._scratch(func, args, result)
        return result

    def _where(self, tensor: Any) -> torch.device:
        """The engine must see `meta`, or it asks CUDA for a stream; a checkpoint that recomputes inside it must not."""
        recomputing = Engine.state == "inside" and torch.is_grad_enabled()
        return META if Engine.state and not recomputing else tensor.fake_device

    def _born(self, tensor: Any) -> None:
        if tensor.fake_device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        self._numbers[key] = self._new(storage.nbytes())
        weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        number = self._numbers.pop(key)
        if key in self._passed_on:
            self._passed_on.discard(key)
        else:
            self.events.append(-number - 1)

    def _new(self, size: int, kind: Kind = "tensor") -> int:
        grows = not self._constant and size % TRACED_BATCH == 0 and size not in self._fixed_sizes
        item_bytes = size / TRACED_BATCH if grows else 0.0
        fixed = 0 if grows else size
        self.storages.append(Storage(fixed_bytes=fixed, item_bytes=item_bytes, kind=kind, operator=self._operator))
        self.events.append(len(self.storages) - 1)
        return len(self.storages) - 1

    def _summed_in_place(self, func: Any, args: Any, result: Any) -> bool:
        """The engine adds gradients in place where it holds the last reference, but never under a dispatch mode."""
        if func is not aten.add.Tensor or not Engine.state or not isinstance(args[1], torch.Tensor):
            return False
        if args[0].shape != args[1].shape or args[0].dtype != result.dtype:
            return False
        old, new = args[0].untyped_storage(), result.untyped_storage()
        key = old._cdata
        if key not in self._numbers or key in self._passed_on or old.nbytes() != new.nbytes():
            return False
        self._passed_on.add(key)
        self._numbers[new._cdata] = self._numbers[key]
        weakref.finalize(new, self._died, new._cdata)
        return True

    def _take_workspace(self) -> None:
        """cuBLAS has one for each handle, and the engine's thread has a handle of its own."""
        backward = Engine.state is not None
        if backward not in self._with_workspace:
            self._with_workspace.add(backward)
            self.storages.append(Storage(fixed_bytes=0, kind="workspace", operator=self._operator))
            self.events.append(len(self.storages) - 1)

    def _scratch(self, func: Any, args: Any, result: Any) -> None:
        """cuDNN transposes its operands into a workspace: about the bytes of what it reads and writes."""
        if func is aten.convolution.default and args[8] == 1:
            self._pass(args[0], result, args[1])
        elif func is aten.convolution_backward.default and args[9] == 1:
            for gradient in result[:2]:
                if gradient is not None:
                    self._pass(args[0], args[1], args[2])

    def _pass(self, *operands: torch.Tensor) -> None:
        """Memory that is taken and given back inside one operation."""
        sizes = [operand.numel() * operand.element_size() for operand in operands]
        growing = sum(size for size in sizes if size % TRACED_BATCH == 0 and size not in self._fixed_sizes)
        fixed = sum(sizes) - growing
        item_bytes = growing / TRACED_BATCH
        self.storages.append(Storage(fixed_bytes=fixed, item_bytes=item_bytes, kind="scratch", operator=self._operator))
        number = len(self.storages) - 1
        self.events += [number, -number - 1]


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _tensors(result: Any) -> list[Any]:
    parts = result if isinstance(result, tuple | list) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _per_channel(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[1], dtype=torch.float32, device=CUDA)


# Torch decomposes these in Python, slowly; what they return is known.
_NORMS: dict[Any, Callable[..., Any]] = {
    aten.cudnn_batch_norm.default: lambda x, *_, **__: (
        torch.empty_like(x),
        _per_channel(x),
        _per_channel(x),
        torch.empty(0, dtype=torch.uint8, device=CUDA),
    ),
    aten.native_batch_norm.default: lambda x, *_, **__: (torch.empty_like(x), _per_channel(x), _per_channel(x)),
    aten.cudnn_batch_norm_backward.default: lambda x, _, weight, *__, **___: (
        torch.empty_like(x),
        torch.empty_like(weight),
        torch.empty_like(weight),
    ),
}


def record(workload: Workload, mode: Mode, precision: Precision, optimizer: str | None) -> AllocationLog:
    """Log one step of a workload on a fake CUDA device. Runs in a process of its own: it changes torch for good."""
    began = perf_counter()
    fake_cuda.install(backward=mode == "train")
    attention.install()
    with fake_cuda.LazyBuild():
        model = passes.make_model(workload)
    example = _example(workload)
    log = Log()
    with fake_cuda.fake_tensors(), log:
        fake_cuda.to_fake_cuda(model).train(mode == "train")
        step = _Step(workload, model, mode, precision, optimizer)
        log.steps_begin()
        init = len(log.events)
        step(example)
        events = list(log.events)
    first = events[init:]
    died = {-event - 1 for event in first if event < 0}
    return AllocationLog(
        storages=tuple(log.storages),
        init=tuple(events[:init]),
        first=tuple(first),
        steady=tuple(event for event in first if event < 0 or event in died),
        batch_size=TRACED_BATCH,
        attention=tuple(sorted(attention.used)),
        unseen=_unseen(model),
        seconds=perf_counter() - began,
    )


def _unseen(model: torch.nn.Module) -> tuple[str, ...]:
    """What takes memory on a GPU and shows in no log."""
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        return ("what cuDNN reserves for recurrent layers",)
    return ()


class _Step:
    """One step as the loop makes it: the batch on the device, forward, backward, update."""

    def __init__(
        self, workload: Workload, model: torch.nn.Module, mode: Mode, precision: Precision, optimizer: str | None
    ) -> None:
        self._workload, self._model, self._mode = workload, model, mode
        self._dtype = _DTYPES.get(precision)
        chosen = workload.with_(optimizer=OPTIMIZERS[optimizer]) if optimizer else workload
        self._optimizer = passes.make_optimizer(chosen, model) if mode == "train" else None

    def __call__(self, example: Any) -> None:
        batch = _inflated(example)
        autocast = torch.autocast("cuda", dtype=self._dtype) if self._dtype else nullcontext()
        if self._mode == "infer":
            with torch.inference_mode(), autocast:
                self._forward(batch)
            return
        with autocast:
            loss = self._loss(batch)
        if loss is None:
            return
        loss.backward()
        assert self._optimizer is not None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _forward(self, batch: Any) -> Any:
        if self._workload.step is not None:
            return self._workload.step(self._model, batch)
        return passes.forward(self._workload, self._model, passes.split(batch)[0])

    def _loss(self, batch: Any) -> torch.Tensor | None:
        output = self._forward(batch)
        if self._workload.step is not None:
            return passes.step_loss(output)
        return passes.loss_of(self._workload, output, passes.split(batch)[1])


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.01),
    "momentum": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def _example(workload: Workload) -> Any:
    """A small real batch, to see its shapes: the largest of the first items, a few times."""
    dataset = passes.make_dataset(workload)
    samples = list(islice(_items(dataset), _SEEN_ITEMS))
    if not samples:
        raise InputError(f"{type(dataset).__name__} is empty: there is no item to see the shapes of")
    largest = max(samples, key=passes.batch_bytes)
    return (workload.collate_fn or torch.utils.data.default_collate)([largest] * _EXAMPLE_ITEMS)


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return iter(dataset)
    return (dataset[index] for index in range(len(dataset)))


def _inflated(example: Any) -> Any:
    """The example as fake CUDA tensors, with the traced batch in the place of its few items."""

    def grow(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if shape and shape[0] == _EXAMPLE_ITEMS:
            shape[0] = TRACED_BATCH
        return torch.empty(shape, dtype=tensor.dtype, device=CUDA)

    return mapped(example, grow)
