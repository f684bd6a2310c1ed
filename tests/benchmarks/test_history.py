"""Recorded histories: replayed to their own peaks, and a difference that finds exactly what was planted."""

import gzip
from pathlib import Path

import msgspec
import pytest
from history import (
    History,
    Life,
    Stats,
    difference,
    lives_of_history,
    lives_of_log,
    load,
    peak,
    replay_history,
)
from hypothesis import given, settings
from hypothesis import strategies as some

from stoker.memory.allocator import Allocator, Block
from stoker.memory.trace.log import Allocation, AllocationLog

MIB = 2**20
Event = tuple[str, int, int, str]


def recorded(script: list[tuple[int, int, str]]) -> History:
    """A history as torch writes it, of a script of (key, size, operator); a size of -1 is the death of that key."""
    events: list[Event] = []
    allocator, blocks, sizes = Allocator(2**50), dict[int, Block](), dict[int, int]()
    for key, size, operator in script:
        if size >= 0:
            blocks[key], sizes[key] = allocator.allocate(size), size
            events.append(("alloc", blocks[key].address, size, operator))
        else:
            block = blocks.pop(key)
            events += [(action, block.address, sizes[key], "") for action in ("free_requested", "free_completed")]
            allocator.release(block)
    stats = Stats(
        allocated_peak=allocator.allocated_peak_bytes,
        reserved_peak=allocator.reserved_peak_bytes,
        allocated_end=allocator.allocated_bytes,
        reserved_end=allocator.reserved_bytes,
        retries=0,
    )
    return History(
        name="synthetic",
        batch_size=10,
        mode="train",
        precision="fp32",
        optimizer="sgd",
        steps=1,
        torch="2.11.0",
        cudnn=91900,
        cap_bytes=None,
        marks={"model": 0, "step1": 0, "end": len(events)},
        stats=stats,
        events=tuple(events),
    )


STEP = [(0, 4 * MIB, "conv"), (1, 8 * MIB, "relu"), (0, -1, ""), (2, 2 * MIB, "mm"), (1, -1, ""), (2, -1, "")]


def log_of_step(*, without: str = "") -> AllocationLog:
    names = [(key, size, operator) for key, size, operator in STEP if size >= 0]
    left_out = {key for key, _, operator in names if operator == without}
    allocations = tuple(
        Allocation(fixed_bytes=0, item_bytes=size / 10, operator=operator) for _, size, operator in names
    )
    events = tuple(key if size >= 0 else -key - 1 for key, size, _ in STEP if key not in left_out)
    return AllocationLog(allocations=allocations, init=(), first=events, steady=events, batch_size=251)


def test_a_history_survives_the_file_it_is_kept_in(tmp_path: Path) -> None:
    history = recorded(STEP)
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_bytes(msgspec.json.encode(history))
    packed.write_bytes(gzip.compress(msgspec.json.encode(history)))
    assert load(plain) == load(packed) == history


def test_the_same_step_has_no_difference() -> None:
    found = difference(lives_of_history(recorded(STEP), "step1"), lives_of_log(log_of_step(), 10, "step1"))
    assert (found.matched, found.only_recorded, found.only_logged, found.longer) == (3, (), (), ())
    assert found.recorded_peak.sizes == found.logged_peak.sizes == {4 * MIB: 1, 8 * MIB: 1}


def test_what_is_only_in_one_is_told_with_its_operator() -> None:
    found = difference(
        lives_of_history(recorded(STEP), "step1"), lives_of_log(log_of_step(without="relu"), 10, "step1")
    )
    assert [life.operator for life in found.only_recorded] == ["relu"]
    assert found.only_logged == ()
    assert found.recorded_peak.size - found.logged_peak.size == 8 * MIB


def test_what_lives_longer_is_told_in_births_that_both_have() -> None:
    late = [*STEP[:2], *STEP[3:], STEP[2]]  # the first piece dies last
    found = difference(lives_of_history(recorded(late), "step1"), lives_of_log(log_of_step(), 10, "step1"))
    assert [(entry.recorded_operator, entry.births) for entry in found.longer] == [("conv", 1)]


def test_small_pieces_can_be_left_out() -> None:
    found = difference(
        lives_of_history(recorded([(9, 512, "noise"), *STEP]), "step1"),
        lives_of_log(log_of_step(), 10, "step1"),
        least_bytes=MIB,
    )
    assert (found.only_recorded, found.matched) == ((), 3)


scripts = some.lists(some.tuples(some.integers(0, 30 * MIB), some.integers(1, 8)), min_size=1, max_size=40)


@given(scripts)
@settings(deadline=None)
def test_a_replay_of_a_history_gives_its_own_peaks(script: list[tuple[int, int]]) -> None:
    """Every piece dies so many births after its own."""
    events: list[tuple[int, int, str]] = []
    for key, (size, _) in enumerate(script):
        events += [(old, -1, "") for old, (_, span) in enumerate(script[:key]) if old + span == key]
        events.append((key, size, "any"))
    history = recorded(events)
    again = replay_history(history)
    assert again.allocated_peak_bytes == history.stats.allocated_peak
    assert again.reserved_peak_bytes == history.stats.reserved_peak
    assert again.fits


@given(some.lists(some.tuples(some.integers(1, 100), some.one_of(some.none(), some.integers(1, 9))), max_size=30))
def test_a_peak_is_the_most_that_is_alive_at_any_birth(pieces: list[tuple[int, int | None]]) -> None:
    lives = [
        Life(size=size, operator="", born=born, died=None if span is None else born + span)
        for born, (size, span) in enumerate(pieces)
    ]
    most = max(
        (sum(life.size for life in lives if life.born <= now and (life.died is None or life.died > now))
         for now in range(len(lives))), default=0
    )  # fmt: skip
    assert peak(lives).size == most


# ---------------------------------------------------------------- recorded on an H200


@pytest.mark.parametrize("name", ["alexnet-train", "resnet18-train", "resnet18-infer"])
def test_recorded_runs_replay_to_their_recorded_peaks(name: str) -> None:
    """Each was capped, so that the cache was emptied and workspaces were refused on the way."""
    history = load(Path(__file__).parent / "histories" / f"{name}.json.gz")
    again = replay_history(history)
    assert again.fits
    assert again.allocated_peak_bytes == pytest.approx(history.stats.allocated_peak, rel=0.01)
    assert again.reserved_peak_bytes == pytest.approx(history.stats.reserved_peak, rel=0.01)
    assert again.retries == history.stats.retries
