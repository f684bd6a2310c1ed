"""The measured loop, against what `for batch in loader` does."""

import weakref
from collections.abc import Iterator
from time import perf_counter

import pytest
import torch

from stoker.measure.device import SleepDevice
from stoker.measure.feed import Feed
from stoker.measure.log import LoopLog
from stoker.measure.loop import DeadlinePassed, Loop
from stoker.measure.steps import SleepStep


class Watched:
    """Gives batches, and keeps how many of those before were still alive whenever the next was asked for."""

    def __init__(self, batches: int) -> None:
        self._batches, self.alive = batches, list[int]()

    def __iter__(self) -> Iterator[torch.Tensor]:
        given: list[weakref.ref[torch.Tensor]] = []
        for _ in range(self._batches):
            self.alive.append(sum(each() is not None for each in given))
            batch = torch.zeros(4, 2)
            given.append(weakref.ref(batch))
            yield batch
            del batch


def test_a_batch_lives_until_the_next_is_there_as_in_any_loop() -> None:
    usual, measured = Watched(5), Watched(5)
    for _batch in usual:
        pass
    Loop(Feed(measured, 5, []), SleepStep(SleepDevice("0s")), LoopLog(), lambda _: None, of=5).epoch()
    assert measured.alive == usual.alive == [0, 1, 1, 1, 1]


def test_a_loop_ends_with_the_batch_that_passes_its_deadline() -> None:
    log = LoopLog()
    feed = Feed(Watched(500), 500, [])
    step = SleepStep(SleepDevice("10ms"))
    loop = Loop(feed, step, log, lambda _: None, deadline_s=perf_counter() + 0.05)
    with pytest.raises(DeadlinePassed):
        loop.epoch()
    assert 1 <= len(log.items) <= 5
