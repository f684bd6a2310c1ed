"""Batches of any structure that a collate function may return: split, moved to a device, counted, and their bytes."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType
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
        return batch, _target_attribute(batch)
    if not batch:
        raise InputError("the loader gave an empty batch")
    if len(batch) == 1:
        return batch[0], None
    if len(batch) == 2:
        return batch[0], batch[1]
    return tuple(batch[:-1]), batch[-1]


def _target_attribute(batch: Any) -> Any:
    """The target of a batch that is an object with attributes, as that of PyTorch Geometric: `batch.y`."""
    if isinstance(batch, (torch.Tensor, np.ndarray, *_ATOMS)):
        return None
    found = (_attribute(batch, name) for name in ("y", *TARGET_NAMES))
    return next((value for value in found if isinstance(value, torch.Tensor)), None)


def without_target(inputs: Any) -> Any:
    """A mapping without its labels; other inputs unchanged."""
    if not isinstance(inputs, Mapping):
        return inputs
    return {name: value for name, value in inputs.items() if name not in TARGET_NAMES}


def to_device(
    batch: Any,
    device: torch.device | str,
    *,
    non_blocking: bool = False,
    channels_last: bool = False,
    leave_unknown: bool = False,
) -> Any:
    """The batch with every tensor on the device, in containers of the same types.

    `channels_last` applies to images and clips only. Raises InputError for an object with tensors that cannot be moved,
    or leaves it as it is with `leave_unknown`, for a step of the user's that moves it.
    """

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _move_tensor(value, device, non_blocking, channels_last)
        if isinstance(value, (*_ATOMS, type)):
            return value
        if callable(getattr(value, "to", None)) and not isinstance(value, Mapping):
            return _move_object(value, device, non_blocking, leave_unknown)
        moved = _rebuild(value, move)
        if moved is value and not leave_unknown and _has_tensors_elsewhere(value, torch.device(device)):
            raise _cannot_move(value, device, "it has no method to(device)")
        return moved

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


def _move_object(value: Any, device: torch.device | str, non_blocking: bool, leave_unknown: bool) -> Any:
    if hasattr(value, "__copy__"):  # a batch of PyTorch Geometric moves in place, and the loop may need it again
        value = copy.copy(value)
    try:
        try:
            return value.to(device, non_blocking=non_blocking)
        except TypeError:  # many users' batch classes take only the device
            return value.to(device)
    except (TypeError, AttributeError) as error:
        if leave_unknown:
            return value
        raise _cannot_move(value, device, f"its method to() fails: {type(error).__name__}: {error}") from error


def _cannot_move(value: Any, device: torch.device | str, why: str) -> InputError:
    return InputError(
        f"a batch of type {type(value).__name__} cannot be moved to {device}: {why}; move it yourself in "
        "Workload(step=...) or Workload(forward=...)"
    )


def _has_tensors_elsewhere(value: Any, device: torch.device) -> bool:
    """Whether an object that is no container holds tensors on a device of another type."""
    held = getattr(value, "__dict__", {}).values()
    return any(isinstance(part, torch.Tensor) and part.device.type != device.type for part in held)


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
    count = known_count(batch)
    if count is None:
        raise InputError(
            f"cannot tell how many items a batch of type {type(batch).__name__} holds: give it an attribute "
            "batch_size; a collate_fn can also give (inputs, target) with the items in the first dimension, which "
            "Workload(step=...) or Workload(forward=...) turns into what the model takes"
        )
    return count


def known_count(batch: Any) -> int | None:
    """How many items a batch holds; None if nothing in it says so."""
    said = _said_count(batch)
    if said is not None:
        return said
    inputs, target = split(batch)
    for part in (inputs, target):
        if isinstance(part, torch.Tensor) and part.dim():
            return int(part.shape[0])
    return next((count for part in (target, inputs) if (count := _count(part, set())) is not None), None)


def _said_count(value: Any) -> int | None:
    """What an object says itself: a batch of PyTorch Geometric holds nodes of `num_graphs` graphs."""
    if isinstance(value, (torch.Tensor, np.ndarray, *_ATOMS)):
        return None
    for name in ("num_graphs", "batch_size"):
        said = _attribute(value, name)
        if isinstance(said, tuple) and said:  # as tensordict's
            said = said[0]
        if isinstance(said, int) and not isinstance(said, bool) and said > 0:
            return said
    return None


def _attribute(value: Any, name: str) -> Any:
    """An attribute, or None: properties of users' classes raise whatever they like."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _count(value: Any, seen: set[int]) -> int | None:
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.shape[0]) if len(value.shape) else None
    if isinstance(value, _ATOMS) or id(value) in seen:
        return None
    seen = seen | {id(value)}
    said = _said_count(value)
    if said is not None:
        return said
    if isinstance(value, list | tuple) and not _is_packed(value) and not hasattr(value, "_fields"):
        return _count_sequence(value, seen)
    if _is_packed(value):
        return int(value.batch_sizes[0])
    return next((count for part in _parts(value) if (count := _count(part, seen)) is not None), None)


def _count_sequence(values: list[Any] | tuple[Any, ...], seen: set[int]) -> int | None:
    """A list holds one value an item (targets of detection, images of several sizes) or several batched inputs."""
    if not values or all(isinstance(value, Mapping | str | bytes | int | float) for value in values):
        return len(values)
    counts = {_count(value, seen) for value in values}
    if len(counts) == 1:
        return counts.pop()
    return len(values)


def batch_bytes(batch: Any) -> int:
    """The bytes of all tensors, arrays and strings in a batch."""
    return _bytes(batch, set())


def _bytes(batch: Any, seen: set[int]) -> int:
    if isinstance(batch, torch.Tensor | np.ndarray | np.generic):
        return int(batch.nbytes)
    if isinstance(batch, bytes):
        return len(batch)
    if isinstance(batch, str):
        return len(batch.encode())
    if isinstance(batch, _ATOMS):
        return 0
    if id(batch) in seen:  # objects may refer to each other
        return 0
    seen.add(id(batch))
    return sum(_bytes(part, seen) for part in _parts(batch))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        yield from value
    elif isinstance(value, type | ModuleType | FunctionType | torch.nn.Module):
        return  # part of the program, not of the batch
    elif is_dataclass(value):
        yield from (_attribute(value, part.name) for part in fields(value))
    else:
        yield from list(getattr(value, "__dict__", {}).values())


def _is_packed(value: Any) -> bool:
    return isinstance(value, torch.nn.utils.rnn.PackedSequence)
