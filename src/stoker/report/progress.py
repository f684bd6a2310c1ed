"""Shows on stderr how far things are: a bar on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

import sys
from time import monotonic
from types import TracebackType
from typing import Any, Self

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

from stoker.events import AnyEvent, BatchDone, Phase, Progress, RunStarted

_LINE_EVERY_S = 5.0
_PHASES = {"preparing": "preparing the workload", "running": "running", "over": "done"}


class Show:
    """Takes the events of a trial (`phase`, `batch`, `build`) and draws them; used as a context manager."""

    def __init__(self, *, quiet: bool, title: str = "") -> None:
        self._quiet, self._title = quiet, title
        self._bar: rich.progress.Progress | None = None
        self._task: Any = None
        self._what = ""
        self._said_at = 0.0

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = rich.progress.Progress(
                *columns, console=Console(stderr=True), transient=True, refresh_per_second=4
            )
            self._bar.start()
            self._task = self._bar.add_task(f"{self._title}starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def title(self, text: str) -> None:
        """What the next events are about."""
        self._title = text

    def event(self, event: AnyEvent) -> None:
        match event:
            case Phase(name=name, text=text):
                self._tell(f"{self._title}{text or _PHASES.get(name, name)}", 0, None)
            case BatchDone(done=done, of=of):
                self._tell(f"{self._title}running", done, of)
            case Progress(what=what, done=done, of=of):
                self._tell(f"{self._title}{what}", done, of)
            case RunStarted(text=text):
                self._tell(f"{self._title}{text}", 0, None)

    def progress(self, what: str, done: int, of: int) -> None:
        """The same, for work in this process."""
        self._tell(f"{self._title}{what}", done, of)

    def _tell(self, what: str, done: int, of: int | None) -> None:
        if self._bar:
            self._bar.update(self._task, description=what, completed=done, total=of)
        elif not self._quiet:
            self._line(what, done, of)

    def _line(self, what: str, done: int, of: int | None) -> None:
        now = monotonic()
        if what == self._what and now - self._said_at < _LINE_EVERY_S:
            return
        self._what, self._said_at = what, now
        count = f": {done} of {of}" if of and done else ""
        sys.stderr.write(f"{what}{count}\n")
        sys.stderr.flush()
