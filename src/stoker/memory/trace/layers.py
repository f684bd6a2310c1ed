"""Layers written out by hand, for two reasons.

Torch decomposes some layers in one way for plain tensors and in another for subclasses, as fake tensors are. And it has
no rule at all for its fused inference layers on fake tensors, but documents their parts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.functional import layer_norm, scaled_dot_product_attention

aten = torch.ops.aten
_library: Any = None


def install() -> None:
    """Decompose `linear` as for plain tensors, with a bias that is added in place, and the loss of logits, whose
    gradient torch makes in place for plain tensors alone."""
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
        """In place, unless a gradient of the gradient is needed."""
        [gradient] = gradients
        x, target, weight, pos_weight = ctx.saved_tensors
        differentiable = torch.is_grad_enabled()

        def scaled(made: Any) -> Any:
            made = made if weight is None else made * weight if differentiable else made.mul_(weight)
            return made.div_(x.numel()) if ctx.reduction == 1 else made

        if pos_weight is None:
            made = x.sigmoid() - target if differentiable else x.sigmoid().sub_(target)
        else:
            share = pos_weight.mul(target)
            rest = share.add(1)
            made = (
                (rest - target) * x.sigmoid() - share
                if differentiable
                else rest.sub_(target).mul_(x.sigmoid()).sub_(share)
            )
        made = scaled(made * gradient if differentiable else made.mul_(gradient))
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


# ---------------------------------------------------------------- fused layers of inference


def fused_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """`nn.MultiheadAttention` on the fast path: one product for queries, keys and values, then a fused kernel."""
    batch, length, _ = query.shape
    width = embed_dim // num_head
    if mask is None and not need_weights and width % 8 == 0 and query is key and key is value:
        packed = functional.linear(query, qkv_weight, qkv_bias)
        q, k, v = (part.view(batch, -1, num_head, width).transpose(1, 2) for part in packed.chunk(3, -1))
        made = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, embed_dim)
        return functional.linear(made, proj_weight, proj_bias), None
    packed = functional.linear(query, qkv_weight)
    heads = torch.empty((3, batch, num_head, length, width), dtype=packed.dtype, device=packed.device)
    del packed
    scores = torch.matmul(heads[0], heads[1].transpose(-1, -2))
    made = functional.linear(heads[0].transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)
    if not need_weights:
        return made, None
    return made, scores.mean(1) if average_attn_weights else scores


def fused_encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`nn.TransformerEncoderLayer` on the fast path: sums in place, the activation inside the product."""
    shape = (embed_dim,)
    x = layer_norm(src, shape, norm_weight_1, norm_bias_1, eps) if norm_first else src
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    x = fused_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = layer_norm(x, shape, norm_weight_1, norm_bias_1, eps)
    before = x
    if norm_first:
        x = layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)
    x = functional.linear(functional.linear(x, ffn_weight_1, ffn_bias_1), ffn_weight_2, ffn_bias_2)
    x.add_(before)
    return x if norm_first else layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    aten.binary_cross_entropy_with_logits.default: _loss_forward,
    aten.linear.default: linear,
    aten._native_multi_head_attention.default: fused_attention,
    aten._transformer_encoder_layer_fwd.default: fused_encoder_layer,
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
"""What the formulas of autograd write into fresh zeros; they do so in place only for plain tensors."""
