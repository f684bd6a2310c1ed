"""Many trials of one workload, one after another from one child process: the data is opened and the model put on the
device once. A crash, a hang or running out of memory costs that trial; the rest go on in a fresh child.

Where no GPU is used, each trial has a process of its own, forked from that child: what one leaves behind (C's malloc
keeps memory once it has seen large pieces, which makes later loading several times as fast) is not there for the next.

The caller writes a generator that yields a `Job` and is sent its `Trial`, so that each job can depend on the trials
before it: `trial = yield Job(setting=..., extent=...)`. What the generator returns is the answer.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
import psutil

from stoker.errors import StokerError
from stoker.events import AnyEvent, BatchDone, JobTaken, OnEvent, Phase, RunEnded, SubjectKnown
from stoker.machine import inspect
from stoker.machine.host import out_of_memory_kills
from stoker.measure.interference import InterferenceGauge
from stoker.measure.profile import STALL_S, calmly, first_guess, judge, opened, trial_server
from stoker.process import child
from stoker.process.fork import Forked
from stoker.records import Extent, Mode, Outcome, Problem, Record, Setting, Subject, Trial, WorkloadSpec, encode
from stoker.units import format_seconds
from stoker.workload.workload import Workload

if TYPE_CHECKING:
    from stoker.measure.run import Opened
    from stoker.process.threads import ThreadLimit

R = TypeVar("R")
KEPT_ITEMS = 32
"""How many items stand for all where it does not matter which they are."""


class Job(Record, frozen=True):
    """One run. `nap_s` is slept in place of the step; `repeats` has the first so many items, kept, stand for all; with
    `keeps_memory` malloc gives nothing back in the workers; the loop's own process has so many `threads`, torch's
    number unless told; a `fresh` one goes to a child that has run nothing yet."""

    setting: Setting
    extent: Extent
    nap_s: float | None = None
    repeats: int | None = None
    limit_s: float | None = None
    keeps_memory: bool = False
    threads: int | None = None
    fresh: bool = False


Script = Generator[Job, Trial, R]


def run_script(
    source: Workload | WorkloadSpec | str,
    talk: Script[R],
    *,
    mode: Mode | None = None,
    device: str = "auto",
    stall_s: float = 60.0,
    on_event: OnEvent | None = None,
) -> R:
    """Run the generator's jobs as it yields them. A child that says nothing for `stall_s` at one of them is ended."""
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        session = _Session(talk, Path(folder) / "jobs", first_guess(source, mode, device), stall_s, on_event)
        try:
            while session.job is not None:
                _child(source, session, mode, device)
            return session.answer()
        finally:
            session.close()


def _child(source: Workload | WorkloadSpec, session: "_Session[R]", mode: Mode | None, device: str) -> None:
    """One child, for as many jobs as it survives."""
    kills = out_of_memory_kills()
    session.begin_child()
    ended = child.run(
        _serve,
        (source, mode, device, str(session.path)),
        kind=bool,
        server=trial_server(),
        stall_s=session.patience_s,
        on_event=session.event,
    )
    if ended.how == "returned" or session.ended_between_jobs:
        return
    if ended.failure is not None and ended.failure.kind:
        child.value(ended)
    outcome, problem = judge(ended, None, out_of_memory_kills() > kills, stall_s=session.patience_s())
    session.failed(outcome, problem)


class _Session(Generic[R]):
    """The caller's side: hands out jobs through a named pipe and gives each trial to the generator."""

    def __init__(self, talk: Script[R], path: Path, subject: Subject, stall_s: float, on_event: OnEvent | None) -> None:
        self._talk, self.path, self._subject, self._stall_s, self._on_event = talk, path, subject, stall_s, on_event
        os.mkfifo(path)
        # Both ends, so that what is written waits for a child to read it; never waiting ourselves.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.job: Job | None = None
        self._has_run = self._is_at_one = False
        self._answer: R | None = None
        self._next(None)

    def begin_child(self) -> None:
        """Give the job that is due to a child that is about to begin; what another has left unread is not for it."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._pipe, 1 << 16):
                pass
        self._has_run = self._is_at_one = False
        self._write(self.job)

    def patience_s(self) -> float:
        """How long the child may say nothing: opening a large set takes its time."""
        return self._stall_s if self._is_at_one else max(self._stall_s, STALL_S)

    @property
    def ended_between_jobs(self) -> bool:
        """Whether the child was at none when it went: not one job is to blame, and the next child gets what is due."""
        return self._has_run and not self._is_at_one

    def event(self, event: AnyEvent) -> None:
        match event:
            case JobTaken():
                self._is_at_one = True
                return
            case RunEnded(trial=trial):
                self._has_run, self._is_at_one = True, False
                self._next(trial)
                if trial.outcome == "done":  # else it ends of itself; a fresh job waits for the next child
                    self._write(None if self.job is None or self.job.fresh else self.job)
                return
            case SubjectKnown(subject=subject):
                self._subject = subject
        if self._on_event:
            self._on_event(event)

    def failed(self, outcome: Outcome, problem: Problem) -> None:
        """The child is gone; so is the trial it was at."""
        assert self.job is not None
        setting, extent = self.job.setting, self.job.extent
        self._next(Trial(outcome=outcome, workload=self._subject, setting=setting, extent=extent, problem=problem))

    def answer(self) -> R:
        return cast(R, self._answer)

    def close(self) -> None:
        self._talk.close()
        os.close(self._pipe)

    def _next(self, trial: Trial | None) -> None:
        try:
            self.job = next(self._talk) if trial is None else self._talk.send(trial)
        except StopIteration as end:
            self.job, self._answer = None, end.value

    def _write(self, job: Job | None) -> None:
        os.write(self._pipe, encode(job) + b"\n")


# ---------------------------------------------------------------- in the child


class _TooLong(Exception):
    """A job's own limit has passed."""


def _serve(source: Workload | WorkloadSpec, mode: Mode | None, device: str, path: str, emit: OnEvent) -> bool:
    """Run jobs until there are no more, or one has failed: what it left behind goes with this process."""
    from stoker.measure.run import Opened
    from stoker.process.threads import limit_threads

    before, forks = psutil.Process().num_threads(), True
    threads = limit_threads()
    workload = opened(source, mode, emit)
    emit(Phase(name="preparing"))
    bench = Opened(workload, mode or workload.default_mode(), device)
    bench.see_machine()  # here, for all the processes that are forked from this one
    with open(path, "rb") as jobs:  # noqa: PTH123 - a named pipe
        while True:
            job = msgspec.json.decode(jobs.readline(), type=Job | None)
            if job is None:
                return True
            emit(JobTaken())
            run = partial(_one, bench, job, first_guess(source, mode, device), emit, threads)
            if forks and bench.can_fork() and job.nap_s is None:
                bench.make_model()
            # Threads of the person's own would not survive a fork, and whoever waited for them would wait for ever.
            forks = forks and bench.can_fork() and psutil.Process().num_threads() <= before
            outcome = _forked(run) if forks else run()
            if outcome != "done":
                return True


def _forked(run: Callable[[], str]) -> str:
    """In a process of its own, which says itself what it found: this one stays as it is, for the next to begin alike.

    What ends that process by a signal, or without a word, ends this one too, and is told by whoever sees it.
    """
    forked = Forked(run, str)
    result = forked.result()
    if isinstance(result, str):
        return result
    if forked.signal is not None:
        os.kill(os.getpid(), forked.signal)
    if forked.exit_code is not None:
        os._exit(forked.exit_code)
    raise child.error_of(result)


def _one(bench: "Opened", job: Job, subject: Subject, emit: OnEvent, threads: "ThreadLimit") -> str:
    """Run a job and tell what came of it; its outcome."""
    trial = _trial(bench, job, subject, emit, threads)
    emit(RunEnded(trial=trial, purpose="job"))
    return trial.outcome


def _trial(bench: "Opened", job: Job, subject: Subject, emit: OnEvent, threads: "ThreadLimit") -> Trial:
    from stoker.process import failures

    threads.release(job.threads)
    outcome: Outcome
    began = perf_counter()

    def watch(event: AnyEvent) -> None:
        nonlocal subject
        if isinstance(event, SubjectKnown):
            subject = event.subject
        emit(event)
        if isinstance(event, BatchDone) and job.limit_s is not None and perf_counter() - began > job.limit_s:
            raise _TooLong

    try:
        dataset = Repeats(bench.dataset, job.repeats) if job.repeats else None
        gauge = InterferenceGauge()
        trial = bench.run(
            job.setting, job.extent, watch, dataset=dataset, nap_s=job.nap_s, keeps_memory=job.keeps_memory
        )
        interference, idle_cpus = gauge.read()
        return msgspec.structs.replace(trial, interference=interference, idle_cpus=idle_cpus)
    except _TooLong as error:
        _left.append(error)
        sentence = f"not over after {format_seconds(job.limit_s or 0.0)}"
        outcome, problem = "timed_out", Problem(sentence=sentence)
    except BaseException as error:
        if isinstance(error, StokerError) and not bench.running:
            raise
        _left.append(error)
        outcome, problem = calmly(failures.of_error, error)
    return Trial(
        outcome=outcome,
        workload=subject,
        setting=job.setting,
        extent=job.extent,
        problem=problem,
        machine=inspect(),
    )


_left: list[BaseException] = []
"""Errors hold the loader in their tracebacks, whose orderly end would take seconds; kept, they end with the process."""


_REPEATED = 1 << 16


class Repeats:
    """The first items of a dataset, loaded once and given again and again: what a batch costs beyond loading items."""

    def __init__(self, inner: Any, count: int) -> None:
        from torch.utils.data import IterableDataset

        if hasattr(inner, "__getitem__") and not isinstance(inner, IterableDataset):
            size = min(count, len(inner)) if hasattr(inner, "__len__") else count
            self._items: Sequence[Any] = [inner[place] for place in range(size)]
        else:
            self._items = list(islice(iter(inner), count))

    def __len__(self) -> int:
        return _REPEATED

    def __getitem__(self, index: int) -> Any:
        return self._items[index % len(self._items)]
