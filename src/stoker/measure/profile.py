"""A trial in a process of its own: whatever becomes of it, the caller gets a `Trial` that says so."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Literal

import msgspec

from stoker.events import AnyEvent, OnEvent
from stoker.measure.session import RULES, Job, Script, run_script
from stoker.records import Extent, Mode, Record, Setting, Stalls, Trial, WorkloadSpec
from stoker.units import format_workers
from stoker.workload.workload import Workload

LOADER_FIELDS = tuple(
    name
    for name in (
        "batch_size",
        "num_workers",
        "prefetch_factor",
        "pin_memory",
        "persistent_workers",
        "in_order",
        "multiprocessing_context",
    )
    if name in Setting.__struct_fields__
)
"""The fields of a setting that a DataLoader has."""
SOURCES: tuple[Literal["memory", "cached", "cold"], ...] = ("memory", "cached", "cold")


def profile(
    source: Workload | WorkloadSpec | str,
    setting: Setting | None = None,
    extent: Extent | None = None,
    *,
    from_loader: Sequence[str] = (),
    mode: Mode | None = None,
    device: str = "auto",
    timeout_s: float | None = None,
    find_workers: bool = False,
    measure_start: bool = True,
    on_event: OnEvent | None = None,
) -> Trial:
    """Run one trial of a workload: a `Workload`, a model's name, or `train.py:workload`.

    Without a setting, a workload that was given as a DataLoader runs under the loader's own; `from_loader` names single
    fields that are the loader's. If the run reaches its memory limit (`extent.memory_limit_bytes`), `find_workers` runs
    it again with fewer workers, and the trial says with how many it still ran. With `measure_start` a run without
    workers is followed by short loadings with some, of a few seconds at most: they tell what starting workers takes.

    Raises InputError or MachineError for what cannot be used; everything that happens in the run is an outcome of the
    trial. Trials of several threads run at the same time.
    """

    names = tuple(from_loader if setting is not None else LOADER_FIELDS)
    listener = _Listener(on_event)

    def script() -> Script[Trial]:
        trial = yield Job(setting=setting or Setting(), extent=extent or Extent(), from_loader=names)
        is_limited = trial.extent.memory_limit_bytes is not None
        if find_workers and is_limited and trial.outcome == "oom" and trial.setting.num_workers:
            return (yield from _with_fitting_workers(trial))
        return (yield from _with_started(trial, listener)) if measure_start else trial

    return run_script(
        source,
        script(),
        kind="profile",
        mode=mode,
        device=device,
        stall_s=RULES.opening_stall_s,
        timeout_s=timeout_s,
        forks=False,  # one run needs no process beside the child, and its memory is not counted twice
        gauged=True,
        on_event=listener,
    )


class _Listener:
    """Passes events on, until it is silent: what follows a run is not the run."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event, self.silent = on_event, False

    def __call__(self, event: AnyEvent) -> None:
        if self._on_event is not None and not self.silent:
            self._on_event(event)


class StartRules(Record, frozen=True):
    """How much is loaded with workers, after a run without."""

    run_s: float = 0.3
    """As many batches as the run loaded in this time..."""
    least_batches: int = 3
    """... but so many for each worker: its first is cold."""
    most_batches: int = 16
    most_workers: int = 4
    """As many as there are CPUs, up to this: they tell what workers cost each other."""
    idle_share: float = 1.2
    """A loop that takes this share of a batch's time finds the next one ready: it shows what receiving takes."""
    most_s: float = 3.0
    """About how long all of this may take..."""
    most_share: float = 0.25
    """... or this share of the run's time, if that is more. What does not fit is left out."""
    patience_s: float = 15.0
    """A worker that has to import everything takes some seconds."""


START = StartRules()


def start_jobs(trial: Trial) -> list[Job]:
    """Short loadings of the first items of a run without workers: with one, with two for a loop that lets batches wait,
    and with one for each CPU. None where they would tell nothing, or take too long."""
    began, extent = trial.workers.began_s, trial.extent
    if trial.outcome != "done" or trial.setting.num_workers or trial.setting.ranks > 1 or not began:
        return []
    if extent.source != "files" or extent.memory_limit_bytes is not None:
        return []
    batch_s = max(1e-9, sum(trial.workers.ended_s) - sum(began)) / len(began)
    cpus = int(trial.machine.cpu.usable) if trial.machine is not None else 1
    jobs: list[Job] = []
    left_s = max(START.most_s, START.most_share * trial.total_s)
    for workers, sleep_s in ((1, 0.0), (2, START.idle_share * batch_s), (min(cpus, START.most_workers), 0.0)):
        batches = min(START.most_batches, max(START.least_batches * workers, round(START.run_s / batch_s)))
        left_s -= batches * (batch_s + sleep_s)
        if left_s < 0:
            break
        if workers > 1 or not jobs:
            jobs.append(
                Job(
                    setting=msgspec.structs.replace(trial.setting, num_workers=workers),
                    extent=msgspec.structs.replace(extent, batches=batches, warmup=0, epochs=1, validate=False),
                    sleep_s=sleep_s,
                )
            )
    return jobs


def _with_started(trial: Trial, listener: _Listener) -> Script[Trial]:
    """The trial with the short loadings after it, up to the first that fails."""
    started: list[Trial] = []
    listener.silent = True
    for job in start_jobs(trial):
        other = yield msgspec.structs.replace(job, ends_at_s=perf_counter() + START.patience_s)
        if other.outcome != "done":
            break
        started.append(msgspec.structs.replace(other, machine=None, gauges={}, notes=()))
    return msgspec.structs.replace(trial, started=tuple(started))


def _with_fitting_workers(trial: Trial) -> Script[Trial]:
    """The trial with the largest number of workers that still runs within its memory limit, found by bisection."""
    fits, fails = -1, trial.setting.num_workers
    while fails - fits > 1:
        workers = (fits + fails) // 2
        setting = msgspec.structs.replace(trial.setting, num_workers=workers)
        tried = yield Job(setting=setting, extent=trial.extent, fresh=True)
        if tried.outcome == "done":
            fits = workers
        elif tried.outcome == "oom":
            fails = workers
        else:
            break
    problem = trial.problem
    if problem is not None:
        said = f"with {format_workers(fits)} it still ran" if fits >= 0 else "not even without workers does it run"
        problem = msgspec.structs.replace(problem, sentence=f"{problem.sentence}; {said}")
    return msgspec.structs.replace(trial, problem=problem, fits_workers=fits if fits >= 0 else None)


class SecondRules(Record, frozen=True):
    """How long the run at a second batch size is."""

    run_s: float = 3.0
    """It has as many batches as the first run's rate brings in this time..."""
    least_batches: int = 4
    """... but at least these: the first step is not counted."""
    most_batches: int = 50


SECOND = SecondRules()


def second_task(trial: Trial, **changes: int) -> tuple[Setting, Extent]:
    """A short run of the same workload with other values of some fields, such as another batch size: what its steps
    cost there."""
    setting = msgspec.structs.replace(trial.setting, **changes)
    rate = (trial.items_per_s or 0.0) / (setting.batch_size * setting.processes)
    batches = min(SECOND.most_batches, max(SECOND.least_batches, round(SECOND.run_s * rate)))
    return setting, msgspec.structs.replace(trial.extent, batches=batches, epochs=1, validate=False)


def compare_sources(run: Callable[[Extent], Trial], extent: Extent) -> Stalls:
    """Run a setting with data in memory, with files cached and with files cold: this tells preparation stalls from
    fetch stalls. After a trial that does not finish, no other
    is run, and that trial takes the place of those left."""
    trials: list[Trial] = []
    for source in SOURCES:
        trials.append(run(msgspec.structs.replace(extent, source=source)))
        if trials[-1].outcome != "done":
            trials += [trials[-1]] * (len(SOURCES) - len(trials))
            break
    return Stalls(memory=trials[0], cached=trials[1], cold=trials[2])
