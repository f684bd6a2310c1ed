"""The published figures: our analyses of the authors' grid give every figure that the authors print."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stoker.analysis import published
from stoker.analysis.frames import cells
from stoker.analysis.regret import best, largest_batch, leave_one_out, one_for_all, regret, top_counts
from stoker.analysis.ties import ties
from stoker.analysis.times import stage_shares
from tests.analysis.trial_rows import picked

PRINTED: dict[str, Any] = json.loads((Path(__file__).parent / "printed.json").read_text(encoding="utf-8"))
KINDS = ("jpeg", "tensors")


@pytest.mark.parametrize("data", KINDS)
def test_all_average_regrets_are_those_printed(data: str) -> None:
    found = regret(published.grid()).filter(data=data)
    ours = {
        (batch, workers): value for batch, workers, value in picked(found, "batch_size", "num_workers", "regret_mean")
    }
    printed = {(batch, workers): value for batch, workers, value in PRINTED[data]["average_regret"]}
    assert len(ours) == len(printed) == 45
    assert ours == pytest.approx(printed, rel=0, abs=1e-6)
    assert found["missing"].sum() == 0


@pytest.mark.parametrize("data", KINDS)
def test_the_counts_of_the_three_fastest_are_those_printed(data: str) -> None:
    found = top_counts(published.grid(), 3).filter(data=data)
    ours = [list(row) for row in picked(found, "batch_size", "num_workers", "count")]
    assert sorted(ours) == sorted(PRINTED[data]["top3_count"])
    counts = [count for *_, count in PRINTED[data]["top3_count"]]
    assert [row[2] for row in ours] == counts


def test_the_package_has_the_printed_regrets() -> None:
    shipped = picked(published.average_regrets(), "data", "batch_size", "num_workers", "regret_mean")
    assert shipped == [(data, *row) for data in KINDS for row in PRINTED[data]["average_regret"]]


def test_the_authors_settings_are_the_best_for_all() -> None:
    rows = picked(one_for_all(published.grid()), "data", "batch_size", "num_workers", "models", "missing")
    assert rows == [("jpeg", 128, 12, 12, 0), ("tensors", 256, 2, 12, 0)]


def test_leaving_any_model_out_gives_the_same_settings() -> None:
    rows = set(picked(leave_one_out(published.grid()), "data", "batch_size", "num_workers"))
    assert rows == {("jpeg", 128, 12), ("tensors", 256, 2)}


def test_the_grid_is_whole_and_run_once() -> None:
    table = cells(published.grid())
    assert table.rows.height == 1080
    assert set(table.rows["outcome"]) == {"done"}
    assert set(table.rows["repeats"]) == {1}
    assert table.roles.setting == ("batch_size", "num_workers")
    assert set(ties(published.grid())["tie"]) == {"best", "unknown"}
    assert best(published.grid()).height == 24


def test_stages_add_up_to_the_printed_totals() -> None:
    frame = published.stage_times()
    assert frame.height == 336
    sums = frame.group_by("data", "model", "part", "items").agg(pl.col("seconds").sum(), pl.col("total_s").first())
    assert sums.height == 84
    assert (sums["seconds"] - sums["total_s"]).abs().max() < 1e-4  # type: ignore[operator]
    trials = published.stage_trials()
    assert trials.height == 84
    stages = stage_shares(trials)
    assert set(stages["clock"]) == {"loop"}
    assert set(stages.filter(pl.col("share") > 1e-4)["stage"]) == {"prepare_model", "prepare_data", "forward", "score"}
    assert stages["stage_s"].sum() == pytest.approx(frame["seconds"].sum(), rel=1e-4)


def test_inference_times_have_every_model_at_five_sizes() -> None:
    frame = published.inference_times()
    assert frame.group_by("model").len()["len"].to_list() == [5] * 12
    assert dict(frame.unique("model").group_by("family").len().iter_rows()) == {"cnn": 8, "transformer": 4}


def test_batch_impact_has_stages_that_add_up_to_the_run_within_a_second() -> None:
    frame = published.batch_impact()
    assert frame.height == 48
    rest = (frame["wait_s"] + frame["copy_s"] + frame["forward_s"] - frame["seconds"]).abs()
    assert rest.max() < 1  # type: ignore[operator]
    assert set(stage_shares(frame)["stage"]) == {"wait", "copy", "forward", "other"}
    medians = published.batch_medians()
    assert medians.height == 48
    whole = medians.filter(pl.col("batch_size") == 32)
    assert set(whole["batches"]) == {-(-published.IMPACT_ITEMS // 32)}
    batches = published.batch_trials()
    assert (
        batches.select("model", "batch_size", "wait_s").rows() == medians.select("model", "batch_size", "wait_s").rows()
    )
    assert (batches["seconds"] > batches["forward_s"]).all()


def test_the_loader_alone_has_both_kinds_of_data_at_every_setting() -> None:
    frame = published.loader_runs()
    assert frame.group_by("data").len().sort("data").rows() == [("jpeg", 35), ("tensors", 35)]
    assert frame.select("batch_size", "num_workers").n_unique() == 35
    assert (frame["first_batch_s"] < frame["seconds"]).all()
    short = frame.filter(pl.col("run_items") < pl.col("batch_size") * published.LOADER_BATCHES)
    assert set(short["batch_size"]) == {1024}
    assert set(short["run_items"]) == {9469}


def test_the_largest_batch_for_all_models() -> None:
    frame = published.max_batches()
    assert picked(largest_batch(frame), "all_models", "most_models", "models", "missing") == [(1024, 1024, 12, 0)]
    assert frame.filter(~pl.col("next_tried")).height == 4


@pytest.mark.parametrize(
    "name",
    [
        "average-regrets",
        "batch-and-workers",
        "batch-impact",
        "data-loading",
        "inference-times",
        "max-batch",
        "stage-times",
    ],
)
def test_every_file_names_its_source(name: str) -> None:
    from importlib.resources import files

    text = (files("stoker") / "data" / "published" / f"{name}.csv").read_text(encoding="utf-8")
    assert "# Source: github.com/hpides/alsatian, commit " in text
    assert "Machine: RTX A5000" in text
