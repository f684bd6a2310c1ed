"""An executor that answers at once, and small grids: for tests of what surrounds a run."""

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.records import Extent, Machine, Outcome, Setting, Subject, Task, Trial
from stoker.records.documents import labelled
from stoker.studies.executors import Finished, OnFinished, Per
from stoker.studies.study import Study, study

GRID: dict[str, Any] = {
    "name": "small",
    "fixed": {"mode": "infer", "items": 64, "device": "sleep:0s"},
    "axes": {"workload": ["resnet18", "vit_b_16"], "batch_size": [8, 16], "num_workers": [1, 2]},
}
"""Eight tasks."""


@cache
def this_machine() -> Machine:
    return inspect()


def other_machine() -> Machine:
    """As this one, with another processor."""
    machine = this_machine()
    return msgspec.structs.replace(machine, cpu=msgspec.structs.replace(machine.cpu, model="another CPU"))


def seconds_of(task: Task) -> float:
    """A made-up time: more workers help, batch 16 is best, vit_b_16 takes twice as long."""
    assert task.workload is not None
    base = 2.0 if task.workload.spec == "vit_b_16" else 1.0
    return base * (1 + 1 / (1 + task.setting.num_workers)) * (1.0 if task.setting.batch_size == 16 else 1.5)


class QuickExecutor:
    """Records every task that it is asked to run. `outcomes` by batch size; `before` is called first with the task."""

    def __init__(
        self,
        *,
        outcomes: Mapping[int, Outcome] | None = None,
        machine: Machine | None = None,
        wall_s: float = 0.5,
        before: Callable[[Task], None] | None = None,
    ) -> None:
        self.ran: list[Task] = []
        self.most_at_once = 0
        self.stopped = threading.Event()
        self._at_once = 0
        self._guard = threading.Lock()
        self._outcomes, self._machine, self._wall_s = outcomes or {}, machine or this_machine(), wall_s
        self._before = before

    per: Per | None = None

    def begin(self, tasks: Sequence[Task]) -> None:
        self.begun = list(tasks)

    def machines(self) -> Sequence[Machine]:
        return (self._machine,)

    def at_once(self, jobs: int) -> int:
        return jobs

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        with self._guard:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self._before:
                self._before(task)
            with self._guard:
                self.ran.append(task)
            return self._finished(task)
        finally:
            with self._guard:
                self._at_once -= 1

    def search(
        self,
        tasks: Sequence[Task],
        on_finished: OnFinished,
        *,
        host_memory_bytes: int | None = None,
        timeout_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        for place, task in enumerate(tasks):
            on_finished(place, self.run(task, timeout_s=timeout_s, on_event=on_event))

    def stop(self) -> None:
        self.stopped.set()

    def _finished(self, task: Task) -> Finished:
        outcome = self._outcomes.get(task.setting.batch_size, "done")
        seconds = seconds_of(task)
        figures = {"seconds": seconds, "run_items": 64, "first_batch_s": seconds / 10} if outcome == "done" else {}
        return Finished(
            outcome=outcome,
            figures={"model": "model", **figures},
            began=datetime.now(UTC),
            wall_s=self._wall_s,
            problem=None if outcome == "done" else f"it was {outcome}",
            document=msgspec.json.encode(
                labelled(trial := self._trial(task, outcome, seconds), msgspec.to_builtins(trial))
            ),
            versions={"stoker": "0.1.0", "torch": "2.8"},
        )

    @staticmethod
    def _trial(task: Task, outcome: Outcome, seconds: float) -> Trial:
        assert task.workload is not None
        subject = Subject(
            name=task.workload.spec, model="model", data="jpeg", mode="infer", device=task.device, items=64
        )
        setting = Setting(batch_size=task.setting.batch_size, num_workers=task.setting.num_workers)
        return Trial(
            outcome=outcome, workload=subject, setting=setting, extent=Extent(), items=64, total_s=seconds, task=task
        )


def small_study(folder: Path, **changes: Any) -> Study:
    """The small grid with changes, in a store of this folder."""
    return study({**GRID, **changes}, db=folder / "stoker.db")


class QuickCluster(QuickExecutor):
    """A cluster of so many nodes, all of one kind unless `machines` says otherwise. Each of the first `losses` runs is
    lost with its node."""

    per: Per | None = "node"

    def __init__(self, nodes: int = 2, *, machines: Sequence[Machine] = (), losses: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.nodes, self.losses = nodes, losses
        self._machines = tuple(machines) or (self._machine,)

    def machines(self) -> Sequence[Machine]:
        return self._machines

    def at_once(self, jobs: int) -> int:
        return self.nodes

    def _finished(self, task: Task) -> Finished:
        finished = super()._finished(task)
        machine = self._machines[len(self.ran) % len(self._machines)]
        figures = {**finished.figures, "node": "a", "per": "node"}
        if len(self.ran) <= self.losses:
            lost = {"outcome": "crashed", "problem": "node a was lost while it ran this", "is_lost": True}
            return msgspec.structs.replace(finished, figures=figures, machine=machine, **lost)
        return msgspec.structs.replace(finished, figures=figures, machine=machine)
