"""The files that a process writes: JSON lines, appended whole. See `observer` for what they hold."""

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

VERSION = 1
VARIABLE = "STOKER_RUN"
"""The environment variable with the settings, as JSON."""
_FLUSH_NS, _FLUSH_SHARE = 50_000_000, 400
"""A process may end without notice (`os._exit`, a signal): this much of its samples may be lost. Where writing is slow
it is more: writing may take a 400th of the time."""
_MOST_PROBLEMS = 20

_OURS = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.path.abspath(os.__file__))


class Settings:
    """What the launcher asks for."""

    def __init__(
        self,
        directory: str,
        batches: int = 200,
        *,
        stop: bool = False,
        overrides: dict[str, Any] | None = None,
        sites: list | None = None,  # type: ignore[type-arg]
        headroom: bool = False,
        probes: bool = False,
    ) -> None:
        self.directory, self.batches, self.stop = directory, batches, stop
        self.overrides, self.sites, self.headroom = overrides or {}, sites or [], headroom
        self.probes = probes

    def encode(self) -> str:
        return json.dumps({"version": VERSION, **vars(self)}, separators=(",", ":"))


def settings_from(environment: Any) -> Settings | None:
    """The settings of the run that this process belongs to; None where there is none, or no more."""
    try:
        fields = json.loads(environment.get(VARIABLE, ""))
        if fields.pop("version") != VERSION or not os.path.isdir(fields["directory"]):
            return None
        return Settings(
            fields["directory"],
            fields["batches"],
            stop=fields["stop"],
            overrides=fields["overrides"],
            sites=fields["sites"],
            headroom=fields["headroom"],
            probes=fields["probes"],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Journal:
    """One process' file. Rows of one kind are gathered and written together.

    A write opens the file and closes it again: a descriptor that stays open could be closed by the script, and its
    number given to a file of the script's.
    """

    def __init__(self, directory: str, role: str) -> None:
        self.path = os.path.join(directory, f"{role}-{os.getpid()}-{time.perf_counter_ns()}.jsonl")
        self._lines: list = []  # type: ignore[type-arg]
        self._rows: dict[str, list] = {}  # type: ignore[type-arg]
        self._due = 0

    def line(self, kind: str, **fields: Any) -> None:
        self._settle()
        self._lines.append({"kind": kind, **fields})

    def row(self, kind: str, row: list) -> None:  # type: ignore[type-arg]
        rows = self._rows.get(kind)
        if rows is None:
            rows = self._rows[kind] = []
        rows.append(row)

    def flush_if_due(self, now: int) -> None:
        if now > self._due:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered; raises OSError where that fails."""
        began = time.thread_time_ns()
        self._settle()
        if not self._lines:
            return
        text = "".join(json.dumps(line, separators=(",", ":"), default=repr) + "\n" for line in self._lines)
        self._lines = []
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = text.encode("utf-8", "replace")
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
        spent = time.thread_time_ns() - began
        self._due = time.perf_counter_ns() + max(_FLUSH_NS, spent * _FLUSH_SHARE)

    def _settle(self) -> None:
        gathered, self._rows = self._rows, {}  # another thread may add a row meanwhile
        self._lines += [{"kind": kind, "rows": rows} for kind, rows in list(gathered.items())]


def describe(error: BaseException) -> str:
    """An error of ours in one line, with the place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}".replace("\n", " ")[:500]


def is_ours(error: BaseException) -> bool:
    """Whether an error arose in our own code, or in the standard library that it called. Otherwise a signal handler of
    the script's ran meanwhile, and raised it: then it is the script's to handle."""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        standard = name.startswith((_STANDARD, "<")) and "site-packages" not in name
        if not standard and not name.startswith(_OURS):
            return False
        trace = trace.tb_next
    return True


def is_of_signal(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised the error, wherever it interrupted."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def report(directory: str, what: str, error: object) -> None:
    """Write down that something could not be observed. The script's own output stays as it is."""
    try:
        sentence = describe(error) if isinstance(error, BaseException) else str(error)
        journal = Journal(directory, "problem")
        journal.line("problem", pid=os.getpid(), what=what, error=sentence, python=sys.version.split()[0])
        journal.flush()
    except Exception:
        pass
