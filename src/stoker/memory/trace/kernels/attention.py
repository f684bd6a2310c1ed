"""Which attention kernel a GPU would take. Without a GPU, torch's own selector falls back to the slow formula.

The rules are those of torch's selector: first cuDNN's kernel on Hopper and later, then flash attention, both in half
precision only; then the memory-efficient kernel; then the formula, which writes out every score.
"""

from typing import Any

import torch

from stoker.memory.trace.gpus import Architecture

used: set[str] = set()
"""The kernels chosen in this process so far."""

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_FIRST_PREFERRED_CUDNN = 91500
_LARGEST_FLASH_WIDTH = 256
_LARGEST_CUDNN_WIDTH = 128
_library: Any = None
_architecture = Architecture(major=9, minor=0)


def install(architecture: Architecture) -> None:
    """Replace torch's selector above autograd, where calls from C++ and Python and from autocast all pass."""
    global _library, _architecture
    _architecture = architecture
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
    """Scaled dot-product attention by the kernel that torch takes on the installed architecture."""
    name = kernel(query, key, value, mask, causal)
    used.add(name)
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    if name == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, _expanded(mask, query, key), needs_gradient, dropout, causal, False, scale=scale
        )[0]
    if name == "flash":
        return _flash(query, key, value, dropout, causal, scale)
    if name == "efficient":
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, _aligned(mask, query, key), needs_gradient, dropout, causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def kernel(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> str:
    """The name of the kernel: cudnn, flash, efficient or math."""
    if query.dim() != 4 or query.shape[2] == 0 or key.shape[2] == 0:
        return "math"
    half = query.dtype in _HALF and (query.dtype != torch.bfloat16 or _architecture.major >= 8)
    mask_learns = mask is not None and mask.requires_grad and torch.is_grad_enabled()
    if half and _architecture.prefers_cudnn_attention and not mask_learns and _cudnn_takes(query, key, value):
        return "cudnn"
    if half and _architecture.has_flash_attention and _flash_takes(query, key, value, mask, causal):
        return "flash"
    return "efficient" if _efficient_takes(query, key, value, half) else "math"


def _cudnn_takes(query: Any, key: Any, value: Any) -> bool:
    version = torch.backends.cudnn.version()
    if version is not None and version <= _FIRST_PREFERRED_CUDNN:
        return False
    widths = (query.shape[3], value.shape[3])
    return all(width % 8 == 0 and width <= _LARGEST_CUDNN_WIDTH for width in widths) and key.shape[2] > 1


def _flash_takes(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> bool:
    same = query.shape[3] == key.shape[3] == value.shape[3] <= _LARGEST_FLASH_WIDTH
    return mask is None and same and not (causal and query.shape[2] != key.shape[2])


def _efficient_takes(query: Any, key: Any, value: Any, half: bool) -> bool:
    if not half and query.dtype != torch.float32:
        return False
    alignment = (8 if half else 4) if _architecture.major >= 8 else (8 if half and _architecture.major >= 7 else 1)
    return (
        query.shape[1] == key.shape[1] == value.shape[1]
        and query.shape[3] % alignment == 0
        and value.shape[3] % alignment == 0
        and all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    )


def _flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: float | None) -> Any:
    """Flash attention pads widths to a multiple of 8, and cuts the padding off again."""
    width = query.shape[3]
    if width % 8:
        query, key, value = (torch.nn.functional.pad(one, (0, 8 - width % 8)) for one in (query, key, value))
    scale = width**-0.5 if scale is None else scale
    result = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return result[..., :width] if width % 8 else result


def _aligned(mask: Any, query: Any, key: Any) -> Any:
    """The efficient kernel needs masks whose rows begin at a multiple of 16."""
    if mask is not None and mask.shape[-1] % 16 and mask.shape[-1] > 1:
        columns = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, 16 - columns % 16))[..., :columns]
    return _expanded(mask, query, key)


def _expanded(mask: Any, query: Any, key: Any) -> Any:
    if mask is None:
        return None
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


WRITTEN_OUT: dict[Any, Any] = {aten.scaled_dot_product_attention.default: chosen}
