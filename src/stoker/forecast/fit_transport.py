"""Fits what it costs to bring a batch from a worker to the loop."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from stoker.forecast.costs import FirstSends, Table, table
from stoker.forecast.samples import by_size, trimmed_mean, warm_values
from stoker.records import Run

_ALONE, _OTHERS = -1, 2
"""Keys of a first send beside the positions 0 and 1: of a single worker, and of the third worker and later ones."""


class Transport(NamedTuple):
    """The costs of a batch between its worker and the loop.

    With pinned memory the first flight depends on the worker, not on the batch size.
    """

    flight: Table
    first_flight: Table
    receive: Table
    blocked: Table
    pin: Table
    pin_anew: Table = Table()
    first_sends: FirstSends = FirstSends()


def fit_transport(moved: Sequence[Run], many: Sequence[Run]) -> Transport:
    """The costs between worker and loop, from runs with one worker and from runs with any number.

    To receive a batch, the loop asks its worker for the memory; a worker that loads answers late. With pinned memory a
    thread sends and pins, one batch after another.
    """
    landed = table(by_size(moved, _landings), trimmed_mean, flat=True)
    first = {
        run.batch_size: [run.got_s[0] - run.ended_s[0] - landed.at(run.batch_size)] for run in moved if run.num_workers
    }
    idle = table(by_size(many, lambda run: _ready(run, landed, busy=False)), trimmed_mean, flat=True)
    busy = table(by_size(many, lambda run: _ready(run, landed, busy=True)), trimmed_mean, flat=True)
    pinned, pinned_anew = _pins(many)
    nothing = Table(flat=True)
    if any(pinned.seconds):
        # A send hands over memory, whatever its size: runs at all sizes measure the same thing.
        sent = table({1: [value for run in many for value in _sends(run)]}, median, flat=True)
        return Transport(
            flight=_without(landed, sent, pinned),
            first_flight=nothing,
            receive=sent,
            blocked=nothing,
            pin=pinned,
            pin_anew=pinned_anew,
            first_sends=_first_sends(many),
        )
    blocked = _without(busy, idle) if any(busy.seconds) else nothing
    flight = _without(landed, idle, blocked, pinned)
    return Transport(flight, table(first, median, flat=True), idle, blocked, pinned)


def _sends(run: Run) -> list[float]:
    return warm_values(run, run.send_s) if run.send_s else []


def _first_sends(runs: Sequence[Run]) -> FirstSends:
    """The extra time of workers' first sends."""
    found: dict[int, list[float]] = {}
    for run in runs:
        usual = median(_sends(run) or [0.0])
        for worker, seconds in enumerate(run.send_s[: run.num_workers]):
            which = _ALONE if run.num_workers == 1 else min(worker, _OTHERS)
            found.setdefault(which, []).append(max(0.0, seconds - usual))
    alone = median(found.get(_ALONE, [0.0]))
    crowd = min((run.num_workers for run in runs if run.num_workers > 1 and run.send_s), default=2)
    first, second, others = (median(found.get(which, [alone])) for which in range(_OTHERS + 1))
    return FirstSends(alone, first, second, others, crowd, (*found.get(0, ()), *found.get(1, ())))


def _pins(runs: Sequence[Run]) -> tuple[Table, Table]:
    """The time to copy a batch into pinned memory that exists, and the extra time to make that memory.

    The first batch of a run finds no memory. A later batch found none either if its time
    is nearer to that of such a first batch than to the quickest.
    """
    found: dict[int, list[float]] = {}
    firsts: dict[int, list[float]] = {}
    for run in runs:
        full = [value for value, items in zip(run.pin_s, run.items, strict=False) if items == run.batch_size]
        if full:
            found.setdefault(run.batch_size, []).extend(full)
            firsts.setdefault(run.batch_size, []).append(full[0])
    edges = {size: (median(firsts[size]) + min(values)) / 2 for size, values in found.items()}
    used = {size: [value for value in values if value <= edges[size]] for size, values in found.items()}
    made = {
        size: [value - median(used[size]) for value in values if value > edges[size]] for size, values in found.items()
    }
    return table(used, median), table(made, median)


def _without(whole: Table, *parts: Table) -> Table:
    """A cost without some of its parts, at least 0."""
    rows = zip(whole.sizes, whole.seconds, strict=True)
    return Table(
        whole.sizes, tuple(max(0.0, value - sum(part.at(size) for part in parts)) for size, value in rows), True
    )


def _landings(run: Run) -> list[float]:
    """From the end of a batch in its worker until the loop had it, for batches that the loop waited for."""
    return [
        got - ended
        for place, (asked, got, ended) in enumerate(zip(run.asked_s, run.got_s, run.ended_s, strict=True))
        if place and asked < ended < got
    ]


def _ready(run: Run, landed: Table, *, busy: bool) -> list[float]:
    """How long the loop took for a batch that was ready, while workers were (`busy`) or were not loading others."""
    found = []
    for place in range(1, len(run.items)):
        asked = run.asked_s[place]
        loading = any(run.began_s[other] < asked < run.ended_s[other] for other in range(place + 1, len(run.items)))
        if asked > run.ended_s[place] + 2 * landed.at(run.batch_size) and loading == busy:
            found.append(run.got_s[place] - asked)
    return found
