"""A trial in a process of its own: whatever becomes of it, the caller gets a `Trial` that says so."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stoker.errors import InputError, StokerError
from stoker.events import AnyEvent, ClockRead, GpuUsed, OnEvent, Phase, Progress, SubjectKnown
from stoker.machine import inspect
from stoker.machine.host import out_of_memory_kills
from stoker.measure.gauges import Gauges
from stoker.process import child
from stoker.records import Extent, Mode, Outcome, Problem, Setting, Subject, Trial, WorkloadSpec
from stoker.units import format_seconds
from stoker.workload.workload import Workload

_kept: list[BaseException] = []
"""In a child: the error that ended it. Its traceback holds the loader, whose orderly end would take seconds; kept, it
ends with the process."""

STALL_S = 300.0


def profile(
    source: Workload | WorkloadSpec | str,
    setting: Setting,
    extent: Extent | None = None,
    *,
    mode: Mode | None = None,
    device: str = "auto",
    timeout_s: float | None = None,
    on_event: OnEvent | None = None,
) -> Trial:
    """Run one trial of a workload: a `Workload`, a model's name, or `train.py:workload`.

    What cannot be used is raised as an error; everything that happens in the run is an outcome of the trial.
    """
    extent = extent or Extent()
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    watcher = _Watcher(first_guess(source, mode, device), on_event)
    kills = out_of_memory_kills()
    try:
        ended = child.run(
            _in_child,
            (source, setting, extent, mode, device),
            kind=Trial,
            timeout_s=timeout_s,
            stall_s=STALL_S,
            on_event=watcher.event,
            on_start=watcher.started,
        )
    finally:
        watcher.gauges.stop()
    if ended.how == "returned" and ended.result is not None:
        return msgspec.structs.replace(ended.result, gauges=watcher.gauges.readings(watcher.began_s, watcher.over_s))
    if ended.failure is not None and ended.failure.kind:
        child.value(ended)
    outcome, problem = judge(ended, timeout_s, out_of_memory_kills() > kills)
    return Trial(
        outcome=outcome, workload=watcher.subject, setting=setting, extent=extent, problem=problem, machine=inspect()
    )


class _Watcher:
    """The caller's side of a running trial: passes events on, keeps what they tell, and reads the gauges."""

    def __init__(self, subject: Subject, on_event: OnEvent | None) -> None:
        self.subject = subject
        self.gauges = Gauges()
        self.began_s: float | None = None
        self.over_s: float | None = None
        self._on_event = on_event

    def started(self, pid: int) -> None:
        self.gauges.start(pid)

    def event(self, event: AnyEvent) -> None:
        match event:
            case SubjectKnown(subject=subject):
                self.subject = subject
            case ClockRead(began_s=began_s, over_s=over_s):
                self.began_s, self.over_s = began_s, over_s
            case Phase(name="running"):
                self.gauges.run_begins()
            case GpuUsed(uuid=uuid):
                self.gauges.watch_gpu(uuid)
        if self._on_event:
            self._on_event(event)


def first_guess(source: Workload | WorkloadSpec, mode: Mode | None, device: str) -> Subject:
    """The subject of a trial that ended before it could say."""
    if mode not in (None, "train", "infer"):
        raise InputError(f"no such mode: {mode!r}; choose train or infer")
    name = source.spec if isinstance(source, WorkloadSpec) else source.name
    data = (source.data if isinstance(source, WorkloadSpec) else source.data_name) or "its own"
    return Subject(name=name, model=name, data=data, mode=mode or "infer", device=device, items=None)


def _in_child(
    source: Workload | WorkloadSpec, setting: Setting, extent: Extent, mode: Mode | None, device: str, emit: OnEvent
) -> Trial:
    """Make the workload and run it; what goes wrong once the loop runs is an outcome, before that an error."""
    from stoker.measure.run import Opened
    from stoker.process import failures

    subject, bench = first_guess(source, mode, device), None

    def watch(event: AnyEvent) -> None:
        nonlocal subject
        if isinstance(event, SubjectKnown):
            subject = event.subject
        emit(event)

    try:
        workload = opened(source, mode, emit)
        emit(Phase(name="preparing"))
        bench = Opened(workload, mode or workload.default_mode(), device, seed=extent.seed)
        return bench.run(setting, extent, watch)
    except BaseException as error:
        if isinstance(error, StokerError) and not (bench and bench.running):
            raise
        _kept.append(error)
        outcome, problem = calmly(failures.of_error, error)
    return Trial(outcome=outcome, workload=subject, setting=setting, extent=extent, problem=problem, machine=inspect())


def opened(source: Workload | WorkloadSpec, mode: Mode | None, emit: OnEvent) -> Workload:
    """The workload itself, where it is to run."""
    if isinstance(source, Workload):
        return source
    from stoker.workload.spec import load

    def progress(what: str, done: int, of: int) -> None:
        emit(Progress(what=what, done=done, of=of))

    weights = Path(source.weights) if source.weights else None
    return load(source.spec, data=source.data, mode=mode, items=source.items, weights=weights, progress=progress)


def calmly(decide: Callable[[BaseException], tuple[Outcome, Problem]], error: BaseException) -> tuple[Outcome, Problem]:
    """Judge an error while the loader's signal handler may still raise another, for a worker that died."""
    while True:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return decide(error)
        except RuntimeError as later:
            error = later


def judge(
    ended: child.Ended[Any], timeout_s: float | None, memory_kill: bool, *, stall_s: float = STALL_S
) -> tuple[Outcome, Problem]:
    """What the end of a child that returned nothing says."""
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
