"""What each part of a loader costs: tables over the batch size, an item's spread, a contention curve."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError


@dataclass(frozen=True)
class Table:
    """A cost at a few batch sizes; a straight line between neighbours. `flat`: beyond them it stays as it is."""

    sizes: tuple[float, ...] = (1.0,)
    seconds: tuple[float, ...] = (0.0,)
    flat: bool = False
    _known: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def at(self, size: float) -> float:
        """Below the least size, no less than in proportion and no more than there; above the last, on its slope."""
        found = self._known.get(size)
        if found is None:
            found = self._known[size] = self._at(size)
        return found

    def _at(self, size: float) -> float:
        sizes, seconds = self.sizes, self.seconds
        if self.flat:
            return float(np.interp(size, sizes, seconds))
        if size <= sizes[0]:
            low, high = sorted((seconds[0] * size / sizes[0], seconds[0]))
            return min(max(self._line(0, size), low), high)
        if size >= sizes[-1]:
            return max(self._line(len(sizes) - 2, size), 0.0) if len(sizes) > 1 else seconds[0] * size / sizes[0]
        return float(np.interp(size, sizes, seconds))

    def _line(self, first: int, size: float) -> float:
        if len(self.sizes) == 1:
            return self.seconds[0] * size / self.sizes[0]
        x0, x1 = self.sizes[first : first + 2]
        y0, y1 = self.seconds[first : first + 2]
        return y0 + (y1 - y0) * (size - x0) / (x1 - x0)

    def scaled(self, factor: float) -> "Table":
        return Table(self.sizes, tuple(value * factor for value in self.seconds), self.flat)


def table(points: dict[int, list[float]], middle: Callable[[Iterable[float]], float], *, flat: bool = False) -> Table:
    kept = {size: middle(values) for size, values in sorted(points.items()) if values}
    if not kept:
        return Table(flat=flat)
    return Table(tuple(map(float, kept)), tuple(max(0.0, value) for value in kept.values()), flat)


@dataclass(frozen=True)
class Step:
    """The consumer. `host_s` is what the loop's own process spends on a batch, `device_s` what the device does.

    A step that computes on the CPU has `threads`, and is `crowded` times slower while workers load beside it. One
    that sleeps comes back `late_s` later while workers compute. On a GPU the host runs up to `ahead` steps before the
    device. `update_s` is what of it the optimizer takes, on the device; `first_s` what the first step takes longer.
    """

    host_s: Table = field(default_factory=Table)
    device_s: Table = field(default_factory=Table)
    update_s: Table = field(default_factory=Table)
    first_s: Table = field(default_factory=Table)
    threads: int = 0
    crowded: float = 1.0
    asynchronous: bool = False
    ahead: int = 1_000_000
    late_s: float = 0.0

    def accumulating(self, batches: int) -> "Step":
        """With one update for so many batches: each has its share of it. What handing an update to a GPU takes the host
        is not known apart, and stays."""
        if batches == 1:
            return self
        part = self.device_s if self.asynchronous else self.host_s
        saved = 1 - 1 / batches
        rows = zip(part.sizes, part.seconds, strict=True)
        left = Table(
            part.sizes, tuple(max(0.0, seconds - saved * self.update_s.at(size)) for size, seconds in rows), part.flat
        )
        return replace(self, device_s=left) if self.asynchronous else replace(self, host_s=left)


_LATE_AT_ITS_END = 1 / 3
"""How often the first worker is late with a batch that no other follows, of the times that it is late otherwise."""


class FirstSends(NamedTuple):
    """What a worker's first batch takes longer to be sent than later ones, where a thread pins what it sends.

    In each process one of the first few workers is late by tens of milliseconds, always the same one: it waits in
    torch for the shared memory of a small tensor (labels), for a reason that we have not found. Which it will be nobody
    knows before: `seen` are what the first two took in the probes, each of which is as likely. Where it has no next
    batch to load, it is late less often; with fewer workers than the `crowd` that this was seen with, it is less late,
    in proportion, from none beside it on.
    """

    alone: float = 0.0
    first: float = 0.0
    second: float = 0.0
    others: float = 0.0
    crowd: int = 2
    seen: tuple[float, ...] = ()
    late_at_its_end: bool = False

    def drawn(self, rng: np.random.Generator) -> "FirstSends":
        """As it may be in one run."""
        if not self.seen:
            return self
        first, second = rng.choice(self.seen, size=2)
        late = bool(rng.random() < _LATE_AT_ITS_END)
        return self._replace(first=float(first), second=float(second), late_at_its_end=late)

    def of(self, worker: int, workers: int, *, goes_on: bool) -> float:
        share = min(1.0, (workers - 1) / max(1, self.crowd - 1))
        if worker == 0:
            late = self.alone + share * (self.first - self.alone)
            return late if goes_on or self.late_at_its_end else min(late, self.others)
        return self.others + share * (self.second - self.others) if worker == 1 else self.others


@dataclass(frozen=True)
class Costs:
    """Seconds of everything that a simulated loop does. Per-item tables are of means; `spread` has mean 1.

    `spread` has been seen of so many items (`sampled`), or batches where it is `by_batch`; 0 is all of them.
    Workers are forked one after another, and then get their first orders so, each `hand_s` after the one before.
    `unevenness` is how much more batches differ than their items say, `lasting` how much of that stays with a worker. A
    worker's first batch takes `cold_s` longer to load, that of a loop without workers `inline_cold_s`; it is
    `first_flight_s` longer on its way than later ones; with pinned memory `first_sends`. Pinned memory is kept and used
    again: `pin_anew_s` is what a batch costs more that finds none of its size free.
    """

    cores: float
    spread: NDArray[np.float64]
    unevenness: float
    lasting: float
    by_batch: bool
    inline_item_s: Table
    inline_between_s: Table
    inline_cold_s: Table
    worker_item_s: Table
    waiting_share: float
    collate_s: Table
    cold_s: Table
    gap_s: Table
    flight_s: Table
    first_flight_s: Table
    first_sends: FirstSends
    receive_s: Table
    blocked_s: Table
    pin_s: Table
    pin_anew_s: Table
    between_s: Table
    fork_s: float
    hand_s: float
    init_s: float
    stop_s: tuple[float, float]
    slowdown: Table
    step: Step
    shares: dict[str, float]
    sampled: int = 0

    def slow(self, busy: float) -> float:
        """How much slower each of `busy` cores is than one alone. Never so slow that one more core brings less work."""
        return slowed(self.slowdown, min(busy, self.cores))


def slowed(levels: Table, busy: float) -> float:
    """Between two numbers of busy cores that were seen, on a line."""
    return max(1.0, float(np.interp(busy, levels.sizes, levels.seconds)))


def faster(costs: Costs, changes: dict[str, float]) -> Costs:
    """The costs if stages were so many times faster: `decode=2` halves it, `step=3` is a device three times as fast."""
    for name, times in changes.items():
        if not 0 < times < np.inf:
            raise InputError(f"a stage can be made faster by a factor above 0, got {name}={times:g}")
        if name == "step":
            step = replace(
                costs.step,
                host_s=costs.step.host_s.scaled(1 / times),
                device_s=costs.step.device_s.scaled(1 / times),
                update_s=costs.step.update_s.scaled(1 / times),
                first_s=costs.step.first_s.scaled(1 / times),
            )
            costs = replace(costs, step=step)
        elif name == "collate":
            costs = replace(costs, collate_s=costs.collate_s.scaled(1 / times))
        elif name in costs.shares:
            left = 1 - costs.shares[name] * (1 - 1 / times)
            costs = replace(
                costs, worker_item_s=costs.worker_item_s.scaled(left), inline_item_s=costs.inline_item_s.scaled(left)
            )
        else:
            known = ", ".join(["step", "collate", *costs.shares])
            raise InputError(f"no stage named {name!r} was seen; known: {known}")
    return costs
