"""The trials frame: what is required, what is filled in, what is refused, and what counts as one cell."""

import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from stoker.analysis import frames
from stoker.errors import InputError
from tests.analysis.trial_rows import LAW, grids, picked, trials


def test_a_frame_of_a_few_columns_becomes_a_whole_one() -> None:
    frame = frames.normalised(pl.DataFrame({"model": ["a", "a"], "batch_size": [8, 8], "seconds": [1, 2]}))
    assert frame["seconds"].dtype == pl.Float64
    assert picked(frame, "workload", "model", "machine", "repeat", "attempt", "outcome") == [
        ("a", "a", "unknown", 0, 0, "done"),
        ("a", "a", "unknown", 1, 0, "done"),
    ]


@LAW
@given(grids())
def test_a_normalised_frame_stays_as_it_is(frame: pl.DataFrame) -> None:
    once = frames.normalised(frame)
    assert_frame_equal(frames.normalised(once), once)


def test_without_outcomes_what_has_no_result_failed() -> None:
    frame = frames.normalised(pl.DataFrame({"model": ["a", "b"], "seconds": [1.0, None]}))
    assert frame["outcome"].to_list() == ["done", "failed"]


def test_seconds_of_a_trial_that_is_not_done_do_not_count() -> None:
    frame = pl.DataFrame({"model": ["a"], "seconds": [1.0], "outcome": ["timed_out"]})
    assert frames.normalised(frame)["seconds"].to_list() == [None]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"model": ["a"], "second": [1.0]}, "no column seconds; did you mean second"),
        ({"seconds": [1.0]}, "neither a column workload nor a column model"),
        ({"model": ["a", None], "seconds": [1.0, 2.0]}, "row 2 of the trials names no workload"),
        ({"model": ["a"], "seconds": ["quick"]}, "seconds must be a number, got 'quick' in row 1"),
        ({"model": ["a"], "seconds": [0.0]}, "seconds must be a finite number above 0, got 0 in row 1"),
        ({"model": ["a", "a"], "seconds": [1.0, -2.0]}, "seconds must be a finite number above 0, got -2 in row 2"),
        ({"model": ["a"], "seconds": [float("nan")]}, "got nan in row 1"),
        ({"model": ["a"], "seconds": [1.0], "predicted_s": [float("inf")]}, "predicted_s must be a finite number"),
        ({"model": ["a"], "seconds": [1.0], "batch_size": ["x"]}, "batch_size must be a whole number, got 'x'"),
        ({"model": ["a"], "seconds": [1.0], "batch_size": [1.5]}, "batch_size must be a whole number, got 1.5"),
        ({"model": ["a"], "seconds": [1.0], "outcome": ["fine"]}, "outcome must be one of done, oom, .* got 'fine'"),
        ({"model": ["a"], "seconds": [1.0], "outcome": [None]}, "outcome must be one of .* got None in row 1"),
    ],
)
def test_what_cannot_be_analysed_is_refused_in_a_sentence(columns: dict[str, list[object]], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        frames.normalised(pl.DataFrame(columns))


def test_something_else_than_a_frame_is_refused() -> None:
    with pytest.raises(InputError, match="must be a polars DataFrame, got list"):
        frames.normalised([{"seconds": 1.0}])  # type: ignore[arg-type]


def test_setting_is_what_varies_and_the_rest_splits() -> None:
    frame = trials(
        ("a", 8, 2, True, "fp32", 1.0), ("a", 8, 2, False, "fp32", 2.0),
        columns="model batch_size num_workers pin_memory precision seconds", data="jpeg", device=None, items=64,
    )  # fmt: skip
    roles = frames.roles_of(frames.normalised(frame))
    assert roles.setting == ("batch_size", "num_workers", "pin_memory")
    assert roles.split == ("machine", "data", "items")
    assert roles.cell == ["machine", "data", "items", "workload", "batch_size", "num_workers", "pin_memory"]


def test_a_table_can_be_split_by_more_columns() -> None:
    frame = trials(("a", 8, 1, 1.0), ("a", 8, 2, 2.0))
    assert frames.cells(frame, by=["num_workers"]).roles.setting == ("batch_size",)
    with pytest.raises(InputError, match="no column num_worker; did you mean num_workers"):
        frames.cells(frame, by=["num_worker"])


def test_a_cell_has_the_median_of_its_repeats_and_none_if_one_failed() -> None:
    frame = trials(
        ("a", 8, 1, 9.0), ("a", 8, 1, 1.0), ("a", 8, 1, 2.0),
        ("a", 8, 2, 1.0), ("a", 8, 2, "oom"), ("a", 8, 2, "crashed"), ("a", 8, 2, "oom"),
    )  # fmt: skip
    rows = frames.cells(frame).rows
    assert picked(rows, "num_workers", "repeats", "failed", "outcome", "seconds") == [
        (1, 3, 0, "done", 2.0),
        (2, 4, 3, "oom", None),
    ]


def test_a_setting_that_only_another_workload_has_is_missing() -> None:
    frame = trials(("a", 8, 1, 1.0), ("b", 8, 1, 2.0), ("b", 8, 2, 3.0))
    rows = frames.cells(frame).rows
    assert picked(rows, "workload", "num_workers", "repeats", "outcome", "seconds") == [
        ("a", 1, 1, "done", 1.0),
        ("a", 2, 0, "missing", None),
        ("b", 1, 1, "done", 2.0),
        ("b", 2, 1, "done", 3.0),
    ]


def test_settings_of_one_kind_of_data_are_not_missing_from_another() -> None:
    frame = trials(("jpeg", "a", 8, 1.0), ("tensors", "a", 16, 2.0), columns="data model batch_size seconds")
    assert frames.cells(frame).rows["outcome"].to_list() == ["done", "done"]


def test_an_unset_axis_is_a_value_of_its_own() -> None:
    frame = trials(("a", 8, None, 1.0), ("a", 8, True, 2.0), columns="model batch_size pin_memory seconds")
    rows = frames.cells(frame).rows
    assert sorted(picked(rows, "pin_memory", "seconds"), key=lambda row: row[1]) == [(None, 1.0), (True, 2.0)]


def test_the_last_attempt_at_a_repeat_counts_and_earlier_ones_are_counted() -> None:
    frame = trials(
        ("a", 8, 0, 0, "crashed"), ("a", 8, 0, 1, 2.0), ("a", 8, 1, 0, 4.0),
        columns="model batch_size repeat attempt seconds", machine="A",
    )  # fmt: skip
    assert picked(frames.cells(frame).rows, "repeats", "outcome", "seconds") == [(2, "done", 3.0)]
    assert frames.outcomes(frame).to_dicts() == [
        {"machine": "A", "outcome": "crashed", "trials": 0, "superseded": 1},
        {"machine": "A", "outcome": "done", "trials": 2, "superseded": 0},
    ]


def test_two_trials_of_one_attempt_are_refused() -> None:
    frame = trials(("a", 8, 0, 1.0), ("a", 8, 0, 2.0), columns="model batch_size repeat seconds")
    with pytest.raises(InputError, match=r"two trials have the same task, repeat 0 and attempt 0: .*batch_size=8"):
        frames.cells(frame)


def test_tasks_that_differ_in_an_unknown_axis_are_no_repeats() -> None:
    columns = "model batch_size task_key noise seconds"
    frame = trials(("a", 8, "k1", "low", 1.0), ("a", 8, "k2", "high", 2.0), columns=columns)
    with pytest.raises(InputError, match=r"2 different tasks have the same cell .*batch_size=8"):
        frames.cells(frame)
    assert frames.cells(frame, by=["noise"]).rows.height == 2


def test_machines_never_meet() -> None:
    frame = trials(("A", "a", 8, 1.0), ("B", "a", 8, 3.0), columns="machine model batch_size seconds")
    assert picked(frames.cells(frame).rows, "machine", "seconds") == [("A", 1.0), ("B", 3.0)]


def test_stages_are_distinguished_from_other_columns_that_end_alike() -> None:
    columns = "model seconds decode_s wait_s first_batch_s items_per_s reference_s sleep_s note_s"
    frame = trials(("a", 1.0, 0.5, 0.1, 0.2, 9.0, 0.3, 2, "text"), columns=columns)
    assert frames.stage_columns(frame) == ["wait_s", "decode_s"]


def test_an_empty_frame_has_no_cells() -> None:
    frame = trials(("a", 8, 1.0), columns="model batch_size seconds").clear()
    assert frames.cells(frame).rows.height == 0


@pytest.mark.parametrize(
    "code", ["import stoker", "import stoker.cli.main; stoker.cli.main.app(['--help'], standalone_mode=False)"]
)
def test_polars_is_loaded_only_by_analyses(code: str) -> None:
    check = f"import sys\n{code}\nassert 'polars' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
