"""Runs of workloads that were given as DataLoaders: their setting, their batches, and what is said about them."""

from pathlib import Path

import pytest

import stoker
from stoker import Extent, Setting
from stoker.tuning.remedies import advise

HERE = Path(__file__).parents[1] / "workloads" / "loaders.py"
FEW = Extent(batches=4, warmup=1)


def run(name: str, setting: Setting | None = None) -> stoker.Trial:
    trial = stoker.profile(f"{HERE}:{name}", setting, FEW, device="cpu")
    assert trial.outcome == "done", trial.problem
    return trial


def test_without_a_setting_the_loaders_own_is_run() -> None:
    trial = run("from_loader")
    assert trial.timeline.items == (10,) * 5
    assert (trial.setting.num_workers, trial.setting.prefetch_factor) == (1, 3)
    assert trial.workload.current == trial.setting
    assert (trial.workload.mode, trial.workload.mode_reason) == ("train", "it has a loss")


def test_a_setting_wins_over_the_loaders() -> None:
    assert run("from_loader", Setting(batch_size=6)).timeline.items == (6,) * 5


def test_a_dataset_that_gives_whole_batches_is_not_batched_again() -> None:
    trial = run("whole_batches")
    assert trial.timeline.items == (16,) * 5
    assert trial.workload.batching == "dataset"
    assert any(note.startswith("items are duplicated: Whole") for note in trial.notes)
    assert trial.workload.repeats


@pytest.mark.parametrize("batch_size", [5, 8])
def test_a_batch_sampler_is_made_for_the_size(batch_size: int) -> None:
    trial = run("sampler_of_a_size", Setting(batch_size=batch_size))
    assert trial.timeline.items == (batch_size,) * 5
    assert not trial.workload.batch_sampler, "the size can be chosen"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("whole_batches", "batches of 16 by the dataset, 2 workers"),
        ("sampler_of_a_size", "batch 8, 0 workers"),
        ("sampler_that_passes_over_the_size", "batches of 5 by its batch_sampler for 8, 0 workers"),
    ],
)
def test_the_table_shows_the_batches_that_ran(name: str, shown: str) -> None:
    workers = 2 if "2 workers" in shown else 0
    trial = run(name, Setting(batch_size=8, num_workers=workers))
    assert shown in str(trial)
    other = run(name, Setting(batch_size=40, num_workers=workers))
    follows = name == "sampler_of_a_size"
    changes = [remedy.changes for remedy in advise(trial, other) if "batch_size" in remedy.changes]
    assert bool(changes) <= follows, "a size that is not used is no remedy"


def test_batches_that_do_not_say_their_size_are_counted_by_the_loader() -> None:
    trial = run("opaque_batches", Setting(batch_size=6))
    assert trial.timeline.items == (6,) * 5
    assert trial.workload.mode_reason == "its step calls backward"
    assert "a batch of type Opaque does not say how many items it holds: counted as 6" in trial.notes


def test_tuning_compares_with_the_loaders_setting() -> None:
    plan = stoker.tune(f"{HERE}:from_loader", budget_s=4, max_batch=16, device="cpu")
    assert plan.current is not None
    assert (plan.current.setting.batch_size, plan.current.setting.num_workers) == (10, 1)
    assert any(note.startswith("current: the setting of the loader") for note in plan.notes)
