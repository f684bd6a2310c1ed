"""Blocks of transformers' text encoders: BERT, RoBERTa, DistilBERT and models built like them.

The model's own code makes the embeddings and the attention mask, and its own head runs after the last layer, so that
versions of transformers may differ in both. Between the layers, the state is a mapping of the tensors that the first
layer was called with: the hidden states and, where items are padded, the mask.
"""

import copy
import functools
import inspect
from typing import Any

import torch
from torch import nn

from stoker.workload.blocks.block import Block, weight_layers
from stoker.workload.blocks.graph import Unsplittable, closed_reason
from stoker.workload.blocks.state import apply

_POOLED, _SEQUENCE = "pooler_output", "last_hidden_state"


def is_encoder(model: nn.Module) -> bool:
    """Whether the model has the structure that `encoder_blocks` splits."""
    base = _base(model)
    config = getattr(base, "config", None)
    return (
        hasattr(config, "model_type")
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "is_encoder_decoder", False)
        and isinstance(getattr(base, "embeddings", None), nn.Module)
        and _stack_name(base) is not None
    )


def encoder_blocks(model: nn.Module, expected: Any) -> list[Block]:
    """The model's blocks, unverified; `expected` is what it gives for some input. Raises Unsplittable."""
    base = _base(model)
    stack_name = _stack_name(base)
    assert stack_name is not None
    for part in {model, base, base.get_submodule(stack_name)}:
        reason = closed_reason(part)
        if reason is not None:
            raise Unsplittable(reason)
    layers = list(base.get_submodule(f"{stack_name}.layer").children())
    prefix = next(f"{name}." if name else "" for name, module in model.named_modules() if module is base)
    layer_class: Any = type(layers[0])
    hidden = list(_signature(layer_class).parameters)[1]
    pooler = getattr(base, "pooler", None)

    blocks = [Block(name=f"{prefix}embeddings", call=_Entry(base, stack_name, layers[0]))]
    steps: list[nn.Module] = [_Layer(layer, hidden) for layer in layers]
    steps[-1] = _Steps(steps[-1], _Rename(hidden, _SEQUENCE))
    names = [f"{prefix}{stack_name}.layer.{number}" for number in range(len(layers))]
    if pooler is not None:
        steps.append(_Pooler(pooler, with_sequence=base is model))
        names.append(f"{prefix}pooler")
    if base is model:
        steps[-1] = _Steps(steps[-1], _Output(type(expected)))
    else:
        steps.append(_Head(model, prefix.rstrip(".")))
        names.append(_head_name(model, base))
    return [*blocks, *(Block(name=name, call=step) for name, step in zip(names, steps, strict=True))]


def _base(model: nn.Module) -> nn.Module:
    base = getattr(model, "base_model", model)
    return base if isinstance(base, nn.Module) else model


def _stack_name(base: nn.Module) -> str | None:
    """Where the layers are: BERT has them in `encoder`, DistilBERT in `transformer`."""
    for name in ("encoder", "transformer"):
        layers = getattr(getattr(base, name, None), "layer", None)
        if isinstance(layers, nn.ModuleList) and len(layers):
            return name
    return None


def _head_name(model: nn.Module, base: nn.Module) -> str:
    parts = [name for name, part in model.named_children() if part is not base and weight_layers(part)]
    return parts[0] if parts else "head"


def _with_modules(module: nn.Module, **modules: nn.Module | None) -> nn.Module:
    """A copy of a module that runs its code with some other submodules and shares the rest."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **modules}
    return twin


@functools.cache
def _signature(layer_class: Any) -> inspect.Signature:
    return inspect.signature(layer_class.forward)


class _Reached(Exception):
    """The first layer was called; `state` has the tensors it was called with."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.state = state


class _Stop(nn.Module):
    """Stands for the first layer and ends the forward pass there."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer_class: Any = type(layer)

    def forward(self, *args: Any, **kwargs: Any) -> None:
        signature = _signature(self.layer_class)
        bound = signature.bind(self, *args, **kwargs).arguments
        for name in [name for name, kind in signature.parameters.items() if kind.kind is kind.VAR_KEYWORD]:
            bound.update(bound.pop(name, {}))
        bound.pop("self")
        values = {name: value for name, value in bound.items() if value is not None and value is not False}
        other = sorted(name for name, value in values.items() if not isinstance(value, torch.Tensor))
        if other:
            raise Unsplittable(f"its layers are called with {', '.join(other)}, which is no tensor")
        raise _Reached(values)


class _Entry(nn.Module):
    """The model's own forward method as far as its first layer: embeddings and attention mask."""

    def __init__(self, base: nn.Module, stack_name: str, layer: nn.Module) -> None:
        super().__init__()
        stack = _with_modules(base.get_submodule(stack_name), layer=nn.ModuleList([_Stop(layer)]))
        self.base = _with_modules(base, **{stack_name: stack}, **({"pooler": None} if hasattr(base, "pooler") else {}))
        self.training = base.training

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        try:
            self.base(*args, **kwargs)
        except _Reached as reached:
            return reached.state
        raise Unsplittable("its layers were not called")


class _Layer(nn.Module):
    """One encoder layer; what else is in the state goes on to the next."""

    def __init__(self, layer: nn.Module, hidden: str) -> None:
        super().__init__()
        self.layer, self.hidden, self.training = layer, hidden, layer.training

    def forward(self, **state: Any) -> dict[str, Any]:
        result = self.layer(**state)
        return {**state, self.hidden: result[0] if isinstance(result, tuple) else result}


class _Rename(nn.Module):
    """What the layers leave behind: the hidden states alone."""

    def __init__(self, hidden: str, name: str) -> None:
        super().__init__()
        self.hidden, self.name = hidden, name

    def forward(self, **state: Any) -> dict[str, Any]:
        return {self.name: state[self.hidden]}


class _Pooler(nn.Module):
    """The pooled first token. A head with a pooler before it reads nothing else."""

    def __init__(self, pooler: nn.Module, *, with_sequence: bool) -> None:
        super().__init__()
        self.pooler, self.with_sequence, self.training = pooler, with_sequence, pooler.training

    def forward(self, last_hidden_state: torch.Tensor) -> dict[str, Any]:
        pooled = {_POOLED: self.pooler(last_hidden_state)}
        return {_SEQUENCE: last_hidden_state, **pooled} if self.with_sequence else pooled


class _Output(nn.Module):
    """What a base model returns."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, **state: Any) -> Any:
        return self.kind(**state)


class _Given(nn.Module):
    """Stands for the base model before a head and gives what it is handed as `input_ids`."""

    def forward(self, input_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

        # A head that reads the pooled output takes it by its place, the second; the first is empty so that a head that
        # needs both fails the comparison with the model.
        if _POOLED in input_ids:
            input_ids = {_SEQUENCE: input_ids[_POOLED][:0], **input_ids}
        return BaseModelOutputWithPoolingAndCrossAttentions(**input_ids)


class _Head(nn.Module):
    """The model's own forward method from the end of its base model on."""

    def __init__(self, model: nn.Module, base_name: str) -> None:
        super().__init__()
        self.model = _with_modules(model, **{base_name: _Given()})
        self.training = model.training

    def forward(self, **state: Any) -> Any:
        return self.model(input_ids=state)


class _Steps(nn.Module):
    """Modules that run one after another as one block."""

    def __init__(self, *steps: nn.Module) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.training = steps[0].training

    def forward(self, **state: Any) -> Any:
        for step in self.steps:
            state = apply(step, state)
        return state
