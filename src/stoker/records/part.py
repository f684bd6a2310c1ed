"""Parts of a model, such as `last:25%`: how they are written."""

import re
from decimal import Decimal
from typing import Literal

from stoker.errors import InputError
from stoker.records.base import Record

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
