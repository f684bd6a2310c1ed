"""One block of a model, a model's blocks in order, and their composition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import fx, nn

from stoker.workload.blocks.state import apply, clone


class Segment(nn.Module):
    """A piece of a traced model. Its layers are the model's own."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__()
        self.traced = traced
        self.training = traced.training

    @property
    def direct(self) -> Callable[..., Any]:
        """Its code without the calls around it, which in small models cost as much as the code."""
        return self.traced.forward  # not __call__, which prints to stderr when a layer raises

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.direct(*args, **kwargs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A piece of a model that turns one state into the next.

    `name` is that of the layer it begins with. A block whose code changes its input in place has `modifies_input`;
    whoever runs it on a stored state must give it a copy, as a composition does.
    """

    name: str
    call: Callable[..., Any]
    modifies_input: bool = False

    @property
    def module(self) -> nn.Module | None:
        """What holds its weights; None for a plain function, whose weights cannot be seen."""
        return self.call if isinstance(self.call, nn.Module) else None

    @property
    def parameters(self) -> int:
        """How many parameters it has; one that is used twice counts once."""
        return 0 if self.module is None else sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def layers(self) -> int:
        """How many layers with a weight matrix or kernel it has."""
        return 0 if self.module is None else weight_layers(self.module)

    def __call__(self, state: Any) -> Any:
        return apply(self.call, state)


@dataclass(frozen=True, eq=False)
class Blocks(Sequence[Block]):
    """A model's blocks in order. A model that runs whole is one block, and `whole_reason` says why."""

    blocks: tuple[Block, ...]
    whole_reason: str | None = None

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> "Blocks": ...
    def __getitem__(self, index: int | slice) -> "Block | Blocks":
        if isinstance(index, slice):
            return Blocks(self.blocks[index], self.whole_reason)
        return self.blocks[index]


class Composition(nn.Module):
    """Blocks run one after another. It takes what the first block takes: a model's inputs, or a stored state.

    What it is given stays as it is, also when its first block works in place.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.modules_of_blocks = nn.ModuleList(block.module for block in blocks if block.module is not None)
        self._calls = [block.call.direct if isinstance(block.call, Segment) else block.call for block in blocks]
        self._copies = bool(blocks) and blocks[0].modifies_input
        self.training = any(module.training for module in self.modules_of_blocks)  # train() would change the model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._copies:
            args, kwargs = clone(args), clone(kwargs)
        if not self.blocks:
            return kwargs or (args[0] if len(args) == 1 else args)
        state = self._calls[0](*args, **kwargs)
        for call in self._calls[1:]:
            state = call(state) if type(state) is torch.Tensor else apply(call, state)
        return state


def compose(blocks: Sequence[Block]) -> Composition:
    """The function that the blocks compute together, as a module that shares their weights.

    `compose(blocks)(x)` takes a model's inputs; `compose(blocks[i:])` takes the state that block `i - 1` gave, with a
    tuple as positional and a mapping as keyword arguments (`run` does that).
    """
    return Composition(blocks)


def run(blocks: Sequence[Block], state: Any) -> Any:
    """Run blocks on a model's inputs or on a stored state, which stays as it is."""
    if blocks and blocks[0].modifies_input:
        state = clone(state)
    for block in blocks:
        state = block(state)
    return state


def is_layer(module: nn.Module) -> bool:
    """Whether a module itself holds a weight matrix or kernel: a convolution, a linear layer, an embedding.

    Tokens, tables of positions and scales that a larger module holds beside its layers make it no layer.
    """
    matrices = [name for name, parameter in module.named_parameters(recurse=False) if parameter.dim() >= 2]
    childless = next(module.children(), None) is None
    return any(childless or "weight" in name or name.startswith("original") for name in matrices)


def weight_layers(module: nn.Module) -> int:
    """How many layers a module has, itself included."""
    return sum(map(is_layer, module.modules()))
