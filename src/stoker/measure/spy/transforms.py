"""Times transforms by name, in whatever attribute a dataset holds them."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch.utils.data import Dataset

from stoker import marks


class SpiedCall:
    """A transform, timed under its name. Its other attributes are those of the transform itself."""

    def __init__(self, inner: Callable[..., Any], name: str) -> None:
        self._inner, self._name = inner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        active = marks.recorder()
        if active is None:
            return self._inner(*args, **kwargs)
        active.enter(self._name)
        try:
            found = self._inner(*args, **kwargs)
        finally:
            active.leave()
        active.returned(self._name, bytes_of(found))
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)


def bytes_of(value: Any) -> int:
    """Bytes of an image or a tensor, or of the first one in a tuple; 0 for anything else."""
    value = value[0] if isinstance(value, tuple | list) and value else value
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if hasattr(value, "getbands"):  # PIL
        return value.width * value.height * len(value.getbands())  # type: ignore[no-any-return]
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


_TRANSFORM_NAMES = ("transform", "transforms", "target_transform")


def spy_transforms(holder: Any, undo: ExitStack, seen: set[int] | None = None) -> None:
    """Wrap the transforms in the attributes of a dataset and of the datasets inside it; `undo` puts them back."""
    seen = set() if seen is None else seen
    if id(holder) in seen or not hasattr(holder, "__dict__"):
        return
    seen.add(id(holder))
    for name, value in list(vars(holder).items()):
        if isinstance(value, SpiedCall):
            continue
        if _is_compose(value):
            _replace(value, "transforms", _named(value.transforms), undo)
        elif isinstance(value, torch.nn.Sequential):
            _replace(holder, name, _Chain(_named(list(value))), undo)
        elif type(value).__name__ == "StandardTransform":
            spy_transforms(value, undo, seen)
        elif (name in _TRANSFORM_NAMES or type(value).__name__.endswith("Compose")) and callable(value):
            _replace(holder, name, SpiedCall(value, f"transform.{_name_of(value)}"), undo)
        elif isinstance(value, Dataset):
            spy_transforms(value, undo, seen)
        elif name == "pipeline" and isinstance(value, list) and type(holder).__module__.startswith("webdataset."):
            for stage in value:
                _spy_mapped(stage, undo)
        elif name == "datasets" and isinstance(value, list | tuple):
            for inner in value:
                spy_transforms(inner, undo, seen)


def _spy_mapped(stage: Any, undo: ExitStack) -> None:
    """Wrap the user's functions that a stage of a webdataset pipeline maps. Its own decoder calls functions that are
    timed by themselves."""
    mapped = getattr(stage, "args", None)
    if getattr(getattr(stage, "f", None), "__name__", "") not in _MAPS or not isinstance(mapped, tuple):
        return
    wrapped = []
    for value in mapped:
        if _is_compose(value):
            _replace(value, "transforms", _named(value.transforms), undo)
        own = not isinstance(value, type) and not type(value).__module__.startswith("webdataset.")
        plain = own and callable(value) and not _is_compose(value)
        wrapped.append(SpiedCall(value, f"transform.{_name_of(value)}") if plain else value)
    _replace(stage, "args", tuple(wrapped), undo)


_MAPS = ("_map", "_map_dict", "_map_tuple")


def _replace(holder: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute until `undo`; one that cannot be set, as of a frozen dataclass, is left untimed."""
    before = getattr(holder, name)
    with suppress(AttributeError, TypeError):
        setattr(holder, name, value)
        undo.callback(setattr, holder, name, before)


class _Chain:
    """Computes what a Sequential of transforms does, with wrapped members."""

    def __init__(self, members: list[Any]) -> None:
        self._members = members

    def __call__(self, value: Any) -> Any:
        for member in self._members:
            value = member(value)
        return value


def _is_compose(value: Any) -> bool:
    """Whether this is a chain of transforms of torchvision or of Albumentations, which call the members by a list."""
    return type(value).__name__ == "Compose" and type(value).__module__.startswith(("torchvision.", "albumentations."))


def _named(members: list[Any]) -> list[Any]:
    counts: dict[str, int] = {}
    wrapped: list[Any] = []
    for member in members:
        if isinstance(member, SpiedCall):
            wrapped.append(member)
            continue
        base = _name_of(member)
        counts[base] = counts.get(base, 0) + 1
        name = base if counts[base] == 1 else f"{base}.{counts[base]}"
        wrapped.append(SpiedCall(member, f"transform.{name}"))
    return wrapped


def _name_of(transform: Any) -> str:
    name = getattr(transform, "__name__", None) or type(transform).__name__
    return str(name).replace("<lambda>", "lambda")
