"""Layers that torch writes out in one way for plain tensors and in another for subclasses, as fake ones are."""

from typing import Any

import torch

aten = torch.ops.aten
_library: Any = None


def install() -> None:
    """Have `linear` written out as for plain tensors: a bias is added in place, not into memory of its own. And the
    loss of logits, whose gradient is made in place for those alone."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("linear", linear, "AutogradCUDA")
    _library.impl("binary_cross_entropy_with_logits", loss_of_logits, "AutogradCUDA")


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if bias is not None and x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if bias is not None and x.dim() > 2 and x.is_contiguous():
        flat = torch.addmm(bias, x.view(-1, x.shape[-1]), weight.t())
        return flat.view(*x.shape[:-1], weight.shape[0])
    made = torch.matmul(x, weight.t())
    return made if bias is None else made.add_(bias)


def loss_of_logits(x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    return _LossOfLogits.apply(x, target, weight, pos_weight, reduction)


class _LossOfLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, target: Any, weight: Any, pos_weight: Any, reduction: int) -> Any:
        ctx.save_for_backward(x, target, weight, pos_weight)
        ctx.reduction = reduction
        return _loss_forward(x, target, weight, pos_weight, reduction)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """In place, unless a gradient's gradient is wanted."""
        [gradient] = gradients
        x, target, weight, pos_weight = ctx.saved_tensors
        kept = torch.is_grad_enabled()

        def scaled(made: Any) -> Any:
            made = made if weight is None else made * weight if kept else made.mul_(weight)
            return made.div_(x.numel()) if ctx.reduction == 1 else made

        if pos_weight is None:
            made = x.sigmoid() - target if kept else x.sigmoid().sub_(target)
        else:
            share = pos_weight.mul(target)
            rest = share.add(1)
            made = (rest - target) * x.sigmoid() - share if kept else rest.sub_(target).mul_(x.sigmoid()).sub_(share)
        made = scaled(made * gradient if kept else made.mul_(gradient))
        of_target = None
        if ctx.needs_input_grad[1]:
            log = torch.nn.functional.logsigmoid
            of_target = -x * gradient if pos_weight is None else (log(-x) - pos_weight * log(x)) * gradient
            of_target = scaled(of_target)
        return made, of_target, None, None, None


def _loss_forward(x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    loss = _loss_of_each(x, target, weight, pos_weight)
    return loss.mean() if reduction == 1 else loss.sum() if reduction else loss


def _loss_of_each(x: Any, target: Any, weight: Any, pos_weight: Any) -> Any:
    log_sigmoid = torch.nn.functional.logsigmoid(x)
    if pos_weight is not None:
        log_sigmoid.mul_((pos_weight - 1).mul(target).add_(1))
    loss = (1 - target).mul_(x).sub_(log_sigmoid)
    return loss if weight is None else loss.mul_(weight)


WRITTEN_OUT = {
    aten.binary_cross_entropy_with_logits.default: _loss_forward,
    aten.linear.default: linear,
}

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
