"""What cuDNN takes for a convolution and releases again: a table of rules, read off recorded allocations.

The kernels of cuDNN need channels-last operands. Operands in torch's usual layout are copied into the workspace, with
their channels rounded up to 16 bytes: the input, the output, and the weights if the kernel is larger than 1 by 1. Each
rule is an exception to that, and names what it was read off. The first rule of a table that applies decides.

All of it is `scratch`: if there is no room, cuDNN has a plan without a workspace, as long as the input has fewer
elements than 32 bits can count. The rules are the same for every model;
`benchmarks/convolutions.py` measures how near they come to what was recorded.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from stoker.memory.trace.shapes import channels_last, returned
from stoker.records import Record

if TYPE_CHECKING:
    from stoker.memory.trace.recorder import AllocationRecorder

Sizes = tuple[int, ...]
"""The pieces of a workspace, in bytes."""


class ConvolutionNumbers(Record, frozen=True):
    """The numbers in the rules."""

    aligned_bytes: int = 16
    """Tensor cores read channels in pieces of this size."""
    sum_bytes: int = 4
    """Sums are kept in full precision."""
    tile_side: int = 128
    """The side of an output tile."""
    half_tiles: int = 4
    """In half precision a tile is larger by this factor, so there is less to split."""
    worth_summing: float = 1.5
    """The gradient of each item apart is preferred up to so many times the size of copies."""
    many_weights: int = 2**19
    """From so many weights on, a forward product whose rows are not aligned is worth a copy;"""
    many_weights_backward: int = 2**18
    """from so many, one in the backward pass."""
    image_channels: int = 4
    """Up to so many channels, an input is an image, for which there are kernels of their own."""
    image_side: int = 5
    """Up to this side, those kernels take nothing."""
    image_wide_side: int = 7
    """The side of the first convolution of many nets."""
    few_channels: int = 64
    fewer_channels: int = 16
    many_channels: int = 128
    many_in_volume: int = 64
    """The output of few channels to many (of the last two: in 2D, in 3D) is written in place."""
    small_side: int = 3
    few_to_image: int = 8
    """From up to so many channels to those of an image, 3 by 3, nothing is taken."""
    image_outputs: int = 3
    few_in_steps: int = 128
    """Points in larger steps take nothing for up to so many channels."""
    even_channels: int = 32
    """Points in larger steps write in place if channels are a multiple of this."""
    few_in_group: int = 8
    """Groups of up to so many channels take nothing, for points in full precision."""
    few_groups: int = 2
    """More groups than this have their channels rounded up to a power of two each."""
    long_sums: int = 1152
    """The fewest products in a sum that a forward pass was seen to split."""
    all_copies: int = 3
    """Input, output and weights."""
    volume_dimensions: int = 5


N = ConvolutionNumbers()


class Convolution:
    """One convolution as the rules see it. For a transposed one, `x` and `y` have changed places."""

    def __init__(
        self, x: Any, y: Any, weight: Any, stride: Sequence[int], groups: int, *, transposed: bool, last: bool
    ) -> None:
        self.x, self.y, self.weight, self.groups = x, y, weight, groups
        self.transposed, self.last = transposed, last
        self.inputs, self.outputs = int(x.shape[1]), int(y.shape[1])
        self.side = int(max(weight.shape[2:]))
        self.points = self.side == 1
        self.unit_step = max(stride) == 1
        self.full = x.element_size() == N.sum_bytes
        self.in_volume = x.dim() == N.volume_dimensions

    def is_product(self, many_weights: int) -> bool:
        """Whether it is a matrix product as it stands: points in steps of one, with rows that begin where they should
        or with few weights."""
        if self.groups > 1 or not (self.points and self.unit_step):
            return False
        aligned = prod(self.x.shape[2:]) * self.x.element_size() % N.aligned_bytes == 0
        return bool(aligned or self.weight.numel() <= many_weights)

    def operands(self) -> Sizes:
        """Copies of the input and the output."""
        return _padded(self.x, self.groups), _padded(self.y, self.groups)

    def copies(self) -> Sizes:
        """Copies of the operands and, for more than points, of the weights."""
        return self.operands() if self.points else (*self.operands(), _padded(self.weight))

    def written_in_place(self) -> Sizes:
        """Copies of the input and the weights: the kernel writes the output where it belongs."""
        return _padded(self.x, self.groups), _padded(self.weight)

    def read_by_pairs(self) -> Sizes:
        """Copies with an even number of channels."""
        return _padded(self.x, pairs=True), _padded(self.y, pairs=True), _padded(self.weight)

    def unpadded(self) -> Sizes:
        """Copies with the channels as they are."""
        return tuple(one.numel() * one.element_size() for one in (self.x, self.y, self.weight))

    def items_apart(self) -> Sizes:
        """The gradients of the weights for each item apart."""
        return (self.x.shape[0] * self.weight.numel() * N.sum_bytes,)


def _nothing(convolution: Convolution) -> Sizes:
    return ()


class Rule(Record, frozen=True):
    """The `sizes` of a workspace if the rule `applies`; the recordings and the cuDNN version that it was read off."""

    name: str
    applies: Callable[[Convolution], bool]
    sizes: Callable[[Convolution], Sizes]
    seen_in: str
    cudnn: str = "9.19"


SHAPES = "230 shapes of benchmarks/convolutions.py"
NETS = "whole models of benchmarks/histories.py"

FORWARD = (
    Rule("channels last", lambda c: c.last, _nothing, NETS),
    Rule("product", lambda c: c.is_product(N.many_weights), _nothing, NETS),
    Rule(
        "groups of few channels, points",
        lambda c: c.groups > 1 and c.full and c.points and int(c.weight.shape[1]) <= N.few_in_group,
        _nothing,
        SHAPES,
    ),
    Rule("groups", lambda c: c.groups > 1, Convolution.copies, f"regnety_016; {SHAPES}"),
    Rule(
        "points in steps, uneven channels",
        lambda c: _points_in_steps(c) and c.inputs > N.few_channels and _is_uneven(c),
        Convolution.copies,
        "regnety_016",
    ),
    Rule(
        "points in steps",
        lambda c: _points_in_steps(c) and (c.in_volume or c.inputs > N.few_in_steps),
        Convolution.written_in_place,
        "resnet50 in inference; r3d_18",
    ),
    Rule("points in steps, few channels", lambda c: _points_in_steps(c), _nothing, "resnet50 in inference"),
    Rule("points", lambda c: c.points, Convolution.copies, NETS),
    Rule("transposed, half precision", lambda c: c.transposed and not c.full, Convolution.copies, SHAPES),
    Rule("image, small side", lambda c: _is_image(c) and c.side <= N.image_side, _nothing, f"{NETS}; {SHAPES}"),
    Rule(
        "image, half precision, steps of one", lambda c: _is_image(c) and c.unit_step and not c.full, _nothing, SHAPES
    ),
    Rule(
        "image of one channel in steps", lambda c: _is_image(c) and c.inputs == 1 and not c.unit_step, _nothing, SHAPES
    ),
    Rule(
        "image, other sides",
        lambda c: _is_image(c) and (c.side != N.image_wide_side or not c.full),
        Convolution.copies,
        f"{NETS}; {SHAPES}",
    ),
    Rule("image, 7 by 7, steps of one", lambda c: _is_image(c) and c.unit_step, Convolution.written_in_place, SHAPES),
    Rule("image, 7 by 7", lambda c: _is_image(c), Convolution.unpadded, NETS),
    Rule(
        "few channels to an image",
        lambda c: (
            c.side == N.small_side and c.inputs <= N.few_to_image and c.outputs <= (N.image_outputs if c.full else 1)
        ),
        _nothing,
        SHAPES,
    ),
    Rule(
        "to one channel",
        lambda c: c.full and c.outputs == 1 and c.side == N.small_side and c.unit_step,
        Convolution.written_in_place,
        SHAPES,
    ),
    Rule(
        "few channels to many",
        lambda c: c.full and _few_to_many(c),
        Convolution.written_in_place,
        f"r3d_18; {SHAPES}",
    ),
    Rule("3 by 3, full precision", lambda c: c.full and c.side == N.small_side, Convolution.read_by_pairs, SHAPES),
    Rule("any other", lambda c: True, Convolution.copies, NETS),
)
"""The workspace of a forward pass."""

BACKWARD_INPUT = (
    Rule("channels last", lambda c: c.last, _nothing, NETS),
    Rule("product", lambda c: c.is_product(N.many_weights_backward), _nothing, NETS),
    Rule("any other", lambda c: True, Convolution.copies, NETS),
)
"""The workspace of the input's gradient."""


def backward_weight_rules(multiprocessors: int) -> tuple[Rule, ...]:
    """The workspace of the weights' gradient, which is split over the multiprocessors of the GPU."""

    def partial_sums(c: Convolution) -> Sizes:
        return (*(() if c.last else c.operands()), _partial_bytes(c.weight, multiprocessors))

    return (
        Rule(
            "image, small side",
            lambda c: c.full and _is_image(c) and c.side <= N.image_side,
            _nothing,
            f"{NETS}; {SHAPES}",
        ),
        Rule(
            "a single point",
            lambda c: c.groups == 1 and c.points and prod(c.x.shape[2:]) == 1,
            _nothing,
            NETS,
        ),
        Rule("each item apart", _items_apart_pay, Convolution.items_apart, NETS),
        Rule("any other", lambda c: True, partial_sums, f"vit_l_32; {NETS}"),
    )


def _points_in_steps(c: Convolution) -> bool:
    return c.points and c.full and not c.unit_step


def _is_uneven(c: Convolution) -> bool:
    return bool(c.inputs % N.even_channels or c.outputs % N.even_channels)


def _is_image(c: Convolution) -> bool:
    return c.inputs <= N.image_channels


def _few_to_many(c: Convolution) -> bool:
    few = c.unit_step if c.in_volume else c.side == N.small_side
    most = N.few_channels if few else N.fewer_channels
    return c.inputs <= most and c.outputs >= (N.many_in_volume if c.in_volume else N.many_channels)


def _items_apart_pay(c: Convolution) -> bool:
    if c.groups > 1 or c.last or not (c.points and c.unit_step):
        return False
    return sum(c.items_apart()) <= N.worth_summing * sum(c.operands())


def workspace(rules: Sequence[Rule], convolution: Convolution) -> Sizes:
    """The sizes by the first rule that applies."""
    return next(rule for rule in rules if rule.applies(convolution)).sizes(convolution)


def split_tiles(c: Convolution) -> int:
    """Tiles of an output with long sums in full precision, whose last wave is split; 0 for any other output."""
    is_long = c.outputs >= N.many_channels and prod(c.weight.shape[1:]) >= N.long_sums
    if c.in_volume or not is_long or not c.full:
        return 0
    return int(-(-c.y.numel() // c.outputs // N.tile_side) * -(-c.outputs // (2 * N.tile_side)))


def _padded(tensor: Any, groups: int = 1, *, pairs: bool = False) -> int:
    """Bytes with the channels rounded up as tensor cores need them, in groups to a power of two each. With `pairs`,
    only an odd number is rounded up."""
    aligned = N.aligned_bytes // tensor.element_size() if tensor.shape[1] % 2 or not pairs else 1
    channels = -(-tensor.shape[1] // aligned) * aligned
    if groups > N.few_groups:
        channels = groups << (-(-tensor.shape[1] // groups) - 1).bit_length()
    return int(tensor.numel() // tensor.shape[1] * channels * tensor.element_size())


def _partial_bytes(weight: Any, multiprocessors: int) -> int:
    """Sums over part of the items, for multiprocessors that have no tile of their own, and for more than points the
    whole gradient. Half precision takes larger tiles, and has less to split."""
    points = all(side == 1 for side in weight.shape[2:])
    tiles = -(-weight.shape[0] // N.tile_side) * -(-prod(weight.shape[1:]) // N.tile_side)
    half = weight.element_size() < N.sum_bytes
    whole = 0 if points else weight.numel() * weight.element_size()
    splits = multiprocessors // (tiles * (N.half_tiles if half else 1))
    most = multiprocessors * N.tile_side**2 * N.sum_bytes
    if splits > 1:
        return int(whole + min(splits * weight.numel() * N.sum_bytes, most))
    if weight.shape[1] <= N.image_channels:
        return _padded(weight)
    return whole if half or points else whole + most


# ---------------------------------------------------------------- the kernels


def forward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Log what `aten.convolution` allocates."""
    x, weight = args[:2]
    result = returned(func, args, kwargs)
    log.allocate(result)
    stride, transposed, groups = args[3], args[6], args[8]
    last = channels_last(x, weight)
    releases = _layout_copies(log, x, weight, last=last)
    if not _is_depthwise(weight, groups):
        ends = (result, x) if transposed else (x, result)
        convolution = Convolution(*ends, weight, stride, groups, transposed=transposed, last=last)
        sizes = workspace(FORWARD, convolution)
        tiles = split_tiles(convolution) if groups == 1 and len(sizes) == N.all_copies else 0
        _scratch(log, sizes, x, tiles=tiles)
    for release in releases:
        release()
    return result


def backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """Log what `aten.convolution_backward` allocates: one pass for the input's gradient, then one for the weights',
    each with a workspace of its own."""
    gradient, x, weight = args[:3]
    stride, transposed, groups = args[4], args[7], args[9]
    last = channels_last(x, weight)
    releases = _layout_copies(log, gradient, x, weight, last=last)
    result = returned(func, args, kwargs)
    if _is_depthwise(weight, groups):
        log.allocate((result[1], result[0], result[2]))
    else:
        ends = (gradient, x) if transposed else (x, gradient)
        convolution = Convolution(*ends, weight, stride, groups, transposed=transposed, last=last)
        if result[0] is not None:
            log.allocate(result[0])
            _scratch(log, workspace(BACKWARD_INPUT, convolution), x)
        if result[1] is not None:
            log.allocate(result[1])
            _scratch(log, workspace(backward_weight_rules(log.multiprocessors), convolution), x)
        while releases:
            releases.pop()()
        log.allocate(result[2])
    if result[2] is not None and _lie_side_by_side(gradient):
        log.reduce(gradient.shape[1], gradient.numel() // gradient.shape[1])
    for release in releases:
        release()
    return result


def _scratch(log: "AllocationRecorder", sizes: Sizes, x: Any, *, tiles: int = 0) -> None:
    if sizes:
        log.scratch(*sizes, elements=x.numel(), tiles=tiles)


def _layout_copies(log: "AllocationRecorder", *tensors: Any, last: bool) -> list[Callable[[], None]]:
    """Operands in another layout than the whole are copied before cuDNN sees them."""
    layout = torch.channels_last if last else torch.contiguous_format
    others = [one for one in tensors if not one.is_contiguous(memory_format=layout)]
    return [log.temporary(one.numel() * one.element_size()) for one in others]


def _lie_side_by_side(gradient: Any) -> bool:
    """Whether an item's channels do: then the bias is summed over rows that are apart."""
    others = [step for axis, step in enumerate(gradient.stride()) if axis != 1 and gradient.shape[axis] > 1]
    return bool(gradient.stride(1) < min(others, default=0))


def _is_depthwise(weight: Any, groups: int) -> bool:
    """One channel to a group: its kernels take nothing."""
    return groups > 1 and int(weight.shape[1]) == 1
