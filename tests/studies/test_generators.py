"""Grids whose cells follow from results: what is asked for, and that a study goes on with the same tasks."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.records import Task
from stoker.studies.executors import Finished
from stoker.studies.generators import around_plan, search_time
from stoker.studies.grid import grid_from
from stoker.studies.store import Slot, TrialRow
from stoker.studies.study import Change, Study, study
from tests.studies.kills import Driver, kill_at_random, leftovers, place, survivors
from tests.studies.quick import QuickExecutor, other_machine

GRID: dict[str, Any] = {
    "name": "around",
    "kind": "tune",
    "generator": "around-plan",
    "fixed": {"workload": "resnet18", "mode": "infer", "planner": "algebra", "max_batch": 100},
    "axes": {"host_memory": ["1GB", "8GB"]},
    "then": {"items": 64, "device": "sleep:0s"},
}


class Planner(QuickExecutor):
    """Answers tunes with a plan that depends on the host's memory: batch 100 with 4 workers, or 20 with 1."""

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        finished = super().run(task, timeout_s=timeout_s, on_event=on_event)
        if task.kind == "profile":
            return finished
        batch, workers = (100, 4) if task.options["host_memory"] == "8GB" else (20, 1)
        return msgspec.structs.replace(finished, figures={"batch_size": batch, "num_workers": workers, "seconds": 1.0})


def around(folder: Path, **changes: Any) -> Study:
    return study({**GRID, **changes}, db=folder / "stoker.db")


def settings(executor: QuickExecutor) -> list[tuple[str, int, int]]:
    return [(task.kind, task.setting.batch_size, task.setting.num_workers) for task in executor.ran]


EIGHT_GB = {(100, 4), (100, 8), (100, 2), (64, 4), (64, 8)}
ONE_GB = {(20, 1), (20, 2), (20, 0), (16, 1), (16, 2)}


def answer(**figures: Any) -> TrialRow:
    return TrialRow(key="key", repeat=0, machine="here", outcome="done", figures=figures)


def test_settings_around_a_plan() -> None:
    cells = around_plan({"workload": "resnet50", "mode": "train", "host_memory": "8GB"}, {"epochs": 3})
    assert next(cells) == [{"workload": "resnet50", "mode": "train", "host_memory": "8GB"}]
    later = cells.send([[answer(batch_size=160, num_workers=32)]])
    assert [(cell["batch_size"], cell["num_workers"]) for cell in later] == [
        (160, 32),
        (160, 64),
        (160, 16),
        (128, 32),
        (128, 64),
    ]
    shared = {"kind": "profile", "workload": "resnet50", "mode": "train", "epochs": 3}
    assert all(shared.items() <= cell.items() and "host_memory" not in cell for cell in later)
    with pytest.raises(StopIteration):
        cells.send([[answer(seconds=1.0)]] * 5)


def test_a_plan_that_failed_has_nothing_around_it() -> None:
    cells = around_plan({"workload": "resnet50"}, {})
    next(cells)
    failed = msgspec.structs.replace(answer(), outcome="failed")
    with pytest.raises(StopIteration):
        cells.send([[failed]])


def test_sizes_that_searches_try() -> None:
    cells = search_time({"workload": "alexnet", "method": "trace", "gpu_memory": "2GiB"}, {"num_workers": 2})
    assert [cell["method"] for cell in next(cells)] == ["trace", "two-point"]
    later = cells.send([[answer(max_batch=200)], [answer(max_batch=150)]])
    assert [(cell["batch_size"], cell["num_workers"]) for cell in later] == [
        (32, 2),
        (64, 2),
        (128, 2),
        (10, 0),
        (50, 0),
    ]
    assert later[-1]["batches"] == 20


def test_what_follows_from_results_is_run_too(tmp_path: Path) -> None:
    executor = Planner()
    found = around(tmp_path)
    assert found.forecast(executor=executor).follows
    summary = found.run(executor=executor)
    ran = settings(executor)
    assert {kind for kind, *_ in ran[:2]} == {"tune"}, "the plans come first"
    assert {each[1:] for each in ran[2:]} == EIGHT_GB | ONE_GB
    assert len(ran) == summary.ran == summary.slots == 12
    assert summary.unfinished == 0
    assert len(found.tasks) == found.status().tasks == 12
    assert found.forecast(executor=executor).follows is None
    again = found.run(executor=executor)
    assert again.ran == 0
    assert again.slots == 12


def test_a_study_goes_on_with_the_same_tasks(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = around(tmp_path / "whole")
    whole.run(executor=Planner())
    for stop in (1, 2, 3, 7, 11):
        folder = tmp_path / str(stop)
        folder.mkdir()
        changes: list[Change] = []

        def stops_here(slot: Slot, row: TrialRow, left: list[int] = [stop]) -> None:  # noqa: B006 - counts this round's
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            around(folder).run(executor=Planner(), on_trial=stops_here)
        second = Planner()
        summary = around(folder).run(executor=second, on_change=changes.append)
        assert len(second.ran) == 12 - stop
        assert summary.unfinished == 0
        assert [change.sentence for change in changes] == [None], "what follows from results is no change of the grid"
        assert set(around(folder).tasks) == set(whole.tasks)


def test_progress_counts_what_ran_before(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    around(tmp_path).run(executor=Planner(), on_progress=lambda at: seen.append((at.done, at.of)))
    assert seen[0] == (0, 2)
    assert seen[-1] == (12, 12)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_only_selects_the_first_cells_and_what_follows_from_them(tmp_path: Path) -> None:
    executor = Planner()
    around(tmp_path).run(executor=executor, only=["host_memory=1GB"])
    assert {each[1:] for each in settings(executor)[1:]} == ONE_GB


def test_each_machine_has_tasks_of_its_own(tmp_path: Path) -> None:
    class Small(Planner):
        def run(self, task: Task, **more: Any) -> Finished:
            found = super().run(task, **more)
            return (
                found
                if task.kind == "profile"
                else msgspec.structs.replace(found, figures={"batch_size": 7, "num_workers": 1, "seconds": 1.0})
            )

    around(tmp_path).run(executor=Planner())
    summary = around(tmp_path).run(executor=Small(machine=other_machine()))
    assert summary.slots == 2 + 5
    status = around(tmp_path).status()
    assert [machine.missing for machine in status.machines] == [0, 0]
    assert status.no_longer_asked == 0


def test_every_repeat_counts_before_more_is_asked_for() -> None:
    grid = grid_from({**GRID, "repeats": 2})
    [first, *_] = grid.tasks()
    row = msgspec.structs.replace(answer(batch_size=10, num_workers=1), key=first)
    assert len(grid.asked({first: [row]})) == 2
    both = [row, msgspec.structs.replace(row, repeat=1)]
    assert len(grid.asked({first: both})) == 2 + 5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"generator": "round-plan"}, "no such generator: 'round-plan' (did you mean around-plan?)"),
        ({"generator": "search-time"}, "begins with kind = \"limit\", got 'tune'"),
        ({"then": {"epoch": 3}}, "no axis epoch (did you mean epochs?)"),
        ({"then": {"items": 64, "batches": 3}, "generator": None}, "no generator is named"),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    document = {name: value for name, value in {**GRID, **changes}.items() if value is not None}
    with pytest.raises(InputError) as error:
        grid_from(document)
    assert sentence in str(error.value)


AROUND = """\
name = "killed"
kind = "tune"
generator = "around-plan"

[fixed]
workload = "{workload}"
mode = "infer"
items = 32
device = "sleep:5ms/item"
planner = "algebra"
max_batch = 8
budget = "3s"

[axes]
host_memory = ["64MB", "1GB"]
"""


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_study_with_a_generator_survives_kills_of_its_driver(kills: int) -> None:
    rng = random.Random(kills)
    with place() as folder:
        workload = Path(__file__).parents[1] / "workloads" / "small.py"
        (folder / "grid.toml").write_text(AROUND.format(workload=f"{workload}:inference"))
        drivers = [kill_at_random(folder, rng) for _ in range(kills)]
        last = Driver(folder)
        assert last.wait() == 0, last.errors
        found = study(folder / "grid.toml", db=folder / "stoker.db")
        rows = found.rows()
        assert {row.key for row in rows} == set(found.tasks), "every task that follows from the plans, and no other"
        assert len(rows) == len({(row.key, row.repeat) for row in rows}), "none was run again after it was recorded"
        assert {row.outcome for row in rows} == {"done"}
        pids = {pid for driver in drivers for pid in driver.pids}
        assert survivors(pids) == []
        assert leftovers(folder, pids) == []
