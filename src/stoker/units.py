"""Bytes and seconds, read from what people write and written as people read them."""

import math
import re

from stoker.errors import InputError

_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """`16GiB`, `1.5 GB`, `512MiB` or a plain number of bytes."""
    return round(_parse(text, _BYTES, default="b", what="a size", example="16GiB"))


def parse_seconds(text: str) -> float:
    """`20ms`, `1.5s`, `2min` or a plain number of seconds."""
    return _parse(text, _SECONDS, default="s", what="a time", example="20ms")


def _parse(text: str, units: dict[str, float] | dict[str, int], *, default: str, what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} is not {what}; write it like {example}")
    number, unit = match.groups()
    factor = units.get(unit.lower() or default)
    if factor is None:
        raise InputError(f"{text!r} has the unknown unit {unit!r}; known: {', '.join(units)}")
    value = float(number) * factor
    if not math.isfinite(value):
        raise InputError(f"{what} of {number[:12]}… {unit} is larger than any")
    return value


def format_bytes(count: float) -> str:
    """`1.5 GiB`, `117 KiB`, `12 B`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """`12.3 ms`, `4.56 s`, `2 min 05 s`."""
    magnitude = abs(seconds)
    if magnitude >= 100:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60:02d} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if magnitude * scale >= 1 or unit == "µs":
            value = seconds * scale
            return f"{value:.0f} {unit}" if abs(value) >= 100 or value == 0 else f"{value:.3g} {unit}"
    raise AssertionError("unreachable")


def format_workers(count: int) -> str:
    """`1 worker`, `8 workers`."""
    return "1 worker" if count == 1 else f"{count} workers"


def format_count(count: int, noun: str) -> str:
    """`1 task`, `1,080 tasks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
