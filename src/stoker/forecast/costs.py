"""What each part of a loader costs: tables over the batch size, the spread of items, a contention curve."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError


@dataclass(frozen=True)
class Table:
    """A cost at a few batch sizes, linear between them. A `flat` table is constant outside its sizes."""

    sizes: tuple[float, ...] = (1.0,)
    seconds: tuple[float, ...] = (0.0,)
    flat: bool = False
    _known: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def at(self, size: float) -> float:
        """The cost at a batch size.

        Below the least size the cost lies between proportional and constant. Above the last size it continues on the
        last slope.
        """
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
    """A table from samples by batch size. Sizes without samples are left out; negative costs count as 0."""
    filled = {size: middle(values) for size, values in sorted(points.items()) if values}
    if not filled:
        return Table(flat=flat)
    return Table(tuple(map(float, filled)), tuple(max(0.0, value) for value in filled.values()), flat)


@dataclass(frozen=True)
class StepCosts:
    """What one step of the consumer costs.

    A step that computes on the CPU has `threads`. A step that sleeps is on no core. A step on a GPU is `asynchronous`.
    """

    host_s: Table = field(default_factory=Table)
    """Time of the loop's own process for a batch."""
    device_s: Table = field(default_factory=Table)
    """Time of the GPU for a batch."""
    update_s: Table = field(default_factory=Table)
    """The optimizer's part of the device time."""
    first_s: Table = field(default_factory=Table)
    """Extra time of the first step."""
    threads: int = 0
    crowded: float = 1.0
    """How many times slower a CPU step is while a worker loads beside it."""
    asynchronous: bool = False
    ahead: int = 1_000_000
    """How many steps the host may run ahead of the GPU."""
    late_s: float = 0.0
    """How much later a sleeping step wakes up while workers compute."""

    def accumulating(self, batches: int) -> "StepCosts":
        """The costs with one update for several batches: each batch pays its share of the update.

        On a GPU the host's time to launch an update is not known separately and stays.
        """
        if batches == 1:
            return self
        part = self.device_s if self.asynchronous else self.host_s
        saved = 1 - 1 / batches
        rows = zip(part.sizes, part.seconds, strict=True)
        left = Table(
            part.sizes, tuple(max(0.0, seconds - saved * self.update_s.at(size)) for size, seconds in rows), part.flat
        )
        return replace(self, device_s=left) if self.asynchronous else replace(self, host_s=left)


class FirstSends(NamedTuple):
    """Extra time of each worker's first send, where a thread pins memory.

    In each process one of the first workers is late by tens of milliseconds. It waits in torch for the shared memory of
    a small tensor (labels); we have not found the reason. Which of the first two workers is late is not known before
    the run: the simulation draws from `seen`, the values of the probes. The delay needs a crowd: with fewer workers
    than `crowd` it shrinks in proportion, down to `alone`.
    """

    alone: float = 0.0
    """With a single worker."""
    first: float = 0.0
    second: float = 0.0
    others: float = 0.0
    crowd: int = 2
    """The number of workers in the probes that saw the delay."""
    seen: tuple[float, ...] = ()
    """Values of the first two workers in the probes, all equally likely."""
    late_at_its_end: bool = False
    """Whether the first worker is late even if it has no next batch to load."""
    end_share: float = 1 / 3
    """How often that is so. Seen in recorded runs, relative to workers that have a next batch."""

    def drawn(self, rng: np.random.Generator) -> "FirstSends":
        """One random outcome, for one run."""
        if not self.seen:
            return self
        first, second = rng.choice(self.seen, size=2)
        late = bool(rng.random() < self.end_share)
        return self._replace(first=float(first), second=float(second), late_at_its_end=late)

    def of(self, worker: int, workers: int, *, goes_on: bool) -> float:
        """The extra time of one worker. `goes_on`: it has another batch to load."""
        share = min(1.0, (workers - 1) / max(1, self.crowd - 1))
        if worker == 0:
            late = self.alone + share * (self.first - self.alone)
            return late if goes_on or self.late_at_its_end else min(late, self.others)
        return self.others + share * (self.second - self.others) if worker == 1 else self.others


@dataclass(frozen=True)
class Costs:
    """Seconds of everything that a simulated loop does. Tables of items hold means; `spread` has mean 1."""

    cores: float
    spread: NDArray[np.float64]
    """Times of items (of batches if `by_batch`), relative to their mean."""
    unevenness: float
    """How much more batches differ than their items explain (standard deviation of the logarithm)."""
    lasting: float
    """The share of that variance that stays with a worker."""
    by_batch: bool
    """The dataset loads whole batches: only times of batches are known."""
    inline_item_s: Table
    """An item without workers: loading, its share of collating, and next()."""
    inline_between_s: Table
    inline_cold_s: Table
    """Extra time of the first batch without workers."""
    worker_item_s: Table
    waiting_share: float
    """The share of a worker's time in which it uses no core: it reads or sleeps."""
    collate_s: Table
    cold_s: Table
    """Extra time of a worker's first batch."""
    gap_s: Table
    """Time between two batches of a worker."""
    flight_s: Table
    """From the end of a batch in its worker to its arrival."""
    first_flight_s: Table
    """Extra flight time of a worker's first batch."""
    first_sends: FirstSends
    """The same with pinned memory, by worker."""
    receive_s: Table
    blocked_s: Table
    """Extra time to receive a batch while workers load."""
    pin_s: Table
    """Time to copy a batch into pinned memory that exists."""
    pin_anew_s: Table
    """Extra time to make that memory."""
    between_s: Table
    """The loop's own time between a step and the next next()."""
    fork_s: float
    """Workers are forked one after another."""
    hand_s: float
    """Then each gets its first orders, one after another."""
    init_s: float
    """From its fork until a worker can begin."""
    stop_s: tuple[float, float]
    """Stopping the workers: a fixed part, and a part for each worker."""
    slowdown: Table
    """How much slower a core is, by the number of busy cores."""
    step: StepCosts
    shares: dict[str, float]
    """The share of each stage in an item's time."""
    exchange_s: float | None = None
    """What ranks spend on one exchange of gradients. None: they do not wait for each other."""
    sampled: int = 0
    """How many items (batches if `by_batch`) `spread` comes from; 0 means all of them."""
    inline_load_share: float = 1.0
    """The share of `inline_item_s` that is loading items; the rest is collating."""

    def slow(self, busy: float) -> float:
        """How much slower each of `busy` cores is than one alone. One more core never brings less work."""
        return slowed(self.slowdown, min(busy, self.cores))

    def with_items(self, share: float) -> "Costs":
        """The costs if loading an item took this share of its time."""
        inline = 1 - self.inline_load_share * (1 - share)
        return replace(
            self,
            worker_item_s=self.worker_item_s.scaled(share),
            inline_item_s=self.inline_item_s.scaled(inline),
            inline_load_share=self.inline_load_share * share / inline if inline > 0 else 0.0,
        )

    def with_collating(self, share: float) -> "Costs":
        """The costs if collating a batch took this share of its time."""
        inline = self.inline_load_share + (1 - self.inline_load_share) * share
        return replace(
            self,
            collate_s=self.collate_s.scaled(share),
            inline_item_s=self.inline_item_s.scaled(inline),
            inline_load_share=self.inline_load_share / inline if inline > 0 else 1.0,
        )


def slowed(levels: Table, busy: float) -> float:
    """The slowdown at a number of busy cores, interpolated between the numbers that were measured."""
    return max(1.0, float(np.interp(busy, levels.sizes, levels.seconds)))


_LEAST_FACTOR = 1e-6
"""Smaller factors make times that no clock can hold."""


def faster(costs: Costs, changes: dict[str, float]) -> Costs:
    """The costs if stages were faster: `decode=2` halves decoding, `step=3` is a device three times as fast.

    Raises InputError for an unknown stage or a factor that is not above 0.
    """
    for name, times in changes.items():
        if not 0 < times < np.inf:
            raise InputError(f"a stage can be made faster by a factor above 0, got {name}={times:g}")
        if times < _LEAST_FACTOR:
            raise InputError(f"a stage can be made slower down to a factor of {_LEAST_FACTOR:g}, got {name}={times:g}")
        if name == "step":
            step = replace(
                costs.step,
                host_s=costs.step.host_s.scaled(1 / times),
                device_s=costs.step.device_s.scaled(1 / times),
                update_s=costs.step.update_s.scaled(1 / times),
            )  # the first step's one-off work, such as a compilation, is not the device's
            costs = replace(costs, step=step)
        elif name == "collate":
            costs = costs.with_collating(1 / times)
        elif name in costs.shares:
            costs = costs.with_items(1 - costs.shares[name] * (1 - 1 / times))
        else:
            known = ", ".join(["step", "collate", *costs.shares])
            raise InputError(f"no stage named {name!r} was seen; known: {known}")
    return costs
