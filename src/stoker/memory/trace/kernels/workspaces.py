"""Temporary memory of kernels: in no output, and released before they return, but it counts at the peak."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from stoker.memory.trace.kernels import convolutions
from stoker.memory.trace.shapes import returned
from stoker.records import Record

if TYPE_CHECKING:
    from stoker.memory.trace.recorder import AllocationRecorder


class WorkspaceRules(Record, frozen=True):
    """Sizes read off the kernels' sources and recorded allocations."""

    block: int = 64
    """Rows and columns of a block of the memory-efficient attention kernel."""
    lock_bytes: int = 16
    """The lock of such a block."""
    flash_rows: int = 128
    """Flash attention rounds rows up to a multiple of this,"""
    flash_width: int = 32
    """and the width of a head to a multiple of this."""
    counters_bytes: int = 256
    """Counters of cuDNN's attention, in its workspace."""
    few_indices: int = 3072
    """Up to so many indices, an embedding's gradient is made without sorting them."""
    part_rows: int = 10
    """Rows that are added up to one part of an embedding's gradient."""
    sum_bytes: int = 4
    """Sums are kept in full precision."""


RULES = WorkspaceRules()
aten = torch.ops.aten
Kernel = Callable[["AllocationRecorder", Any, Any, Any], Any]


def size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


# ---------------------------------------------------------------- attention


def _efficient_backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """In full precision, the row sums of gradient times output are made outside the kernel. The kernel gathers the
    query's gradient in blocks of rows and columns, each with a lock."""
    gradient, query, _, _, _, out = args[:6]
    releases = _contiguous(log, gradient.transpose(1, 2))
    result = returned(func, args, kwargs)
    log.allocate(result)
    batch, heads, length, width = query.shape
    rows = RULES.sum_bytes * batch * heads * length
    if query.dtype == torch.float32:
        product, sums, turned = log.temporary(size_of(out)), log.temporary(rows), log.temporary(rows)
        sums()
        product()
        releases.append(turned)
    else:
        releases.append(log.temporary(rows))
    blocks = -(-length // RULES.block) * -(-width // RULES.block)
    releases.append(log.temporary(batch * heads * blocks * (RULES.sum_bytes * RULES.block**2 + RULES.lock_bytes)))
    for release in releases:
        release()
    return result


def _flash_backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The kernel gathers the query's gradient in full precision. With fewer heads of keys than of queries, it first
    makes the gradients of keys and values for every head of the queries."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    rounded_rows = -(-rows // RULES.flash_rows) * RULES.flash_rows
    rounded_width = -(-width // RULES.flash_width) * RULES.flash_width
    result = returned(func, args, kwargs)
    log.allocate(result)
    releases = [
        log.temporary(RULES.sum_bytes * batch * heads * rounded_rows),
        log.temporary(RULES.sum_bytes * batch * heads * rounded_rows * rounded_width),
    ]
    if key.shape[1] != heads:
        expanded = batch * heads * key.shape[2] * width * key.element_size()
        releases += [log.temporary(expanded), log.temporary(expanded)]
    for release in releases:
        release()
    return result


def _cudnn_attention_backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The kernel gathers the query's gradient in full precision in its workspace, with the sums of rows."""
    query = args[1]
    result = returned(func, args, kwargs)
    log.allocate(result)
    rows = RULES.sum_bytes * query.shape[0] * query.shape[1] * query.shape[2]
    log.temporary(rows * query.shape[3], rows, RULES.counters_bytes)()
    return result


# ---------------------------------------------------------------- norms and sums


def _contiguous(log: "AllocationRecorder", *tensors: Any) -> list[Callable[[], None]]:
    """Copies of what is not contiguous, for kernels that need it contiguous."""
    return [log.temporary(size_of(tensor)) for tensor in tensors if not tensor.is_contiguous()]


def _needs_contiguous(count: int) -> Kernel:
    """A kernel that copies those of its first `count` operands that are not contiguous."""

    def run(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
        releases = _contiguous(log, *args[:count])
        result = returned(func, args, kwargs)
        log.allocate(result)
        for release in releases:
            release()
        return result

    return run


def _layer_norm_backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The kernel copies the input before it makes the gradients, and the output's gradient after."""
    gradient, x = args[:2]
    releases = _contiguous(log, x)
    result = returned(func, args, kwargs)
    log.allocate(result)
    for release in (*_contiguous(log, gradient), *releases):
        release()
    return result


def _sum(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Sums over leading dimensions lie side by side in memory, so their parts go through a common buffer."""
    x, axes = args[0], args[1] if len(args) > 1 else None
    result = returned(func, args, kwargs)
    log.allocate(result)
    axes = {axis % x.dim() for axis in axes} if axes and x.dim() else set()
    if 0 < len(axes) < x.dim() and x.numel() and axes == set(_outermost(x)[: len(axes)]):
        rows = prod(x.shape[axis] for axis in axes)
        log.reduce(x.numel() // rows, rows)
    return result


def _outermost(x: Any) -> list[int]:
    """The dimensions of a tensor by stride, the largest first."""
    strides = x.stride()
    return sorted(range(x.dim()), key=lambda axis: (-strides[axis], axis))


# ---------------------------------------------------------------- tables


def _embedding_backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The kernel sorts the indices with their positions. It adds up rows in parts, in full precision, and then the
    parts of each row of the table."""
    gradient, indices, rows = args[:3]
    result = returned(func, args, kwargs)
    if indices.numel() <= RULES.few_indices:
        log.allocate(result)
        return result
    releases = [log.temporary(size_of(indices)) for _ in range(4)]
    log.allocate(result)
    items = indices.shape[0]
    tenth = items * -(-indices.numel() // items // RULES.part_rows)
    width = gradient.shape[-1] * RULES.sum_bytes
    releases.append(log.temporary(min(indices.numel(), rows) * width, tenth * width))
    for release in reversed(releases):
        release()
    return result


# ---------------------------------------------------------------- losses


def _loss_of(place: int, *, temporaries: int = 0) -> Kernel:
    """A loss that is made for every element and then reduced into its own first element: it keeps memory for all
    elements, and takes `temporaries` more tensors of that size. `place` is the position of its reduction argument."""

    def run(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
        result = returned(func, args, kwargs)
        if not _reduces(args, kwargs, place):
            log.allocate(result)
            return result
        size = _elements(*args[:2]) * result.element_size()
        log.allocate_larger(result, size)
        _taken_together(log, *(size,) * temporaries)
        return result

    return run


def _huber_loss(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Made for every element, and then reduced into another tensor."""
    result = returned(func, args, kwargs)
    releases = [log.temporary(_elements(*args[:2]) * result.element_size())] if _reduces(args, kwargs, 2) else []
    log.allocate(result)
    for release in releases:
        release()
    return result


def _soft_margin_backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The negated target, its product with the input and the exponential of the product exist at once."""
    size = size_of(args[1])
    turned, product, power = log.temporary(size), log.temporary(size), log.temporary(size)
    product()
    turned()
    result = returned(func, args, kwargs)
    log.allocate(result)
    power()
    return result


def _reduces(args: Any, kwargs: Any, place: int) -> bool:
    reduction = args[place] if len(args) > place else kwargs.get("reduction", 1)
    return bool(reduction)


def _elements(one: Any, other: Any) -> int:
    return prod(torch.broadcast_shapes(one.shape, other.shape))


def _taken_together(log: "AllocationRecorder", *sizes: int) -> None:
    """Log pieces that are taken together and released."""
    releases = [log.temporary(size) for size in sizes]
    for release in releases:
        release()


# ---------------------------------------------------------------- patches of images


def _patches(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Unfolding first makes an output as large as the input, and then makes it again."""
    releases = _contiguous(log, args[0])
    before = log.temporary(size_of(args[0]))
    result = returned(func, args, kwargs)
    log.allocate(result)
    before()
    for release in releases:
        release()
    return result


def _from_patches(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Folding makes its output as large as the input if that is larger, and cuts it down: all of that memory stays."""
    releases = _contiguous(log, args[0])
    result = returned(func, args, kwargs)
    log.allocate_larger(result, max(size_of(args[0]), size_of(result)))
    for release in releases:
        release()
    return result


def _dropout(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The kernel makes the mask before the output."""
    result = returned(func, args, kwargs)
    log.allocate(result[::-1])
    return result


KERNELS: dict[Any, Kernel] = {
    aten.convolution.default: convolutions.forward,
    aten.convolution_backward.default: convolutions.backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_dropout.default: _dropout,
    aten.native_layer_norm.default: _needs_contiguous(1),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _needs_contiguous(1),
    aten.native_group_norm_backward.default: _needs_contiguous(2),
    aten._softmax.default: _needs_contiguous(1),
    aten._softmax_backward_data.default: _needs_contiguous(2),
    aten._log_softmax.default: _needs_contiguous(1),
    aten._log_softmax_backward_data.default: _needs_contiguous(2),
    aten.mse_loss.default: _loss_of(2, temporaries=1),
    aten.smooth_l1_loss.default: _loss_of(2, temporaries=1),
    aten.soft_margin_loss.default: _loss_of(2),
    aten.binary_cross_entropy.default: _loss_of(3),
    aten.huber_loss.default: _huber_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.im2col.default: _patches,
    aten.col2im.default: _from_patches,
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _sum,
}
