"""Grids whose later cells follow from results: a generator for each cell of the grid.

A generator yields cells and is sent the finished trials of each, in the order of the cells; then it yields more, or
ends. What it yields depends on nothing else. So a study that was killed asks for the same tasks when it goes on: every
generator is fed again from the trials in the store.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from stoker.records import Record
from stoker.studies.axes import COMMON, LABELS, Kind, Value
from stoker.studies.store import TrialRow

Cell = dict[str, Value]
Answers = Sequence[Sequence[TrialRow]]
"""For each cell that was yielded, the last attempts at its repeats."""
CellGenerator = Generator[list[Cell], Answers, None]


class Made(NamedTuple):
    """A generator: how it is made from a cell and the values of later cells, and the kind of study that it begins."""

    make: Callable[[Mapping[str, Value], Mapping[str, Value]], CellGenerator]
    kind: Kind
    sentence: str


class SearchTimeRules(Record, frozen=True):
    """The two searches that `search-time` compares, as in A. Tripathi's thesis (UT Austin, 2019), section 5.5."""

    first: int = 32
    """The manual search begins with this batch size and doubles it."""
    two_points: tuple[int, int] = (10, 50)
    """Batch sizes of the two-point method."""
    iterations: int = 20
    """Iterations at each of them, without workers."""


SEARCH_TIME = SearchTimeRules()


def around_plan(cell: Mapping[str, Value], then: Mapping[str, Value]) -> CellGenerator:
    """A plan, then runs of it and of four settings around: twice and half the workers, and the next smaller power of
    two as batch size with as many workers and with twice as many."""
    [rows] = yield [dict(cell)]
    plan = _figures(rows)
    if plan is None:
        return
    batch, workers = int(plan["batch_size"]), int(plan["num_workers"])
    smaller = _power_below(batch)
    settings = [(batch, workers), (batch, 2 * workers), (batch, workers // 2)]
    settings += [(smaller, workers), (smaller, 2 * workers)] if smaller else []
    shared = _shared(cell, then)
    yield [{**shared, "batch_size": size, "num_workers": count} for size, count in dict.fromkeys(settings)]


def search_time(cell: Mapping[str, Value], then: Mapping[str, Value]) -> CellGenerator:
    """The largest batch and the estimate of the two-point method, then what both searches cost: iterations at powers of
    two up to that batch, and at two small sizes without workers."""
    rows = yield [dict(cell), {**cell, "method": "two-point"}]
    found = _figures(rows[0])
    if found is None:
        return
    shared = _shared({name: value for name, value in cell.items() if name != "device"}, then)
    cells: list[Cell] = []
    size = SEARCH_TIME.first
    while size <= int(found["max_batch"]):
        cells.append({**shared, "batch_size": size})
        size *= 2
    two_points: Cell = {"num_workers": 0, "batches": SEARCH_TIME.iterations, "warmup": 0}
    cells += [{**shared, **two_points, "batch_size": size} for size in SEARCH_TIME.two_points]
    yield cells


GENERATORS: dict[str, Made] = {
    "around-plan": Made(around_plan, "tune", "runs of the plan and of four settings around it follow"),
    "search-time": Made(search_time, "limit", "runs at the sizes that searches try follow"),
}
"""By the name that a grid gives as its `generator`."""


def _figures(rows: Sequence[TrialRow]) -> dict[str, Any] | None:
    """Of the first repeat that is done."""
    return next((row.figures for row in rows if row.outcome == "done"), None)


def _shared(cell: Mapping[str, Value], then: Mapping[str, Value]) -> Cell:
    """What later cells have of the first one, and what the grid says of them."""
    names = (*COMMON, *LABELS, "precision")
    return {"kind": "profile", **{name: cell[name] for name in names if name in cell}, **then}


def _power_below(batch: int) -> int:
    """The largest power of two below a batch size; 0 for a batch of one."""
    return 1 << ((batch - 1).bit_length() - 1) if batch > 1 else 0
