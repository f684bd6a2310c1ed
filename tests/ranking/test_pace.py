"""Batch size and workers, chosen from what the first batches took."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stoker.ranking import pace as paces
from stoker.ranking.pace import RULES, Pace
from stoker.records import Extent, Setting, Task, WorkloadSpec


def paced(items: int, seconds_of: dict[int, float], *, load_s: float = 0.0, in_memory: bool = False) -> Pace:
    """A choice among sizes whose items take so long each."""
    task = Task(
        kind="search",
        workload=WorkloadSpec(spec="net"),
        setting=Setting(batch_size=64, num_workers=3),
        extent=Extent(batches=None),
        options={"batch_size": "measured"},
    )
    supply: Any = SimpleNamespace(items=SimpleNamespace(count=items), in_memory=in_memory, is_stream=False)
    pace = Pace(task, supply, torch.device("cpu"))
    seen = 0
    while (size := pace.next_size()) is not None:
        taken = min(size, items - seen)
        seen += taken
        pace.saw(taken, load_s * taken, seconds_of[size] * taken)
    return pace


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "usable", lambda: 2.0)
    monkeypatch.setattr(paces, "fork_s", lambda: 0.01)


def test_the_batch_grows_while_an_item_takes_less() -> None:
    grows = paced(10_000, {8: 1.0, 16: 0.8, 32: 0.6, 64: 0.59, 128: 0.1})
    assert grows.batch_size == 64, "64 is a little better, and 128 is not tried after such a gain"
    assert paced(10_000, {8: 1.0, 16: 1.1}).batch_size == 8
    assert "larger batches bring less than 5 %" in grows.reason


def test_sizes_are_not_tried_for_few_items_nor_above_the_largest() -> None:
    assert paced(30, {8: 1.0}).batch_size == 8
    assert paced(5, {8: 1.0}).num_workers == 0
    shrinking = {8 * 2**step: 0.5**step for step in range(12)}
    assert paced(1_000_000, shrinking).batch_size == RULES.largest


def test_a_batch_that_would_take_too_much_memory_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.ranking.pace.host.available_bytes", lambda: 0)
    monkeypatch.setattr("stoker.ranking.pace.psutil.Process", _growing())
    pace = paced(10_000, {8: 1.0})
    assert pace.batch_size == 8
    assert "too much memory" in pace.reason


def _growing() -> Any:
    readings = iter(range(10**9, 10**11, 10**8))
    return lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(readings)))


def test_workers_are_taken_where_they_save_more_than_they_cost() -> None:
    flat = {8: 0.01, 16: 0.01}
    assert paced(10_000, flat, load_s=0.01).num_workers == 1
    assert paced(10_000, flat, load_s=0.0001).num_workers == 0, "loading is next to nothing"
    assert paced(40, flat, load_s=0.001).num_workers == 0, "too few items are left"
    kept = paced(10_000, flat, load_s=0.01, in_memory=True)
    assert kept.num_workers == 0
    assert "the items are in memory" in kept.reason


def test_a_setting_that_is_asked_for_is_kept() -> None:
    task = Task(kind="search", workload=WorkloadSpec(spec="net"), setting=Setting(batch_size=7, num_workers=2))
    supply: Any = SimpleNamespace(items=SimpleNamespace(count=100), in_memory=False, is_stream=False)
    pace = Pace(task, supply, torch.device("cpu"))
    assert pace.next_size() is None
    assert (pace.batch_size, pace.num_workers, pace.reason) == (7, 2, "as asked")
