"""What passes between blocks: a tensor, or a tuple or mapping of tensors and plain values."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from stoker.errors import InputError


def apply(call: Callable[..., Any], state: Any) -> Any:
    """Call on a state: a mapping gives keyword arguments, a tuple gives positional ones."""
    if isinstance(state, Mapping):
        return call(**state)
    if isinstance(state, tuple):
        return call(*state)
    return call(state)


def tensors(state: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a state or of a model's output, in order."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, tuple | list):
        for value in state:
            yield from tensors(value)


def clone(state: Any) -> Any:
    """A copy that shares no memory with the state. An expanded tensor becomes a full one, as in a store."""
    return _mapped(state, lambda tensor: tensor.clone(memory_format=torch.preserve_format))


def take(state: Any, items: int) -> Any:
    """The first items of a batch."""
    return _mapped(state, lambda tensor: tensor[:items].clone())


def rows(state: Any, start: int, stop: int) -> Any:
    """Some items of a batch, in the batch's own memory."""
    return _mapped(state, lambda tensor: tensor[start:stop])


def repeat(state: Any, times: int) -> Any:
    """A batch with its items several times over."""
    return _mapped(state, lambda tensor: torch.cat([tensor] * times))


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor, a number, None, or a tuple or list of those."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, torch.Tensor | int | float | bool)


def item_count(state: Any) -> int:
    """How many items a batch holds: the leading dimension of its first tensor."""
    first = next(tensors(state), None)
    if first is None or first.dim() == 0 or first.shape[0] == 0:
        raise InputError("the example must be a batch of at least one item: a tensor, a tuple or a mapping of tensors")
    return int(first.shape[0])


def state_bytes(state: Any) -> int:
    """What a state takes once it is stored."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))


def share_memory(one: Any, other: Any) -> bool:
    """Whether a tensor of one state lies in the same storage as a tensor of the other."""
    places = {_storage(tensor) for tensor in tensors(one)}
    return any(_storage(tensor) in places for tensor in tensors(other))


def same_bits(one: Any, other: Any) -> bool:
    """Whether two states or outputs have the same types, names, shapes and bits. A NaN equals the same NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same_bits(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return bool(one == other)


def digest(state: Any) -> bytes:
    """A digest of the shapes and bits of a state's tensors."""
    found = hashlib.sha256()
    for tensor in tensors(state):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        if tensor.layout == torch.strided and not tensor.is_quantized:
            found.update(as_bytes(tensor.cpu()).numpy().data)
    return found.digest()


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device or one.layout != other.layout:
        return False
    if one.layout != torch.strided or one.is_quantized:
        return torch.equal(one, other)
    return torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's memory, in the order of its elements."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _mapped(state: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        return change(state)
    if isinstance(state, Mapping):
        return {name: _mapped(value, change) for name, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(_mapped(value, change) for value in state)
    return state
