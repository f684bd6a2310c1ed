"""What common operations return, made by hand: torch's own rules for fake tensors take twenty times as long.

Every rule covers plain layouts only. It returns `NotImplemented` for the rest, which torch's own rules then handle.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stoker.memory.trace.fake_cuda import fresh, last_strides, viewed

aten = torch.ops.aten
Rule = Callable[..., Any]


def _plain(x: Any) -> bool:
    return bool(x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)))


def _same(x: Any, dtype: torch.dtype | None = None) -> Any:
    """A tensor of the same shape and layout, if the layout is a plain one."""
    if not _plain(x):
        return NotImplemented
    return fresh(x.shape, dtype or x.dtype, None if x.is_contiguous() else x.stride())


def _unary(x: Any, *_: Any, **__: Any) -> Any:
    return _same(x) if x.dtype.is_floating_point else NotImplemented


def _binary(x: Any, y: Any, *_: Any, **__: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return NotImplemented
    if not isinstance(y, torch.Tensor) or (y.dim() == 0 and y.dtype == x.dtype):
        return _unary(x)
    if x.shape != y.shape or x.dtype != y.dtype:
        return NotImplemented
    if _in_rows(x) and _in_rows(y):
        return fresh(x.shape, x.dtype)
    return _same(x) if x.stride() == y.stride() else NotImplemented


def _in_rows(x: Any) -> bool:
    """Whether strides fall from the first dimension to the last, with or without gaps: results have no gaps."""
    strides = x.stride()
    return all(outer >= inner for outer, inner in pairwise(strides)) and 0 not in strides


def _itself(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _many(tensors: Sequence[Any], *_: Any, **__: Any) -> Any:
    made = [_same(tensor) if tensor.dtype.is_floating_point else NotImplemented for tensor in tensors]
    return NotImplemented if any(one is NotImplemented for one in made) else made


# ---------------------------------------------------------------- layers


def _sides(x: Any, weight: Any, options: Sequence[Any]) -> list[int]:
    """The spatial sides of a convolution's output."""
    stride, padding, dilation, transposed, output_padding = options
    spatial = weight.dim() - 2
    wide = [list(option) * spatial if len(option) == 1 else list(option) for option in (stride, padding, dilation)]
    sides = []
    for axis in range(spatial):
        step, pad, spread = (option[axis] for option in wide)
        reach = spread * (weight.shape[axis + 2] - 1)
        side = x.shape[axis + 2]
        if transposed:
            extra = output_padding[axis] if len(output_padding) == spatial else output_padding[0]
            sides.append((side - 1) * step - 2 * pad + reach + extra + 1)
        else:
            sides.append((side + 2 * pad - reach - 1) // step + 1)
    return sides


def channels_last(x: Any, weight: Any) -> bool:
    """Whether a convolution runs in channels-last layout, because its input or its weights have it."""
    if x.dim() != 4:
        return False
    return any(not one.is_contiguous() and one.is_contiguous(memory_format=torch.channels_last) for one in (x, weight))


def _laid_out(shape: Sequence[int], dtype: torch.dtype, last: bool) -> Any:
    return fresh(shape, dtype, last_strides(shape) if last else None)


def _convolution(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
    *shape, groups = options
    if x.dim() != weight.dim() or x.dtype != weight.dtype:
        return NotImplemented
    if x.shape[1] != (weight.shape[0] if shape[3] else weight.shape[1] * groups):
        return NotImplemented
    channels = weight.shape[1] * groups if shape[3] else weight.shape[0]
    sides = _sides(x, weight, shape)
    if min(sides) < 1:
        return NotImplemented
    return _laid_out((x.shape[0], channels, *sides), x.dtype, channels_last(x, weight))


def _convolution_backward(gradient: Any, x: Any, weight: Any, bias_sizes: Any, *options: Any) -> Any:
    if x.dim() != weight.dim():
        return NotImplemented
    needed, last = options[-1], channels_last(x, weight)
    return (
        _laid_out(x.shape, x.dtype, last) if needed[0] else None,
        _laid_out(weight.shape, weight.dtype, last) if needed[1] else None,
        fresh((gradient.shape[1],), gradient.dtype) if needed[2] else None,
    )


def _per_channel(x: Any) -> Any:
    return fresh((x.shape[1],), torch.float32)


def _cudnn_batch_norm(x: Any, *_: Any, **__: Any) -> Any:
    made = _same(x)
    if made is NotImplemented:
        return NotImplemented
    return made, _per_channel(x), _per_channel(x), fresh((0,), torch.uint8)


def _native_batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> Any:
    made = _same(x)
    if made is NotImplemented:
        return NotImplemented
    saved = (_per_channel(x), _per_channel(x)) if training else (fresh((0,), x.dtype), fresh((0,), x.dtype))
    return made, *saved


def _cudnn_batch_norm_backward(x: Any, gradient: Any, weight: Any, *_: Any, **__: Any) -> Any:
    made = _same(x)
    if made is NotImplemented:
        return NotImplemented
    return made, fresh(weight.shape, weight.dtype), fresh(weight.shape, weight.dtype)


def _native_batch_norm_backward(gradient: Any, x: Any, weight: Any, *rest: Any) -> Any:
    made = _same(x)
    needed = rest[-1]
    if made is NotImplemented or weight is None:
        return NotImplemented
    return (
        made if needed[0] else None,
        fresh(weight.shape, weight.dtype) if needed[1] else None,
        fresh(weight.shape, weight.dtype) if needed[2] else None,
    )


def _layer_norm(x: Any, shape: Sequence[int], *_: Any) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    outer = (*x.shape[: x.dim() - len(shape)], *(1,) * len(shape))
    return fresh(x.shape, x.dtype), fresh(outer, torch.float32), fresh(outer, torch.float32)


def _layer_norm_backward(
    gradient: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, needed: Any
) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    return (
        fresh(x.shape, x.dtype) if needed[0] else None,
        fresh(weight.shape, weight.dtype) if needed[1] and weight is not None else None,
        fresh(bias.shape, bias.dtype) if needed[2] and bias is not None else None,
    )


def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    first = tensors[0]
    if any(one.dtype != first.dtype or one.dim() != first.dim() or not one.is_contiguous() for one in tensors):
        return NotImplemented
    shape = list(first.shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    return fresh(shape, first.dtype)


def _product(left: Any, right: Any) -> Any:
    if left.dtype != right.dtype or left.shape[-1] != right.shape[-2] or left.shape[:-2] != right.shape[:-2]:
        return NotImplemented  # torch has the best error message for it
    return fresh((*left.shape[:-1], right.shape[-1]), left.dtype)


def _product_and_sum(bias: Any, left: Any, right: Any, *_: Any, **__: Any) -> Any:
    return _product(left, right) if bias.shape[-1:] == right.shape[-1:] else NotImplemented


def _dropout(x: Any, p: float, train: bool | None) -> Any:
    made, saved = _same(x), _same(x, torch.bool)
    return NotImplemented if made is NotImplemented or not train else (made, saved)


_OPERATORS: dict[Rule, str] = {
    _unary: """relu gelu silu sigmoid tanh hardswish hardsigmoid leaky_relu elu mish hardtanh softplus exp log
        neg sqrt rsqrt reciprocal square abs""",
    _binary: """add.Tensor sub.Tensor mul.Tensor div.Tensor threshold_backward gelu_backward silu_backward
        sigmoid_backward tanh_backward hardswish_backward hardsigmoid_backward mish_backward""",
    _itself: """relu_ silu_ hardswish_ hardsigmoid_ hardtanh_ leaky_relu_ elu_ gelu_ mish_ sigmoid_ add_.Tensor
        sub_.Tensor mul_.Tensor div_.Tensor mul_.Scalar add_.Scalar fill_.Scalar zero_ _amp_update_scale_
        addcmul_ addcdiv_ lerp_.Scalar sqrt_ copy_""",
    _nothing: """_foreach_add_.List _foreach_add_.Scalar _foreach_add_.ScalarList _foreach_sub_.List
        _foreach_mul_.List _foreach_mul_.Scalar _foreach_mul_.Tensor _foreach_mul_.ScalarList _foreach_div_.List
        _foreach_div_.Scalar _foreach_div_.ScalarList _foreach_lerp_.Scalar _foreach_addcmul_.Scalar
        _foreach_addcdiv_.Scalar _foreach_addcdiv_.ScalarList _foreach_sqrt_ _foreach_maximum_.List _foreach_zero_
        _foreach_copy_ _foreach_neg_ _foreach_reciprocal_ _fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_
        _fused_adam_.tensor_lr _fused_adamw_.tensor_lr _fused_sgd_.tensor_lr
        _amp_foreach_non_finite_check_and_unscale_""",
    _many: """_foreach_add.List _foreach_add.Scalar _foreach_mul.Scalar _foreach_mul.List _foreach_mul.Tensor
        _foreach_div.List _foreach_div.Scalar _foreach_sqrt _foreach_neg _foreach_sub.List _foreach_reciprocal""",
    _convolution: "convolution",
    _convolution_backward: "convolution_backward",
    _cudnn_batch_norm: "cudnn_batch_norm",
    _native_batch_norm: "native_batch_norm",
    _cudnn_batch_norm_backward: "cudnn_batch_norm_backward",
    _native_batch_norm_backward: "native_batch_norm_backward",
    _layer_norm: "native_layer_norm",
    _layer_norm_backward: "native_layer_norm_backward",
    _cat: "cat",
    _product_and_sum: "addmm",
    _product: "mm bmm",
    _dropout: "native_dropout",
}


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet, None), overload or "default", None)


RULES: dict[Any, Rule] = {
    overload: rule
    for rule, names in _OPERATORS.items()
    for name in names.split()
    if (overload := _overload(name)) is not None
}


_VIEW_NAMES = """slice.Tensor detach alias view t transpose.int permute unsqueeze select.int expand squeeze.dim
    _unsafe_view as_strided split.Tensor split_with_sizes unbind.int"""
_VIEWS = frozenset(map(_overload, _VIEW_NAMES.split())) - {None}


def returned(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation returns, by a rule of this module or else by torch's own."""
    if func in _VIEWS and isinstance(args[0], FakeTensor):
        return viewed(func, args, kwargs)
    rule = RULES.get(func)
    if rule is not None:
        made = rule(*args, **kwargs)
        if made is not NotImplemented:
            return made
    return func(*args, **kwargs)
