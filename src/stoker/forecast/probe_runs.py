"""How a probe is run, kept and paid for: the runs so far, what the budget still has, and what to say of them."""

import math
from collections.abc import Sequence
from time import perf_counter

import msgspec

from stoker.analysis.interference import disturbed
from stoker.errors import InputError
from stoker.events import OnEvent, ProbeDone, RunStarted
from stoker.forecast.constraints import bounds_of, ruled_out
from stoker.forecast.probes import run_of
from stoker.measure.session import Job, Script
from stoker.records import Extent, Facts, Kind, Probes, Problem, Run, Setting, Subject, Trial
from stoker.units import format_workers

_TRIES = 3
"""How often a run is tried that other processes disturb: with no worker and a thread for each CPU, it may take many
times as long then."""
_PATIENCE_S = 3.0


class ProbeRuns:
    """Keeps count of what was run, what it cost, and what the budget still has."""

    def __init__(
        self,
        setting: Setting,
        sizes: Sequence[int],
        budget_s: float,
        host_memory_bytes: int | None,
        needs_length: bool,
        on_event: OnEvent | None,
    ) -> None:
        self._setting, self._sizes, self._budget_s, self._on_event = setting, sizes, budget_s, on_event
        self._host_memory_bytes, self._needs_length = host_memory_bytes, needs_length
        self._began, self._earlier_s = perf_counter(), 0.0
        self._runs: list[Run] = []
        self._notes: list[str] = []
        self._facts: Facts
        self._subject: Subject | None = None
        self._looked: Trial | None = None
        self._items: int | None = None
        self._item_s = 0.0
        self._step_s: dict[int, float] = {}
        self._warmed = 0
        self._disturbed = 0
        self._failed_step: Trial | None = None
        self._ran_out = False
        self._left_out = 0
        self._unfit: list[str] = []
        self._item_bytes = 0.0

    def _keep(
        self,
        kind: Kind,
        size: int,
        workers: int,
        *,
        batches: int,
        nap_s: float | None = 0.0,
        repeats: int | None = None,
        memory: bool = False,
    ) -> Script[None]:
        """Run it and keep what it tells; a run that fails is noted, and the rest go on."""
        if self._spent() and self._enough():
            self._left_out += 1
            return
        if self._bearable(size, workers) < workers:
            self._unfit.append(f"{size} with {format_workers(workers)}")
            return
        if self._on_event:
            text = f"probing batch {size}, {format_workers(workers)}"
            setting = msgspec.structs.replace(self._setting, batch_size=size, num_workers=workers)
            self._on_event(RunStarted(setting=setting, purpose="probe", text=text))
        real = kind in ("step", "crowded")
        job = self._job(size, workers, batches, nap_s=None if real else nap_s, repeats=repeats, memory=memory)
        job = msgspec.structs.replace(job, keeps_memory=kind == "kept", threads=1 if kind == "single" else None)
        trial = yield job
        for _ in range(_TRIES - 1):
            if self._spent() or not (disturbed(trial) or trial.outcome == "timed_out"):
                break
            self._disturbed += 1
            again = yield job
            trial = again if again.outcome == "done" and not disturbed(again) else _quicker(trial, again)
        if trial.outcome == "done":
            self._runs.append(run_of(trial, kind))
            if self._on_event:
                self._on_event(ProbeDone(run=self._runs[-1]))
            if real:
                self._subject = trial.workload  # with the model's name, which a nap has not
        elif not self._runs:
            raise unusable(trial)
        else:
            if kind == "step":
                self._failed_step = trial
                self._ran_out = self._ran_out or trial.outcome == "oom"
            self._notes.append(f"{kind} at batch {size}, {format_workers(workers)} did not finish: {why(trial)}")

    def _job(
        self,
        size: int,
        workers: int,
        batches: int,
        *,
        nap_s: float | None = 0.0,
        repeats: int | None = None,
        memory: bool = False,
    ) -> Job:
        setting = msgspec.structs.replace(self._setting, batch_size=size, num_workers=workers)
        extent = Extent(batches=batches, warmup=0, source="memory" if memory else "files")
        limit_s = None
        if self._runs and nap_s is not None:
            limit_s = _PATIENCE_S + 4 * batches * (size * self._item_s + nap_s)
        return Job(setting=setting, extent=extent, sleep_s=nap_s, repeats=repeats, limit_s=limit_s)

    def _spent(self) -> bool:
        return perf_counter() - self._began > self._budget_s

    def _enough(self) -> bool:
        """Whether what is there can be predicted from: loading without and with a worker, and a step."""
        loads = {min(run.num_workers, 1) for run in self._runs if run.kind == "load"}
        wanted = {0, 1} if self._bearable(self._sizes[0], 1) else {0}
        return loads >= wanted and any(run.kind == "step" for run in self._runs)

    @property
    def _sleeps(self) -> bool:
        return self._subject is not None and self._subject.device.startswith("sleep")

    @property
    def _on_cpu(self) -> bool:
        return self._subject is not None and self._subject.device == "cpu"

    @property
    def _cores(self) -> int:
        return max(1, math.floor(self._facts.usable_cores))

    def _bearable(self, size: int, workers: int) -> int:
        """So many workers, or as many as shared memory, host memory and open files take at this size."""
        while workers and self._breaks(size, workers):
            workers -= 1
        return workers

    def _breaks(self, size: int, workers: int) -> bool:
        """Whether the machine cannot bear it; that it would not pay is no reason not to probe it."""
        setting = msgspec.structs.replace(self._setting, batch_size=size, num_workers=workers)
        bounds = bounds_of(self._facts, host_memory_bytes=self._host_memory_bytes)
        broken = ruled_out(setting, self._item_bytes, bounds)
        return broken is not None and broken.bound != "CPUs"

    def _probes(self) -> Probes:
        assert self._subject is not None
        if self._failed_step is not None and not any(run.kind == "step" for run in self._runs):
            raise unusable(self._failed_step)
        notes = list(self._notes)
        if self._unfit:
            notes.append(f"batches of {', '.join(dict.fromkeys(self._unfit))} were not probed: they do not fit")
        if self._left_out:
            notes.append(
                f"{self._left_out} of {self._left_out + len(self._runs)} probes were left out, "
                "as the budget was spent: predictions are rougher"
            )
        if self._disturbed:
            notes.append(
                f"{self._disturbed} probes had to be run again, as other processes had taken the CPUs: "
                "on a busy machine figures are unstable"
            )
        return Probes(
            subject=self._subject,
            machine=self._facts,
            setting=self._setting,
            runs=tuple(self._runs),
            seconds=self._earlier_s + perf_counter() - self._began,
            notes=tuple(notes),
            ran_out=self._ran_out,
        )


def _quicker(one: Trial, other: Trial) -> Trial:
    """Of two runs in a busy moment, the one that suffered less."""
    worse = one.outcome != "done" or other.total_s < one.total_s
    return other if other.outcome == "done" and worse else one


def why(trial: Trial) -> str:
    return trial.problem.sentence if trial.problem else trial.outcome


def unusable(trial: Trial, what: str = "not even a short run of this workload ends well") -> InputError:
    """Nothing can be measured, and the person is told what the run said."""
    problem = trial.problem or Problem(sentence=f"the run ended as {trial.outcome}")
    where = f", at {problem.where}" if problem.where else ""
    remedy = f" ({problem.remedy})" if problem.remedy else ""
    return InputError(f"{what}: {problem.sentence}{where}{remedy}")
