"""What the log of a step holds at the moment when most memory is in use."""

from collections import defaultdict
from collections.abc import Sequence

from stoker.memory.trace.log import BUCKETS, Allocation, AllocationLog
from stoker.records import AliveBytes, AliveSince

_LISTED = 12
"""Operators that are listed by name; the rest is one line."""
_WORKSPACE = "cuBLAS workspace"


def alive_at_peak(
    log: AllocationLog, batch_size: int, capacity_bytes: int, *, listed: int = _LISTED
) -> tuple[AliveBytes, ...]:
    """What is alive at the peak of one step, by the operator that allocated it, largest first.

    These are the bytes asked for; the allocator rounds them up. The step is the first one or a later one, whichever
    needs more. A workspace that a convolution can do without is left out where it does not fit into the capacity. What
    the smaller operators hold is the last line, "other operators".
    """
    sizes = _Sizes(log, batch_size, capacity_bytes)
    alive: set[int] = set()
    _play(log.init, sizes, alive)
    model = frozenset(alive)
    first = _peak(log.first, sizes, alive)
    later_model = frozenset(alive)
    later = _peak(log.steady, sizes, alive)
    of_later = _total(later, sizes) > _total(first, sizes)
    held = later if of_later else first
    before = later_model if of_later else model
    sums: dict[tuple[AliveSince, str], list[int]] = defaultdict(list)
    for number in held:
        since: AliveSince = "init" if number in model else "earlier_step" if number in before else "step"
        if sizes[number]:
            sums[since, _label(log.allocations[number], since)].append(sizes[number])
    found = [
        AliveBytes(operator=operator, since=since, bytes=sum(pieces), tensors=len(pieces))
        for (since, operator), pieces in sums.items()
    ]
    found.sort(key=lambda each: (-each.bytes, each.since, each.operator))
    rest = found[listed:]
    if len(rest) < 2:
        return tuple(found)
    others = AliveBytes(
        operator="other operators",
        since="step",
        bytes=sum(each.bytes for each in rest),
        tensors=sum(each.tensors for each in rest),
    )
    return (*found[:listed], others)


class _Sizes:
    """The bytes of each allocation at one batch size, and which of them must fit."""

    def __init__(self, log: AllocationLog, batch_size: int, capacity_bytes: int) -> None:
        self._bytes = [
            log.workspace_bytes if each.kind == "workspace" else each.at(batch_size) for each in log.allocations
        ]
        self._optional = {number for number, each in enumerate(log.allocations) if each.is_optional(batch_size)}
        self._capacity_bytes = capacity_bytes

    def __getitem__(self, number: int) -> int:
        return self._bytes[number]

    def is_left_out(self, number: int, total: int) -> bool:
        return number in self._optional and total + self._bytes[number] > self._capacity_bytes


def _play(events: Sequence[int], sizes: _Sizes, alive: set[int]) -> list[int]:
    """Follow the events. Returns the bytes that are alive after each."""
    total, totals = _total(alive, sizes), []
    for event in events:
        if event >= 0:
            if not sizes.is_left_out(event, total):
                alive.add(event)
                total += sizes[event]
        elif -event - 1 in alive:
            alive.discard(-event - 1)
            total -= sizes[-event - 1]
        totals.append(total)
    return totals


def _peak(events: Sequence[int], sizes: _Sizes, alive: set[int]) -> frozenset[int]:
    """Follow the events to their end. Returns what was alive at the peak."""
    start = set(alive)
    totals = _play(events, sizes, alive)
    if not totals or max(totals) <= _total(start, sizes):
        return frozenset(start)
    _play(events[: totals.index(max(totals)) + 1], sizes, start)
    return frozenset(start)


def _total(numbers: set[int] | frozenset[int], sizes: _Sizes) -> int:
    return sum(sizes[number] for number in numbers)


def _label(allocation: Allocation, since: AliveSince) -> str:
    if allocation.operator == BUCKETS:
        return BUCKETS
    if since == "init":
        return "parameters and buffers"
    if allocation.kind == "workspace":
        return _WORKSPACE
    parts = allocation.operator.split(".")
    name = parts[1] if len(parts) > 1 else allocation.operator
    return f"{name} workspace" if allocation.kind == "scratch" else name
