"""Batches of any structure that a collate function may return: split, moved to a device, counted, and their bytes."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from stoker.errors import InputError

TARGET_NAMES = ("labels", "label", "targets", "target")
_ATOMS = (str, bytes, int, float, bool, complex, type(None))


def split(batch: Any) -> tuple[Any, Any]:
    """The inputs and the target. The target is None if the batch has none.

    The inputs of a mapping include the labels, because a model may compute its own loss from them.
    """
    if isinstance(batch, Mapping):
        return batch, next((batch[name] for name in TARGET_NAMES if name in batch), None)
    if not isinstance(batch, tuple | list) or _is_packed(batch):
        return batch, None
    if not batch:
        raise InputError("the loader gave an empty batch")
    if len(batch) == 1:
        return batch[0], None
    if len(batch) == 2:
        return batch[0], batch[1]
    return tuple(batch[:-1]), batch[-1]


def without_target(inputs: Any) -> Any:
    """A mapping without its labels; other inputs unchanged."""
    if not isinstance(inputs, Mapping):
        return inputs
    return {name: value for name, value in inputs.items() if name not in TARGET_NAMES}


def to_device(
    batch: Any, device: torch.device | str, *, non_blocking: bool = False, channels_last: bool = False
) -> Any:
    """The batch with every tensor on the device, in containers of the same types.

    `channels_last` applies to images and clips only.
    """

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _move_tensor(value, device, non_blocking, channels_last)
        if isinstance(value, _ATOMS):
            return value
        if callable(getattr(value, "to", None)) and not isinstance(value, Mapping):
            return _move_object(value, device, non_blocking)
        return _rebuild(value, move)

    return move(batch)


def mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with every tensor changed, in containers of the same types."""

    def walk(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) else _rebuild(value, walk)

    return walk(batch)


def _move_tensor(
    tensor: torch.Tensor, device: torch.device | str, non_blocking: bool, channels_last: bool
) -> torch.Tensor:
    if channels_last and tensor.is_floating_point() and tensor.dim() in (4, 5):
        order = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        return tensor.to(device, non_blocking=non_blocking, memory_format=order)
    return tensor.to(device, non_blocking=non_blocking)


def _move_object(value: Any, device: torch.device | str, non_blocking: bool) -> Any:
    try:
        return value.to(device, non_blocking=non_blocking)
    except TypeError:  # many users' batch classes take only the device
        return value.to(device)


def _rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same type with each part changed; other values unchanged."""
    if isinstance(value, Mapping):
        changed = {name: change(part) for name, part in value.items()}
        if not isinstance(value, MutableMapping):
            return changed
        twin = copy.copy(value)
        twin.update(changed)
        return twin
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(part) for part in value))
    if isinstance(value, tuple):
        return tuple(change(part) for part in value)
    if isinstance(value, list):
        return [change(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        like: Any = copy.copy(value)
        for part in fields(value):
            # `replace` would run __init__ again, and it cannot set fields that __init__ does not take.
            object.__setattr__(like, part.name, change(getattr(value, part.name)))
        return like
    return value


def count_items(batch: Any) -> int:
    """How many items a batch holds: a tensor's first dimension, else the length of a list with one value an item."""
    inputs, target = split(batch)
    for part in (inputs, target):
        if isinstance(part, torch.Tensor) and part.dim():
            return int(part.shape[0])
    for part in (target, inputs):
        count = _count(part)
        if count is not None:
            return count
    raise InputError(
        f"cannot tell how many items a batch of type {type(batch).__name__} holds; "
        "a collate_fn that gives (inputs, target) with the batch in the first dimension would say"
    )


def _count(value: Any) -> int | None:
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.shape[0]) if len(value.shape) else None
    if isinstance(value, _ATOMS):
        return None
    if isinstance(value, list | tuple) and not _is_packed(value) and not hasattr(value, "_fields"):
        return _count_sequence(value)
    if _is_packed(value):
        return int(value.batch_sizes[0])
    return next((count for part in _parts(value) if (count := _count(part)) is not None), None)


def _count_sequence(values: list[Any] | tuple[Any, ...]) -> int | None:
    """A list holds one value an item (targets of detection, images of several sizes) or several batched inputs."""
    if not values or all(isinstance(value, Mapping | str | bytes | int | float) for value in values):
        return len(values)
    counts = {_count(value) for value in values}
    if len(counts) == 1:
        return counts.pop()
    return len(values)


def batch_bytes(batch: Any) -> int:
    """The bytes of all tensors, arrays and strings in a batch."""
    if isinstance(batch, torch.Tensor | np.ndarray | np.generic):
        return int(batch.nbytes)
    if isinstance(batch, bytes):
        return len(batch)
    if isinstance(batch, str):
        return len(batch.encode())
    if isinstance(batch, _ATOMS):
        return 0
    return sum(batch_bytes(part) for part in _parts(batch))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, part.name) for part in fields(value))
    else:
        yield from getattr(value, "__dict__", {}).values()


def _is_packed(value: Any) -> bool:
    return isinstance(value, torch.nn.utils.rnn.PackedSequence)
