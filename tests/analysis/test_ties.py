"""Which settings cannot be distinguished from the best: by hand, by simulation, and against tables of Student's t."""

import math
import random

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from stoker.analysis.student import student_probability, student_quantile
from stoker.analysis.ties import TieRules, spread, ties, ties_for_all
from tests.analysis.trial_rows import LAW, grids, picked, trials


def test_one_run_a_cell_leaves_ties_unknown() -> None:
    frame = trials(("a", 1, 1, 1.0), ("a", 2, 1, 1.0), ("a", 4, 1, 99.0), ("b", 1, 1, 1.0))
    found = ties(frame)
    assert picked(found, "workload", "batch_size", "tie", "threshold") == [
        ("a", 1, "best", None),
        ("a", 2, "unknown", None),
        ("a", 4, "unknown", None),
        ("b", 1, "best", None),
    ]
    assert picked(spread(frame), "spread", "freedom", "cells") == [(None, 0, 0)]


def test_the_spread_is_pooled_over_cells_and_logarithms() -> None:
    step = math.exp(0.1)
    frame = trials(("a", 1, 1, 1.0), ("a", 1, 1, step), ("b", 1, 1, 5.0), ("b", 1, 1, 5.0 * step**2), ("b", 2, 1, 7.0))
    # Two values apart by d have d²/2 around their mean, with one degree of freedom each.
    expected = math.sqrt((0.1**2 / 2 + 0.2**2 / 2) / 2)
    found = spread(frame).to_dicts()[0]
    assert found["spread"] == pytest.approx(expected)
    assert (found["freedom"], found["cells"]) == (2, 2)


def test_a_threshold_by_hand() -> None:
    frame = trials(
        ("a", 1, 1, 1.0), ("a", 1, 1, 1.02), ("a", 2, 1, 1.03), ("a", 2, 1, 1.05), ("a", 4, 1, 3.0), ("a", 4, 1, 3.3)
    )
    found = ties(frame).to_dicts()
    s = math.sqrt((math.log(1.02) ** 2 + math.log(1.05 / 1.03) ** 2 + math.log(1.1) ** 2) / 2 / 3)
    variance = math.pi / (math.pi + 2)  # of a median of two
    limit = math.exp(student_quantile(1 - 0.05 / 2, 3) * s * math.sqrt(2 * variance)) - 1
    assert [row["tie"] for row in found] == ["best", "tied", "slower"]
    assert found[1]["threshold"] == pytest.approx(limit)


def test_settings_for_all_models_compare_by_the_mean_of_logarithms() -> None:
    rows = [
        (model, size, 1, seconds * noise)
        for model, scale in (("a", 1.0), ("b", 50.0))
        for size, seconds in ((1, scale), (2, scale * 1.005), (4, scale * 1.5))
        for noise in (0.99, 1.0, 1.01)
    ]
    found = ties_for_all(trials(*rows, ("a", 8, 1, 0.1)))
    assert picked(found, "batch_size", "tie", "models") == [(1, "best", 2), (2, "tied", 2), (4, "slower", 2)]
    assert found["excess"].to_list() == pytest.approx([0.0, 0.005, 0.5])


def test_more_models_tell_smaller_differences() -> None:
    rows = [
        (f"m{number}", size, 1, seconds * noise)
        for number in range(9)
        for size, seconds in ((1, 1.0), (2, 1.02))
        for noise in (0.98, 1.0, 1.02)
    ]
    frame = trials(*rows)
    assert set(ties(frame)["tie"]) == {"best", "tied"}
    assert ties_for_all(frame)["tie"].to_list() == ["best", "slower"]


def test_the_true_best_is_among_the_tied_as_often_as_promised() -> None:
    rng = random.Random(1)
    rules = TieRules(confidence=0.9)
    rows = [
        (f"table{table}", size, repeat, (1.0 if size == 5 else 1.004) * math.exp(rng.gauss(0, 0.03)))
        for table in range(400)
        for size in range(1, 11)
        for repeat in range(3)
    ]
    # A table each: the model splits, so that the spread of each comes from its own thirty runs.
    found = ties(trials(*rows, columns="model batch_size repeat seconds"), by=["model"], rules=rules)
    held = found.filter(pl.col("batch_size") == 5)["tie"].is_in(["best", "tied"]).mean()
    assert isinstance(held, float)
    assert held >= 0.9


def test_a_large_difference_is_seen() -> None:
    rng = random.Random(2)
    rows = [("a", size, repeat, size * math.exp(rng.gauss(0, 0.02))) for size in (1, 2, 3) for repeat in range(3)]
    assert ties(trials(*rows, columns="model batch_size repeat seconds"))["tie"].to_list() == [
        "best",
        "slower",
        "slower",
    ]


@LAW
@given(grids())
def test_each_model_has_one_best_and_the_tied_are_the_nearest(frame: pl.DataFrame) -> None:
    found = ties(frame)
    for _, part in found.group_by("machine", "data", "workload"):
        assert part["tie"].to_list().count("best") == 1
        assert part["regret"].is_sorted()
        assert set(part["tie"]) - {"best"} <= ({"unknown"} if part["threshold"].null_count() else {"tied", "slower"})
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=3)
    assert_frame_equal(ties(shuffled), found)
    assert_frame_equal(ties_for_all(shuffled), ties_for_all(frame))


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.95, 3, 2.35336),
        (0.999, 5, 5.89343),
        (0.975, 10, 2.22814),
        (0.95, 30, 1.69726),
        (0.975, 1000, 1.96234),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(value, abs=5e-5)
    assert student_probability(value, freedom) == pytest.approx(probability, abs=1e-5)
    assert student_probability(0.0, freedom) == 0.5
