"""Runs of workloads that were given as DataLoaders: their setting, their batches, and what is said about them."""

from pathlib import Path

import msgspec
import pytest

import stoker
from stoker import Extent, Setting
from stoker.errors import InputError
from stoker.forecast.runner import ProbeRunner
from stoker.tuning.remedies import advise
from stoker.tuning.request import TuneRequest
from stoker.tuning.tuner import Tuner

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


def test_a_batch_that_the_model_cannot_take_names_the_two_ways_out() -> None:
    trial = stoker.profile(f"{HERE}:opaque_without_a_step", Setting(batch_size=6), FEW, device="cpu", mode="infer")
    assert trial.problem is not None
    assert trial.problem.remedy is not None
    assert "a batch of type Opaque; Workload(forward=...) or Workload(step=...)" in trial.problem.remedy
    with pytest.raises(InputError, match=r"type is Opaque.*Workload\(forward=...\) or Workload\(step=...\)"):
        stoker.limit(f"{HERE}:opaque_without_a_step", method="trace", gpu_memory="1GiB", mode="infer")


def test_tuning_compares_with_the_loaders_setting() -> None:
    plan = stoker.tune(f"{HERE}:from_loader", budget_s=4, max_batch=16, device="cpu")
    assert plan.current is not None
    assert (plan.current.setting.batch_size, plan.current.setting.num_workers) == (10, 1)
    assert any(note.startswith("current: the setting of the loader") for note in plan.notes)


def test_tuning_keeps_the_batch_of_the_loader_in_training() -> None:
    plan = stoker.tune(f"{HERE}:from_loader", budget_s=4, device="sleep:4ms", mode="train")
    assert plan.batch_size == 10
    assert {each.setting.batch_size for each in plan.candidates if each.asked_for} == {10}
    assert plan.current is not None
    assert any("the current batch of 10 is kept" in note for note in plan.notes)
    assert not any("nobody named a batch size" in note for note in plan.notes)


@pytest.mark.parametrize("asked", [None, Setting(batch_size=10, num_workers=1)])
def test_tuning_starts_workers_as_the_loader_does(asked: Setting | None) -> None:
    trial = run("from_loader")
    own = msgspec.structs.replace(trial.setting, multiprocessing_context="spawn")
    trial = msgspec.structs.replace(trial, workload=msgspec.structs.replace(trial.workload, current=own))
    runner = ProbeRunner(Setting(), 1.0, None, None)
    look = runner.first_look(4)
    next(look)
    with pytest.raises(StopIteration):
        look.send(trial)
    assert runner.job(4, 1, batches=2).setting.multiprocessing_context == "spawn"
    tuner = Tuner(TuneRequest(current=asked), ceiling=None, began=0.0, on_event=None)
    assert 10 in tuner._probe_sizes(trial.workload)
    assert tuner._request.is_current(msgspec.structs.replace(asked or own, multiprocessing_context="spawn"))
