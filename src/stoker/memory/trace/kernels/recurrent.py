"""Recurrent layers as cuDNN runs them: torch's own choice asks the device, and does not say what cuDNN keeps.

cuDNN publishes no formula. What it keeps for the backward pass was read off a recorded LSTM: the gates and the cell of
every time step, the outputs of every layer but the last, and a bit for each value that dropout may drop. Its workspace,
and all sizes for other cells, are estimated by analogy.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stoker.memory.trace.fake_cuda import fresh

if TYPE_CHECKING:
    from stoker.memory.trace.recorder import AllocationRecorder

UNSEEN = "what cuDNN keeps for recurrent layers, which is estimated"

aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_KEPT = {0: 1, 1: 1, 2: 5, 3: 4}
"""Values kept for each hidden unit and time step: the gates, an LSTM's cell, what a GRU's reset gate multiplies."""
_DROPOUT_STATE_BYTES = 24
"""The state of the random generator, for each thread of the GPU."""
_library: Any = None


def install() -> None:
    """Replace torch's choice of a recurrent kernel, above autograd."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, mode in _MODES.items():
        _library.impl(f"{name}.input", _whole(mode), "AutogradCUDA")
        _library.impl(f"{name}.data", _packed(mode), "AutogradCUDA")


def _whole(mode: int) -> Any:
    def run(
        x: Any,
        states: Any,
        weights: Any,
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        return _called(mode, x, states, weights, has_biases, layers, dropout, train, both_ways, batch_first, [])

    return run


def _packed(mode: int) -> Any:
    def run(
        x: Any,
        batch_sizes: Any,
        states: Any,
        weights: Any,
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both_ways: bool,
    ) -> Any:
        sizes = batch_sizes.tolist()
        return _called(mode, x, states, weights, has_biases, layers, dropout, train, both_ways, False, sizes)

    return run


def _called(
    mode: int,
    x: Any,
    states: Any,
    weights: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both_ways: bool,
    batch_first: bool,
    batch_sizes: list[int],
) -> Any:
    hidden, cell = states if mode == _MODES["lstm"] else (states, None)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, hidden, *weights = (one.to(dtype) for one in (x, hidden, *weights))
        cell = None if cell is None else cell.to(dtype)
    width = (hidden if cell is None else cell).shape[2]
    projected = hidden.shape[2] if hidden.shape[2] != width else 0
    stride = (4 if has_biases else 2) + bool(projected)
    flat = fresh((0,), x.dtype)
    rest = (mode, width, projected, layers, batch_first, dropout, train, both_ways, batch_sizes, None)
    with torch.autocast("cuda", enabled=False):
        output, hidden, cell, _, _ = aten._cudnn_rnn(x, list(weights), stride, flat, hidden, cell, *rest)
    return (output, hidden, cell) if mode == _MODES["lstm"] else (output, hidden)


# ---------------------------------------------------------------- the kernels


class _Sizes:
    """The bytes that cuDNN takes for a call of `_cudnn_rnn`."""

    def __init__(self, x: Any, rest: Any) -> None:
        mode, width, projected, layers, _, dropout, train, both_ways, batch_sizes = rest[:9]
        directions = 2 if both_ways else 1
        steps = x.shape[0] if batch_sizes else x.shape[0] * x.shape[1]
        unit = steps * width * x.element_size() * directions
        between = steps * (projected or width) * directions * (layers - 1)
        mask = between // 8 if dropout else 0
        self.reserve = _KEPT[mode] * unit * layers + between * x.element_size() + mask
        self.workspace = (_GATES[mode] + layers + (1 if train else 0)) * unit
        self.has_dropout = bool(train and mask)


def _forward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    x, hidden, cell = args[0], args[4], args[5]
    _, width, projected, _, batch_first, _, train, both_ways, batch_sizes = args[6:15]
    sizes = _Sizes(x, args[6:])
    across = (projected or width) * (2 if both_ways else 1)
    if sizes.has_dropout:
        log.once("dropout of recurrent layers", log.threads * _DROPOUT_STATE_BYTES)
    copied = log.temporary(x.numel() * x.element_size()) if batch_first and not batch_sizes else None
    if batch_sizes:
        output = fresh((x.shape[0], across), x.dtype)
    elif batch_first:
        batch, steps = x.shape[:2]
        output = fresh((batch, steps, across), x.dtype, (across, batch * across, 1))
    else:
        output = fresh((*x.shape[:2], across), x.dtype)
    last = fresh(hidden.shape, x.dtype)
    last_cell = fresh((0,), x.dtype) if cell is None else fresh(cell.shape, x.dtype)
    log.allocate((output, last, last_cell))
    release = log.temporary(sizes.workspace, _weight_bytes(args[1]))
    reserve = fresh((sizes.reserve if train else 0,), torch.uint8)
    log.allocate(reserve)
    release()
    if copied:
        copied()
    return output, last, last_cell, reserve, args[3]


def _backward(log: "AllocationRecorder", func: Any, args: Any, kwargs: Any) -> Any:
    """First the gradient of the input, then those of the weights in one flat buffer."""
    x, weights, hidden, cell = args[0], args[1], args[4], args[5]
    batch_first, batch_sizes = args[14], args[18]
    sizes = _Sizes(x, args[10:])
    transposed = batch_first and not batch_sizes
    copies = [x, args[6]] if transposed else []
    releases = [log.temporary(one.numel() * one.element_size()) for one in copies]
    grown = fresh(x.shape, x.dtype)
    states = fresh(hidden.shape, x.dtype), fresh((0,) if cell is None else cell.shape, x.dtype)
    log.allocate((grown, *states))
    for release in (log.temporary(sizes.workspace, _weight_bytes(weights)), *releases):
        release()
    releases = [log.temporary(one.numel() * one.element_size()) for one in copies[:1]]
    flat = fresh((sum(weight.numel() for weight in weights),), weights[0].dtype)
    log.allocate(flat)
    for release in (log.temporary(sizes.workspace, _weight_bytes(weights)), *releases):
        release()
    gradients, place = [], 0
    for weight in weights:
        gradients.append(flat.narrow(0, place, weight.numel()).view(weight.shape))
        place += weight.numel()
    return grown, *states, gradients


def _weight_bytes(weights: Any) -> int:
    """Bytes of the transposed copy of the weights in the workspace."""
    return int(sum(weight.numel() * weight.element_size() for weight in weights) * 3 // 2)


KERNELS = {aten._cudnn_rnn.default: _forward, aten._cudnn_rnn_backward.default: _backward}
WHOLE: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, name).input: _whole(mode) for name, mode in _MODES.items()},
    **{getattr(aten, name).data: _packed(mode) for name, mode in _MODES.items()},
}
