"""Tries begun before they are needed. A search gives the same answer without this module, only later.

Bringing a model to a GPU takes seconds. While the step is followed, tries come to the device with the model and wait
there for their batch size (`StandBy`). And if the device has room for several tries, the sizes that may come next run
at the same time as the one that is needed now (`Ahead`). `begin` and `close_in` are all that a search calls.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from stoker.memory.bracket import Bracket, Gallop, close
from stoker.memory.limit import LimitRequest
from stoker.memory.replay import Estimate, Replays
from stoker.memory.tries import DeviceMemory, RunningTry, TryFactory, TryOrder
from stoker.records import Attempt, Gpu, Record
from stoker.workload import calls


class AheadRules(Record, frozen=True):
    """Numbers of trying ahead."""

    stand_by: int = 3
    """Tries that wait at the device while the step is followed: for the guess, the size above it and one without a
    retry."""
    context_bytes: int = 2**30
    """More than the CUDA context of a process takes."""
    most_sizes: int = 4
    """Sizes that are looked ahead at most: each one that is begun and not needed slows down the others."""
    many_retries: int = 8
    """From so many retries on at the likely size, tries disturb each other: the driver takes memory back from one at a
    time."""


RULES = AheadRules()


def begin(factory: TryFactory, request: LimitRequest, card: Gpu, settle_budget: Callable[[], DeviceMemory]) -> "Ahead":
    """Bring tries to the device, some of them before `settle_budget` has read its memory from within."""
    found = Ahead(factory, exclusive=card.exclusive)
    early = _budget_by_driver(request, card)
    if early is not None:
        factory.job = msgspec.structs.replace(factory.job, budget_bytes=early)
        found.stand_by.wait_for(RULES.stand_by)
    try:
        found.free_bytes = settle_budget().free_bytes
    except BaseException:
        found.end()
        raise
    if early is not None and factory.job.budget_bytes != early:
        found.end()  # another process took memory meanwhile
    found.stand_by.wait_for(min(RULES.stand_by, found.at_once + found.more_waiting))
    return found


def _budget_by_driver(request: LimitRequest, card: Gpu) -> int | None:
    """What tensors may take, if by the driver's figure all tries that stand by have room; None otherwise."""
    asked, reserve = request.gpu_memory_bytes, request.reserve_bytes
    if asked is None or asked <= reserve or card.exclusive:
        return None
    needed = RULES.stand_by * (asked + RULES.context_bytes)
    return asked - reserve if card.memory_free_bytes >= needed else None


class Ahead:
    """Tries of a factory, as many at once as the device has room for."""

    def __init__(self, factory: TryFactory, *, exclusive: bool) -> None:
        self._factory, self._exclusive = factory, exclusive
        self.stand_by = StandBy(factory)
        self.free_bytes = 0
        self._begun: dict[int, RunningTry] = {}
        self._tried: set[int] = set()

    @property
    def at_once(self) -> int:
        """How many tries the device has room for. A try without a cap may take all there is."""
        budget = self._factory.job.budget_bytes
        if self._exclusive or budget is None:
            return 1
        return max(1, self.free_bytes // (budget + RULES.context_bytes))

    @property
    def more_waiting(self) -> int:
        """How many more may wait at the device with their model while as many run as there is room for."""
        budget = self._factory.job.budget_bytes
        if self._exclusive or budget is None:
            return 0
        rest = self.free_bytes - self.at_once * (budget + RULES.context_bytes)
        return max(0, rest // (calls.model_bytes(self._factory.model) + RULES.context_bytes))

    def begin(self, sizes: Iterable[int]) -> None:
        """Begin these sizes, the first ones first, as many as the device has room for; end all others under way."""
        new = [size for size in dict.fromkeys(sizes) if size and size not in self._tried][: self.at_once]
        for size in [size for size in self._begun if size not in new]:
            self._begun.pop(size).stop()
        for size in new:
            if size not in self._begun:
                self._begun[size] = self.stand_by.begin(TryOrder(batch_size=size))

    def attempt(self, order: TryOrder) -> Attempt:
        """The outcome of a size, which may be under way already."""
        self._tried.add(order.batch_size)
        running = self._begun.pop(order.batch_size, None) or self.stand_by.begin(order)
        if self.more_waiting:
            self.stand_by.wait_for(1)  # for the size that comes next
        return running.result()

    def end(self) -> None:
        """End what is under way or waits."""
        while self._begun:
            self._begun.popitem()[1].stop()
        self.stand_by.end()


class StandBy:
    """Tries that wait at the device with the model for their orders."""

    def __init__(self, factory: TryFactory) -> None:
        self._factory = factory
        self._waiting: list[WaitingTry] = []

    def wait_for(self, count: int) -> None:
        """Have so many tries wait."""
        self._waiting += [WaitingTry(self._factory) for _ in range(count - len(self._waiting))]

    def begin(self, order: TryOrder) -> RunningTry:
        """Give the order to a try that waits, or to a new one."""
        waiting = self._waiting.pop(0) if self._waiting else WaitingTry(self._factory)
        return waiting.begin(order)

    def end(self) -> None:
        while self._waiting:
            self._waiting.pop().stop()


class WaitingTry:
    """A try in a process of its own that reads its order from a pipe once it has come to the device."""

    def __init__(self, factory: TryFactory) -> None:
        read, self._orders = os.pipe()
        self._forked = factory.fork(lambda: self._read(read))
        os.close(read)

    def _read(self, read: int) -> TryOrder:
        """In the new process, which must not hold the end that orders are written to."""
        os.close(self._orders)
        with open(read, "rb") as orders:
            return msgspec.json.decode(orders.readline(), type=TryOrder)

    def begin(self, order: TryOrder) -> RunningTry:
        running = RunningTry(self._forked, order.batch_size)
        with suppress(BrokenPipeError):  # the process has ended already, and its result says why
            os.write(self._orders, msgspec.json.encode(order) + b"\n")  # later tries inherit this end: no end of file
        os.close(self._orders)
        return running

    def stop(self) -> None:
        os.close(self._orders)
        self._forked.stop()


# ---------------------------------------------------------------- closing in on the edge


def close_in(
    tries: Ahead, holds: Callable[[int], bool], replays: Replays, *, ceiling: int, tolerance: float
) -> tuple[Bracket, Estimate]:
    """`close` from the guess of a trace, with the sizes that may come next begun before each try."""
    guide = _Guide(tries, replays)
    found = close(holds, guess=guide.guess, ceiling=ceiling, tolerance=tolerance, before_each=guide.look_ahead)
    assert guide.estimate is not None
    return found, guide.estimate


class _Guide:
    """The likely size first; the rest of the estimate is replayed while that size runs."""

    def __init__(self, tries: Ahead, replays: Replays) -> None:
        self._tries, self._replays = tries, replays
        self.guess = replays.likely
        self.estimate: Estimate | None = None

    def look_ahead(self, state: Gallop) -> int | None:
        """Begin the sizes that may come next. Returns the largest likely size while that can still change the next."""
        sizes, first = coming(state), self.estimate is None
        if self._replays.retries > RULES.many_retries:
            sizes = sizes[: 2 if first else 1]
        if self.estimate is None:
            self._tries.begin(sizes)
            self.estimate = self._replays.estimate()
        needs_retries = min(self.estimate.without_retry, sizes[0]) < self.guess
        self._tries.begin((*sizes, self.estimate.smaller_without_retry(sizes[0])) if needs_retries else sizes)
        return None if first and self._tries.at_once > 1 else self.estimate.most


def coming(state: Gallop) -> list[int]:
    """The next size and those that may follow it: two ahead from a guess and below what failed, else one.

    While no size has failed, only what follows if they hold: sizes that a good guess will not need would slow it down.
    """
    sizes, states = [state.size], [state]
    for _ in range(1 if state.ran else 2):
        outcomes = (True, False) if state.failed is not None else (True,)
        after = [each.after(held) for each in states for held in outcomes]
        states = [each for each in after if not each.is_over]
        sizes += [each.size for each in states]
    return list(dict.fromkeys(sizes))[: RULES.most_sizes]
