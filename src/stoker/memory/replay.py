"""Memory at any batch size: a log of one step, replayed through the model of the allocator."""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from stoker.memory.allocator import Allocator, Block, OutOfMemory
from stoker.memory.trace.log import AllocationLog, Storage
from stoker.records import Record

CEILING = 2**24
"""Where the search for a batch that no longer fits is given up."""
_STEPS = 3
_APART, _NEIGHBOURS, _RAGGED = 0.0025, 4, 0.1
"""How far apart neighbours are, how many there are on either side, and how far from an edge it may be ragged."""


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
    workspace_bytes: int | None = None,
    steps: int = _STEPS,
    primed: int | None = None,
) -> Replay:
    """A fresh process that makes the model and runs a few steps at this batch size, after one of `primed` items.

    With `scratch`, convolutions take their workspace where there is room for it; without, only where they must. A log
    with validation has one pass of it after the steps, and another step after that.
    """
    allocator = Allocator(capacity_bytes)
    workspace = log.workspace_bytes if workspace_bytes is None else workspace_bytes
    player = _Player(log, allocator, scratch, workspace)
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

    def __init__(self, log: AllocationLog, allocator: Allocator, scratch: bool, workspace_bytes: int) -> None:
        self._log, self._allocator, self._workspace_bytes = log, allocator, workspace_bytes
        self._sizes: list[int] = []
        self._needed: set[int] = set()
        self._without: set[tuple[str, int, int]] = set()
        self._scratch = scratch
        self._live: dict[int, Block] = {}

    def resize(self, batch_size: int) -> None:
        """What is allocated from now on is of this batch size."""
        self._sizes = [
            self._workspace_bytes if storage.kind == "workspace" else storage.at(batch_size)
            for storage in self._log.storages
        ]
        self._needed = {
            number for number, storage in enumerate(self._log.storages) if not storage.is_optional(batch_size)
        }

    def play(self, events: Iterable[int]) -> None:
        for event in events:
            if event < 0:
                block = self._live.pop(-event - 1, None)
                if block is not None:
                    self._allocator.release(block)
            elif event in self._needed:
                self._live[event] = self._allocator.allocate(self._sizes[event])
            elif self._scratch:
                self._try(event)

    def _try(self, event: int) -> None:
        """Where there is no room, a convolution falls back to a plan without a workspace, and so do all later ones of
        its shape: torch keeps the plan that ran."""
        storage = self._log.storages[event]
        shape = (storage.operator, storage.fixed_bytes, self._sizes[event])
        if shape in self._without:
            return
        try:
            self._live[event] = self._allocator.allocate(self._sizes[event])
        except OutOfMemory:
            self._without.add(shape)


def most_alive(log: AllocationLog, capacity_bytes: int) -> int:
    """The largest batch whose tensors of one step take no more than so much, laid without a gap: none larger fits."""
    events = np.asarray((*log.init, *log.first), dtype=np.int64)
    births = events >= 0
    numbers = np.where(births, events, -events - 1)
    fixed, item, square = np.asarray([_least(storage) for storage in log.storages] or [(0.0, 0.0, 0.0)]).T

    def fits(batch_size: int) -> bool:
        sizes = fixed + item * batch_size + square * batch_size**2
        alive = np.cumsum(np.where(births, sizes[numbers], -sizes[numbers]))
        return not alive.size or float(alive.max()) <= capacity_bytes

    return largest(fits)


def _least(storage: Storage) -> tuple[float, float, float]:
    """What it takes at the least: nothing, where it is optional or goes by a rule of its own."""
    if storage.kind != "tensor" or storage.reduction is not None:
        return 0.0, 0.0, 0.0
    return storage.fixed_bytes - 1.0, storage.item_bytes, storage.square_bytes


def largest(fits: Callable[[int], bool], *, near: int = 0, ceiling: int = CEILING) -> int:
    """The largest batch that fits, as far as doubling and bisection can tell; 0 where not even 1 does.

    Where it is known to be `near` a size, the powers of two below half of that are taken to fit if the last of them
    does.
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


def sturdy(fits: Callable[[int], bool], *, near: int = 0) -> int:
    """The largest batch that fits and most of whose neighbours do; `near` as for `largest`.

    Fragmentation makes the edge ragged: beyond the first size that fails some fit, and one that does by luck is no
    answer.
    """
    seen = cache(fits)
    edge = largest(seen, near=near)
    size = round(edge * (1 + _RAGGED))
    while size > edge * (1 - _RAGGED):
        around = {size + int(size * step * _APART) for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1)}
        if seen(size) and 2 * sum(map(seen, around)) >= len(around):
            return size
        size = edge if size > edge > size * (1 - _APART) else min(size - 1, round(size * (1 - _APART)))
    return edge
