"""Parts of a model, such as `last:25%`: how they are written, where they begin, and several on one shared prefix."""

import copy
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, Protocol

import torch
from torch import nn

from stoker.errors import InputError
from stoker.records import Record
from stoker.workload.blocks.block import Block, Composition, compose
from stoker.workload.blocks.state import apply

Unit = Literal["blocks", "layers", "parameters", "time"]
_UNITS: tuple[Unit, ...] = ("blocks", "layers", "parameters", "time")
_COUNTED: tuple[Unit, ...] = ("blocks", "layers")
PARTS = ("full", "last:50%", "last:25%", "last:3", "last:1")
"""The parts that published studies of model search compare."""


class Part(Record, frozen=True):
    """The end of a model: a percentage or a count of its blocks, layers, parameters or time.

    With `heads` of two or more it is a joint model: that many copies of the part on one shared prefix.
    """

    percent: float | None = None
    count: int | None = None
    unit: Unit = "blocks"
    heads: int = 1

    @property
    def is_full(self) -> bool:
        return self.percent == 100

    @property
    def text(self) -> str:
        """As a user writes it; `parse_part` gives the same part back."""
        if self.is_full:
            return "full"
        amount = f"{self.count}" if self.percent is None else f"{Decimal(repr(self.percent)):f}%".replace(".0%", "%")
        part = f"last:{amount}" + ("" if self.unit == "blocks" else f":{self.unit}")
        return part if self.heads == 1 else f"joint:{self.heads}:{part}"


class TimedBlock(Protocol):
    """What `cut` reads of a block's measured cost."""

    @property
    def time_s_per_item(self) -> float: ...


def parse_part(text: str) -> Part:
    """The part that a text names. Raises InputError, with what is wrong and what would be right."""
    fields = text.strip().lower().split(":")
    heads = 1
    if fields[0] == "joint":
        if len(fields) < 3:
            raise InputError(f"a joint model is written joint:HEADS:last:AMOUNT, such as joint:2:last:3, got {text!r}")
        heads = _whole_number(fields[1], "the number of heads", text)
        if heads < 2:
            raise InputError(f"a joint model must have at least 2 heads, got {heads} in {text!r}")
        fields = fields[2:]
    if fields == ["full"]:
        part = Part(percent=100.0, heads=heads)
    elif fields[0] == "last" and 2 <= len(fields) <= 3:
        part = _last(fields[1], fields[2] if len(fields) == 3 else "blocks", heads, text)
    else:
        raise InputError(
            f"a part must be full, last:50%, last:3, last:50%:parameters or joint:2:last:3, or alike, got {text!r}"
        )
    if part.is_full and heads > 1:
        raise InputError(
            f"the heads of a joint model share the blocks before their part, and {text!r} has none before it"
        )
    return part


def _last(amount: str, unit: str, heads: int, text: str) -> Part:
    if unit not in _UNITS:
        raise InputError(
            f"a part must be measured in {', '.join(_UNITS[:-1])} or {_UNITS[-1]}, got {unit!r} in {text!r}"
        )
    if amount.endswith("%"):
        if not re.fullmatch(r"\d+(\.\d+)?", amount[:-1]):
            raise InputError(f"the percentage of a part must be a number, got {amount!r} in {text!r}")
        percent = float(amount[:-1])
        if not 0 < percent <= 100:
            raise InputError(f"the percentage of a part must be above 0 and at most 100, got {amount} in {text!r}")
        return Part(percent=percent, unit=unit if percent < 100 else "blocks", heads=heads)
    count = _whole_number(amount, f"the number of {unit}", text)
    if unit not in _COUNTED:
        raise InputError(f"a count is of blocks or layers: write last:25%:{unit} instead of {text!r}")
    if count < 1:
        raise InputError(f"a part must have at least 1 of the {unit}, got {count} in {text!r}")
    return Part(count=count, unit=unit, heads=heads)


def _whole_number(field: str, what: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", field):
        raise InputError(f"{what} must be a whole number, got {field!r} in {text!r}")
    return int(field)


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
