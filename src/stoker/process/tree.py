"""A process and all processes below it."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

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


def remove_shared_memory(pids: Iterable[int], root: Path = Path("/dev/shm")) -> None:
    """Remove what ended processes left in shared memory. Torch removes the name of a batch right after it has the
    memory; a process that the kernel kills in between, for want of memory, does not get there."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                continue
        for path in root.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                path.unlink()
