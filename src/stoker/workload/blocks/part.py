"""Where a part of a model begins, and several parts on one shared prefix."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from stoker.errors import InputError
from stoker.records.part import PARTS as PARTS
from stoker.records.part import Part as Part
from stoker.records.part import Unit
from stoker.records.part import parse_part as parse_part
from stoker.workload.blocks.block import Block, Composition, compose
from stoker.workload.blocks.state import apply


class TimedBlock(Protocol):
    """What `cut` reads of a block's measured cost."""

    @property
    def time_s_per_item(self) -> float: ...


def cut(blocks: Sequence[Block], part: Part, costs: Sequence[TimedBlock] | None = None) -> int:
    """The index of the block that the part begins with: the boundary nearest to what was asked for.

    A part has at least one block. A count of more than the model has, and a model that runs whole, give 0. `costs` are
    what `describe` measured, one a block; only parts of the time need them.
    """
    if part.is_full:
        return 0
    amounts = _amounts(blocks, part.unit, costs)
    total = sum(amounts)
    if total <= 0:
        raise InputError(f"a model whose blocks have no {part.unit} cannot be cut at {part.text}")
    wanted = total * part.percent / 100 if part.percent is not None else part.count or 0
    best, nearest = 0, abs(total - wanted)
    left = total
    for index in range(1, len(blocks)):
        left -= amounts[index - 1]
        if abs(left - wanted) < nearest:  # of two that are as near, the longer part
            best, nearest = index, abs(left - wanted)
    return best


def _amounts(blocks: Sequence[Block], unit: Unit, costs: Sequence[TimedBlock] | None) -> list[float]:
    if unit == "blocks":
        return [1] * len(blocks)
    if unit == "layers":
        return [block.layers for block in blocks]
    if unit == "parameters":
        return [block.parameters for block in blocks]
    if costs is None or len(costs) != len(blocks):
        raise InputError(
            f"a part of the time needs the time of each of the {len(blocks)} blocks, "
            f"got {0 if costs is None else len(costs)}: measure them with describe"
        )
    return [cost.time_s_per_item for cost in costs]


# ---------------------------------------------------------------- joint models


class Joint(nn.Module):
    """One prefix that runs once, and several heads that run on what it gives. The result has one output a head."""

    def __init__(self, prefix: Sequence[Block], heads: Sequence[Sequence[Block]]) -> None:
        super().__init__()
        if not heads:
            raise InputError("a joint model must have at least one head, got none")
        self.prefix = compose(prefix)
        self.heads: Sequence[Composition] = nn.ModuleList(compose(head) for head in heads)  # type: ignore[assignment]
        self.training = self.prefix.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        state = self.prefix(*args, **kwargs)
        return tuple(apply(head, state) for head in self.heads)


def joint(blocks: Sequence[Block], part: Part, costs: Sequence[TimedBlock] | None = None, *, seed: int = 0) -> Joint:
    """A joint model from one model: its own part as the first head, and copies of it with other weights.

    The weights of a copy are drawn anew, with the mean and the spread of those they replace. Heads from other models go
    straight to `Joint`.
    """
    begin = cut(blocks, part, costs)
    generator = torch.Generator().manual_seed(seed)
    copies = [copy_with_other_weights(blocks[begin:], generator) for _ in range(part.heads - 1)]
    return Joint(blocks[:begin], [blocks[begin:], *copies])


def copy_with_other_weights(blocks: Sequence[Block], generator: torch.Generator) -> list[Block]:
    """Copies of blocks whose floating-point parameters are drawn anew, with the mean and spread that they had."""
    copies = copy.deepcopy(list(blocks))
    with torch.no_grad():
        for parameter in compose(copies).parameters():
            if parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.copy_(parameter.mean() + parameter.std(correction=0) * drawn)
    return copies
