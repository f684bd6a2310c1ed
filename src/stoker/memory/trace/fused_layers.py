"""Torch's fused layers for inference, written out: torch has no rule for them on fake tensors, but says their parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

aten = torch.ops.aten


def attention(
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
        packed = linear(query, qkv_weight, qkv_bias)
        q, k, v = (part.view(batch, -1, num_head, width).transpose(1, 2) for part in packed.chunk(3, -1))
        made = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, embed_dim)
        return linear(made, proj_weight, proj_bias), None
    packed = linear(query, qkv_weight)
    heads = torch.empty((3, batch, num_head, length, width), dtype=packed.dtype, device=packed.device)
    del packed
    scores = torch.matmul(heads[0], heads[1].transpose(-1, -2))
    made = linear(heads[0].transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)
    if not need_weights:
        return made, None
    return made, scores.mean(1) if average_attn_weights else scores


def encoder_layer(
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
    x = attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = layer_norm(x, shape, norm_weight_1, norm_bias_1, eps)
    before = x
    if norm_first:
        x = layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)
    x = linear(linear(x, ffn_weight_1, ffn_bias_1), ffn_weight_2, ffn_bias_2)
    x.add_(before)
    return x if norm_first else layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
