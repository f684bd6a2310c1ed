"""Sees every operation of a step on the simulated device, and logs every allocation and release."""

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
from stoker.memory.trace.gpus import Architecture
from stoker.memory.trace.kernels import attention, recurrent, workspaces
from stoker.memory.trace.log import Allocation, AllocationKind, Reduction, TailWave
from stoker.memory.trace.shapes import returned
from stoker.process.failures import own_place

_FUSED_WORKSPACE_BYTES = 2**20
"""What cuBLASLt takes once, for products that add a bias on the way."""
_HOST_NUMEL = 2**16
"""Tensors of the host up to this size are real, so that code can read them."""
_KNOWN = ("aten", "prim", "prims", "torchvision", "_c10d_functional", "profiler", "inductor")
"""Namespaces whose operators take no memory but what they return, or have rules here."""

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
_WRITTEN_OUT: dict[Any, Callable[..., Any]] = attention.WRITTEN_OUT | layers.WRITTEN_OUT | recurrent.WHOLE


class AllocationRecorder(TorchDispatchMode):
    """Writes the log of a step while the step runs under it.

    The batch size is a prime: a size that it divides grows with the batch, a size that its square divides grows with
    the square of the batch. `value` stands in for values that only a run has; `read_at` is the place that read one.
    """

    def __init__(self, architecture: Architecture, batch_size: int, value: int = 0) -> None:
        mode: Any = super()
        mode.__init__()
        self.batch_size, self._value = batch_size, value
        self.read_at: str | None = None
        self.custom: set[str] = set()
        self.threads, self.multiprocessors = architecture.threads, architecture.multiprocessors
        self.allocations: list[Allocation] = []
        self.events: list[int] = []
        self._numbers: dict[int, int] = {}
        self._passed_on: set[int] = set()
        self._fixed_sizes: set[int] = set()
        self._lasting: set[str] = set()
        self._operator = "init"
        self._constant = True

    def steps_begin(self) -> int:
        """End the making of the model: its sizes, and those of its gradients, do not grow with the batch.

        Returns the number of events so far.
        """
        self._fixed_sizes = {each.fixed_bytes for each in self.allocations}
        self._constant = False
        return len(self.events)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE_QUESTION:
            return self._device_of(args[0])
        if func is _VALUE_QUESTION and isinstance(args[0], FakeTensor) and args[0].constant is None:
            return self._value_of(args[0])
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
            self.allocate(result)
        if func in _MATRIX_PRODUCTS:  # an output is allocated before its product asks for a handle
            self._take_workspace(fused=func is aten.addmm.default and args[0].dim() == 1)
        return result

    def _value_of(self, tensor: Any) -> Any:
        """The stand-in for a value that only a run has. The caller follows the step with 0 and with 1 and compares."""
        self.read_at = self.read_at or own_place("".join(traceback.format_stack())) or "the step"
        if tensor.dtype == torch.bool:
            return bool(self._value)
        return float(self._value) if tensor.dtype.is_floating_point else self._value

    def _device_of(self, tensor: Any) -> torch.device:
        """`meta` for the engine, which would ask CUDA for a stream; CUDA for a checkpoint that recomputes inside it."""
        recomputing = Engine.state == "inside" and torch.is_grad_enabled()
        return META if Engine.state and not recomputing else tensor.fake_device

    # ---------------------------------------------------------------- allocations and releases

    def allocate(self, result: Any) -> None:
        """Log the memory of what an operation returned, where it is new. Its release follows when it is collected."""
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.fake_device.type == "cuda":  # type: ignore[attr-defined]
                self._allocate(tensor)

    def allocate_for_good(self, size: int, operator: str) -> None:
        """Log memory that is no tensor of the step's and is never released."""
        before, self._operator = self._operator, operator
        self._new((size,))
        self._operator = before

    def allocate_larger(self, tensor: Any, size: int) -> None:
        """Log a tensor that keeps more memory than its shape needs: it was made larger and then cut down."""
        self._allocate(tensor, size)

    def _allocate(self, tensor: Any, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers or not storage.nbytes():  # the allocator is not asked for zero bytes
            return
        self._numbers[key] = self._new((storage.nbytes() if size is None else size,))
        weakref.finalize(storage, self._released, key)

    def _released(self, key: int) -> None:
        number = self._numbers.pop(key)
        if key in self._passed_on:
            self._passed_on.discard(key)
        else:
            self.events.append(-number - 1)

    def _new(self, sizes: Iterable[int], kind: AllocationKind = "tensor", elements: int = 0) -> int:
        fixed, item, square = 0, 0.0, 0.0
        for size in sizes:
            if self._constant or size % self.batch_size or size in self._fixed_sizes:
                fixed += size
            elif size % self.batch_size**2:
                item += size / self.batch_size
            else:
                square += size / self.batch_size**2
        return self._logged(
            Allocation(
                fixed_bytes=fixed,
                item_bytes=item,
                square_bytes=square,
                kind=kind,
                operator=self._operator,
                elements_an_item=elements / self.batch_size,
            )
        )

    def _logged(self, allocation: Allocation) -> int:
        self.allocations.append(allocation)
        self.events.append(len(self.allocations) - 1)
        return len(self.allocations) - 1

    def temporary(self, *sizes: int) -> Callable[[], None]:
        """Log memory that a kernel takes for itself, one piece of these sizes together. The result releases it."""
        number = self._new(sizes)
        return lambda: self.events.append(-number - 1)

    def scratch(self, *sizes: int, elements: int, tiles: int = 0) -> None:
        """Log the workspace that a convolution takes and releases if there is room. `elements` counts its input's
        elements, `tiles` those of its output's tiles if the last ones may be split."""
        number = self._new(sizes, "scratch", elements)
        if tiles:
            wave = TailWave(tiles_an_item=tiles / self.batch_size, multiprocessors=self.multiprocessors)
            self.allocations[number] = msgspec.structs.replace(self.allocations[number], tail=wave)
        self.events.append(-number - 1)

    def reduce(self, sums: int, rows: int) -> None:
        """Log the buffer that a sum over rows takes for its parts and releases."""
        of_sums, of_rows = (divmod(count, self.batch_size) for count in (sums, rows))
        reduction = Reduction(
            sums=sums if of_sums[1] else 0,
            rows=rows if of_rows[1] else 0,
            sums_an_item=0 if of_sums[1] else of_sums[0],
            rows_an_item=0 if of_rows[1] else of_rows[0],
            threads=self.threads,
        )
        number = self._logged(Allocation(fixed_bytes=0, operator=self._operator, reduction=reduction))
        self.events.append(-number - 1)

    def once(self, what: str, size: int, kind: AllocationKind = "tensor") -> None:
        """Log memory of a fixed size that a kernel takes at its first use and never releases."""
        if what not in self._lasting:
            self._lasting.add(what)
            self._logged(Allocation(fixed_bytes=size, kind=kind, operator=self._operator))

    def _in_place(self, func: Any, args: Any, result: Any) -> bool:
        """Whether a GPU run would reuse the first operand's memory for the result, and if so, let it.

        The engine adds gradients in place if it holds the last reference, and formulas write into fresh zeros; neither
        happens under a dispatch mode.
        """
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
        weakref.finalize(new, self._released, new._cdata)
        return True

    def _take_workspace(self, *, fused: bool) -> None:
        """Each handle of cuBLAS has a workspace, and the engine's thread has a handle of its own. Products that add a
        bias on the way go through cuBLASLt, which has another."""
        thread = "backward" if Engine.state else "forward"
        self.once(f"products {thread}", 0, kind="workspace")
        if fused:
            self.once(f"fused products {thread}", _FUSED_WORKSPACE_BYTES)


def _is_host_work(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation only has small tensors of the host. Those are real, so that code can read them: a random
    number, a list of rates."""
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
