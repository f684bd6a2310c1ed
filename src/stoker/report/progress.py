"""Progress on stderr: a bar on a terminal, one line a phase elsewhere, nothing if the user asked for quiet."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Self

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

from stoker.events import AnyEvent, BatchDone, Phase, Progress, RunStarted
from stoker.units import format_count, format_seconds

_PHASES = {"preparing": "preparing the workload", "running": "running", "over": "done"}
_RUNNING = _PHASES["running"]
_TRYING = "trying batch sizes"
_PURPOSES = {"probe": "probing", "candidate": "trying candidates", "study": "running tasks"}
_REMIND_EVERY_S = 30.0
"""A phase that takes longer gets further lines, so that a log shows that the work goes on."""


class Show:
    """Takes the events of a call and shows them. A context manager: leaving it ends the bar or the last line."""

    def __init__(self, *, quiet: bool, title: str = "", clock: Callable[[], float] = monotonic) -> None:
        self._title = title
        self._view: _Bar | _Lines | None = None
        if not quiet:
            self._view = _Bar() if sys.stderr.isatty() else _Lines(clock)

    def __enter__(self) -> Self:
        if self._view:
            self._view.start(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._view:
            self._view.stop()

    def title(self, text: str) -> None:
        """What the next events are about; it comes before their text."""
        self._title = text

    def event(self, event: AnyEvent) -> None:
        """Show one event."""
        if self._view:
            self._view.event(self._title, event)

    def progress(self, what: str, done: int, of: int) -> None:
        """Show the progress of work in this process."""
        self.event(Progress(what=what, done=done, of=of))


class _Bar:
    """One line on a terminal that is drawn again and again, and removed at the end."""

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._bar = rich.progress.Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
        self._task: Any = None

    def start(self, title: str) -> None:
        self._bar.start()
        self._task = self._bar.add_task(f"{title}starting", total=None)

    def stop(self) -> None:
        self._bar.stop()

    def event(self, title: str, event: AnyEvent) -> None:
        match event:
            case Phase(name=name, text=text):
                self._draw(f"{title}{text or _PHASES.get(name, name)}", 0, None)
            case BatchDone(done=done, of=of):
                self._draw(f"{title}{_RUNNING}", done, of)
            case Progress(what=what, done=done, of=of):
                self._draw(f"{title}{what}", done, of)
            case RunStarted(text=text):
                self._draw(f"{title}{text}", 0, None)

    def _draw(self, text: str, done: int, of: int | None) -> None:
        self._bar.update(self._task, description=text, completed=done, total=of)


@dataclass
class _Stretch:
    """A phase as one line reports it. `count` counts runs or tries, `done` batches or items of `of`."""

    title: str
    what: str
    began_s: float
    unit: str = ""
    count: int = 0
    done: int = 0
    of: int | None = None

    def line(self, now_s: float, *, over: bool = True) -> str:
        so_far = "" if over else " so far"
        count = self._count()
        took = format_seconds(now_s - self.began_s)
        return f"{self.title}{self.what}: {f'{count}{so_far}, ' if count else ''}{took}{'' if count else so_far}"

    def _count(self) -> str:
        if self.what == _RUNNING and self.count <= 1:
            return format_count(self.done, "batch", "batches") if self.done else ""
        if self.unit and self.count:
            return format_count(self.count, self.unit, "tries" if self.unit == "try" else None)
        return f"{self.done} of {self.of}" if self.of and self.done else ""


class _Lines:
    """One line for each phase, written when the phase is over, with counts and elapsed time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now: _Stretch | None = None
        self._written_s = 0.0

    def start(self, title: str) -> None:
        """Nothing to write yet."""

    def stop(self) -> None:
        self._finish()

    def event(self, title: str, event: AnyEvent) -> None:
        self._remind()
        match event:
            case Phase():
                self._phase(title, event)
            case RunStarted(purpose=purpose):
                self._enter_runs(title, _PURPOSES[purpose])
            case BatchDone(done=done, of=of):
                if self._now:
                    self._now.done, self._now.of = done, of
            case Progress(what=what, done=done, of=of):
                current = self._enter(title, what)
                current.done, current.of = done, of

    def _phase(self, title: str, event: Phase) -> None:
        in_runs = self._now is not None and self._now.unit == "run" and self._now.title == title
        match event.name:
            case "preparing" if not in_runs:
                self._enter(title, _PHASES["preparing"])
            case "running" if not in_runs:
                self._enter(title, _RUNNING, unit="run")
            case "over" if in_runs and self._now:
                self._now.count += 1
                self._now.done = self._now.of or 0  # events of single batches may be left out, so ask for the total
            case "trying_batch":
                self._enter(title, _TRYING, unit="try").count += 1
            case "tracing" | "building_model":
                self._enter(title, event.text)

    def _enter_runs(self, title: str, what: str) -> None:
        """Runs that began before their purpose was known belong to it."""
        if self._now and self._now.what == _RUNNING and self._now.title == title:
            self._now.what = what
        self._enter(title, what, unit="run")

    def _enter(self, title: str, what: str, *, unit: str = "") -> _Stretch:
        """The current phase if it is this one, otherwise a new one."""
        if self._now is None or (self._now.title, self._now.what) != (title, what):
            self._finish()
            self._now = _Stretch(title, what, self._clock(), unit)
            self._written_s = self._now.began_s
        return self._now

    def _finish(self) -> None:
        if self._now:
            self._write(self._now.line(self._clock()))
        self._now = None

    def _remind(self) -> None:
        now_s = self._clock()
        if self._now and now_s - self._written_s >= _REMIND_EVERY_S:
            self._write(self._now.line(now_s, over=False))
            self._written_s = now_s

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
