"""Loads weights from safetensors or a state dict into a model. No code in the file is run. Misfits raise InputError."""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker.errors import InputError
from stoker.packages import optional

State = dict[str, torch.Tensor]

_NESTED_UNDER = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.", "model.")
# Old names in published files: torchvision's densenets, and layer norms in the first BERT files.
_OLD_NAMES = (
    (re.compile(r"\.(norm|conv)\.([12])\."), r".\1\2."),
    (re.compile(r"\.gamma$"), ".weight"),
    (re.compile(r"\.beta$"), ".bias"),
)
_REFUSED = re.compile(r"GLOBAL ([\w.]+)")


def read(path: Path) -> State:
    """The tensors of a weights file by name, in host memory. Raises InputError if the file holds anything else."""
    if not path.is_file():
        what = "is a folder; name the file in it" if path.is_dir() else "does not exist"
        raise InputError(f"the weights file {path} {what}")
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for name in _NESTED_UNDER:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not found or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise InputError(f"{path} holds no state dict; save one with torch.save(model.state_dict(), {path.name!r})")
    return dict(found)


def _read_safetensors(path: Path) -> Any:
    safetensors = optional("safetensors.torch", extra="hf")
    try:
        return safetensors.load_file(path)
    except Exception as error:  # the package's error class is not public
        raise InputError(f"{path} is not a safetensors file: {_first_line(error)}") from None


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # random bytes read as a pickle can raise anything
        refused = _REFUSED.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if refused is None:
            raise InputError(f"{path} is not a file that torch.save wrote, or it is damaged") from error
        raise InputError(
            f"{path} was not loaded, because it holds more than tensors ({refused[1]}) and could run code; "
            "save the weights alone with torch.save(model.state_dict(), ...)"
        ) from None


def rename(state: State, model: nn.Module) -> State:
    """The same tensors under the model's names: without prefixes of wrappers, and with old names replaced."""
    wanted = set(model.state_dict())
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in state) and not any(name.startswith(prefix) for name in wanted):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    base = f"{getattr(model, 'base_model_prefix', '')}."
    if not any(name.startswith(base) for name in state) and any(base + name in wanted for name in state):
        state = {base + name: tensor for name, tensor in state.items()}
    return {_today(name, wanted): tensor for name, tensor in state.items()}


def _today(name: str, wanted: set[str]) -> str:
    for old, new in _OLD_NAMES:
        candidate = old.sub(new, name)
        if name not in wanted and candidate in wanted:
            return candidate
    return name


def classes(state: State, model: nn.Module) -> int | None:
    """The number of classes of the file's head, if only the head differs from the model; otherwise None."""
    different = [(state[name], tensor) for name, tensor in model.state_dict().items() if _differs(state, name, tensor)]
    sizes = {theirs.shape[0] if theirs.dim() else 0 for theirs, _ in different}
    same_otherwise = all(theirs.shape[1:] == ours.shape[1:] for theirs, ours in different)
    return sizes.pop() if len(sizes) == 1 and same_otherwise else None


def load(state: State, model: nn.Module, *, path: Path, name: str, head_may_be_new: bool = False) -> None:
    """Copy the tensors into the model. Raises InputError if any (`head_may_be_new`: of the base model) is missing."""
    own = model.state_dict()
    if not own.keys() & state.keys():
        raise InputError(f"{path} holds another model's weights: it has none of {name}'s, only {_some(list(state))}")
    _check_shapes(state, own, path=path, name=name)
    result = model.load_state_dict(state, strict=False)
    missing, unexpected = list(result.missing_keys), list(result.unexpected_keys)
    if head_may_be_new:
        base = f"{getattr(model, 'base_model_prefix', '')}."
        head = [key for key in missing if not key.startswith(base) or ".pooler." in key]
        missing = [key for key in missing if key not in head]
        unexpected = []
        if head and not missing:
            warnings.warn(f"{path} has no weights for {_some(head)}: they stay random", stacklevel=3)
    if missing or unexpected:
        lacks = f"it lacks {_some(missing)}" if missing else ""
        has = f"it has {_some(unexpected)}, which the model does not" if unexpected else ""
        raise InputError(f"{path} does not fit {name}: {' and '.join(filter(None, (lacks, has)))}")


def _check_shapes(state: State, own: Mapping[str, torch.Tensor], *, path: Path, name: str) -> None:
    different = [key for key, tensor in own.items() if _differs(state, key, tensor)]
    if different:
        key = different[0]
        more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
        theirs, ours = tuple(state[key].shape), tuple(own[key].shape)
        raise InputError(f"{path} does not fit {name}: {key} is {theirs} in the file and {ours} in the model{more}")


def _differs(state: State, name: str, tensor: torch.Tensor) -> bool:
    return name in state and state[name].shape != tensor.shape


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
