"""Borrows a live model for a run, and restores its parameters, buffers, gradients, training flags and random states."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def borrowed(model: nn.Module) -> Iterator[nn.Module]:
    """Use a live model. All that a step or a move to another device changes is restored, also after an error.

    This needs a copy of the parameters and buffers in host memory.
    """
    with ExitStack() as stack:
        for give_back in (*_random_states(), *_cudnn_flags(), *_flags(model), *_tensors(model)):
            stack.callback(give_back)
        yield model


@contextmanager
def borrowed_optimizer(optimizer: Any) -> Iterator[None]:
    """Use a live optimizer and restore its state. Other objects, such as an optimizer's class, are left alone."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        yield
        return
    state = {key: {name: _kept(value) for name, value in values.items()} for key, values in optimizer.state.items()}
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update({key: {name: back() for name, back in values.items()} for key, values in state.items()})
        for group, before in zip(optimizer.param_groups, groups, strict=False):
            group.update(before)


def _kept(value: Any) -> Callable[[], Any]:
    """A function that returns a piece of state as it is now: the same tensor, with the same values."""
    if not isinstance(value, torch.Tensor):
        return lambda: value
    held = value.detach().to("cpu", copy=True)

    def back() -> torch.Tensor:
        with torch.no_grad():
            return value.copy_(held)

    return back


def _random_states() -> Iterator[Callable[[], None]]:
    python, host = random.getstate(), torch.get_rng_state()
    yield lambda: random.setstate(python)
    yield lambda: torch.set_rng_state(host)
    if "numpy" in sys.modules:
        import numpy as np

        state: Any = np.random.get_state()
        yield lambda: np.random.set_state(state)
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(devices)


def _cudnn_flags() -> Iterator[Callable[[], None]]:
    cudnn: Any = torch.backends.cudnn
    before = (cudnn.benchmark, cudnn.deterministic)

    def give_back() -> None:
        cudnn.benchmark, cudnn.deterministic = before

    yield give_back


def _flags(model: nn.Module) -> Iterator[Callable[[], None]]:
    training = [(module, module.training) for module in model.modules()]
    learning = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def give_back() -> None:
        for module, flag in training:
            module.training = flag
        for parameter, flag in learning:
            parameter.requires_grad_(flag)

    yield give_back


def _tensors(model: nn.Module) -> Iterator[Callable[[], None]]:
    for parameter in model.parameters():
        yield _restore_parameter(parameter)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield _restore_buffer(module, name, buffer)


def _restore_parameter(parameter: nn.Parameter) -> Callable[[], None]:
    gradient = parameter.grad
    give_back_data = _restore_data(parameter)
    give_back_gradient = None if gradient is None else _restore_data(gradient)

    def give_back() -> None:
        parameter.grad = None  # a gradient of the run may have another type or device than the old data
        give_back_data()
        if give_back_gradient is not None:
            give_back_gradient()
        parameter.grad = gradient

    return give_back


def _restore_data(tensor: torch.Tensor) -> Callable[[], None]:
    """Restore a tensor's data. `Module.to` replaces the data and a step writes into it; both are undone."""
    data = tensor.data
    kept = data.to("cpu", copy=True)

    def give_back() -> None:
        tensor.data = data.copy_(kept)

    return give_back


def _restore_buffer(module: nn.Module, name: str, buffer: torch.Tensor) -> Callable[[], None]:
    kept = buffer.to("cpu", copy=True)

    def give_back() -> None:
        with torch.no_grad():
            module._buffers[name] = buffer.copy_(kept)

    return give_back
