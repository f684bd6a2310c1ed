"""What it costs to bring a batch from a worker to the loop."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from stoker.forecast.batches import by_size, each, trimmed
from stoker.forecast.costs import FirstSends, Table, table
from stoker.records import Run

_ALONE, _OTHERS = -1, 2


class Moving(NamedTuple):
    """On its way from worker to loop: in flight (the first time, more), received, blocked while received, pinned, and
    pinned where nothing of its size was before.

    With pinned memory the first time counts by worker, not by size.
    """

    flight: Table
    first: Table
    receive: Table
    blocked: Table
    pin: Table
    pin_anew: Table = Table()
    first_sends: FirstSends = FirstSends()


def transport(moved: Sequence[Run], many: Sequence[Run]) -> Moving:
    """What the way from worker to loop costs.

    To receive a batch, the loop asks the worker that made it for its memory; while workers load, the answer comes late.
    With pinned memory a thread does that, and sending and pinning are its work, one batch after another.
    """
    landed = table(by_size(moved, _landings), trimmed, flat=True)
    first = {
        run.batch_size: [run.got_s[0] - run.ended_s[0] - landed.at(run.batch_size)] for run in moved if run.num_workers
    }
    free = table(by_size(many, lambda run: _ready(run, landed, busy=False)), trimmed, flat=True)
    busy = table(by_size(many, lambda run: _ready(run, landed, busy=True)), trimmed, flat=True)
    pinned, pinned_anew = _pins(many)
    nothing = Table(flat=True)
    if any(pinned.seconds):
        # Sending hands over memory, whatever its size: runs at all sizes tell of the same thing.
        sent = table({1: [value for run in many for value in _sends(run)]}, median, flat=True)
        return Moving(
            flight=_apart(landed, sent, pinned),
            first=nothing,
            receive=sent,
            blocked=nothing,
            pin=pinned,
            pin_anew=pinned_anew,
            first_sends=_first_sends(many),
        )
    blocked = _apart(busy, free) if any(busy.seconds) else nothing
    flight = _apart(landed, free, blocked, pinned)
    return Moving(flight, table(first, median, flat=True), free, blocked, pinned)


def _sends(run: Run) -> list[float]:
    return each(run, run.send_s) if run.send_s else []


def _first_sends(runs: Sequence[Run]) -> FirstSends:
    """What workers' first batches took longer to send than later ones."""
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
    """What it costs to copy a batch into pinned memory that is there, and what to make it costs more.

    The first batch of a run finds none. Which others did not is seen by their time: nearer to such a first one than to
    the quickest.
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


def _apart(whole: Table, *parts: Table) -> Table:
    """A cost without some parts of it, never below nothing."""
    rows = zip(whole.sizes, whole.seconds, strict=True)
    return Table(
        whole.sizes, tuple(max(0.0, value - sum(part.at(size) for part in parts)) for size, value in rows), True
    )


def _landings(run: Run) -> list[float]:
    """From a worker's end of a batch to the loop's having it, while the loop stood waiting."""
    return [
        got - ended
        for place, (asked, got, ended) in enumerate(zip(run.asked_s, run.got_s, run.ended_s, strict=True))
        if place and asked < ended < got
    ]


def _ready(run: Run, landed: Table, *, busy: bool) -> list[float]:
    """How long the loop took for a batch that was there already, while workers were or were not loading others."""
    found = []
    for place in range(1, len(run.items)):
        asked = run.asked_s[place]
        loading = any(run.began_s[other] < asked < run.ended_s[other] for other in range(place + 1, len(run.items)))
        if asked > run.ended_s[place] + 2 * landed.at(run.batch_size) and loading == busy:
            found.append(run.got_s[place] - asked)
    return found
