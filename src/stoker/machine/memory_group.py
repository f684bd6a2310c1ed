"""A control group of our own that really limits the memory of what runs in it: processes, and the page cache they fill.

Version 1 lets a group be made inside our own. Version 2 has no processes in a group that has limited children, so there
the group is made beside ours, inside the innermost ancestor that may be written and that hands out the memory
controller. Linux lets root do this, a container with a writable hierarchy, and a user with a delegated group.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stoker.errors import InputError, MachineError
from stoker.machine.cgroup import groups
from stoker.machine.host import memory_limits
from stoker.machine.proc import SLASH, number, numbers, text
from stoker.records import Record
from stoker.units import format_bytes

_PREFIX = "stoker-"
_numbers = itertools.count()


class GroupRules(Record, frozen=True):
    """What a limit may be, and how a group is removed."""

    least_bytes: int = 64 << 20
    """Python with torch needs more; below this not even the fork succeeds."""
    remove_s: float = 5.0
    """The kernel lets a group go only once its last process is reaped."""
    look_s: float = 0.02


RULES = GroupRules()


class MemoryGroup:
    """A control group with a memory limit. A context manager: leaving it kills what still runs in it and removes it.

    Raises MachineError with the reason where no group can be made, and InputError for a limit that makes no sense.
    """

    def __init__(self, limit_bytes: int, root: Path = SLASH) -> None:
        if limit_bytes < RULES.least_bytes:
            least = format_bytes(RULES.least_bytes)
            raise InputError(f"a memory limit must be at least {least}, got {format_bytes(limit_bytes)}")
        present = min((each.limit_bytes for each in memory_limits(root)), default=None)
        if present is not None and limit_bytes > present:
            raise InputError(
                f"the memory limit of {format_bytes(limit_bytes)} is above the {format_bytes(present)} that this "
                "process already has; choose less"
            )
        self.limit_bytes = limit_bytes
        self.folder, self._version = _made(limit_bytes, root)

    def __enter__(self) -> "MemoryGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pids(self) -> list[int]:
        """The processes in the group."""
        return [int(line) for line in (text(self.folder / "cgroup.procs") or "").split()]

    def kills(self) -> int:
        """How many processes of the group the kernel has killed because the limit was reached."""
        name = "memory.oom_control" if self._version == 1 else "memory.events"
        return numbers(self.folder / name).get("oom_kill", 0)

    def peak_bytes(self) -> int | None:
        """The most memory that the group had, page cache included; None where the kernel does not say."""
        return number(self.folder / ("memory.max_usage_in_bytes" if self._version == 1 else "memory.peak"))

    def close(self) -> None:
        """Kill what still runs in the group, and remove it."""
        deadline = time.monotonic() + RULES.remove_s
        while self.folder.is_dir():
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            if time.monotonic() > deadline:
                return  # an empty folder of the kernel's is all that stays; the next group removes it
            time.sleep(RULES.look_s)


def join(folder: Path) -> None:
    """Move this process into a group; what it starts later is in it, too. Raises MachineError if that fails."""
    try:
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise MachineError(f"the run could not be moved into its memory group: {error.strerror or error}") from None


def problem(root: Path = SLASH) -> str | None:
    """Why the memory of a run cannot be limited here; None if it can. Makes a group and removes it."""
    try:
        with MemoryGroup(RULES.least_bytes, root):
            return None
    except (InputError, MachineError) as error:
        return str(error)


def _made(limit_bytes: int, root: Path) -> tuple[Path, Literal[1, 2]]:
    """The folder of a new group with this limit."""
    reasons: list[str] = []
    for version, parent in _parents(root):
        _remove_stale(parent)
        folder = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(f"{parent}: {(error.strerror or str(error)).lower()}")
            continue
        try:
            _limit(folder, version, limit_bytes)
            return folder, version
        except OSError as error:
            reasons.append(f"{parent}: {(error.strerror or str(error)).lower()}")
            with contextlib.suppress(OSError):
                folder.rmdir()
    raise MachineError(f"the memory of a run cannot be limited here: {_why(reasons)}")


def _why(reasons: list[str]) -> str:
    if not reasons:
        return "there is no control group for memory that this process may use; a container needs a writable cgroup"
    return f"no control group can be made ({reasons[0]}); it needs root, or a group that is delegated to this user"


def _parents(root: Path) -> Iterator[tuple[Literal[1, 2], Path]]:
    """Where a group may be made, the innermost first."""
    for group in groups("memory", root):
        if group.version == 1 and (group.folder / "memory.limit_in_bytes").exists():
            yield 1, group.folder
            return  # only inside our own: an outer group might have no limit, or another one
    for group in groups("memory", root):
        if group.version == 2 and "memory" in (text(group.folder / "cgroup.subtree_control") or "").split():
            yield 2, group.folder


def _limit(folder: Path, version: Literal[1, 2], limit_bytes: int) -> None:
    if version == 1:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        swap = folder / "memory.memsw.limit_in_bytes"
        if swap.exists():  # memory and swap together: the run gets no swap beyond its memory
            with contextlib.suppress(OSError):
                swap.write_text(str(limit_bytes))
        return
    (folder / "memory.max").write_text(str(limit_bytes))
    with contextlib.suppress(OSError):
        (folder / "memory.swap.max").write_text("0")


def _remove_stale(parent: Path) -> None:
    """Remove the empty groups of processes that were killed before they could."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
