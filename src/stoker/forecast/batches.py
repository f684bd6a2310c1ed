"""Batches of a run by their size, and those that were warm."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np

from stoker.records import Run


def by_size(runs: Sequence[Run], samples: Callable[[Run], list[float]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.batch_size, []).extend(samples(run))
    return found


PINNED_AT_ONCE = 2
"""With no workers one batch is being copied to the device while the next is pinned: so many pieces of pinned memory are
made, and used again by all later batches."""


def warm(run: Run) -> list[int]:
    """Full batches that were not a worker's first, and that a loop without workers had pinned memory for."""
    firsts = run.num_workers or (PINNED_AT_ONCE if run.pinned else 1)
    full = [place for place in range(len(run.items)) if run.items[place] == run.batch_size]
    return [place for place in full if place >= firsts]


def each(run: Run, values: Sequence[float]) -> list[float]:
    return [values[place] for place in warm(run) or range(len(run.items))]


def waits(run: Run) -> list[float]:
    """How long the loop stood at next() for each batch."""
    return [got - asked for asked, got in zip(run.asked_s, run.got_s, strict=True)]


def waited_for(run: Run) -> float:
    """The mean of that over warm batches."""
    return trimmed(each(run, waits(run)))


def begins(run: Run) -> list[int]:
    """Where in the order each batch begins."""
    return [0, *(int(end) for end in np.cumsum(run.items))]


def trimmed(values: Iterable[float]) -> float:
    """The mean without the largest twentieth: tails are part of the cost, a stolen core is not."""
    ordered = sorted(values)
    return fmean(ordered[: max(1, round(0.95 * len(ordered)))])
