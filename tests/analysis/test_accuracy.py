"""Predicted against measured, from tables computed by hand."""

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from stoker.analysis.accuracy import predicted_choice, prediction_accuracy, prediction_errors
from stoker.analysis.regret import regret
from stoker.errors import InputError
from tests.analysis.trial_rows import LAW, grids, picked, trials

COLUMNS = "model batch_size seconds predicted_s"
TABLE = trials(
    ("a", 1, 10.0, 11.0), ("a", 2, 8.0, 12.0), ("a", 4, 20.0, 19.0), ("a", 8, "oom", 9.0),
    ("b", 1, 5.0, 5.0), ("b", 2, 10.0, 4.0), ("b", 4, 6.0, None),
    columns=COLUMNS,
)  # fmt: skip


def test_errors_by_hand() -> None:
    rows = picked(prediction_errors(TABLE), "workload", "batch_size", "outcome", "error")
    assert [row[:3] for row in rows] == [
        ("a", 1, "done"),
        ("a", 2, "done"),
        ("a", 4, "done"),
        ("a", 8, "oom"),
        ("b", 1, "done"),
        ("b", 2, "done"),
    ]
    assert [row[3] for row in rows[:3]] == pytest.approx([0.1, 0.5, -0.05])
    assert rows[3][3] is None


def test_accuracy_by_hand() -> None:
    found = prediction_accuracy(TABLE).to_dicts()[0]
    assert (found["cells"], found["unmeasured"], found["unpredicted"]) == (5, 1, 1)
    assert found["error_median"] == pytest.approx(0.1)  # of 0, 0.05, 0.1, 0.5, 0.6
    assert found["error_p90"] == pytest.approx(0.56)
    assert found["error_worst"] == pytest.approx(0.6)
    assert found["bias"] == pytest.approx(0.0)


def test_choosing_by_prediction_by_hand() -> None:
    # a: 8 (failed), 1 (+25 %), 2 (best). b: 2 (+100 %), 1 (best).
    rows = [
        picked(predicted_choice(TABLE, n), "regret_mean", "regret_worst", "models", "missing")[0] for n in (1, 2, 3)
    ]
    assert rows == [(1.0, 1.0, 1, 1), (0.125, 0.25, 2, 0), (0.0, 0.0, 2, 0)]


def test_without_predictions_nothing_is_made_up() -> None:
    with pytest.raises(InputError, match="no column predicted_s"):
        prediction_errors(trials(("a", 1, 1.0), columns="model batch_size seconds"))
    with pytest.raises(InputError, match="at least 1, got 0"):
        predicted_choice(TABLE, 0)


@LAW
@given(grids())
def test_running_more_settings_never_costs_and_all_of_them_cost_nothing(frame: pl.DataFrame) -> None:
    worst = [predicted_choice(frame, n)["regret_worst"].max() for n in (1, 2, 100)]
    assert worst[2] in (0, None)
    for n in (1, 2):
        each = {n: predicted_choice(frame, n)["models"].sum() for n in (n, n + 1)}
        assert each[n] <= each[n + 1]
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=7)
    assert_frame_equal(predicted_choice(shuffled, 2), predicted_choice(frame, 2))
    assert_frame_equal(prediction_accuracy(shuffled), prediction_accuracy(frame))


@LAW
@given(grids())
def test_perfect_predictions_have_no_error_and_choose_without_regret(frame: pl.DataFrame) -> None:
    done = frame.filter(pl.col("seconds").is_not_null()).with_columns(predicted_s=pl.col("seconds"))
    if done.height and done.group_by("machine", "data", "model", "batch_size", "num_workers").len()["len"].max() == 1:
        assert prediction_accuracy(done)["error_worst"].max() == 0
        assert predicted_choice(done, 1)["regret_worst"].max() == 0
        assert regret(done).height
