"""A process and all processes below it."""

import contextlib
import os
from pathlib import Path
from time import monotonic, sleep

import psutil

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def family(pid: int, *, threads: str | None = "*") -> list[int]:
    """The process and all below it, parents before children.

    `threads` selects the threads whose children are listed: "*" for all, None for the main thread alone. Linux lists
    the children of each thread; a search of all of /proc costs ten times as much.
    """
    pids = [pid]
    for each in pids:
        with contextlib.suppress(OSError):  # it has just ended
            tasks = Path(f"/proc/{each}/task")
            for task in tasks.glob(threads) if threads else (tasks / str(each),):
                pids += map(int, (task / "children").read_text().split())
    if len(pids) > 1 or threads is None:
        return pids
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def cpu_and_rss(pid: int) -> tuple[float, float]:
    """CPU seconds so far and resident bytes. Raises OSError or psutil.Error if the process is gone.

    Linux has both in one file.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


_PATIENCE_S = 3.0
"""How long a process whose parent has gone may take to end: it sees that within moments, unless the machine is busy."""


def remove_shared_memory(first_pid: int, since_s: float, root: Path = Path("/dev/shm")) -> None:
    """Remove what processes below `first_pid`, which has ended, left in shared memory since then.

    Torch removes the name of a batch right after it has the memory; a process that is killed in between, such as by the
    kernel for want of memory, does not get there. Files of processes that began earlier or go on, and files in use, are
    left alone.
    """
    until_s = monotonic() + _PATIENCE_S
    for path in root.glob("torch_*_*"):
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid = int(path.name.split("_")[1])
            is_ours = path.stat().st_mtime >= since_s and path.stat().st_uid == os.getuid()
            if pid < first_pid or not is_ours:
                continue
            while not _has_ended(pid) and path.exists() and monotonic() < until_s:
                sleep(0.05)
            if _has_ended(pid) and not _is_mapped(path):
                path.unlink()


def _has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _is_mapped(path: Path) -> bool:
    """Whether any process has this file in its memory."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False
