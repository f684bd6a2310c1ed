"""The frame of a study's trials: columns, types, attempts, and devices that stand in for models."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from stoker.analysis.times import stage_shares
from stoker.records import Trial
from stoker.studies.figures import figures_of
from stoker.studies.frame import trials_frame
from stoker.studies.store import TrialRow

CELL = {"workload": "resnet18", "batch_size": 8, "pin_memory": True}


def trial(key: str = "k", **changes: Any) -> TrialRow:
    return TrialRow(
        **{"key": key, "repeat": 0, "machine": "m", "outcome": "done", "figures": {"seconds": 1.0}, **changes}
    )


def frame(cells: dict[str, dict[str, Any]], *rows: TrialRow) -> pl.DataFrame:
    return trials_frame("night", "profile", cells, rows, {"m": "this one"})


def test_the_last_attempt_counts_and_the_others_are_counted() -> None:
    found = frame({"k": CELL}, trial(attempt=1, figures={"seconds": 2.0}), trial(attempt=0, outcome="oom", figures={}))
    assert found.select("attempt", "attempts", "outcome", "seconds").rows() == [(1, 2, "done", 2.0)]
    assert found["machine_label"].to_list() == ["this one"]


def test_the_grids_values_stand_and_not_what_the_run_made_of_them() -> None:
    found = frame({"k": CELL}, trial(figures={"seconds": 1.0, "pin_memory": False, "data": "jpeg"}))
    assert found["pin_memory"].to_list() == [True]
    assert found["data"].to_list() == ["jpeg"]


def test_identity_comes_first_then_axes_then_figures() -> None:
    columns = frame({"k": CELL}, trial(problem="late")).columns
    assert columns[:3] == ["study", "kind", "task_key"]
    assert columns.index("outcome") < columns.index("workload") < columns.index("seconds") < columns.index("problem")


def test_a_column_of_numbers_and_texts_is_text() -> None:
    cells: dict[str, dict[str, Any]] = {
        "a": {"workload": "x", "gpu_memory": "16GiB"},
        "b": {"workload": "x", "gpu_memory": 8_000_000_000},
    }
    found = frame(cells, trial("a"), trial("b", figures={"seconds": 2}))
    assert sorted(found["gpu_memory"].to_list()) == ["16GiB", "8000000000"]
    assert found["seconds"].dtype == pl.Float64


def test_a_device_that_sleeps_is_the_workload_it_stands_in_for() -> None:
    cells: dict[str, dict[str, Any]] = {name: {"workload": "resnet18", "device": f"sleep:{name}ms"} for name in "12"}
    found = frame(cells, trial("1"), trial("2"))
    assert found.select("workload", "device").rows() == [("sleep:1ms", "sleep"), ("sleep:2ms", "sleep")]
    cells["3"] = {"workload": "vit_b_16", "device": "sleep:1ms"}
    found = frame(cells, trial("1"), trial("3"))
    assert sorted(found["workload"]) == ["resnet18 sleep:1ms", "vit_b_16 sleep:1ms"]
    assert frame({"k": {**CELL, "device": "cpu"}}, trial())["workload"].to_list() == ["resnet18"]


def test_only_stages_of_the_runs_are_stages() -> None:
    """Other columns end in `_s`, too: of the child process, of a reference job, of a tune."""
    packed = gzip.decompress((Path(__file__).parents[1] / "answers" / "trials.jsonl.gz").read_bytes())
    runs = [msgspec.json.decode(line, type=Trial) for line in packed.splitlines()[:6]]
    cells = {str(number): {**CELL, "num_workers": number} for number in range(len(runs))}
    found = frame(
        cells, *(trial(key, figures=figures_of(run), wall_s=9.0) for key, run in zip(cells, runs, strict=True))
    )
    stages = {name for run in runs for name in run.stages if "." not in name}
    assert stages >= {"wait", "forward"}
    assert set(stage_shares(found)["stage"]) - {"other"} == stages - {"other"}
    tuned = found.with_columns(tuning_s=pl.lit(7.0))
    assert stage_shares(tuned).equals(stage_shares(found))


def test_no_trials_are_a_frame_with_columns() -> None:
    assert frame({"k": CELL}).height == 0
    assert "workload" in frame({}).columns
