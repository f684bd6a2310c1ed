"""CPU time that processes other than the run itself take."""

import contextlib
import os
import resource
from pathlib import Path
from time import perf_counter

import psutil

from stoker.process.tree import cpu_and_rss, family


class InterferenceGauge:
    """Reads the CPU time of the machine and of this process tree, now and again at `read`; the difference between the
    two is what other processes used."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._machine, self._own = machine_cpu_s(), _own_s()

    def read(self) -> tuple[float, float]:
        """CPUs that other processes used since the gauge was made, and CPUs that were idle."""
        now = machine_cpu_s()
        seconds = max(perf_counter() - self._began, 1e-3)
        busy, idle = (after - before for before, after in zip(self._machine, now, strict=True))
        return max(0.0, (busy - (_own_s() - self._own)) / seconds), idle / seconds


def machine_cpu_s() -> tuple[float, float]:
    """CPU seconds that were used and that were idle since the start, of all CPUs together.

    Where the kernel does not say, nothing is used and one CPU is idle: no run seems disturbed then.
    """
    try:
        fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0.0, perf_counter()
    ticks = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / ticks, idle / ticks


def _own_s() -> float:
    """CPU seconds of this process, of those below it that have ended, and of those that have not: the workers of a run
    that failed, and persistent ones."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for pid in family(os.getpid(), threads=None)[1:]:
        with contextlib.suppress(OSError, psutil.Error):  # it has just ended
            seconds += cpu_and_rss(pid)[0]
    return seconds
