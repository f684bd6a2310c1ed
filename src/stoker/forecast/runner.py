"""How a probe is run and recorded: jobs, retries, the time budget, what fits on the machine, and what to note."""

import math
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from stoker.analysis.interference import disturbed
from stoker.errors import InputError
from stoker.events import OnEvent, ProbeDone, RunStarted
from stoker.forecast.constraints import bounds_of, ruled_out
from stoker.forecast.probes import facts_of, run_of
from stoker.machine import inspect
from stoker.measure.session import Job, Script
from stoker.records import Extent, Facts, Kind, Probes, Problem, Record, Run, Setting, Subject, Trial
from stoker.units import format_count, format_workers


class RunnerRules(Record, frozen=True):
    """How often and how long one probe may run."""

    tries: int = 3
    """A run that other processes disturb is repeated up to this many times in all. Without workers and with a thread on
    each CPU, such a run may take many times as long."""
    limit_s: float = 3.0
    """A run may take this long, and..."""
    limit_times: float = 4.0
    """... in addition this many times as long as expected."""


RULES = RunnerRules()


class Budget:
    """How much time is left, and how much was spent in all. It is spent at the moment `ends_at_s` of
    `time.perf_counter` at the latest, whenever it began."""

    def __init__(self, seconds: float, ends_at_s: float = math.inf) -> None:
        self.seconds, self._ends_at_s = seconds, ends_at_s
        self._began, self._earlier_s = perf_counter(), 0.0

    @property
    def spent(self) -> bool:
        return perf_counter() > min(self._began + self.seconds, self._ends_at_s)

    @property
    def total_s(self) -> float:
        """Seconds since the clock began, including budgets before this one."""
        return self._earlier_s + perf_counter() - self._began

    def restart(self) -> None:
        """Begin to count only now."""
        self._began = perf_counter()

    def shrink(self, seconds: float) -> None:
        """Count no more than this from the beginning."""
        self.seconds = min(self.seconds, seconds)

    def extend(self, seconds: float) -> None:
        """Begin another budget."""
        self._earlier_s, self._began, self.seconds = self.total_s, perf_counter(), seconds


class ProbeLog:
    """What was measured so far, and what went wrong meanwhile."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.notes: list[str] = []
        self.ran_out = False
        self.repeated = 0
        self.left_out = 0
        self._unfit: list[str] = []
        self._failed_step: Trial | None = None

    def of(self, *kinds: Kind) -> list[Run]:
        return [run for run in self.runs if run.kind in kinds]

    def add_unfit(self, size: int, workers: int) -> None:
        """A probe that the machine has too little memory or open files for."""
        self._unfit.append(f"{size} with {format_workers(workers)}")

    def add_failure(self, trial: Trial, kind: Kind, *, larger: bool) -> None:
        """A probe that failed. `larger`: its size lies beyond those that are known to fit, and says nothing of them."""
        if kind == "step":
            self._failed_step = trial
            self.ran_out = self.ran_out or (trial.outcome == "oom" and not larger)
        size, workers = trial.setting.batch_size, trial.setting.num_workers
        self.notes.append(f"{kind} at batch {size}, {format_workers(workers)} did not finish: {why(trial)}")

    def probes(self, subject: Subject, facts: Facts, setting: Setting, seconds: float) -> Probes:
        """All that was measured. Raises InputError if no step ever ran."""
        if self._failed_step is not None and not self.of("step"):
            raise unusable(self._failed_step)
        return Probes(
            subject=subject,
            machine=facts,
            setting=setting,
            runs=tuple(self.runs),
            seconds=seconds,
            notes=(*self.notes, *self._summary()),
            ran_out=self.ran_out,
        )

    def _summary(self) -> list[str]:
        notes = []
        if self._unfit:
            notes.append(f"batches of {', '.join(dict.fromkeys(self._unfit))} were not probed: they do not fit")
        if self.left_out:
            notes.append(
                f"{self.left_out} of {format_count(self.left_out + len(self.runs), 'probe')} "
                f"{'was' if self.left_out == 1 else 'were'} left out, as the budget was spent: predictions are rougher"
            )
        if self.repeated:
            notes.append(
                f"{format_count(self.repeated, 'probe')} had to be run again, as other processes had taken the CPUs: "
                "on a busy machine figures are unstable"
            )
        return notes


class ProbeRunner:
    """Runs probes of one workload: makes the jobs, repeats disturbed runs, and records what was measured.

    `first_look` comes first: it learns about the workload and the machine.
    """

    subject: Subject
    facts: Facts
    start_method: str
    """How workers are started if nothing else is asked for."""

    def __init__(
        self,
        setting: Setting,
        budget_s: float,
        host_memory_bytes: int | None,
        on_event: OnEvent | None,
        ends_at_s: float = math.inf,
    ) -> None:
        self.budget, self.log = Budget(budget_s, ends_at_s), ProbeLog()
        self._setting, self._host_memory_bytes, self._on_event = setting, host_memory_bytes, on_event
        self.item_s = self._item_bytes = 0.0

    def first_look(self, size: int) -> Script[Trial]:
        """Two batches: what an item takes, and whether anything runs at all. The budget begins after it, as opening the
        workload is not probing. Raises InputError if the run fails."""
        trial = yield self.job(size, 0, batches=2)
        if trial.outcome != "done":
            raise unusable(trial)
        self.budget.restart()
        machine = trial.machine or inspect()
        self.subject, self.facts = trial.workload, facts_of(machine)
        loaders = self.subject.current
        if self._setting.multiprocessing_context is None and loaders is not None:
            context = loaders.multiprocessing_context
            self._setting = msgspec.structs.replace(self._setting, multiprocessing_context=context)
        self.start_method = self._setting.multiprocessing_context or machine.host.start_method
        self._item_bytes = max(trial.workers.batch_bytes, default=0) / max(trial.timeline.items)
        self.update_item_s(trial)
        return trial

    def update_item_s(self, trial: Trial) -> None:
        """Take the loading time of an item from the later half of a run's batches: the first two allocate memory that
        all others use again."""
        line = trial.timeline
        later = range(len(line.items) // 2, len(line.items))
        self.item_s = median((line.got_s[place] - line.asked_s[place]) / max(1, line.items[place]) for place in later)

    def record(
        self,
        kind: Kind,
        size: int,
        workers: int,
        *,
        batches: int,
        sleep_s: float | None = 0.0,
        repeats: int | None = None,
        memory: bool = False,
        larger: bool = False,
        changes: dict[str, Any] | None = None,
    ) -> Script[Run | None]:
        """Run a probe and record it. None if the run fails or does not fit on the machine, which is noted.

        Raises InputError if the very first probe fails.
        """
        if workers and not self.fits(size, workers):
            self.log.add_unfit(size, workers)
            return None
        if self._on_event:
            text = f"probing batch {size}, {format_workers(workers)}"
            self._on_event(RunStarted(setting=self._with(size, workers), purpose="probe", text=text))
        runs_step = kind in ("step", "crowded")
        job = self.job(size, workers, batches, sleep_s=None if runs_step else sleep_s, repeats=repeats, memory=memory)
        job = msgspec.structs.replace(job, keeps_memory=kind == "kept", threads=1 if kind == "single" else None)
        if changes:  # workers that are not forked import everything anew: no run so far says how long that takes
            job = msgspec.structs.replace(job, setting=msgspec.structs.replace(job.setting, **changes), limit_s=None)
        trial = yield from self._undisturbed(job)
        if trial.outcome != "done":
            if not self.log.runs:
                raise unusable(trial)
            self.log.add_failure(trial, kind, larger=larger)
            return None
        run = run_of(trial, kind)
        self.log.runs.append(run)
        if self._on_event:
            self._on_event(ProbeDone(run=run))
        if runs_step:
            self.subject = trial.workload  # a run without the model does not know the model's name
        return run

    def _undisturbed(self, job: Job) -> Script[Trial]:
        """A run of the job, repeated if other processes disturb it and the budget allows."""
        trial = yield job
        for _ in range(RULES.tries - 1):
            if self.budget.spent or not (disturbed(trial) or trial.outcome == "timed_out"):
                break
            self.log.repeated += 1
            again = yield job
            trial = again if again.outcome == "done" and not disturbed(again) else _less_disturbed(trial, again)
        return trial

    def job(
        self,
        size: int,
        workers: int,
        batches: int,
        *,
        sleep_s: float | None = 0.0,
        repeats: int | None = None,
        memory: bool = False,
    ) -> Job:
        """A run whose step sleeps for `sleep_s`; None is the real step. After the first probe it has a time limit."""
        extent = Extent(batches=batches, warmup=0, source="memory" if memory else "files")
        limit_s = None
        if self.log.runs and sleep_s is not None:
            limit_s = RULES.limit_s + RULES.limit_times * batches * (size * self.item_s + sleep_s)
        return Job(setting=self._with(size, workers), extent=extent, sleep_s=sleep_s, repeats=repeats, limit_s=limit_s)

    def _with(self, size: int, workers: int) -> Setting:
        return msgspec.structs.replace(self._setting, batch_size=size, num_workers=workers)

    # ------------------------------------------------------------ the workload and the machine

    @property
    def step_sleeps(self) -> bool:
        return self.subject.device.startswith("sleep")

    @property
    def step_on_cpu(self) -> bool:
        return self.subject.device == "cpu"

    @property
    def cores(self) -> int:
        return max(1, math.floor(self.facts.usable_cores))

    def fits(self, size: int, workers: int) -> bool:
        """Whether shared memory, host memory and open files suffice. More workers than CPUs are probed all the same."""
        bounds = bounds_of(self.facts, host_memory_bytes=self._host_memory_bytes)
        broken = ruled_out(self._with(size, workers), self._item_bytes, bounds)
        return broken is None or broken.bound == "cpus"

    def most_workers(self, size: int, wanted: int) -> int:
        """The number of workers that is wanted, or as many as fit."""
        while wanted and not self.fits(size, wanted):
            wanted -= 1
        return wanted

    def probes(self) -> Probes:
        """All that was measured so far."""
        return self.log.probes(self.subject, self.facts, self._setting, self.budget.total_s)


def _less_disturbed(one: Trial, other: Trial) -> Trial:
    """Of two disturbed runs, the shorter one that finished."""
    worse = one.outcome != "done" or other.total_s < one.total_s
    return other if other.outcome == "done" and worse else one


def why(trial: Trial) -> str:
    """Why a trial did not finish, in words."""
    return trial.problem.sentence if trial.problem else trial.outcome


def unusable(trial: Trial, what: str = "not even a short run of this workload ends well") -> InputError:
    """The error for a workload that cannot be measured, with what its run said."""
    problem = trial.problem or Problem(sentence=f"the run ended as {trial.outcome}")
    where = f", at {problem.where}" if problem.where else ""
    remedy = f" ({problem.remedy})" if problem.remedy else ""
    return InputError(f"{what}: {problem.sentence}{where}{remedy}")
