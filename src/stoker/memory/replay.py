"""Memory at any batch size without running it: the log of one step, replayed through the model of the allocator."""

from collections.abc import Callable, Iterable
from functools import cache, cached_property

import numpy as np

from stoker.errors import InputError
from stoker.memory.allocator import Allocator, Block, OutOfMemory
from stoker.memory.trace.log import Allocation, AllocationLog
from stoker.records import Record
from stoker.units import format_bytes

_UNLIMITED = 2**60


class ReplayRules(Record, frozen=True):
    """Numbers of the replay and of the search over it."""

    ceiling: int = 2**24
    """Where the search for a batch that no longer fits is given up."""
    steps: int = 3
    """Memory was never seen to change after the third step."""
    apart: float = 0.0025
    """Neighbours of a size are so far apart, as a share of it."""
    neighbours: int = 4
    """Neighbours on either side that are looked at."""
    ragged: float = 0.1
    """How far from the edge sizes that fit and sizes that fail may alternate, as a share."""
    margin_below: float = 0.04
    """How far the measured maxima lay below the replay, apart from whether convolutions had workspaces."""
    margin_above: float = 0.01
    """How far they lay above it."""
    less_percent: int = 95
    """A size without a retry is looked for at this share of one that needed some."""


RULES = ReplayRules()


class Replay(Record, frozen=True):
    """What a run of a few steps at one batch size would show."""

    batch_size: int
    fits: bool
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    retries: int


def replay(
    log: AllocationLog,
    batch_size: int,
    capacity_bytes: int,
    *,
    scratch: bool = True,
    steps: int = RULES.steps,
    primed: int | None = None,
) -> Replay:
    """A fresh process that makes the model and runs a few steps at this batch size, after one of `primed` items.

    With `scratch`, convolutions take their workspace if there is room for it; without, only if they must. A log with
    validation has one pass of it after the steps, and another step after that.
    """
    allocator = Allocator(capacity_bytes)
    player = _Player(log, allocator, scratch)
    validation = (log.validate, log.steady) if log.validate else ()
    try:
        player.resize(primed or batch_size)
        player.play(log.init)
        player.play(log.first)
        player.resize(batch_size)
        for events in (*(log.steady,) * (steps if primed else steps - 1), *validation):
            player.play(events)
    except OutOfMemory:
        fits = False
    else:
        fits = True
    return Replay(
        batch_size=batch_size,
        fits=fits,
        allocated_peak_bytes=allocator.allocated_peak_bytes,
        reserved_peak_bytes=allocator.reserved_peak_bytes,
        retries=allocator.retries,
    )


class _Player:
    """Plays events of a log against an allocator, with sizes for one batch size at a time."""

    def __init__(self, log: AllocationLog, allocator: Allocator, scratch: bool) -> None:
        self._log, self._allocator, self._scratch = log, allocator, scratch
        self._sizes: list[int] = []
        self._required: set[int] = set()
        self._without: set[tuple[str, int, int]] = set()
        self._live: dict[int, Block] = {}

    def resize(self, batch_size: int) -> None:
        """From now on, allocate for this batch size."""
        self._sizes = [
            self._log.workspace_bytes if each.kind == "workspace" else each.at(batch_size)
            for each in self._log.allocations
        ]
        self._required = {
            number for number, each in enumerate(self._log.allocations) if not each.is_optional(batch_size)
        }

    def play(self, events: Iterable[int]) -> None:
        for event in events:
            if event < 0:
                block = self._live.pop(-event - 1, None)
                if block is not None:
                    self._allocator.release(block)
            elif event in self._required:
                self._live[event] = self._allocator.allocate(self._sizes[event])
            elif self._scratch:
                self._try(event)

    def _try(self, event: int) -> None:
        """If there is no room, a convolution falls back to a plan without a workspace, and so do all later ones of its
        shape: torch keeps the plan that ran."""
        scratch = self._log.allocations[event]
        shape = (scratch.operator, scratch.fixed_bytes, self._sizes[event])
        if shape in self._without:
            return
        try:
            self._live[event] = self._allocator.allocate(self._sizes[event])
        except OutOfMemory:
            self._without.add(shape)


# ---------------------------------------------------------------- the largest batch


class Estimate(Record, frozen=True):
    """The replay's results for one budget. `most` is the larger of what fits with and without the workspaces of
    convolutions, `without_retry` the largest batch for which the allocator never has to return its cache."""

    likely: int
    most: int
    interval: tuple[int, int]
    without_retry: int
    peak_bytes: int
    bytes_per_item: int
    fixed_bytes: int

    def smaller_without_retry(self, size: int) -> int:
        """Where to look for a size without a retry, below one that needs some; 0 if there is none."""
        guesses = (self.without_retry, less(self.likely), less(size))
        return next((guess for guess in guesses if guess < size), 0)


def less(size: int) -> int:
    """The next size to look at for one without a retry."""
    return size * RULES.less_percent // 100


class Replays:
    """The replays of one log under one budget; each size is replayed once."""

    def __init__(self, log: AllocationLog, budget_bytes: int) -> None:
        self._log, self._budget_bytes = log, budget_bytes
        self._bound = most_alive(log, budget_bytes)
        self._at = cache(self._replayed)

    @cached_property
    def likely(self) -> int:
        """The largest batch that fits if convolutions take the workspaces there is room for. Raises `InputError` if
        not even a batch of 1 fits."""
        found = largest_stable(self._fits, near=self._bound)
        if found == 0:
            needed = replay(self._log, 1, _UNLIMITED, scratch=False).reserved_peak_bytes
            raise InputError(too_large(needed, self._budget_bytes))
        return found

    @property
    def retries(self) -> int:
        """How often the allocator will have to return its cache at the likely size."""
        return self._at(self.likely, True).retries

    def estimate(self) -> Estimate:
        likely = self.likely
        without = largest_stable(lambda batch: self._fits(batch, scratch=False), near=self._bound)
        peak_bytes = self._at(likely, True).allocated_peak_bytes
        whole, half = (replay(self._log, batch, _UNLIMITED, scratch=False) for batch in (likely, max(1, likely // 2)))
        items = whole.batch_size - half.batch_size
        growth = (whole.allocated_peak_bytes - half.allocated_peak_bytes) / items if items else 0.0
        fixed = min(max(0.0, whole.allocated_peak_bytes - growth * likely), peak_bytes)
        per_item = int((peak_bytes - fixed) / likely)  # with its share of the workspaces of convolutions
        return Estimate(
            likely=likely,
            most=max(likely, without),
            interval=_interval(likely, without),
            without_retry=largest(self._runs_without_retry, near=self._bound),
            peak_bytes=peak_bytes,
            bytes_per_item=per_item,
            fixed_bytes=max(0, peak_bytes - per_item * likely),
        )

    def primed(self) -> int:
        """The largest batch after a tiny one, so that workspaces do not lie inside what the large one leaves."""
        return largest(lambda batch: replay(self._log, batch, self._budget_bytes, primed=2).fits, near=self._bound)

    def _fits(self, batch_size: int, scratch: bool = True) -> bool:
        return batch_size <= self._bound and self._at(batch_size, scratch).fits

    def _runs_without_retry(self, batch_size: int) -> bool:
        return self._fits(batch_size) and not self._at(batch_size, True).retries

    def _replayed(self, batch_size: int, scratch: bool) -> Replay:
        return replay(self._log, batch_size, self._budget_bytes, scratch=scratch)


def _interval(most: int, without: int) -> tuple[int, int]:
    low, high = sorted((most, without))
    return max(1, int(low * (1 - RULES.margin_below))), -int(-high * (1 + RULES.margin_above) // 1)


def too_large(needed_bytes: int, budget_bytes: int) -> str:
    """The sentence for a model that does not fit even at a batch of 1."""
    over = needed_bytes - budget_bytes
    return (
        f"not even a batch of 1 fits in {format_bytes(budget_bytes)}: it needs about {format_bytes(needed_bytes)}"
        + (f", {format_bytes(over)} more" if over > 0 else "")
        + "; bf16, an optimizer with less state, activation checkpointing or a larger GPU would help"
    )


# ---------------------------------------------------------------- searches


def most_alive(log: AllocationLog, capacity_bytes: int) -> int:
    """An upper bound: the largest batch whose tensors of one step, packed without a gap, take no more than this."""
    events = np.asarray((*log.init, *log.first), dtype=np.int64)
    births = events >= 0
    numbers = np.where(births, events, -events - 1)
    fixed, item, square = np.asarray([_least(each) for each in log.allocations] or [(0.0, 0.0, 0.0)]).T

    def fits(batch_size: int) -> bool:
        sizes = fixed + item * batch_size + square * batch_size**2
        alive = np.cumsum(np.where(births, sizes[numbers], -sizes[numbers]))
        return not alive.size or float(alive.max()) <= capacity_bytes

    return largest(fits)


def _least(allocation: Allocation) -> tuple[float, float, float]:
    """Its size at the least: nothing if it is optional or follows a rule of its own."""
    if allocation.kind != "tensor" or allocation.reduction is not None:
        return 0.0, 0.0, 0.0
    return allocation.fixed_bytes - 1.0, allocation.item_bytes, allocation.square_bytes


def largest(fits: Callable[[int], bool], *, near: int = 0, ceiling: int = RULES.ceiling) -> int:
    """The largest batch that fits, as far as doubling and bisection can tell; 0 if not even 1 does.

    With a hint `near`, doubling starts from the power of two below `near / 2` if that fits.
    """
    low, high = 0, 1
    half = 2 ** max(0, (near // 2).bit_length() - 1)
    if half > 1 and fits(half):
        low, high = half, half * 2
    while high <= ceiling and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def largest_stable(fits: Callable[[int], bool], *, near: int = 0) -> int:
    """The largest batch that fits and most of whose neighbours fit too; `near` as for `largest`.

    Fragmentation makes the edge ragged: some sizes beyond the first failure fit by luck, and luck is no answer.
    """
    seen = cache(fits)
    edge = largest(seen, near=near)
    size = round(edge * (1 + RULES.ragged))
    while size > edge * (1 - RULES.ragged):
        steps = range(-RULES.neighbours, RULES.neighbours + 1)
        around = {size + int(size * step * RULES.apart) for step in steps}
        if seen(size) and 2 * sum(map(seen, around)) >= len(around):
            return size
        size = edge if size > edge > size * (1 - RULES.apart) else min(size - 1, round(size * (1 - RULES.apart)))
    return edge
