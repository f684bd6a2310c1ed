"""What kernels take for themselves and give back before they return: in no output, but it counts at the peak."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from stoker.memory.trace.kernels import convolutions
from stoker.memory.trace.shapes import returned

if TYPE_CHECKING:
    from stoker.memory.trace.recorder import Recorder

_BLOCK = 64
_COUNTERS_BYTES = 256
_FEW_INDICES, _PART_ROWS = 3072, 10
aten = torch.ops.aten
Kernel = Callable[["Recorder", Any, Any, Any], Any]


def size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


# ---------------------------------------------------------------- attention


def _efficient_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """In full precision the row sums of (gradient x output) are made outside the kernel. The query's gradient is
    gathered in blocks of 64 rows and columns, each with a lock of 16 bytes."""
    gradient, query, _, _, _, out = args[:6]
    gives = _contiguous(log, gradient.transpose(1, 2))
    result = returned(func, args, kwargs)
    log.born(result)
    batch, heads, length, width = query.shape
    rows = 4 * batch * heads * length
    if query.dtype == torch.float32:
        product, sums, turned = log.taken(size_of(out)), log.taken(rows), log.taken(rows)
        sums()
        product()
        gives.append(turned)
    else:
        gives.append(log.taken(rows))
    blocks = -(-length // _BLOCK) * -(-width // _BLOCK)
    gives.append(log.taken(batch * heads * blocks * (4 * _BLOCK**2 + 16)))
    for give in gives:
        give()
    return result


def _flash_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The query's gradient is gathered in full precision, rows rounded up to 128 and the head's width to 32; with fewer
    heads of keys than of queries, the keys' and values' gradients are made for every head of the queries first."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    rounded_rows, rounded_width = -(-rows // 128) * 128, -(-width // 32) * 32
    result = returned(func, args, kwargs)
    log.born(result)
    gives = [
        log.taken(4 * batch * heads * rounded_rows),
        log.taken(4 * batch * heads * rounded_rows * rounded_width),
    ]
    if key.shape[1] != heads:
        expanded = batch * heads * key.shape[2] * width * key.element_size()
        gives += [log.taken(expanded), log.taken(expanded)]
    for give in gives:
        give()
    return result


def _cudnn_attention_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The query's gradient is gathered in full precision in the workspace, beside the rows' sums."""
    query = args[1]
    result = returned(func, args, kwargs)
    log.born(result)
    rows = 4 * query.shape[0] * query.shape[1] * query.shape[2]
    log.taken(rows * query.shape[3], rows, _COUNTERS_BYTES)()
    return result


# ---------------------------------------------------------------- norms and sums


def _contiguous(log: "Recorder", *tensors: Any) -> list[Callable[[], None]]:
    """Copies of what is not contiguous, for kernels that want it so."""
    return [log.taken(size_of(tensor)) for tensor in tensors if not tensor.is_contiguous()]


def _wants_contiguous(count: int) -> Kernel:
    """A kernel that copies its first operands where they are not contiguous."""

    def run(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
        gives = _contiguous(log, *args[:count])
        result = returned(func, args, kwargs)
        log.born(result)
        for give in gives:
            give()
        return result

    return run


def _layer_norm_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The input is copied before the gradients are made, the output's gradient after."""
    gradient, x = args[:2]
    gives = _contiguous(log, x)
    result = returned(func, args, kwargs)
    log.born(result)
    for give in (*_contiguous(log, gradient), *gives):
        give()
    return result


def _sum(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Over leading dimensions, sums lie side by side in memory and their parts go through a common buffer."""
    x, axes = args[0], args[1] if len(args) > 1 else None
    result = returned(func, args, kwargs)
    log.born(result)
    axes = {axis % x.dim() for axis in axes} if axes and x.dim() else set()
    if 0 < len(axes) < x.dim() and x.numel() and axes == set(_outermost(x)[: len(axes)]):
        rows = prod(x.shape[axis] for axis in axes)
        log.summed(x.numel() // rows, rows)
    return result


def _outermost(x: Any) -> list[int]:
    """The dimensions of a tensor in the order of memory, the widest apart first."""
    strides = x.stride()
    return sorted(range(x.dim()), key=lambda axis: (-strides[axis], axis))


# ---------------------------------------------------------------- tables


def _embedding_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The indices are sorted, with where each came from. Rows are added up in parts of ten, in full precision, and the
    parts of each row of the table after that."""
    gradient, indices, rows = args[:3]
    result = returned(func, args, kwargs)
    if indices.numel() <= _FEW_INDICES:
        log.born(result)
        return result
    gives = [log.taken(size_of(indices)) for _ in range(4)]
    log.born(result)
    items = indices.shape[0]
    tenth = items * -(-indices.numel() // items // _PART_ROWS)
    width = gradient.shape[-1] * 4
    gives.append(log.taken(min(indices.numel(), rows) * width, tenth * width))
    for give in reversed(gives):
        give()
    return result


# ---------------------------------------------------------------- losses


def _loss_of(place: int, *, beside: int = 0) -> Kernel:
    """A loss that is made for every element and then averaged or summed into its own first place: it keeps memory for
    all elements, and takes so many tensors of it more `beside`. Its reduction is the argument at `place`."""

    def run(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
        result = returned(func, args, kwargs)
        if not _reduces(args, kwargs, place):
            log.born(result)
            return result
        size = _elements(*args[:2]) * result.element_size()
        log.born_larger(result, size)
        _gone(log, *(size,) * beside)
        return result

    return run


def _huber_loss(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Made for every element, and then averaged or summed elsewhere."""
    result = returned(func, args, kwargs)
    gives = [log.taken(_elements(*args[:2]) * result.element_size())] if _reduces(args, kwargs, 2) else []
    log.born(result)
    for give in gives:
        give()
    return result


def _soft_margin_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The target turned round, its product with the input and the product's exponential are there at once."""
    size = size_of(args[1])
    turned, product, power = log.taken(size), log.taken(size), log.taken(size)
    product()
    turned()
    result = returned(func, args, kwargs)
    log.born(result)
    power()
    return result


def _reduces(args: Any, kwargs: Any, place: int) -> bool:
    reduction = args[place] if len(args) > place else kwargs.get("reduction", 1)
    return bool(reduction)


def _elements(one: Any, other: Any) -> int:
    return prod(torch.broadcast_shapes(one.shape, other.shape))


def _gone(log: "Recorder", *sizes: int) -> None:
    """Taken together, and given back."""
    gives = [log.taken(size) for size in sizes]
    for give in gives:
        give()


# ---------------------------------------------------------------- patches of images


def _patches(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Unfolding makes its output as large as the input first, and then anew."""
    gives = _contiguous(log, args[0])
    before = log.taken(size_of(args[0]))
    result = returned(func, args, kwargs)
    log.born(result)
    before()
    for give in gives:
        give()
    return result


def _from_patches(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Folding makes its output as large as the input, where that is larger, and cuts it down: it keeps it all."""
    gives = _contiguous(log, args[0])
    result = returned(func, args, kwargs)
    log.born_larger(result, max(size_of(args[0]), size_of(result)))
    for give in gives:
        give()
    return result


def _dropout(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The mask is made before the output."""
    result = returned(func, args, kwargs)
    log.born(result[::-1])
    return result


KERNELS: dict[Any, Kernel] = {
    aten.convolution.default: convolutions.forward,
    aten.convolution_backward.default: convolutions.backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_dropout.default: _dropout,
    aten.native_layer_norm.default: _wants_contiguous(1),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _wants_contiguous(1),
    aten.native_group_norm_backward.default: _wants_contiguous(2),
    aten._softmax.default: _wants_contiguous(1),
    aten._softmax_backward_data.default: _wants_contiguous(2),
    aten._log_softmax.default: _wants_contiguous(1),
    aten._log_softmax_backward_data.default: _wants_contiguous(2),
    aten.mse_loss.default: _loss_of(2, beside=1),
    aten.smooth_l1_loss.default: _loss_of(2, beside=1),
    aten.soft_margin_loss.default: _loss_of(2),
    aten.binary_cross_entropy.default: _loss_of(3),
    aten.huber_loss.default: _huber_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.im2col.default: _patches,
    aten.col2im.default: _from_patches,
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _sum,
}
