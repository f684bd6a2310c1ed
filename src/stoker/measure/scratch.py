"""What kernels take for themselves and give back before they return: in no output, but it counts at the peak."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stoker.measure import convolutions
from stoker.measure.outputs import returned

if TYPE_CHECKING:
    from stoker.measure.recorder import Recorder

aten = torch.ops.aten
Kernel = Callable[["Recorder", Any, Any, Any], Any]


def size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


# ---------------------------------------------------------------- attention


def _efficient_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """In full precision the row sums of (gradient x output) are made outside the kernel; in half precision the query's
    gradient is gathered in full precision, in blocks of 64 rows."""
    gradient, query, _, _, _, out = args[:6]
    gives = []
    if not gradient.transpose(1, 2).is_contiguous():
        gives.append(log.taken(size_of(gradient)))
    result = returned(func, args, kwargs)
    log.born(result)
    rows = 4 * query.shape[0] * query.shape[1] * query.shape[2]
    if query.dtype == torch.float32:
        product, sums, turned = log.taken(size_of(out)), log.taken(rows), log.taken(rows)
        product()
        sums()
        gives.append(turned)
    else:
        blocks = -(-query.shape[2] // 64) * 64
        gives.append(log.taken(rows))
        gives.append(log.taken(4 * query.shape[0] * query.shape[1] * blocks * -(-query.shape[3] // 64) * 64))
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
    log.taken(rows * query.shape[3], rows)()
    return result


# ---------------------------------------------------------------- tables


def _embedding_backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """The indices are sorted, with where each came from, before rows are added up."""
    indices = args[1]
    gives = [log.taken(size_of(indices)) for _ in range(4)] if indices.numel() > 3072 else []
    result = returned(func, args, kwargs)
    log.born(result)
    for give in gives:
        give()
    return result


KERNELS: dict[Any, Kernel] = {
    aten.convolution.default: convolutions.forward,
    aten.convolution_backward.default: convolutions.backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
}
