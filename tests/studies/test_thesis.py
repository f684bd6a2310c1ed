"""The thesis' presets from the grid to the page, with an executor that answers at once."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.errors import MachineError
from stoker.events import OnEvent
from stoker.integrations.reports import study_page
from stoker.records import Task
from stoker.report.html import render
from stoker.studies.executors import Finished
from stoker.studies.presets import preset_names
from stoker.studies.study import Study, study
from tests.commands import here
from tests.studies.quick import QuickExecutor

PRESETS = [name for name in preset_names() if name.startswith("thesis-")]


class Answers(QuickExecutor):
    """Made-up figures of every kind of task."""

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        done = super().run(task, timeout_s=timeout_s, on_event=on_event)
        figures: dict[str, Any] = {**done.figures, "model": task.device}  # as of a device that sleeps
        if task.kind == "profile":
            figures |= {"forward_s": 0.5, "steady_item_s": 0.001, "later_epoch_s": 1.0, "first_epoch_s": 1.5}
            figures |= {"shortest_epoch_s": 0.9, "longest_epoch_s": 1.1}
        else:
            others: dict[str, dict[str, Any]] = {
                "limit": {"max_batch": 70, "seconds": None},
                "tune": {"batch_size": 48, "num_workers": 2},
                "converge": LEARNED,
            }
            figures |= others[task.kind]
        return msgspec.structs.replace(done, figures=figures, document=None)


LEARNED = {
    "finding": "batch 64 loses 3 ± 1 points against batch 16",
    "metric_before": 0.1,
    "metric": 0.9,
    "against_metric_before": 0.1,
    "against_metric": 0.87,
    "validation_loss": 0.3,
    "against_validation_loss": 0.4,
    "train_s": 10.0,
    "against_train_s": 8.0,
    "learned": True,
    "against_learned": True,
    "metric_difference": -3.0,
    "metric_margin": 1.0,
    "metric_scale": 100,
}


def finished(name: str, folder: Path) -> Study:
    found = study(name, db=folder / "stoker.db", scale="small")
    summary = found.run(executor=Answers())
    assert summary.unfinished == 0
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_shown_beside_the_thesis(name: str, tmp_path: Path) -> None:
    found = finished(name, tmp_path)
    rows = found.table("published").to_dicts()
    assert any(row["here"] is not None for row in rows)
    assert any(row["thesis"] is not None for row in rows)
    page = render(study_page(found))
    assert "Beside the thesis" in page
    assert "The University of Texas at Austin, May 2019" in page
    shown = here("study", "show", found.name, "--db", str(found.store_path))
    assert shown.returncode == 0, shown.stderr
    assert "beside the thesis" in shown.stdout


def test_a_study_for_a_gpu_is_refused_without_one(tmp_path: Path) -> None:
    executor = Answers()
    if executor.machines()[0].gpus:
        pytest.skip("there is a GPU here")
    found = study("thesis-limit", db=tmp_path / "stoker.db")
    with pytest.raises(MachineError, match="needs a GPU, and there is none here; --scale small needs none"):
        found.run(executor=executor)
    assert executor.ran == []
    assert not found.store_path.exists(), "no failures to retry"


def test_models_keep_their_names_where_a_device_stands_in_for_them(tmp_path: Path) -> None:
    rows = {row["what"]: row for row in finished("thesis-search-time", tmp_path).table("published").to_dicts()}
    for model in ("resnet34", "densenet201", "alexnet"):
        assert rows[f"{model}, doubling: batch"]["here"] == "64", "the largest power of two up to 70"
        assert rows[f"{model}, doubling: time"]["here"] is not None
        assert rows[f"{model}, two-point: time"]["here"] == "6 s", "two runs of 3 s"


def test_what_learned_is_said_first(tmp_path: Path) -> None:
    found = finished("thesis-convergence", tmp_path)
    shown = here("study", "show", found.name, "--db", str(found.store_path)).stdout
    assert "batch 64 loses 3 ± 1 points" in " ".join(shown.split())
    rows = found.table("convergence").to_dicts()
    assert [(row["batch_size"], row["metric"]) for row in rows[:2]] == [(16, 0.9), (64, 0.87)]


@pytest.mark.slow
def test_the_small_convergence_study_learns(tmp_path: Path) -> None:
    found = study("thesis-convergence", db=tmp_path / "stoker.db", scale="small")
    found.run()
    rows = found.table("convergence").to_dicts()
    assert len(rows) == 4
    for row in rows:
        assert row["learned"]
        assert row["metric_before"] < 0.2, "ten classes: chance is 0.1"
        assert row["metric"] > 2 * 0.1
    assert {row["outcome"] for row in rows} == {"done"}
