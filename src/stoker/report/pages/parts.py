"""What pages share: rows made plain, names made short, counts in words, facts about machines."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from stoker.records import Machine, Record, Software, Trial
from stoker.report.html import Figure, printable
from stoker.units import format_bytes

_DIGITS = 7
"""Digits of a number in a page: more than any clock gives, and half the bytes of a full one."""


class PageRules(Record, frozen=True):
    """How much a page shows. What is left out is aggregated, and the page says so."""

    name_length: int = 60
    """Characters of a name. Longer ones are cut, and numbered where that makes them equal."""
    panels: int = 24
    """Panels of one chart: six rows of four. Of more workloads the page shows those with the most to gain."""
    colours: int = 8
    """Lines in one plot: there are no more colours that everybody can tell apart."""
    parts: int = 4
    """Parts of a study (data × device × …) with charts of their own."""
    settings: int = 12
    """Bars of the best settings."""
    regret: float = 1.0
    """Settings with a larger average regret are left out of the bars, which they would make unreadable."""
    few: int = 4
    """But not where fewer settings than this would be left."""
    cells_across: int = 9
    """Columns of cells of a chart that fits half of the page."""
    points: int = 2500
    """Points of a scatter plot. Of more, every n-th is drawn."""


RULES = PageRules()


def figure(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    draw: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]],
    *,
    note: str = "",
    alt: str = "",
    half: bool = False,
) -> Figure:
    """A figure of plain rows. `alt` says what is drawn; the number of rows is added."""
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    plain = _without_empty(plain)
    described = f"{alt or note}. {title}. {len(plain):,} rows."
    return Figure(title=title, note=note, alt=described, spec=draw(plain), rows=plain, half=half)


def _plain(value: Any) -> Any:
    """A value that JSON has, numbers with as many digits as mean something."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    return printable(str(value))


def _without_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Columns without any value tell nothing: left out. Those that a chart always reads stay."""
    needed = {"seconds", "regret"}
    empty = {name for row in rows for name in row if name not in needed}
    for row in rows:
        empty -= {name for name, value in row.items() if value is not None and value != ""}
    return [{name: value for name, value in row.items() if name not in empty} for row in rows] if empty else rows


def short_names(names: Iterable[str], *, rules: PageRules = RULES) -> dict[str, str]:
    """Each name in a form that fits a chart, no two alike."""
    found: dict[str, str] = {}
    used: set[str] = set()
    for name in dict.fromkeys(names):
        clean = " ".join(printable(name).split()) or "(no name)"
        short = clean if len(clean) <= rules.name_length else f"{clean[: rules.name_length - 1]}…"
        unique, number = short, 2
        while unique in used:
            unique, number = f"{short} ({number})", number + 1
        used.add(unique)
        found[name] = unique
    return found


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`one model`, `twelve models`, `48 models`."""
    word = _WORDS[count] if 0 <= count < len(_WORDS) else f"{count:,}"
    return f"{word} {noun if count == 1 else plural or f'{noun}s'}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def percent(share: float) -> str:
    """`2.0 %` below ten, `12 %` above."""
    return f"{share:.1%}".replace("%", " %") if abs(share) < 0.1 else f"{share:.0%}".replace("%", " %")


def times(ratio: float) -> str:
    """`1.4 times`, `12 times`."""
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:,.0f} times"


def fold(ratio: float) -> str:
    """`9.4-fold`."""
    return f"{ratio:.2g}-fold" if ratio < 10 else f"{ratio:,.0f}-fold"


def machine_facts(machine: Machine | None) -> dict[str, str]:
    """The machine and the versions, for the end of a page."""
    if machine is None:
        return {"machine": "unknown"}
    cpu = machine.cpu
    gpus = ", ".join(f"{gpu.name} ({format_bytes(gpu.memory_total_bytes)})" for gpu in machine.gpus) or "no GPU"
    storage = machine.storage
    return {
        "machine": f"{cpu.model}, {cpu.usable:g} usable CPUs, {format_bytes(machine.host.limit_bytes)} memory, {gpus}",
        "CUDA": f"{machine.cuda.cuda}, driver {machine.cuda.driver}" if machine.cuda.usable else "",
        "storage": f"{storage.kind}, {storage.filesystem}" if storage else "",
        **software_facts(machine.software),
    }


def software_facts(software: Software | None) -> dict[str, str]:
    """The versions, for the end of a page."""
    if software is None:
        return {}
    versions = {
        "Stoker": software.stoker,
        "Python": software.python,
        "torch": software.torch,
        "torchvision": software.torchvision,
    }
    return {"versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version)}


def moment(when: datetime | None) -> str:
    return when.strftime("%Y-%m-%d %H:%M") if when else ""


def trial_facts(trial: Trial) -> dict[str, str]:
    """Machine, versions and date of a trial."""
    return {**machine_facts(trial.machine), "date": moment(trial.when), "outcome": trial.outcome.replace("_", " ")}
