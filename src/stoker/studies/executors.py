"""How a task becomes a finished run. One interface: child processes here, the nodes of a Ray cluster in `ray.py`."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Literal, Protocol

import msgspec

from stoker.analysis.convergence import difference
from stoker.errors import InputError, StokerError
from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.process import child
from stoker.records import (
    CandidateTrial,
    Convergence,
    Limit,
    Machine,
    Outcome,
    Plan,
    Record,
    Task,
    Trial,
    WorkloadSpec,
)
from stoker.records.documents import labelled
from stoker.studies.figures import figures_of
from stoker.studies.request import request_of

Per = Literal["node", "gpu"]
"""What of a cluster one trial takes: a whole node, or one GPU with its share of the node's CPUs."""


class Finished(Record, frozen=True):
    """What became of a task. `document` is the labelled record with its raw samples, as JSON. `machine` is the one that
    ran it, None where the executor has only one. `is_lost`: not the task, but the machine that ran it came to an end.
    """

    outcome: Outcome
    figures: dict[str, Any]
    began: datetime
    wall_s: float
    problem: str | None = None
    document: bytes | None = None
    versions: dict[str, str | None] = msgspec.field(default_factory=dict)
    machine: Machine | None = None
    is_lost: bool = False


class Executor(Protocol):
    """Runs tasks, each in processes that are gone when `run` returns."""

    per: Per | None
    """What of a cluster a trial takes; None for an executor of this machine alone."""

    def begin(self, tasks: Sequence[Task]) -> None:
        """Get ready to run these tasks. Raises InputError where no machine could."""
        ...

    def machines(self) -> Sequence[Machine]:
        """The machines that tasks run on, each kind once; those of a cluster may become more."""
        ...

    def at_once(self, jobs: int) -> int:
        """How many tasks may run now: `jobs` on this machine, in a cluster as many as have room. Raises MachineError
        where there is nothing left to run on."""
        ...

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        """Run a task to its end. Whatever becomes of it is an outcome; only an interrupt is raised."""
        ...

    def search(
        self,
        tasks: Sequence[Task],
        on_finished: "OnFinished",
        *,
        host_memory_bytes: int | None = None,
        timeout_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        """Run the candidates of a search, and give each result to `on_finished` with its place among the tasks, as soon
        as it is there. Candidates may share what they read, so they come as one call; an executor with several machines
        gives each a share. What becomes of a candidate is an outcome; what `on_finished` and `on_event` raise ends the
        search."""
        ...

    def stop(self) -> None:
        """End what runs in other threads: their `run` returns soon, and what it returns is of no interest."""
        ...


OnFinished = Callable[[int, Finished], None]
"""Takes the place of a task among those that were given, and what became of it."""


class LocalExecutor:
    """Runs every task in child processes on this machine."""

    per: Per | None = None

    def __init__(self) -> None:
        self._machine = inspect()

    def begin(self, tasks: Sequence[Task]) -> None:
        """Nothing has to be made ready."""

    def machines(self) -> Sequence[Machine]:
        return (self._machine,)

    def at_once(self, jobs: int) -> int:
        return jobs

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        return execute(task, timeout_s=timeout_s, on_event=on_event)

    def search(
        self,
        tasks: Sequence[Task],
        on_finished: OnFinished,
        *,
        host_memory_bytes: int | None = None,
        timeout_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        from stoker.ranking.worker import run_candidates

        def ended(place: int, trial: CandidateTrial) -> None:
            on_finished(place, finished_of(trial))

        run_candidates(tasks, ended, host_memory_bytes=host_memory_bytes, timeout_s=timeout_s, on_event=on_event)

    def stop(self) -> None:
        child.stop()


def finished_of(trial: CandidateTrial) -> Finished:
    """A candidate of a search as a store keeps it."""
    return Finished(
        outcome=trial.outcome,
        figures=figures_of(trial),
        began=trial.when or datetime.now(UTC),
        wall_s=trial.total_s,
        problem=trial.problem.sentence if trial.problem else None,
        document=msgspec.json.encode(labelled(trial, msgspec.to_builtins(trial))),
        versions=_versions(trial.machine),
    )


def execute(task: Task, *, timeout_s: float | None = None, on_event: OnEvent | None = None) -> Finished:
    """Run one task on this machine. Every error is the outcome `failed` with a sentence: the study goes on."""
    began, clock = datetime.now(UTC), perf_counter()
    try:
        record = _RUN[task.kind](task, timeout_s, on_event)
    except Exception as error:
        sentence = str(error) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"
        return Finished(
            outcome="failed",
            figures={},
            began=began,
            wall_s=perf_counter() - clock,
            problem=sentence,
            versions=_versions(None),
        )
    if isinstance(record, CandidateTrial):
        return finished_of(record)
    if isinstance(record, Trial):
        record = msgspec.structs.replace(record, task=record.task or task, when=record.when or began)
    outcome: Outcome = record.outcome if isinstance(record, Trial) else "done"
    problem = record.problem.sentence if isinstance(record, Trial) and record.problem else None
    if isinstance(record, Plan) and record.measured is None:
        outcome, problem = "failed", "no run of the plan finished within the budget"
    if isinstance(record, Convergence):
        outcome, problem = _ending(record)
    return Finished(
        outcome=outcome,
        figures=figures_of(record),
        began=began,
        wall_s=perf_counter() - clock,
        problem=problem,
        document=msgspec.json.encode(labelled(record, msgspec.to_builtins(record))),
        versions=_versions(record.machine if isinstance(record, Trial) else None),
    )


def _ending(found: Convergence) -> tuple[Outcome, str | None]:
    """Done where a seed finished with both sizes, else how the first training ended that did not."""
    failed = next((run for run in found.runs if run.outcome != "done"), None)
    if failed is None or difference(found).pairs:
        return "done", None
    return failed.outcome, failed.problem.sentence if failed.problem else None


def _profile(task: Task, timeout_s: float | None, on_event: OnEvent | None) -> Trial:
    from stoker.measure.profile import profile

    return profile(
        _spec(task),
        task.setting,
        task.extent,
        mode=task.mode,
        device=task.device,
        timeout_s=timeout_s,
        measure_start=False,  # a study runs settings, and predicts none
        on_event=on_event,
    )


def _limit(task: Task, timeout_s: float | None, on_event: OnEvent | None) -> Limit:
    from stoker.memory.limit import limit

    options: dict[str, Any] = dict(task.options)
    return limit(
        _spec(task),
        mode=task.mode,
        device=task.device,
        precision=task.setting.precision,
        cudnn_benchmark=task.setting.cudnn_benchmark,
        accumulate=task.setting.accumulate,
        ranks=task.setting.ranks,
        on_event=on_event,
        **options,
    )


def _tune(task: Task, timeout_s: float | None, on_event: OnEvent | None) -> Plan:
    from stoker.tuning.tune import tune
    from stoker.units import parse_bytes, parse_seconds

    options: dict[str, Any] = dict(task.options)
    if "budget" in options:
        budget = options.pop("budget")
        options["budget_s"] = parse_seconds(budget) if isinstance(budget, str) else float(budget)
    if "host_memory" in options:
        memory = options.pop("host_memory")
        options["host_memory_bytes"] = parse_bytes(memory) if isinstance(memory, str) else int(memory)
    spec = _spec(task)
    return tune(
        spec,
        items=spec.items,
        mode=task.mode,
        device=task.device,
        precision=task.setting.precision,
        on_event=on_event,
        **options,
    )


def _search(task: Task, timeout_s: float | None, on_event: OnEvent | None) -> CandidateTrial:
    from stoker.ranking.worker import run_candidates

    found: list[CandidateTrial] = []
    asked = _with_weights(task)
    run_candidates([asked], lambda _, trial: found.append(trial), timeout_s=timeout_s, on_event=on_event)
    return msgspec.structs.replace(found[0], task=task)


def _with_weights(task: Task) -> Task:
    """The task with a weights file, where `weights_cache` asks for one. The study's own task names no file: it is the
    same on every machine."""
    options = dict(task.options)
    cache = options.pop("weights_cache", None)
    spec: WorkloadSpec = _spec(task)
    if cache is None or spec.weights is not None:
        return msgspec.structs.replace(task, options=options)
    from stoker.studies.weights import weights_file

    spec = msgspec.structs.replace(spec, weights=str(weights_file(spec.spec, str(cache))))
    return msgspec.structs.replace(task, workload=spec, options=options)


def _converge(task: Task, timeout_s: float | None, on_event: OnEvent | None) -> Convergence:
    from stoker.studies.converge import converge

    asked = request_of(task)
    return converge(
        _spec(task),
        batch_size=asked.batch_size,
        against=asked.against,
        epochs=asked.epochs,
        updates=asked.updates,
        seeds=asked.seeds,
        scale_lr=asked.scale_lr,
        setting=task.setting,
        device=task.device,
        timeout_s=timeout_s,
        on_event=on_event,
    )


_RUN = {"profile": _profile, "limit": _limit, "tune": _tune, "search": _search, "converge": _converge}


def _spec(task: Task) -> Any:
    if task.workload is None:
        raise InputError("a live Workload object cannot be part of a study; name it as file.py:function")
    return task.workload


def _versions(machine: Machine | None) -> dict[str, str | None]:
    software = machine.software if machine is not None else inspect().software
    return {"stoker": software.stoker, "torch": software.torch, "python": software.python}
