"""Reads what surrounds a script while it runs: its processes' CPU time and memory, the GPU, other processes."""

import contextlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from stoker.integrations.trials import Surroundings
from stoker.machine import inspect
from stoker.measure.gauges import Gauges
from stoker.measure.interference import machine_cpu_s
from stoker.measure.reference import reference_s
from stoker.process.tree import family
from stoker.records import Machine

_TAIL_BYTES = 4096


class Reader:
    """Looks at a script from the process that launched it. `on_observed` is called once, in a thread of its own, when
    every process of the script has seen as many batches as it was asked for."""

    def __init__(self, directory: Path, on_observed: Callable[[], None] | None = None) -> None:
        self._directory, self._on_observed = directory, on_observed
        self._gauges = Gauges()
        self._when = datetime.now(UTC)
        self._machine: Machine | None = None
        self._reference_s: tuple[float, ...] = ()
        self._before: tuple[float, tuple[float, float], float] | None = None
        self._usage: tuple[float, float] | None = None
        self._threads: list[threading.Thread] = []
        self._pid = 0

    def started(self, pid: int) -> None:
        """The script has been started. What takes time is done in a thread, while the script imports what it needs."""
        self._pid = pid
        self._gauges.start(pid)
        self._spawn(self._look_around)

    def look(self) -> None:
        """A moment later."""
        if self._usage is not None:
            return
        loops = list(self._directory.glob("loop-*.jsonl"))
        if loops and self._before is None:
            self._gauges.run_begins()
            self._before = (perf_counter(), machine_cpu_s(), _family_cpu_s(self._pid))
        if loops and all(map(_has_ended, loops)):
            self._read_usage()
            self._gauges.stop()
            if self._on_observed is not None:
                self._spawn(self._on_observed)

    def ended(self) -> None:
        """The script is about to be waited for, or has ended."""
        self._gauges.stop()
        for thread in self._threads:
            thread.join()

    def exiting(self) -> None:
        """The script has ended, and was not waited for yet: its CPU time can still be read."""
        if self._usage is None and self._before is not None:
            self._read_usage()

    def surroundings(self) -> Surroundings:
        """What was read so far. Times of the gauges are moments of `time.perf_counter`."""
        interference, idle = self._usage or (None, None)
        return Surroundings(
            machine=self._machine,
            when=self._when,
            reference_s=self._reference_s,
            interference=interference,
            idle_cpus=idle,
            gauges=self._gauges.readings(0.0, float("inf")),
        )

    def _spawn(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, name="stoker-run", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _look_around(self) -> None:
        with contextlib.suppress(OSError):
            self._reference_s = reference_s()
        self._machine = inspect()
        if len(self._machine.gpus) == 1:
            self._gauges.watch_gpu(self._machine.gpus[0].uuid)

    def _read_usage(self) -> None:
        assert self._before is not None
        then, (busy, idle), own = self._before
        now, (busy_now, idle_now) = perf_counter(), machine_cpu_s()
        seconds = max(now - then, 1e-3)
        others_s = (busy_now - busy) - (_family_cpu_s(self._pid) - own)
        self._usage = max(0.0, others_s / seconds), (idle_now - idle) / seconds


def _has_ended(path: Path) -> bool:
    """Whether an observed process has written its last line."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return False
    return bool(lines) and lines[-1].startswith(b'{"kind":"end"')


def _family_cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it, those that have ended included."""
    ticks = 0
    for each in family(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
