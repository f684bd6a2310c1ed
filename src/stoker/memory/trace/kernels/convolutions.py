"""What cuDNN takes for a convolution and gives back: rules read off recorded allocations, the same for every model.

Its kernels want channels last. Operands in torch's usual layout are copied into the workspace with their channels
rounded up to 16 bytes: what is read, what is written, and the weights where the kernel is more than a point. Not so:

- By points and step 1 it is a matrix product as it stands, if rows begin where they should or the weights are few. The
  gradient of its weights is then made for each item apart, and summed.
- Images of up to four channels have kernels of their own: up to 5 by 5 takes nothing, nor does 7 by 7 in half precision
  in steps of one; 7 by 7 in full precision reads the channels as they are. Nor does what goes to an image's channels
  from few, 3 by 3. Their weights' gradients are as others' in half precision.
- In full precision, from few channels to many, and to a single one, the output is written in its place at once; so it
  is by points in larger steps, where channels come in 32s, and from few channels of an image that takes nothing. 3 by 3
  takes channels by pairs.
- One channel to a group takes nothing. More groups than two have their channels rounded up to a power of two each; with
  points of few channels each they take nothing in full precision.

Gradients of other weights are split over the multiprocessors, but for large patches of an image, and so, in full
precision, are the last tiles of a large output with long sums. All of it is `scratch`: where there is no room cuDNN has
a plan that does without, as long as the input has fewer elements than 32 bits can count.
"""

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from stoker.memory.trace.shapes import channels_last, returned

if TYPE_CHECKING:
    from stoker.memory.trace.recorder import Recorder

_ALIGNED_BYTES = 16
_TILE_SIDE = 128
_SUM_BYTES = 4
"""Sums are kept in full precision."""
_WORTH_SUMMING_ITEMS = 1.5
"""Gradients of items apart are taken up to so many times the room that copies would need."""
_MANY_WEIGHTS, _MANY_WEIGHTS_BACKWARD = 2**19, 2**18
"""From so many on, a product whose rows do not begin where they should is worth a copy."""
_IMAGE_CHANNELS, _IMAGE_SIDE, _IMAGE_WIDE_SIDE = 4, 5, 7
_FEW_CHANNELS, _FEWER_CHANNELS, _MANY_CHANNELS, _MANY_IN_VOLUME = 64, 16, 128, 64
_SMALL_SIDE, _FEW_TO_IMAGE, _IMAGE_OUT = 3, 8, 3
_FEW_IN_STEPS = 128
_FEW_IN_GROUP, _FEW_GROUPS = 8, 2
_EVEN_CHANNELS = 32
_LONG_SUMS = 1152
"""The fewest products in a sum that a forward pass was seen to split."""
_ALL_COPIES = 3
_VOLUME_DIMENSIONS = 5


def forward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    x, weight = args[:2]
    result = returned(func, args, kwargs)
    log.born(result)
    copies = _copied(log, x, weight, last=channels_last(x, weight))
    stride, transposed, groups = args[3], args[6], args[8]
    if not _is_depthwise(weight, groups) and not channels_last(x, weight):
        ends = (result, x) if transposed else (x, result)
        sizes = _output_sizes(*ends, weight, stride, groups, transposed=transposed)
        tiles = _split_tiles(*ends, weight) if groups == 1 and len(sizes) == _ALL_COPIES else 0
        _take(log, sizes, x, tiles=tiles)
    for copy in copies:
        copy()
    return result


def backward(log: "Recorder", func: Any, args: Any, kwargs: Any) -> Any:
    """One pass for the input's gradient, then one for the weights', each with a workspace of its own."""
    gradient, x, weight = args[:3]
    stride, transposed, groups = args[4], args[7], args[9]
    last = channels_last(x, weight)
    copies = _copied(log, gradient, x, weight, last=last)
    result = returned(func, args, kwargs)
    ends = (gradient, x) if transposed else (x, gradient)
    if _is_depthwise(weight, groups):
        log.born((result[1], result[0], result[2]))
    else:
        if result[0] is not None:
            log.born(result[0])
            _take(log, () if last else _copies(*ends, weight, stride, groups, _MANY_WEIGHTS_BACKWARD), x)
        if result[1] is not None:
            log.born(result[1])
            _take(log, _weight_sizes(*ends, weight, stride, groups, log.multiprocessors, last=last), x)
        while copies:
            copies.pop()()
        log.born(result[2])
    if result[2] is not None and _lie_side_by_side(gradient):
        log.summed(gradient.shape[1], gradient.numel() // gradient.shape[1])
    for copy in copies:
        copy()
    return result


def _take(log: "Recorder", sizes: tuple[int, ...], x: Any, *, tiles: int = 0) -> None:
    if sizes:
        log.scratched(*sizes, elements=x.numel(), tiles=tiles)


def _copied(log: "Recorder", *tensors: Any, last: bool) -> list[Any]:
    """What does not have the layout of the whole is copied before cuDNN sees it."""
    layout = torch.channels_last if last else torch.contiguous_format
    others = [one for one in tensors if not one.is_contiguous(memory_format=layout)]
    return [log.taken(one.numel() * one.element_size()) for one in others]


def _bytes(tensor: Any, groups: int = 1, *, pairs: bool = False) -> int:
    """With the channels rounded up as tensor cores want them, in groups to a power of two; where `pairs` will do, only
    if they are odd."""
    aligned = _ALIGNED_BYTES // tensor.element_size() if tensor.shape[1] % 2 or not pairs else 1
    channels = -(-tensor.shape[1] // aligned) * aligned
    if groups > _FEW_GROUPS:
        channels = groups << (-(-tensor.shape[1] // groups) - 1).bit_length()
    return int(tensor.numel() // tensor.shape[1] * channels * tensor.element_size())


def _lie_side_by_side(gradient: Any) -> bool:
    """Whether an item's channels do: then those of the bias are summed over rows that are apart."""
    others = [step for axis, step in enumerate(gradient.stride()) if axis != 1 and gradient.shape[axis] > 1]
    return bool(gradient.stride(1) < min(others, default=0))


def _is_depthwise(weight: Any, groups: int) -> bool:
    """One channel to a group: its kernels take nothing."""
    return groups > 1 and int(weight.shape[1]) == 1


def _is_points(weight: Any) -> bool:
    return all(side == 1 for side in weight.shape[2:])


def _is_product(x: Any, weight: Any, stride: Any, many: int) -> bool:
    """Whether it is a matrix product as it stands."""
    aligned = prod(x.shape[2:]) * x.element_size() % _ALIGNED_BYTES == 0
    return _is_points(weight) and all(step == 1 for step in stride) and (aligned or weight.numel() <= many)


def _copies(x: Any, y: Any, weight: Any, stride: Any, groups: int, many: int) -> tuple[int, ...]:
    if groups == 1 and _is_product(x, weight, stride, many):
        return ()
    sizes = (_bytes(x, groups), _bytes(y, groups))
    return sizes if _is_points(weight) else (*sizes, _bytes(weight))


def _output_sizes(x: Any, y: Any, weight: Any, stride: Any, groups: int, *, transposed: bool) -> tuple[int, ...]:
    sizes = _copies(x, y, weight, stride, groups, _MANY_WEIGHTS)
    full, in_volume = x.element_size() == _SUM_BYTES, x.dim() == _VOLUME_DIMENSIONS
    if groups > 1:
        return () if full and _is_points(weight) and weight.shape[1] <= _FEW_IN_GROUP else sizes
    if sizes and _is_points(weight) and full and max(stride) > 1:
        if x.shape[1] > _FEW_CHANNELS and (x.shape[1] % _EVEN_CHANNELS or y.shape[1] % _EVEN_CHANNELS):
            return sizes
        return (sizes[0], _bytes(weight)) if in_volume or x.shape[1] > _FEW_IN_STEPS else ()
    if not sizes or _is_points(weight) or (transposed and not full):
        return sizes
    side = max(weight.shape[2:])
    if x.shape[1] <= _IMAGE_CHANNELS:
        return _image_sizes(x, y, weight, sizes, one_by_one=max(stride) == 1)
    if side == _SMALL_SIDE and x.shape[1] <= _FEW_TO_IMAGE and y.shape[1] <= (_IMAGE_OUT if full else 1):
        return ()
    to_one = y.shape[1] == 1 and side == _SMALL_SIDE and max(stride) == 1
    if full and (to_one or _few_to_many(x, y, side, max(stride))):
        return sizes[0], sizes[2]
    return (_bytes(x, pairs=True), _bytes(y, pairs=True), sizes[2]) if full and side == _SMALL_SIDE else sizes


def _few_to_many(x: Any, y: Any, side: int, step: int) -> bool:
    in_volume = x.dim() == _VOLUME_DIMENSIONS
    most = _FEW_CHANNELS if (step == 1 if in_volume else side == _SMALL_SIDE) else _FEWER_CHANNELS
    return bool(x.shape[1] <= most and y.shape[1] >= (_MANY_IN_VOLUME if in_volume else _MANY_CHANNELS))


def _image_sizes(x: Any, y: Any, weight: Any, sizes: tuple[int, ...], *, one_by_one: bool) -> tuple[int, ...]:
    """Of an image's few channels, by more than points."""
    side, full = max(weight.shape[2:]), x.element_size() == _SUM_BYTES
    if side <= _IMAGE_SIDE or (one_by_one and not full) or (x.shape[1] == 1 and not one_by_one):
        return ()
    if side != _IMAGE_WIDE_SIDE or not full:
        return sizes
    return (sizes[0], sizes[2]) if one_by_one else tuple(one.numel() * one.element_size() for one in (x, y, weight))


def _split_tiles(x: Any, y: Any, weight: Any) -> int:
    """The tiles of an output with long sums in full precision: those of the last wave are split, none of others."""
    in_volume = x.dim() == _VOLUME_DIMENSIONS
    long = y.shape[1] >= _MANY_CHANNELS and prod(weight.shape[1:]) >= _LONG_SUMS
    if in_volume or not long or x.element_size() != _SUM_BYTES:
        return 0
    return int(-(-y.numel() // y.shape[1] // _TILE_SIDE) * -(-y.shape[1] // (2 * _TILE_SIDE)))


def _weight_sizes(
    x: Any, y: Any, weight: Any, stride: Any, groups: int, multiprocessors: int, *, last: bool
) -> tuple[int, ...]:
    """For the gradient of the weights."""
    full = x.element_size() == _SUM_BYTES
    if full and x.shape[1] <= _IMAGE_CHANNELS and max(weight.shape[2:]) <= _IMAGE_SIDE:
        return ()
    if groups == 1 and _is_points(weight) and prod(x.shape[2:]) == 1:
        return ()
    apart = x.shape[0] * weight.numel() * _SUM_BYTES
    copies = () if last else (_bytes(x, groups), _bytes(y, groups))
    by_points = groups == 1 and _is_points(weight) and all(step == 1 for step in stride)
    if by_points and not last and apart <= _WORTH_SUMMING_ITEMS * sum(copies):
        return (apart,)
    return (*copies, _partial_bytes(weight, multiprocessors))


def _partial_bytes(weight: Any, multiprocessors: int) -> int:
    """Sums over part of the items for multiprocessors that have no tile of their own, and, for more than points, the
    whole. Half precision takes larger tiles, and has less to split."""
    tiles = -(-weight.shape[0] // _TILE_SIDE) * -(-prod(weight.shape[1:]) // _TILE_SIDE)
    half = weight.element_size() < _SUM_BYTES
    whole = 0 if _is_points(weight) else weight.numel() * weight.element_size()
    splits = multiprocessors // (tiles * (4 if half else 1))
    most = multiprocessors * _TILE_SIDE**2 * _SUM_BYTES
    if splits > 1:
        return int(whole + min(splits * weight.numel() * _SUM_BYTES, most))
    if weight.shape[1] <= _IMAGE_CHANNELS:
        return _bytes(weight)
    return whole if half or _is_points(weight) else whole + most
