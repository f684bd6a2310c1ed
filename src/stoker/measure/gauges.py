"""Readings taken beside a run, from the caller's process, a few times a second: GPU, memory, CPU, /dev/shm."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import psutil

from stoker.machine import cpu, host
from stoker.measure.rundelay import thread_delays_s
from stoker.process.tree import cpu_and_rss, family
from stoker.records import Gauge, Record


class GaugeRules(Record, frozen=True):
    """How often each figure is read."""

    period_s: float = 0.25
    """Between two readings: a run of a second has four, and the process that reads has little to do."""
    family_every: int = 4
    """Look for new processes at every such reading: they seldom change once the workers are there."""
    pss_first: int = 12
    """The first reading of the proportional set size, three seconds into the run."""
    pss_every: int = 80
    """The kernel walks every page table for it, which takes milliseconds for each process."""


RULES = GaugeRules()


class Gauges:
    """Reads the CPU time and memory of a process tree, and its GPU, between `start` and `stop`."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[float, float]]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._gpu: Callable[[], Iterator[tuple[str, float]]] | None = None

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._watch, args=(pid,), name="stoker-gauges", daemon=True)
        self._thread.start()

    def run_begins(self) -> None:
        """The loop starts now, and with it its workers: look for new processes at once."""
        self._number = 0

    def watch_gpu(self, uuid: str) -> None:
        """Read this GPU too, from now on."""
        with contextlib.suppress(Exception):  # NVML is not everywhere; its own errors are of many kinds
            self._gpu = _gpu_reader(uuid)

    def stop(self) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def readings(self, began_s: float, over_s: float) -> dict[str, Gauge]:
        """What was read between two moments of the system-wide clock, timed from the first."""
        gauges: dict[str, Gauge] = {}
        for name, samples in list(self._samples.items()):  # the thread that reads may still add to them
            between = [(at - began_s, value) for at, value in list(samples) if began_s <= at <= over_s]
            if between:
                times, values = zip(*between, strict=True)
                gauges[name] = Gauge(times_s=times, samples=values)
        return gauges

    def _watch(self, pid: int) -> None:
        tree = _Tree(pid)
        while not self._over.is_set():
            self._read(tree, self._number)
            self._number += 1
            self._over.wait(RULES.period_s)

    def _read(self, tree: "_Tree", number: int) -> None:
        now = perf_counter()
        for name, value in self._values(tree, number):
            self._samples.setdefault(name, []).append((now, value))

    def _values(self, tree: "_Tree", number: int) -> Iterator[tuple[str, float]]:
        if number <= RULES.family_every or number % RULES.family_every == 0:
            tree.refresh(thoroughly=number >= RULES.family_every)
        yield from tree.read(with_pss=number % RULES.pss_every == RULES.pss_first)
        shm = host.shm_used_bytes()
        if shm is not None:
            yield "shm_bytes", shm
        throttled = cpu.throttling() if number % RULES.family_every == 0 else None
        if throttled is not None:
            yield "throttled_s", throttled.throttled_s
        if self._gpu is not None:
            with contextlib.suppress(Exception):
                yield from self._gpu()


class _Tree:
    """A process and all below it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids: list[int] = []
        self._before: tuple[float, dict[int, float]] | None = None
        self._delays_before: tuple[float, dict[int, float]] | None = None

    def refresh(self, *, thoroughly: bool) -> None:
        """Find out which processes there are now."""
        with contextlib.suppress(psutil.Error, OSError):
            self._pids = family(self._pid, threads="*" if thoroughly else None)

    def read(self, *, with_pss: bool) -> Iterator[tuple[str, float]]:
        rss = pss = 0.0
        cpu_s: dict[int, float] = {}
        for pid in self._pids:
            with contextlib.suppress(psutil.Error, OSError):
                cpu_s[pid], resident = cpu_and_rss(pid)
                rss += resident
                if with_pss:
                    pss += getattr(psutil.Process(pid).memory_full_info(), "pss", 0)
        yield "processes", len(cpu_s)
        yield "rss_bytes", rss
        if with_pss and pss:
            yield "pss_bytes", pss
        yield from self._cores(cpu_s)
        yield from self._delayed()

    def _delayed(self) -> Iterator[tuple[str, float]]:
        """How many threads were ready and got no CPU since the last reading, on average. Threads that were not there
        before began since then."""
        now = perf_counter()
        delays = {thread: seconds for pid in self._pids for thread, seconds in thread_delays_s(pid).items()}
        if self._delays_before is not None and delays:
            then, before = self._delays_before
            waited_s = sum(max(0.0, seconds - before.get(thread, 0.0)) for thread, seconds in delays.items())
            yield "run_delay", waited_s / (now - then)
        self._delays_before = (now, delays)

    def _cores(self, cpu_s: dict[int, float]) -> Iterator[tuple[str, float]]:
        """Cores' worth of CPU time since the last reading, over the processes that were there at both."""
        now = perf_counter()
        if self._before is not None and cpu_s:
            then, before = self._before
            spent = sum(seconds - before.get(pid, seconds) for pid, seconds in cpu_s.items())
            yield "cpu_cores", spent / (now - then)
        self._before = (now, cpu_s)


def _gpu_reader(uuid: str) -> Callable[[], Iterator[tuple[str, float]]]:
    import pynvml

    pynvml.nvmlInit()
    handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> Iterator[tuple[str, float]]:
        yield "gpu_utilisation", pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        yield "gpu_memory_bytes", pynvml.nvmlDeviceGetMemoryInfo(handle).used

    return read
