"""The measured loop, against what `for batch in loader` does."""

import weakref
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker.measure.device import SleepDevice
from stoker.measure.feed import Feed
from stoker.measure.log import LoopLog
from stoker.measure.loop import DeadlinePassed, Loop
from stoker.measure.profile import profile
from stoker.measure.steps import SleepStep
from stoker.records import Setting


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


def unchanged(items: list[Any]) -> list[Any]:
    return items


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_a_list_of_items_that_all_begin_with_their_channels_holds_that_many(kind: Any, workers: int) -> None:
    data: Any = [kind((3, 4, 4 + place)) for place in range(10)]
    loader = DataLoader[Any](data, batch_size=4, num_workers=workers, collate_fn=unchanged)
    trial = profile(
        stoker.Workload(model=nn.Identity(), loader=loader),
        Setting(batch_size=4, num_workers=workers),
        device="sleep:2ms/item",
    )
    assert trial.problem is None
    assert trial.timeline.items == (4, 4, 2)
    slept = trial.stages["forward"].samples_s
    assert all(took >= 0.002 * items for took, items in zip(slept, trial.timeline.items, strict=True))


def test_inputs_and_targets_of_a_batch_of_two_are_counted_by_their_first_dimension() -> None:
    crops = TensorDataset(torch.zeros(4, 5, 2), torch.zeros(4, 5))
    loader = DataLoader(crops, batch_size=2, collate_fn=flat)
    trial = profile(stoker.Workload(model=nn.Identity(), loader=loader), Setting(batch_size=2), device="sleep:0ms")
    assert trial.problem is None
    assert trial.timeline.items == (10, 10)


def flat(items: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Several crops of each item, one after another."""
    return [torch.cat(part) for part in zip(*items, strict=True)]
