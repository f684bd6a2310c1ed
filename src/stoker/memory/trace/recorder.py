"""Sees every operation of a step on the fake device, and writes down every storage that is born and dies."""

import functools
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.memory.trace import layers
from stoker.memory.trace.fake_cuda import CUDA, META, Engine
from stoker.memory.trace.fused_layers import WRITTEN_OUT
from stoker.memory.trace.gpus import Architecture
from stoker.memory.trace.kernels import attention, recurrent, workspaces
from stoker.memory.trace.log import Kind, Reduction, Storage, TailWave
from stoker.memory.trace.shapes import returned
from stoker.process.failures import own_place

_FUSED_WORKSPACE_BYTES = 2**20
_HOST_NUMEL = 2**16
_KNOWN = ("aten", "prim", "prims", "torchvision", "_c10d_functional", "profiler", "inductor")
"""Whose operators take no memory but what they return, or have rules of their own here."""

aten = torch.ops.aten
_DEVICE_QUESTION = torch.ops.prim.device.default
_VALUE_QUESTION = aten._local_scalar_dense.default
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
_KERNELS: dict[Any, workspaces.Kernel] = {**workspaces.KERNELS, **recurrent.KERNELS}
_WRITTEN_OUT: dict[Any, Callable[..., Any]] = attention.WRITTEN_OUT | WRITTEN_OUT | recurrent.WHOLE | layers.WRITTEN_OUT


class Recorder(TorchDispatchMode):
    """The log of a step while it is written.

    Its batch is a prime: a size that it divides grows with the batch, one that its square divides with the square of
    it.
    """

    def __init__(self, architecture: Architecture, batch_size: int, value: int = 0) -> None:
        mode: Any = super()
        mode.__init__()
        self.batch_size, self._value = batch_size, value
        self.asked_at: str | None = None
        self.custom: set[str] = set()
        self.threads, self.multiprocessors = architecture.threads, architecture.multiprocessors
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self._numbers: dict[int, int] = {}
        self._passed_on: set[int] = set()
        self._fixed_sizes: set[int] = set()
        self._kept: set[str] = set()
        self._operator = "init"
        self._constant = True

    def steps_begin(self) -> int:
        """What was made so far is the model: its sizes, and those of its gradients, do not grow with the batch.

        Says how many events that took.
        """
        self._fixed_sizes = {storage.fixed_bytes for storage in self.storages}
        self._constant = False
        return len(self.events)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE_QUESTION:
            return self._where(args[0])
        if func is _VALUE_QUESTION and isinstance(args[0], FakeTensor) and args[0].constant is None:
            return self._answer(args[0])
        if _is_host_work(func, args, kwargs):
            with no_dispatch():
                return func(*args, **kwargs)
        if Engine.state == "root" and not torch.is_grad_enabled():
            Engine.state = "inside"
        device = kwargs.get("device")
        if device is not None and device.type == "meta":
            kwargs = {**kwargs, "device": CUDA}
        before, self._operator = self._operator, _name(func)
        try:
            return self._run(func, args, kwargs)
        finally:
            self._operator = before

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in _WRITTEN_OUT:
            with self:
                return _WRITTEN_OUT[func](*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:  # without autograd's keys composites arrive whole
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        kernel = _KERNELS.get(func)
        if kernel is not None:
            return kernel(self, func, args, kwargs)
        if func.namespace not in _KNOWN:
            self.custom.add(func.name())
        result = returned(func, args, kwargs)
        if not self._in_place(func, args, result):
            self.born(result)
        if func in _MATRIX_PRODUCTS:  # an output is there before its product asks for a handle
            self._take_workspace(fused=func is aten.addmm.default and args[0].dim() == 1)
        return result

    def _answer(self, tensor: Any) -> Any:
        """A value that only a run has, as for a log: 0 stands in, or 1, and whoever follows the step compares."""
        self.asked_at = self.asked_at or own_place("".join(traceback.format_stack())) or "the step"
        if tensor.dtype == torch.bool:
            return bool(self._value)
        return float(self._value) if tensor.dtype.is_floating_point else self._value

    def _where(self, tensor: Any) -> torch.device:
        """The engine must see `meta`, or it asks CUDA for a stream; a checkpoint that recomputes inside it must not."""
        recomputing = Engine.state == "inside" and torch.is_grad_enabled()
        return META if Engine.state and not recomputing else tensor.fake_device

    # ---------------------------------------------------------------- births and deaths

    def born(self, result: Any) -> None:
        """Write down the storages of what an operation returned, where they are new."""
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.fake_device.type == "cuda":  # type: ignore[attr-defined]
                self._one_born(tensor)

    def born_larger(self, tensor: Any, size: int) -> None:
        """A tensor that keeps more memory than its shape tells: it was made larger and then cut down."""
        self._one_born(tensor, size)

    def _one_born(self, tensor: Any, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers or not storage.nbytes():  # nothing is asked of the allocator for no bytes
            return
        self._numbers[key] = self._new((storage.nbytes() if size is None else size,))
        weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        number = self._numbers.pop(key)
        if key in self._passed_on:
            self._passed_on.discard(key)
        else:
            self.events.append(-number - 1)

    def _new(self, sizes: Iterable[int], kind: Kind = "tensor", elements: int = 0) -> int:
        fixed, item, square = 0, 0.0, 0.0
        for size in sizes:
            if self._constant or size % self.batch_size or size in self._fixed_sizes:
                fixed += size
            elif size % self.batch_size**2:
                item += size / self.batch_size
            else:
                square += size / self.batch_size**2
        self.storages.append(
            Storage(
                fixed_bytes=fixed,
                item_bytes=item,
                square_bytes=square,
                kind=kind,
                operator=self._operator,
                elements_an_item=elements / self.batch_size,
            )
        )
        self.events.append(len(self.storages) - 1)
        return len(self.storages) - 1

    def taken(self, *sizes: int) -> Callable[[], None]:
        """Memory that a kernel takes for itself, one piece of these sizes together; call the result to give it back."""
        number = self._new(sizes)
        return lambda: self.events.append(-number - 1)

    def scratched(self, *sizes: int, elements: int, tiles: int = 0) -> None:
        """What a convolution takes and gives back, if it can be had; `elements` are those of its input, `tiles` those
        of its output where the last ones may be split."""
        number = self._new(sizes, "scratch", elements)
        if tiles:
            wave = TailWave(tiles_an_item=tiles / self.batch_size, multiprocessors=self.multiprocessors)
            self.storages[number] = msgspec.structs.replace(self.storages[number], tail=wave)
        self.events.append(-number - 1)

    def summed(self, sums: int, rows: int) -> None:
        """What a sum over rows takes for its parts, and gives back."""
        of_sums, of_rows = (divmod(count, self.batch_size) for count in (sums, rows))
        reduction = Reduction(
            sums=sums if of_sums[1] else 0,
            rows=rows if of_rows[1] else 0,
            sums_an_item=0 if of_sums[1] else of_sums[0],
            rows_an_item=0 if of_rows[1] else of_rows[0],
            threads=self.threads,
        )
        number = len(self.storages)
        self.storages.append(Storage(fixed_bytes=0, operator=self._operator, reduction=reduction))
        self.events += [number, -number - 1]

    def _in_place(self, func: Any, args: Any, result: Any) -> bool:
        """The engine adds gradients in place where it holds the last reference, and formulas write into fresh zeros,
        but never under a dispatch mode."""
        if not Engine.state or torch.is_grad_enabled():
            return False
        if func is aten.add.Tensor:
            alike = isinstance(args[1], torch.Tensor) and args[0].shape == args[1].shape
        else:
            alike = func in layers.IN_PLACE_BACKWARD
        if not alike or args[0].dtype != result.dtype:
            return False
        old, new = args[0].untyped_storage(), result.untyped_storage()
        key = old._cdata
        if key not in self._numbers or key in self._passed_on or old.nbytes() != new.nbytes():
            return False
        self._passed_on.add(key)
        self._numbers[new._cdata] = self._numbers[key]
        weakref.finalize(new, self._died, new._cdata)
        return True

    def _take_workspace(self, *, fused: bool) -> None:
        """cuBLAS has one for each handle, and the engine's thread has a handle of its own; products that add a bias on
        the way go through cuBLASLt, which has another."""
        thread = "backward" if Engine.state else "forward"
        self.kept_once(f"products {thread}", 0, kind="workspace")
        if fused:
            self.kept_once(f"fused products {thread}", _FUSED_WORKSPACE_BYTES)

    def kept_once(self, what: str, size: int, kind: Kind = "tensor") -> None:
        """Memory of a fixed size that a kernel takes at its first use and never gives back."""
        if what not in self._kept:
            self._kept.add(what)
            self.storages.append(Storage(fixed_bytes=size, kind=kind, operator=self._operator))
            self.events.append(len(self.storages) - 1)


def _is_host_work(func: Any, args: Any, kwargs: Any) -> bool:
    """Small tensors that never leave the CPU are real, so that code can read them: a coin that is tossed, a list of
    rates."""
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return False
    tensors = list(_tensors((*args, *kwargs.values())))
    if tensors:
        return not any(isinstance(tensor, FakeTensor) or tensor.numel() > _HOST_NUMEL for tensor in tensors)
    shape = args[0] if args and isinstance(args[0], list | tuple) else ()
    return _makes_tensors(func) and all(isinstance(side, int) for side in shape) and prod(shape) <= _HOST_NUMEL


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@functools.cache
def _makes_tensors(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@functools.cache
def _name(func: Any) -> str:
    return str(func)
