"""CPU time that processes other than the run itself take."""

import os
import resource
from pathlib import Path
from time import perf_counter


class InterferenceGauge:
    """Reads the machine's CPU time when made and again on `read`. What this process tree did not use, others did."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._machine, self._own = machine_cpu_s(), _own_s()

    def read(self) -> tuple[float, float]:
        """CPUs that other processes used since this was made, and CPUs that were idle. Join the workers first."""
        now = machine_cpu_s()
        seconds = max(perf_counter() - self._began, 1e-3)
        busy, idle = (after - before for before, after in zip(self._machine, now, strict=True))
        return max(0.0, (busy - (_own_s() - self._own)) / seconds), idle / seconds


def machine_cpu_s() -> tuple[float, float]:
    """CPU seconds that were used and that were idle, of all CPUs together; no idle time ends where no kernel tells."""
    try:
        fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0.0, perf_counter()
    ticks = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / ticks, idle / ticks


def _own_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
