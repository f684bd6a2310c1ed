"""A trial in a process of its own: whatever becomes of it, the caller gets a `Trial` that says so."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stoker.errors import InputError, StokerError
from stoker.machine import inspect
from stoker.machine.host import out_of_memory_kills
from stoker.measure import isolate
from stoker.measure.gauges import Gauges
from stoker.records import Extent, Mode, Outcome, Problem, Record, Setting, Subject, Trial
from stoker.units import format_seconds
from stoker.workload.definition import Workload

_kept: list[BaseException] = []
"""In a child: the error that ended it. Its traceback holds the loader, whose orderly end would take seconds; kept, it
ends with the process."""

OnEvent = Callable[[str, Any], None]
STALL_S = 300.0


class Named(Record, frozen=True):
    """A workload by name, to be made where it runs: a model's name with data, or `train.py:workload`."""

    spec: str
    data: str | None = None
    items: int | None = None
    weights: str | None = None


def profile(
    source: Workload | Named | str,
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
    source = Named(spec=source) if isinstance(source, str) else source
    watcher = _Watcher(first_guess(source, mode, device), on_event)
    kills = out_of_memory_kills()
    try:
        ended = isolate.run(
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
        isolate.value(ended)
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

    def event(self, name: str, data: Any) -> None:
        if name == "subject":
            self.subject = msgspec.convert(data, Subject)
        elif name == "clock":
            self.began_s, self.over_s = data
        elif name == "phase" and data == "running":
            self.gauges.run_begins()
        elif name == "gpu":
            self.gauges.watch_gpu(data)
        if self._on_event:
            self._on_event(name, data)


def first_guess(source: Workload | Named, mode: Mode | None, device: str) -> Subject:
    """The subject of a trial that ended before it could say."""
    if mode not in (None, "train", "infer"):
        raise InputError(f"no such mode: {mode!r}; choose train or infer")
    name = source.spec if isinstance(source, Named) else source.name
    data = (source.data if isinstance(source, Named) else source.data_name) or "its own"
    return Subject(name=name, model=name, data=data, mode=mode or "infer", device=device, items=None)


def _in_child(
    source: Workload | Named, setting: Setting, extent: Extent, mode: Mode | None, device: str, emit: isolate.Emit
) -> Trial:
    """Make the workload and run it; what goes wrong once the loop runs is an outcome, before that an error."""
    from stoker.measure import outcomes, pipeline

    state: dict[str, Any] = {"subject": first_guess(source, mode, device)}

    def watch(name: str, data: Any) -> None:
        state[name] = data
        emit(name, data)

    try:
        workload = opened(source, mode, emit)
        return pipeline.run(workload, mode or workload.default_mode(), device, setting, extent, watch)
    except BaseException as error:
        if isinstance(error, StokerError) and state.get("phase") != "running":
            raise
        _kept.append(error)
        outcome, problem = calmly(outcomes.of_error, error)
    subject = state["subject"]
    return Trial(outcome=outcome, workload=subject, setting=setting, extent=extent, problem=problem, machine=inspect())


def opened(source: Workload | Named, mode: Mode | None, emit: isolate.Emit) -> Workload:
    """The workload itself, where it is to run."""
    if isinstance(source, Workload):
        return source
    from stoker.workload.source import load

    def progress(what: str, done: int, of: int) -> None:
        emit("build", {"what": what, "done": done, "of": of})

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
    ended: isolate.Ended[Any], timeout_s: float | None, memory_kill: bool, *, stall_s: float = STALL_S
) -> tuple[Outcome, Problem]:
    """What the end of a child that returned nothing says."""
    from stoker.measure import outcomes

    if ended.how == "timed_out":
        stalled = timeout_s is None or ended.seconds < timeout_s
        limit = f"nothing happened for {format_seconds(stall_s)}" if stalled else f"not over after {timeout_s:g} s"
        return "timed_out", outcomes.of_hang(ended.stacks, limit)
    if ended.failure is not None:
        return outcomes.of_trace(ended.failure.sentence, ended.failure.trace)
    if memory_kill:
        sentence = "the kernel killed the trial for want of host memory"
        return "oom", Problem(sentence=sentence, remedy="use a smaller batch, fewer workers or less prefetch")
    return outcomes.of_signal(ended.signal, ended.output)
