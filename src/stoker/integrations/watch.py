"""Observes the loaders that code in this process reads, for as long as a `with` block or a loop lasts.

    with stoker.watch() as watched:
        train()
    print(watched.answer)

    for batch in stoker.watch(loader):
        ...

It sees what `stoker run` sees, with the same observer, and takes everything back at the end.
"""

import importlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from stoker.errors import InputError
from stoker.integrations.bootstrap.journal import VARIABLE, Settings
from stoker.integrations.launch import collected, observed_environment
from stoker.integrations.logs import RunLog, read_logs
from stoker.records import ScriptAnswer, Trial


class Watch:
    """Made by `watch`. `log` is there when it has ended."""

    _active: "Watch | None" = None

    def __init__(self, loader: Iterable[Any] | None = None, *, batches: int = 200) -> None:
        if batches < 1:
            raise InputError(f"batches must be at least 1, got {batches}")
        self._loader, self._batches = loader, batches
        self._directory: Path | None = None
        self._observer: Any = None
        self._environment: dict[str, str | None] = {}
        self._log: RunLog | None = None
        self._answer: ScriptAnswer | None = None
        self._when = datetime.now(UTC)
        self._asked_at = _caller() if loader is not None else None

    @property
    def log(self) -> RunLog:
        """What was seen. Raises `InputError` before the end."""
        if self._log is None:
            raise InputError("nothing was watched yet: the log is there when the loop or the block has ended")
        return self._log

    @property
    def answer(self) -> ScriptAnswer:
        """Where the time went and what would make it faster, as `stoker run` reports it. Raises `InputError` before the
        end."""
        if self._answer is None:
            from stoker.integrations.script import answer_of
            from stoker.integrations.trials import Surroundings
            from stoker.machine import inspect

            around = Surroundings(machine=inspect(), when=self._when)
            hints = [self._asked_at] if self._asked_at is not None else []
            self._answer = answer_of(self.log, sys.argv, around, hints=hints)
        return self._answer

    @property
    def training(self) -> Trial:
        """The trial of the loader that trained, or of the one that was read most. Raises `InputError` before the end,
        and where no loader was read for more than one batch."""
        found = self.answer.training
        if found is None:
            raise InputError(self.answer.notes[0] if self.answer.notes else "no loader was observed")
        return found

    def start(self) -> None:
        """Begin to observe. Raises `InputError` where this process is being observed already."""
        if Watch._active is not None:
            raise InputError("this process is being watched already; one watch at a time")
        if "_stoker_bootstrap" in sys.modules:
            raise InputError("this process runs under `stoker run`, which watches it already; leave one of them out")
        importlib.import_module("torch.utils.data")
        observer = importlib.import_module("stoker.integrations.bootstrap.observer")
        self._directory = Path(tempfile.mkdtemp(prefix="stoker-watch-"))
        settings = Settings(str(self._directory), self._batches)
        self._observer = observer.Observer(settings)
        self._observer.install()
        self._set_environment(settings)
        Watch._active = self

    def stop(self) -> None:
        """Observe no more, take back every change, and read what was seen. A second call does nothing."""
        if Watch._active is not self or self._directory is None:
            return
        Watch._active = None
        self._restore_environment()
        self._observer.close()
        self._observer.uninstall(thoroughly=True)
        self._observer = None
        try:
            self._log = read_logs(collected(self._directory))
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._log.problems:
            warnings.warn(f"Stoker could not observe everything: {'; '.join(self._log.problems)}", stacklevel=3)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise InputError("there is no loader to read; give one, as in: for batch in stoker.watch(loader)")
        with self:
            yield from self._loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def _set_environment(self, settings: Settings) -> None:
        """Workers that are not forked find the observer as the processes of `stoker run` do."""
        changed = observed_environment(settings, os.environ)
        for name in ("PYTHONPATH", VARIABLE):
            self._environment[name] = os.environ.get(name)
            os.environ[name] = changed[name]

    def _restore_environment(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _caller() -> tuple[str, int] | None:
    """The line outside of Stoker that made a watch: often the loader is made on it, too."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "stoker":
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None


def watch(loader: Iterable[Any] | None = None, *, batches: int = 200) -> Watch:
    """Observe a loader while it is read, or with `with` every loader that the block reads: where the time of its first
    `batches` batches goes, in the loop and in the workers."""
    return Watch(loader, batches=batches)
