"""Which attention kernel a GPU would take: without one, torch's own selector falls to the slow formula."""

from typing import Any

import torch

used: set[str] = set()
"""The kernels that were chosen since this was last cleared."""

aten = torch.ops.aten
_library: Any = None


def install() -> None:
    """Answer for torch's selector above autograd, where C++ and Python callers and autocast all pass."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("scaled_dot_product_attention", chosen, "AutogradCUDA")


def chosen(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention by the kernel that a recent NVIDIA GPU takes: cuDNN's in half precision, the
    memory-efficient one in full."""
    learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if mask is not None:
        mask = _added(mask, query).expand(query.size(0), query.size(1), query.size(2), key.size(2))
    if query.dtype in (torch.bfloat16, torch.float16):
        used.add("cudnn")
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, learning, dropout, causal, False, scale=scale
        )[0]
    used.add("efficient")
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, learning, dropout, causal, scale=scale
    )[0]


def _added(mask: Any, query: Any) -> Any:
    """A mask of yes and no as the numbers that are added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
