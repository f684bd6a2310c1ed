"""Layers that torch writes out in one way for plain tensors and in another for subclasses, as fake ones are."""

from typing import Any

import torch

aten = torch.ops.aten
_library: Any = None


def install() -> None:
    """Have `linear` written out as for plain tensors: a bias is added in place, not into memory of its own."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("linear", linear, "AutogradCUDA")


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if bias is not None and x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if bias is not None and x.dim() > 2 and x.is_contiguous():
        flat = torch.addmm(bias, x.view(-1, x.shape[-1]), weight.t())
        return flat.view(*x.shape[:-1], weight.shape[0])
    made = torch.matmul(x, weight.t())
    return made if bias is None else made.add_(bias)


WRITTEN_OUT = {aten.linear.default: linear}

IN_PLACE_BACKWARD = frozenset(
    (
        aten.index_put.default,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_add.default,
        aten.index_add.default,
        aten.masked_scatter.default,
    )
)
"""What autograd's formulas write into fresh zeros, in place only for plain tensors."""
