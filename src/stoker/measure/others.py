"""Whether other processes took the CPUs that a run needed: a figure from such a run says little about the workload."""

import os
import resource
from pathlib import Path
from time import perf_counter

from stoker.records import Trial

_SAID = "other processes used"
_SHARE = 0.15
_IDLE = 0.5
"""In CPUs: what others may use, and what must be left idle, for them not to matter."""


class Others:
    """Reads the machine's CPU time when made and again when asked; what this process tree did not use, others did."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._machine, self._own = machine_cpu_s(), _own_s()

    def note(self) -> str | None:
        """One sentence where others were in the way. The run's workers must have been joined."""
        now = machine_cpu_s()
        seconds = max(perf_counter() - self._began, 1e-3)
        busy, idle = (after - before for before, after in zip(self._machine, now, strict=True))
        others = (busy - (_own_s() - self._own)) / seconds
        if others <= _SHARE or idle / seconds >= _IDLE:
            return None
        return f"{_SAID} {others:.1f} CPUs while this ran, and left none idle: its times say less than they seem to"


def disturbed(trial: Trial) -> bool:
    """Whether a trial of the bench says that others were in its way."""
    return any(note.startswith(_SAID) for note in trial.notes)


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
