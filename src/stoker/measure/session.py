"""Many trials of one workload, one after another from one child process.

The data is opened and the model put on the device once. A crash, a hang or running out of memory costs that trial; the
rest go on in a fresh child. If no GPU is used, each trial runs in a process of its own, forked from that child, so that
a trial finds nothing of the one before. C's malloc, for one, keeps memory once it has seen large pieces, which makes
later loading several times as fast.

The caller writes a script, a generator that yields a `Job` and is sent its `Trial`, so that each job can depend on the
trials before it: `trial = yield Job(setting=..., extent=...)`. What the generator returns is the answer.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, time
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
import psutil

from stoker.errors import InputError, StokerError
from stoker.events import (
    AnyEvent,
    ClockRead,
    GpuUsed,
    JobTaken,
    LoopReady,
    OnEvent,
    Phase,
    Progress,
    RunEnded,
    SubjectKnown,
)
from stoker.machine import inspect
from stoker.machine.host import out_of_memory_kills
from stoker.machine.memory_group import MemoryGroup, join
from stoker.measure import reference
from stoker.measure.gauges import Gauges
from stoker.process import child
from stoker.process.fork import Forked
from stoker.process.tree import remove_shared_memory
from stoker.records import (
    Extent,
    Mode,
    Outcome,
    Problem,
    Record,
    Setting,
    Subject,
    Task,
    TaskKind,
    Trial,
    WorkloadSpec,
    encode,
)
from stoker.units import format_bytes, format_seconds, format_workers
from stoker.workload.workload import Workload

if TYPE_CHECKING:
    from stoker.measure.group import RankGroup
    from stoker.measure.run import Bench
    from stoker.process.threads import ThreadLimit

R = TypeVar("R")

REPEATED_ITEMS = 32
"""How many items stand for all where it does not matter which they are."""


class SessionRules(Record, frozen=True):
    """How long a child may be silent, and how items are repeated."""

    job_stall_s: float = 60.0
    """At a job: the loop reports its progress, and no step takes this long."""
    opening_stall_s: float = 300.0
    """Before the first job: to open a large set takes its time."""
    end_grace_s: float = 1.0
    """A job ends itself after the batch in which its time ends. After this much more, the child is ended."""
    repeated_length: int = 1 << 16
    """The length of a set whose items are repeated: more than any job asks for."""


RULES = SessionRules()


class Job(Record, frozen=True):
    """One run of a session.

    `sleep_s` is slept in place of the step. With `repeats=n` the first n items are loaded once and given again and
    again. `limit_s` ends the run as timed out. So does the moment `ends_at_s` of `time.perf_counter`, wherever the run
    is then: opening the workload counts, and a job whose moment has passed is not begun. With `keeps_memory` malloc
    keeps freed memory in the workers. `threads` is the number of torch's threads in the loop's process. A `fresh` job
    goes to a child that has run nothing yet.
    `from_loader` names fields of the setting that the loader decides, if the workload was given as a DataLoader.
    """

    setting: Setting
    extent: Extent
    sleep_s: float | None = None
    repeats: int | None = None
    limit_s: float | None = None
    ends_at_s: float | None = None
    keeps_memory: bool = False
    threads: int | None = None
    fresh: bool = False
    from_loader: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """What makes the run another than that of its setting and extent alone."""
        values = {name: getattr(self, name) for name in ("sleep_s", "repeats", "keeps_memory", "threads")}
        return {name: value for name, value in values.items() if value is not None and value is not False}


Script = Generator[Job, Trial, R]


def ending_at(script: Script[R], ends_at_s: float) -> Script[R]:
    """The script, with all its jobs ended at a moment of `time.perf_counter`. It still runs to its end: jobs that it
    asks for later are answered as timed out, without a run."""
    with contextlib.closing(script):
        try:
            job = next(script)
            while True:
                trial = yield msgspec.structs.replace(job, ends_at_s=ends_at_s)
                job = script.send(trial)
        except StopIteration as end:
            return cast(R, end.value)


def run_script(
    source: Workload | WorkloadSpec | str,
    script: Script[R],
    *,
    kind: TaskKind = "profile",
    mode: Mode | None = None,
    device: str = "auto",
    stall_s: float = RULES.job_stall_s,
    timeout_s: float | None = None,
    forks: bool = True,
    gauged: bool = False,
    server: child.ForkServer | None = None,
    on_event: OnEvent | None = None,
) -> R:
    """Run the script's jobs as it yields them; what it returns.

    `kind` says what the trials' tasks are for. A child that is silent for `stall_s` at a job is ended, as is one that
    takes longer than `timeout_s`. Without `forks`, jobs run in the child itself. With `gauged`, CPU and memory are read
    beside each run. Children are forked from `server`, by default from `trial_server()`. Raises InputError or
    MachineError for what goes wrong before a loop runs.
    """
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    if mode not in (None, "train", "infer"):
        raise InputError(f"no such mode: {mode!r}; choose train or infer")
    server = server or trial_server()
    reference.prepare()  # meanwhile the server imports torch
    request = _Request(source, kind, mode, device, stall_s, timeout_s, forks, gauged)
    session = _Session(script, request, on_event)
    try:
        while session.job is not None:
            _run_child(session, request, server)
        return session.answer()
    finally:
        session.close()


_MODULES = (
    "torch.utils.data",
    "torchvision.transforms",
    "stoker.measure.run",
    "stoker.measure.session",
    "stoker.workload.spec",
)
"""What every trial needs, imported once by the server that trials are forked from."""
_LIBRARIES = ("timm", "transformers")
"""Libraries of models, which take seconds to import: the server imports those that the caller has imported."""


def trial_server() -> child.ForkServer:
    """The server that trials of this process are forked from. To ask for it early lets it import torch meanwhile."""
    return child.shared(_MODULES, [name for name in _LIBRARIES if name in sys.modules])


class _Request(msgspec.Struct, frozen=True):
    """What `run_script` was asked for."""

    source: Any
    kind: TaskKind
    mode: Mode | None
    device: str
    stall_s: float
    timeout_s: float | None
    forks: bool
    gauged: bool

    def subject(self) -> Subject:
        """The subject of a trial that ended before the workload was open."""
        is_spec = isinstance(self.source, WorkloadSpec)
        name = self.source.spec if is_spec else self.source.name
        data = (self.source.data if is_spec else self.source.data_name) or "its own"
        return Subject(name=name, model=name, data=data, mode=self.mode or "infer", device=self.device, items=None)

    def task(self, job: Job) -> Task:
        """What was asked of one run."""
        return Task(
            kind=self.kind,
            workload=self.source if isinstance(self.source, WorkloadSpec) else None,
            mode=self.mode,
            device=self.device,
            setting=job.setting,
            extent=job.extent,
            options=job.options,
        )


_OVER = "not over when its time was up"
_MORE_TIME = "give it more time, or try again on an idle machine"


def _run_child(session: "_Session[R]", request: _Request, server: child.ForkServer) -> None:
    """One child, for as many jobs as it survives."""
    assert session.job is not None
    limit_bytes = session.job.extent.memory_limit_bytes
    with MemoryGroup(limit_bytes) if limit_bytes is not None else contextlib.nullcontext() as group:
        _run_child_in(group, session, request, server)


def _run_child_in(
    group: MemoryGroup | None, session: "_Session[R]", request: _Request, server: child.ForkServer
) -> None:
    from stoker.process import failures

    kills = out_of_memory_kills()
    seed = session.begin_child(group)
    folder = None if group is None else str(group.folder)
    try:
        ended = child.run(
            _serve,
            (request, session.ranks, str(session.path), seed, folder),
            kind=bool,
            server=server,
            timeout_s=request.timeout_s,
            stall_s=session.patience_s,
            remaining_s=session.remaining_s,
            on_event=session.event,
            on_start=session.started,
        )
    finally:
        session.end_child()
    if ended.how == "timed_out" and session.is_over:
        problem = failures.of_hang(ended.stacks, _OVER)
        session.failed("timed_out", msgspec.structs.replace(problem, remedy=_MORE_TIME))
        return
    if ended.how == "returned" or session.ended_between_jobs:
        return
    if ended.failure is not None and ended.failure.kind:
        child.value(ended)
    session.failed(*judge(ended, request.timeout_s, out_of_memory_kills() > kills, session.patience_s()))


def judge(
    ended: child.Ended[Any], timeout_s: float | None, memory_kill: bool, stall_s: float
) -> tuple[Outcome, Problem]:
    """The outcome of a run whose child returned nothing."""
    from stoker.process import failures

    if ended.how == "timed_out":
        stalled = timeout_s is None or ended.seconds < timeout_s
        limit = f"nothing happened for {format_seconds(stall_s)}" if stalled else f"not over after {timeout_s:g} s"
        return "timed_out", failures.of_hang(ended.stacks, limit)
    if ended.failure is not None:
        return failures.of_trace(ended.failure.sentence, ended.failure.trace)
    if memory_kill:
        sentence = "the kernel killed the trial for want of host memory"
        return "oom", Problem(sentence=sentence, remedy="use a smaller batch, fewer workers or less prefetch")
    return failures.of_signal(ended.signal, ended.output)


class _Session(Generic[R]):
    """The caller's side: hands out jobs through a pipe and gives each trial to the script."""

    def __init__(self, script: Script[R], request: _Request, on_event: OnEvent | None) -> None:
        self._script, self._request, self._on_event = script, request, on_event
        self._reads, self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Children open the pipe by this name. It is gone with this process, however that ends: nothing is left behind.
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._reads}")
        self._subject = request.subject()
        self._gauges: Gauges | None = None
        self._child: tuple[int, float] | None = None
        self._group: MemoryGroup | None = None
        self._clock: ClockRead | None = None
        self.job: Job | None = None
        self._when = datetime.now(UTC)
        self._reference_s: tuple[float, ...] = ()
        self._has_run = self._is_at_one = False
        self._answer: R | None = None
        self._next(None)

    def begin_child(self, group: MemoryGroup | None) -> int:
        """Give the next job to a child that is about to begin; the seed of that job. What another child has left unread
        is not for this one. The child runs in `group`, if there is one."""
        assert self.job is not None
        self._group = group
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reads, 1 << 16):
                pass
        self._has_run = self._is_at_one = False
        self._child = None
        self._gauges = Gauges() if self._request.gauged else None
        self._hand_out(self.job)
        return self.job.extent.seed

    def started(self, pid: int) -> None:
        self._child = (pid, time())
        if self._gauges is not None:
            self._gauges.start(pid)

    def end_child(self) -> None:
        if self._gauges is not None:
            self._gauges.stop()
        if self._child is not None:
            remove_shared_memory(*self._child)

    def patience_s(self) -> float:
        """How long the child may be silent."""
        return self._request.stall_s if self._is_at_one else max(self._request.stall_s, RULES.opening_stall_s)

    def remaining_s(self) -> float | None:
        """How long the child may go on with the job, if the job says."""
        if self.job is None or self.job.ends_at_s is None:
            return None
        return self.job.ends_at_s + RULES.end_grace_s - perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the time for the job has ended."""
        return self.job is not None and self.job.ends_at_s is not None and self.job.ends_at_s <= perf_counter()

    @property
    def ranks(self) -> int:
        """How many processes have the loop of the job that is handed out first."""
        return self.job.setting.processes if self.job is not None else 1

    @property
    def ended_between_jobs(self) -> bool:
        """Whether the child ended while it had no job: then no job is to blame, and the next child gets the next."""
        return self._has_run and not self._is_at_one

    def event(self, event: AnyEvent) -> None:
        match event:
            case JobTaken():
                self._is_at_one = True
                return
            case LoopReady():
                self._loop_ready()
                return
            case RunEnded(trial=trial):
                self._run_ended(trial)
                return
            case SubjectKnown(subject=subject):
                self._subject = subject
            case ClockRead():
                self._clock = event
            case GpuUsed(uuid=uuid) if self._gauges is not None:
                self._gauges.watch_gpu(uuid)
        if self._on_event:
            self._on_event(event)

    def failed(self, outcome: Outcome, problem: Problem) -> None:
        """The child is gone, and with it the trial that it was running."""
        self._next(self._identified(self._limited(self._trial_without_run(outcome, problem))))

    def _trial_without_run(self, outcome: Outcome, problem: Problem) -> Trial:
        assert self.job is not None
        setting = settled(self.job.setting, self._subject.current, self.job.from_loader)
        return Trial(
            outcome=outcome,
            workload=self._subject,
            setting=setting,
            extent=self.job.extent,
            problem=problem,
            machine=inspect(),
        )

    def answer(self) -> R:
        return cast(R, self._answer)

    def close(self) -> None:
        self._script.close()
        os.close(self._pipe)
        os.close(self._reads)

    def _loop_ready(self) -> None:
        """The child waits: time the reference job while nothing else runs, then let the loop begin."""
        self._reference_s = reference.reference_s()
        if self._gauges is not None:
            self._gauges.run_begins()
        self._when = datetime.now(UTC)
        os.write(self._pipe, b"\n")

    def _run_ended(self, trial: Trial) -> None:
        self._has_run, self._is_at_one = True, False
        before = _child_kind(trial.setting, trial.extent)
        self._next(self._identified(self._limited(trial)))
        if trial.outcome == "done":  # else the child ends by itself; a fresh job waits for the next child
            goes_on = self.job is not None and _child_kind(self.job.setting, self.job.extent) == before
            self._hand_out(self.job if goes_on and self.job is not None and not self.job.fresh else None)

    def _limited(self, trial: Trial) -> Trial:
        """The trial with what its memory limit came to: the most that it had, and `oom` if that was the limit."""
        if self._group is None:
            return trial
        peak = self._group.peak_bytes()
        if peak is not None:
            trial = msgspec.structs.replace(trial, peaks={**trial.peaks, "limited_bytes": peak})
        if trial.outcome == "done" or not self._group.kills():
            return trial
        workers, ranks = format_workers(trial.setting.num_workers), trial.setting.processes
        workers += f" in each of {ranks} ranks" if ranks > 1 else ""
        limit = format_bytes(self._group.limit_bytes)
        problem = Problem(
            sentence=f"the run with {workers} reached its memory limit of {limit}, and the kernel killed one of its "
            "processes",
            remedy="use fewer workers, a smaller batch or less prefetch",
        )
        return msgspec.structs.replace(trial, outcome="oom", problem=problem)

    def _identified(self, trial: Trial) -> Trial:
        """The trial with what was asked, when it ran, and what was read beside it."""
        assert self.job is not None
        clock, gauges = self._clock, {}
        if self._gauges is not None and clock is not None:
            gauges = self._gauges.readings(clock.began_s, clock.over_s)
        delay = gauges.get("run_delay")
        return msgspec.structs.replace(
            trial,
            task=self._request.task(self.job),
            when=self._when,
            reference_s=self._reference_s,
            gauges=gauges,
            run_delay=delay.average if delay is not None else None,
        )

    def _next(self, trial: Trial | None) -> None:
        try:
            self.job = next(self._script) if trial is None else self._script.send(trial)
            while self.is_over:
                over = self._trial_without_run("timed_out", Problem(sentence="its time was up before it began"))
                self.job = self._script.send(self._identified(over))
        except StopIteration as end:
            self.job, self._answer = None, end.value

    def _hand_out(self, job: Job | None) -> None:
        self._when, self._reference_s, self._clock = datetime.now(UTC), (), None
        os.write(self._pipe, encode(job) + b"\n")


def _child_kind(setting: Setting, extent: Extent) -> tuple[int | None, bool]:
    """Jobs that differ in this need children of their own: one with another memory limit, and one that has not touched
    a GPU if ranks are to be forked from it."""
    return extent.memory_limit_bytes, setting.processes > 1


# ---------------------------------------------------------------- in the child


def settled(setting: Setting, current: Setting | None, names: Sequence[str]) -> Setting:
    """The setting with the named fields of the loader's own setting, if the workload was given as a DataLoader."""
    if current is None or not names:
        return setting
    return msgspec.structs.replace(setting, **{name: getattr(current, name) for name in names})


def open_workload(source: Workload | WorkloadSpec, mode: Mode | None, emit: OnEvent) -> Workload:
    """The workload itself, in the process that runs it."""
    if isinstance(source, Workload):
        return source
    from stoker.workload.spec import load

    def progress(what: str, done: int, of: int) -> None:
        emit(Progress(what=what, done=done, of=of))

    weights = Path(source.weights) if source.weights else None
    return load(source.spec, data=source.data, mode=mode, items=source.items, weights=weights, progress=progress)


def _serve(request: _Request, ranks: int, path: str, seed: int, group: str | None, emit: OnEvent) -> bool:
    """Run jobs until there are no more, or one has failed: what it left behind goes with this process. `group` is the
    folder of the control group that the process and all its workers run in."""
    if group is not None:
        join(Path(group))
    from stoker.process.threads import limit_threads

    threads_before = psutil.Process().num_threads()
    limit = limit_threads() if request.forks or ranks > 1 else None
    with open(path, "rb") as jobs:  # noqa: PTH123 - a named pipe
        if ranks > 1 and _ranks_take_gpus(request.device, ranks):
            return _serve_jobs(jobs, emit, lambda job: _run_ranks(request, seed, None, job, jobs, emit, limit))
        bench = _open_bench(request, seed, emit)
        bench.see_machine()  # here, for all the processes that are forked from this one

        def run(job: Job) -> str:
            job = _settled_job(job, bench)
            # Threads of the user's own would not survive a fork, and who waited for them would wait for ever.
            can_fork = bench.can_fork() and psutil.Process().num_threads() <= threads_before
            if job.setting.processes > 1:
                return _run_ranks(request, seed, bench if can_fork else None, job, jobs, emit, limit)
            forks = request.forks and can_fork
            if forks and job.sleep_s is None:
                bench.make_model()
                forks = psutil.Process().num_threads() <= threads_before
            one = partial(_run_job, bench, job, jobs, emit, limit)
            return _run_forked(one) if forks else one()

        return _serve_jobs(jobs, emit, run)


def _serve_jobs(jobs: IO[bytes], emit: OnEvent, run: Callable[[Job], str]) -> bool:
    while True:
        job = msgspec.json.decode(jobs.readline(), type=Job | None)
        if job is None:
            return True
        emit(JobTaken())
        if run(job) != "done":
            return True


def _open_bench(request: _Request, seed: int, emit: OnEvent, device: str | None = None) -> "Bench":
    """The workload, opened in this process."""
    from stoker.measure.run import Bench

    workload = open_workload(request.source, request.mode, emit)
    emit(Phase(name="preparing"))
    chosen, reason = workload.mode_choice(request.mode)
    return Bench(workload, chosen, device or request.device, seed=seed, mode_reason=reason)


def _settled_job(job: Job, bench: "Bench") -> Job:
    return msgspec.structs.replace(job, setting=settled(job.setting, bench.workload.current, job.from_loader))


def _run_forked(run: partial[str]) -> str:
    """Run a job in a forked process, which reports the trial itself: this process stays as it is for the next job.

    What ends that process by a signal, or without a result, ends this one too, and the caller sees it.
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


def _run_job(bench: "Bench", job: Job, jobs: IO[bytes], emit: OnEvent, limit: "ThreadLimit | None") -> str:
    """Run a job and report its trial; the outcome."""
    trial = _trial(bench, job, jobs, emit, limit)
    emit(RunEnded(trial=trial, purpose="job"))
    return trial.outcome


def _run_ranks(
    request: _Request,
    seed: int,
    bench: "Bench | None",
    job: Job,
    jobs: IO[bytes],
    emit: OnEvent,
    limit: "ThreadLimit | None",
) -> str:
    """Run a job in several ranks, forked from this process, and report its trial; the outcome. With a `bench` they find
    the workload open; without, each rank opens it, as it must on a GPU."""
    from stoker.measure.group import Place, RankGroup, Steps
    from stoker.measure.ranks import run_ranks

    if job.extent.validate:
        raise InputError("ranks do not score a validation set: leave out --validate")
    if bench is not None and job.sleep_s is None:
        bench.make_model()

    def run_rank(place: Place, steps: Steps, released: IO[bytes], emit: OnEvent) -> Trial:
        device = f"cuda:{place.rank}" if bench is None and _ranks_take_gpus(request.device, place.of) else None
        own = bench or _open_bench(request, seed, emit, device)
        asked = _settled_job(job, own)
        group = RankGroup(place, own.device, steps)
        group.join()
        return _trial(own, asked, released, emit, limit, group)

    def begin() -> None:
        emit(LoopReady())
        jobs.readline()

    known = bench.subject if bench is not None else request.subject()
    fallback = Trial(outcome="failed", workload=known, setting=job.setting, extent=job.extent, machine=inspect())
    trial = run_ranks(job.setting.processes, run_rank, begin, fallback, emit)
    emit(RunEnded(trial=trial, purpose="job"))
    return trial.outcome


def _ranks_take_gpus(device: str, ranks: int) -> bool:
    """Whether ranks run on GPUs, told without touching one: who has cannot be forked. Raises InputError if there are
    fewer than ranks, or one is named."""
    if device == "cpu" or device.startswith("sleep"):
        return False
    import torch

    from stoker.machine import gpu

    count = 0
    if torch.backends.cuda.is_built():
        cards, cuda = gpu.read()
        count = len(gpu.visible(cards, cuda.visible_devices))
    if device == "auto" and not count:
        return False
    if device not in ("auto", "cuda"):
        raise InputError(f"each rank takes a GPU of its own: leave out --device {device}")
    if count < ranks:
        raise InputError(f"{ranks} ranks need {ranks} GPUs, and here are {count}; --device cpu runs them without")
    return True


_errors: list[BaseException] = []
"""The error that ended this process' last run. Its traceback holds the loader, whose orderly end would take seconds; an
error that is referred to ends with the process."""


def _trial(
    bench: "Bench",
    job: Job,
    jobs: IO[bytes],
    emit: OnEvent,
    limit: "ThreadLimit | None",
    group: "RankGroup | None" = None,
) -> Trial:
    """Run a job, or one rank of it; what goes wrong once the loop runs is an outcome, before that an error of Stoker's
    is raised."""
    from stoker.measure.loop import DeadlinePassed

    limits = [None if job.limit_s is None else perf_counter() + job.limit_s, job.ends_at_s]
    deadline_s = min((each for each in limits if each is not None), default=None)
    share = max(1, int(bench.see_machine().cpu.usable / group.place.of)) if group is not None else None
    _set_threads(job.threads or job.setting.threads or share, limit)

    def wait_for_caller() -> None:
        emit(LoopReady())
        jobs.readline()

    outcome: Outcome
    try:
        return bench.run(
            job.setting,
            job.extent,
            emit,
            dataset=Repeats(bench.dataset, job.repeats) if job.repeats else None,
            sleep_s=job.sleep_s,
            keeps_memory=job.keeps_memory,
            deadline_s=deadline_s,
            before_loop=wait_for_caller,
            group=group,
        )
    except DeadlinePassed as error:
        _errors.append(error)
        if deadline_s == job.ends_at_s:
            outcome, problem = "timed_out", Problem(sentence=_OVER, remedy=_MORE_TIME)
        else:
            sentence = f"not over after {format_seconds(job.limit_s or 0.0)}"
            outcome, problem = "timed_out", Problem(sentence=sentence)
    except BaseException as error:
        if isinstance(error, StokerError) and not bench.running:
            raise
        _errors.append(error)
        outcome, problem = outcome_of(error)
    failed = Trial(
        outcome=outcome,
        workload=bench.subject,
        setting=job.setting,
        extent=job.extent,
        problem=problem,
        machine=bench.see_machine(),
    )
    return bench.with_interference(failed)


def _set_threads(number: int | None, limit: "ThreadLimit | None") -> None:
    import torch

    if limit is not None:
        limit.release(number)
    elif number is not None:
        torch.set_num_threads(number)


def outcome_of(error: BaseException) -> tuple[Outcome, Problem]:
    """Judge an error while the loader's signal handler may still raise another one, for a worker that died."""
    from stoker.process import failures

    while True:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return failures.of_error(error)
        except RuntimeError as later:
            error = later


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
        return RULES.repeated_length

    def __getitem__(self, index: int) -> Any:
        return self._items[index % len(self._items)]
