"""Choices from tables computed by hand, and laws that hold for every table."""

import random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from stoker.analysis.regret import batch_limits, best, largest_batch, leave_one_out, one_for_all, regret, top_counts
from tests.analysis.trial_rows import LAW, grids, picked, trials

TABLE = trials(
    ("a", 32, 1, 10.0), ("a", 64, 1, 12.0), ("a", 64, 2, 10.0),
    ("b", 32, 1, 20.0), ("b", 64, 1, "oom"), ("b", 64, 2, 25.0),
    data="jpeg", machine="A",
)  # fmt: skip
"""Model a has two best settings; b has one cell that failed."""


def test_regret_by_hand() -> None:
    assert regret(TABLE).to_dicts() == [
        _regret(32, 1, mean=0.0, worst=0.0, models=2, missing=0),
        _regret(64, 2, mean=0.125, worst=0.25, models=2, missing=0),
        _regret(64, 1, mean=pytest.approx(0.2), worst=pytest.approx(0.2), models=1, missing=1),
    ]


def _regret(batch: int, workers: int, *, mean: object, worst: object, models: int, missing: int) -> dict[str, object]:
    setting = {"machine": "A", "data": "jpeg", "batch_size": batch, "num_workers": workers}
    return {**setting, "regret_mean": mean, "regret_worst": worst, "models": models, "missing": missing}


def test_a_setting_that_some_model_lacks_comes_after_all_that_are_complete() -> None:
    frame = trials(("a", 1, 1, 1.0), ("a", 2, 1, 9.0), ("b", 2, 1, 1.0))
    assert picked(regret(frame), "batch_size", "regret_mean", "missing") == [(2, 4.0, 0), (1, 0.0, 1)]


def test_a_model_without_any_time_is_missing_everywhere() -> None:
    frame = trials(("a", 1, 1, 1.0), ("b", 1, 1, "crashed"))
    assert picked(regret(frame), "regret_mean", "models", "missing") == [(0.0, 1, 1)]
    only = trials(("b", 1, 1, "crashed"))
    assert picked(regret(only), "regret_mean", "regret_worst", "models", "missing") == [(None, None, 0, 1)]
    assert best(only).height == one_for_all(only).height == top_counts(only).height == 0


def test_top_counts_by_hand_equal_times_share_a_place() -> None:
    assert picked(top_counts(TABLE, 1), "batch_size", "num_workers", "count") == [(32, 1, 2), (64, 2, 1)]
    assert picked(top_counts(TABLE, 2), "batch_size", "num_workers", "count") == [(32, 1, 2), (64, 2, 2)]
    assert top_counts(TABLE, 3)["count"].to_list() == [2, 2, 1]
    assert top_counts(TABLE).columns == ["machine", "data", "batch_size", "num_workers", "count"]


def test_the_best_of_each_model_and_its_lead() -> None:
    assert picked(best(TABLE), "workload", "batch_size", "seconds", "lead", "settings", "missing") == [
        ("a", 32, 10.0, 0.0, 3, 0),
        ("b", 32, 20.0, 0.25, 2, 1),
    ]


def test_one_setting_for_all_and_whom_it_suits_worst() -> None:
    frame = trials(("a", 1, 1, 1.0), ("a", 2, 1, 1.1), ("b", 1, 1, 3.0), ("b", 2, 1, 2.0))
    found = one_for_all(frame).to_dicts()[0]
    assert (found["batch_size"], found["worst_model"], found["missing"]) == (2, "a", 0)
    assert found["regret_mean"] == pytest.approx(0.05)
    assert found["regret_worst"] == pytest.approx(0.1)


def test_one_setting_for_all_is_the_most_complete_where_none_is_complete() -> None:
    frame = trials(
        ("a", 1, 1, 5.0), ("a", 2, 1, 1.0), ("b", 1, 1, 1.0), ("b", 2, 1, "oom"), ("c", 1, 1, "oom"), ("c", 2, 1, "oom")
    )
    assert picked(one_for_all(frame), "batch_size", "models", "missing") == [(1, 2, 1)]


def test_leaving_a_model_out_by_hand() -> None:
    frame = trials(
        ("a", 1, 1, 1.0), ("a", 2, 1, 2.0), ("b", 1, 1, 3.0), ("b", 2, 1, 1.0), ("c", 1, 1, 1.5), ("c", 2, 1, 1.0)
    )
    # Regrets: a 0, 1; b 2, 0; c 0.5, 0. Without a: 1.25, 0. Without b: 0.25, 0.5. Without c: 1, 0.5.
    rows = picked(leave_one_out(frame), "workload", "batch_size", "others_mean", "regret", "outcome")
    assert rows == [("a", 2, 0.0, 1.0, "done"), ("b", 1, 0.25, 2.0, "done"), ("c", 2, 0.5, 0.0, "done")]


def test_a_setting_chosen_without_a_model_may_fail_for_it() -> None:
    frame = trials(("a", 1, 1, 2.0), ("a", 2, 1, 1.0), ("b", 1, 1, 1.0), ("b", 2, 1, "oom"))
    rows = picked(leave_one_out(frame), "workload", "batch_size", "regret", "outcome")
    assert rows == [("a", 1, 1.0, "done"), ("b", 2, None, "oom")]
    assert leave_one_out(frame.filter(pl.col("model") == "a")).height == 0


def test_data_and_machine_split_the_table() -> None:
    other = TABLE.with_columns(data=pl.lit("tensors"))
    far = TABLE.with_columns(machine=pl.lit("B"))
    both = regret(pl.concat([far, TABLE, other]))
    assert_frame_equal(both.filter(data="jpeg", machine="A"), regret(TABLE))
    assert both.height == 9


def test_the_largest_batch_by_what_ran() -> None:
    frame = trials(
        ("a", 8, 1, 1.0), ("a", 16, 1, 1.0), ("a", 32, 1, 1.0),
        ("b", 8, 1, 1.0), ("b", 16, 1, "oom"), ("b", 16, 2, 1.0), ("b", 32, 1, "oom"),
        ("c", 8, 1, 1.0), ("c", 16, 1, 1.0), ("c", 32, 1, "crashed"),
        ("d", 8, 1, "oom"),
    )  # fmt: skip
    limits = picked(batch_limits(frame), "workload", "largest", "first_failed")
    assert limits == [("a", 32, None), ("b", 16, 32), ("c", 16, 32), ("d", None, 8)]
    found = largest_batch(frame).to_dicts()
    assert found == [
        {"machine": "unknown", "all_models": 16, "most_models": 16, "limited_by": "b", "models": 3, "missing": 1}
    ]


@pytest.mark.parametrize(
    ("sizes", "every", "most"),
    [([8], 8, 8), ([8, 16], 8, 8), ([8, 16, 32], 8, 16), ([8, 16, 32, 64], 8, 16), ([8, 16, 16, 16, 64], 8, 16)],
)
def test_most_models_are_more_than_half(sizes: list[int], every: int, most: int) -> None:
    frame = trials(*[(f"m{place}", size) for place, size in enumerate(sizes)], columns="model max_batch")
    assert picked(largest_batch(frame), "all_models", "most_models") == [(every, most)]


def test_a_searched_limit_is_the_least_of_its_repeats_and_split_by_memory() -> None:
    frame = trials(
        ("a", 11, 100, "done"), ("a", 11, 90, "done"), ("a", 24, 200, "done"), ("b", 24, None, "failed"),
        columns="model gpu_memory max_batch outcome",
    )  # fmt: skip
    assert picked(largest_batch(frame), "gpu_memory", "all_models", "models", "missing") == [
        (11, 90, 1, 0),
        (24, 200, 1, 1),
    ]


@LAW
@given(grids())
def test_regret_is_never_negative_and_the_best_has_none(frame: pl.DataFrame) -> None:
    found = regret(frame)
    assert all(value >= 0 for value in found["regret_mean"].drop_nulls())
    assert (found["regret_worst"] >= found["regret_mean"] - 1e-12).fill_null(value=True).all()
    assert ((found["models"] > 0) == found["regret_mean"].is_not_null()).all()


@LAW
@given(grids(models=1))
def test_the_best_setting_of_a_single_model_has_no_regret(frame: pl.DataFrame) -> None:
    for row in one_for_all(frame).to_dicts():
        assert row["regret_mean"] == row["regret_worst"] == pytest.approx(0, abs=1e-12)  # a median may be rounded
        assert row["missing"] == 0


@LAW
@given(grids(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(frame: pl.DataFrame, shuffler: random.Random) -> None:
    order = list(range(frame.height))
    shuffler.shuffle(order)
    for analysis in (regret, top_counts, best, one_for_all, leave_one_out, batch_limits, largest_batch):
        assert_frame_equal(analysis(frame[order]), analysis(frame), check_exact=True)


@LAW
@given(grids(), st.floats(0.1, 10.0))
def test_a_machine_so_many_times_slower_has_the_same_regrets(frame: pl.DataFrame, factor: float) -> None:
    cells = ["machine", "data", "batch_size", "num_workers"]
    slower, same = regret(frame.with_columns(pl.col("seconds") * factor)).sort(cells), regret(frame).sort(cells)
    assert slower.select(*cells, "models", "missing").equals(same.select(*cells, "models", "missing"))
    means = zip(slower["regret_mean"], same["regret_mean"], strict=True)
    assert all(left == pytest.approx(right, abs=1e-9) for left, right in means)


@LAW
@given(grids())
def test_every_model_with_a_time_is_among_the_counts(frame: pl.DataFrame) -> None:
    counts = top_counts(frame, 1).group_by("machine", "data").agg(pl.col("count").sum())
    winners = best(frame).group_by("machine", "data").len()
    joined = winners.join(counts, on=["machine", "data"], how="full", coalesce=True)
    assert (joined["count"] >= joined["len"]).all()
