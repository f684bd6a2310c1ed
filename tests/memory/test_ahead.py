"""Tries begun before they are needed: which sizes may come next, and tries that wait at the device for their order."""

from typing import Any

import torch
from torch.utils.data import TensorDataset

import stoker
from stoker.memory.ahead import StandBy, coming
from stoker.memory.bracket import Gallop, close
from stoker.memory.tries import TryFactory, TryJob, TryOrder
from stoker.process import child
from stoker.records import Attempt

MIB = 2**20


def looked_ahead(edge: int, tolerance: float) -> list[list[int]]:
    """The sizes that may come next, before each try of a search from a guess of 200."""
    seen: list[list[int]] = []

    def look(state: Gallop) -> None:
        seen.append(coming(state))

    close(lambda size: size < edge, guess=200, ceiling=10**6, tolerance=tolerance, before_each=look)
    return seen


def test_beyond_a_guess_two_sizes_are_looked_ahead_then_one() -> None:
    assert looked_ahead(202, 0.005) == [[200, 201, 202], [201, 202], [202, 204]]


def test_below_a_failure_all_sizes_are_expected_to_fail_and_between_two_ends_either_may_happen() -> None:
    seen = looked_ahead(180, 0.01)
    assert seen[1] == [199, 198, 196]
    assert seen[-3] == [180, 182, 178], "the next size, and what follows if it holds or fails"


class Wide(torch.nn.Module):
    """A megabyte of output for each item."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).expand(-1, 2**18).contiguous()


def stood_by(emit: Any = None) -> Attempt:
    workload = stoker.Workload(model=Wide, dataset=TensorDataset(torch.zeros(512, 1)))
    waiting = StandBy(TryFactory(workload, TryJob(mode="infer", device="cpu", budget_bytes=512 * MIB)))
    waiting.wait_for(3)
    first, second = waiting.begin(TryOrder(batch_size=64)), waiting.begin(TryOrder(batch_size=16, steps=5))
    attempts = [second.result(), first.result()]  # each has its own order, whichever came to the device first
    waiting.end()
    assert [(attempt.batch_size, len(attempt.step_s)) for attempt in attempts] == [(16, 5), (64, 3)]
    return waiting.begin(TryOrder(batch_size=32)).result()


def test_a_try_may_wait_with_the_model_for_its_order() -> None:
    attempt = child.value(child.run(stood_by, (), kind=Attempt))
    assert (attempt.batch_size, attempt.outcome) == (32, "done")
