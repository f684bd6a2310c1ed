"""The stages of a search's runs: medians of repeats, which stage dominates, the published figures beside."""

from typing import Any

import polars as pl
import pytest

from stoker.analysis import published
from stoker.analysis.breakdown import base_case, beside, breakdown, candidate_rows, dominant, most_spent
from stoker.errors import InputError
from stoker.records import CandidateStages, CandidateTrial


def run(model: str, items: int, stages: tuple[float, float, float, float], **more: Any) -> dict[str, Any]:
    """A trial whose four stages take so long."""
    names = ("prepare_model_s", "prepare_data_s", "forward_s", "score_s")
    fixed = {"model": model, "data": "tensors", "part": "full", "items": items, "batch_size": 128, "classes": 100}
    return {**fixed, **dict(zip(names, stages, strict=True)), "seconds": sum(stages), **more}


def test_a_stage_has_the_median_the_least_and_the_most_of_its_repeats() -> None:
    trials = [run("net", 96, (build_s, 1.0, 2.0, 0.0), repeat=place) for place, build_s in enumerate((1.0, 7.0, 3.0))]
    rows = breakdown(pl.DataFrame(trials)).to_dicts()
    assert [row["stage"] for row in rows] == ["prepare_model", "prepare_data", "forward", "score"]
    first = rows[0]
    assert (first["stage_s"], first["low_s"], first["high_s"], first["repeats"]) == (3.0, 1.0, 7.0, 3)
    assert [row["share"] for row in rows] == pytest.approx([0.5, 1 / 6, 1 / 3, 0.0])


def test_a_failed_run_counts_for_nothing() -> None:
    failed = run("net", 96, (90.0, 1.0, 1.0, 1.0), repeat=1, outcome="failed", seconds=None)
    rows = breakdown(pl.DataFrame([{**run("net", 96, (1.0, 1.0, 1.0, 1.0), repeat=0), "outcome": "done"}, failed]))
    assert rows["high_s"].max() == 1.0


def test_the_published_preparation_dominates_short_searches_and_inference_long_ones() -> None:
    said = {each.items: each for each in dominant(published.stage_trials())}
    assert (said[96].stage, said[96].models, said[96].of) == ("prepare_model", 4, 4)
    assert (said[9216].stage, said[9216].models, said[9216].of) == ("forward", 4, 4)
    vit = breakdown(published.stage_trials()).filter(
        (pl.col("workload") == "vit_l_32") & (pl.col("items") == 96) & (pl.col("data") == "tensors")
    )
    full = vit.filter((pl.col("part") == "full") & (pl.col("stage") == "prepare_model"))
    assert full["share"][0] > 0.87
    assert (
        said[96].sentence == "at 96 items preparing the model takes the most time in 4 of 4 models, 71% at the median"
    )


def test_what_is_varied_one_at_a_time_is_no_part_of_the_base_case() -> None:
    base = [run(model, 96, (1.0, 1.0, 9.0, 1.0)) for model in ("a", "b", "c")]
    varied = [run("a", 96, (50.0, 1.0, 1.0, 1.0), batch_size=512), run("a", 96, (50.0, 1.0, 1.0, 1.0), classes=2)]
    frame = pl.DataFrame([*base, *varied])
    assert base_case(frame).height == 3
    assert base_case(frame, but=("classes",)).height == 4
    assert dominant(frame)[0].stage == "forward"
    assert beside(frame, frame).filter(pl.col("stage") == "prepare_model")["ours_s"].max() == 1.0


def test_only_runs_that_both_have_stand_beside_each_other() -> None:
    ours = pl.DataFrame([run("resnet18", 96, (1.0, 2.0, 3.0, 4.0)), run("mine", 96, (1.0, 2.0, 3.0, 4.0))])
    both = beside(ours, published.stage_trials())
    assert both["workload"].unique().to_list() == ["resnet18"]
    first = both.filter(pl.col("stage") == "prepare_model").row(0, named=True)
    assert (first["ours_s"], first["theirs_s"]) == (1.0, 0.235889)
    assert not beside(ours.with_columns(pl.lit("x").alias("model")), published.stage_trials()).height
    assert not beside(ours.drop("items"), published.stage_trials()).height


def test_trials_without_stages_are_refused() -> None:
    with pytest.raises(InputError, match="needs columns of its stages"):
        breakdown(pl.DataFrame([{"model": "net", "seconds": 1.0}]))


def test_what_a_candidate_spent_adds_up_to_its_time() -> None:
    stages = CandidateStages(build_s=1.0, load_s=(1.0, 1.0), infer_s=(3.0, 3.0), score_s={"logme": 0.5})
    done = CandidateTrial(model="a", outcome="done", stages=stages, total_s=10.0)
    failed = CandidateTrial(model="b", outcome="failed")
    rows = candidate_rows([done, failed])
    assert {row["stage"]: row["seconds"] for row in rows} == {
        "prepare": 1.0,
        "load data": 2.0,
        "inference": 6.0,
        "score": 0.5,
        "other": 0.5,
    }
    spent = most_spent([done, failed])
    assert spent is not None
    assert spent[0] == "inference"
    assert spent[1] == pytest.approx(0.6)
    assert most_spent([failed]) is None
