"""Arguments that are set from outside, and when observing ends."""

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.integrations.logs import RunLog
from stoker.integrations.trials import Surroundings, trials_of
from stoker.machine import inspect
from stoker.tuning.proposals import propose
from stoker.tuning.remedies import predictor_of
from tests.integrations import running

PLAIN = running.script("plain.py")


def _training(done: running.Done) -> Any:
    assert done.status == 0, done.errors
    (process,) = done.log.processes
    return process.training


def test_arguments_are_set_on_the_loader_that_shuffles(tmp_path: Path) -> None:
    overrides = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "batch_size": 8}
    done = running.observed(tmp_path / "logs", PLAIN, "2", options={"overrides": overrides})
    training = _training(done)
    assert {name: training.arguments[name] for name in overrides} == overrides
    assert training.overridden == {
        "num_workers": (0, 2),
        "prefetch_factor": (None, 3),
        "persistent_workers": (False, True),
        "batch_size": (4, 8),
    }
    assert training.batch_size == 8
    assert len(training.steps) == 2 * 5
    assert {len(each.workers) for each in training.iterations} == {2}
    assert training.iterations[0].workers == training.iterations[1].workers
    (valid,) = (each for each in done.log.processes[0].loaders if not each.trains)
    assert (valid.overridden, valid.arguments["num_workers"]) == ({}, 0)


def test_without_a_loader_that_shuffles_the_first_one_read_with_gradients_is_meant(tmp_path: Path) -> None:
    overrides = {"num_workers": 1, "persistent_workers": True}
    done = running.observed(tmp_path / "logs", PLAIN, "1", "noshuffle", options={"overrides": overrides})
    training = _training(done)
    changed = {"num_workers": (0, 1), "prefetch_factor": (None, 2), "persistent_workers": (False, True)}
    assert training.overridden == changed
    assert training.arguments["num_workers"] == 1
    assert {len(each.workers) for each in training.iterations} == {1}


def test_a_place_says_which_loader_is_meant(tmp_path: Path) -> None:
    line = next(n for n, text in enumerate(Path(PLAIN).read_text().splitlines(), 1) if text.startswith("    valid ="))
    options = {"overrides": {"batch_size": 20, "num_workers": 0}, "sites": [f"{PLAIN}:{line}"]}
    done = running.observed(tmp_path / "logs", PLAIN, "1", options=options)
    (process,) = done.log.processes
    train, valid = sorted(process.loaders, key=lambda each: not each.trains)
    assert (train.overridden, valid.overridden) == ({}, {"batch_size": (8, 20)})
    assert valid.site[0] == (PLAIN, line, "loaders")
    assert valid.site[1][2] == "main"


def test_the_same_batches_come_with_other_workers(tmp_path: Path) -> None:
    before = running.bare(PLAIN, "2")
    after = running.observed(tmp_path / "logs", PLAIN, "2", options={"overrides": {"num_workers": 2}})
    assert after.out == before.out


def test_after_so_many_batches_the_script_goes_on_unobserved(tmp_path: Path) -> None:
    done = running.observed(tmp_path / "logs", PLAIN, "3", options={"batches": 12})
    training = _training(done)
    assert done.log.processes[0].ended == "batches"
    assert len(training.steps) == 12
    assert all(step.step_s is not None and step.updates == 1 for step in training.steps)
    assert done.out == running.bare(PLAIN, "3").out


def test_a_stop_ends_the_script_with_status_0(tmp_path: Path) -> None:
    done = running.observed(tmp_path / "logs", PLAIN, "3", options={"batches": 12, "stop": True})
    assert (done.status, done.errors) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines()] == ["valid", "epoch"]
    assert len(_training(done).steps) == 12


def test_validation_inside_a_step_is_not_part_of_it(tmp_path: Path) -> None:
    done = running.observed(tmp_path / "logs", PLAIN, "2")
    (process,) = done.log.processes
    valid, train = sorted(process.loaders, key=lambda each: each.trains)
    assert [len(each.steps) for each in (valid, train)] == [1 + 2 * 5, 20]
    nested = [step.nested_s > 0 for step in train.steps]
    assert nested == [number == 4 for number in range(10)] * 2
    spans = {each.number: each for each in valid.iterations}
    for step, inner in zip((train.steps[4], train.steps[14]), (1, 3), strict=True):
        iteration = sorted(spans.values(), key=lambda each: each.began_s)[(inner + 1) // 2]
        assert iteration.ended_s is not None
        assert step.nested_s == pytest.approx(iteration.ended_s - iteration.began_s, rel=1e-6)
        assert not iteration.grad
    assert all(step.updates == 0 and step.forward_s > 0 for step in valid.steps)
    assert all(step.backward_s > 0 and step.update_s > 0 for step in train.steps)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: no two workers compute at once")
def test_a_stopped_script_loads_some_batches_again_with_other_workers(tmp_path: Path) -> None:
    options = {"batches": 12, "stop": True, "probes": True}
    done = running.observed(tmp_path / "logs", running.script("starved.py"), options=options)
    assert (done.status, done.out, done.errors) == (0, "begins None None\n", "")
    assert not done.log.problems
    (process,) = done.log.processes
    assert [len(each.steps) for each in process.loaders] == [12]  # what follows is not the script's
    (probe,) = done.log.probes
    alone, several = (len(each.iterations[0].workers) for each in probe.loaders)
    assert alone == 1 < several
    assert all(len(each.fetches) >= 3 * len(each.iterations[0].workers) for each in probe.loaders)
    around = Surroundings(machine=inspect())
    first, *_ = (each.trial for each in trials_of(done.log, ["starved.py"], around))
    loads = [each.trial for each in trials_of(RunLog(processes=done.log.probes), ["starved.py"], around)]
    without, _ = predictor_of(first)
    predictor, now = predictor_of(first, loads=loads)
    assert now.num_workers == 0
    assert without.costs.slowdown.sizes == (1.0,)
    assert max(predictor.costs.slowdown.sizes) > 1
    assert propose(first, *loads)[0].changes["num_workers"] > 1


def test_a_dataset_that_cannot_be_loaded_again_is_no_matter_of_the_scripts(tmp_path: Path) -> None:
    path = tmp_path / "once.py"
    path.write_text(ONCE)
    options = {"batches": 6, "stop": True, "probes": True}
    done = running.observed(tmp_path / "logs", str(path), options=options)
    assert (done.status, done.out, done.errors) == (0, "", "")
    (problem,) = done.log.problems
    assert problem.startswith("contention: ")
    assert [len(each.steps) for each in done.log.processes[0].loaders] == [6]


def test_the_interpreter_of_the_script_needs_no_stoker(tmp_path: Path) -> None:
    path = tmp_path / "alone.py"
    path.write_text(ALONE.format(script=PLAIN))
    done = running.observed(tmp_path / "logs", str(path), "1", options={"overrides": {"num_workers": 1}})
    assert done.out == running.bare(PLAIN, "1").out
    assert not done.log.problems
    assert len(_training(done).steps) == 10
    assert _training(done).fetches


ALONE = """
import runpy, sys
for name in ("stoker", "msgspec", "typer", "psutil"):
    sys.modules[name] = None  # an import of it fails
runpy.run_path({script!r}, run_name="__main__")
"""

ONCE = """
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Once(Dataset):
    owner = os.getpid()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if os.getpid() != self.owner:
            print("another process")
            raise RuntimeError("this dataset belongs to one process")
        return torch.zeros(2)

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for batch in DataLoader(Once(), 4):
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
"""
