"""The algebra, on numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InputError
from stoker.forecast.algebra import batch_for, fits_memory, ratio_spread, solve, workers_for, workers_needed
from stoker.records import AlgebraTiming

TIMINGS = [
    AlgebraTiming(batch_size=10, load_s=0.3, compute_s=0.1),
    AlgebraTiming(batch_size=50, load_s=2.0, compute_s=0.5),
]


def test_the_larger_ratio_sets_the_workers_and_the_largest_batch_is_taken() -> None:
    plan = solve(TIMINGS, max_batch=160, item_bytes=600_000, memory_bytes=64 * 10**9)
    assert (plan.batch_size, plan.num_workers) == (160, 4)
    assert plan.ratio == pytest.approx(4)
    assert plan.ratio_spread == pytest.approx(1 / 3)
    assert plan.bound_by == "max_batch"
    assert plan.most_workers == 666, "64 GB hold 666.7 batches"
    assert plan.timings == tuple(TIMINGS)


def test_memory_bounds_the_batch() -> None:
    plan = solve(TIMINGS, max_batch=160, item_bytes=10**6, memory_bytes=100 * 10**6)
    assert plan.batch_size == 24
    assert plan.bound_by == "host_memory"
    assert plan.most_workers == 4
    assert fits_memory(24, 4, item_bytes=10**6, memory_bytes=100 * 10**6)
    assert not fits_memory(25, 4, item_bytes=10**6, memory_bytes=100 * 10**6)


def test_several_gpus_need_several_times_the_workers() -> None:
    assert [workers_needed(2.5, gpus=gpus) for gpus in (1, 2, 4)] == [3, 5, 10]
    assert workers_needed(0.01) == 1


def test_the_corollary_gives_the_most_workers_for_a_batch() -> None:
    assert workers_for(100, item_bytes=10**6, memory_bytes=10**9) == 9


@given(st.integers(1, 512), st.integers(1, 10**7), st.integers(1, 10**12))
def test_the_corollary_is_the_edge_of_the_constraint(batch: int, item: int, memory: int) -> None:
    most = workers_for(batch, item_bytes=item, memory_bytes=memory)
    assert most == 0 or fits_memory(batch, most, item_bytes=item, memory_bytes=memory)
    assert not fits_memory(batch, most + 1, item_bytes=item, memory_bytes=memory)


@given(st.integers(1, 64), st.integers(1, 10**7), st.integers(1, 10**12))
def test_the_largest_batch_is_the_edge_of_the_constraint(workers: int, item: int, memory: int) -> None:
    most = batch_for(workers, item_bytes=item, memory_bytes=memory)
    assert most == 0 or fits_memory(most, workers, item_bytes=item, memory_bytes=memory)
    assert not fits_memory(most + 1, workers, item_bytes=item, memory_bytes=memory)


def test_ratios_without_a_least_have_no_spread() -> None:
    assert ratio_spread([AlgebraTiming(batch_size=1, load_s=0, compute_s=1), *TIMINGS]) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"max_batch": 0}, "largest batch must be at least 1"),
        ({"memory_bytes": 10}, "do not fit"),
        ({"timings": []}, "at least one batch size"),
        ({"timings": [AlgebraTiming(batch_size=1, load_s=1, compute_s=0)]}, "no answer"),
    ],
)
def test_what_has_no_answer_says_so(change: dict[str, object], words: str) -> None:
    asked: dict[str, object] = {"timings": TIMINGS, "max_batch": 8, "item_bytes": 100, "memory_bytes": 10**9}
    with pytest.raises(InputError, match=words):
        solve(**{**asked, **change})  # type: ignore[arg-type]
