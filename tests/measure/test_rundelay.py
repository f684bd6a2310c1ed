"""How long threads wait for a CPU, where two of them share one."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable
from threading import Thread

import pytest

from stoker.measure.gauges import Gauges
from stoker.measure.rundelay import RunDelay, thread_delays_s

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs schedstat of Linux")

BUSY = """
import os, time
os.sched_setaffinity(0, {%d})
print(flush=True)
end = time.time() + 60
while time.time() < end: pass
"""


@pytest.fixture
def rivals() -> Iterator[list[int]]:
    """Two processes that compute on one CPU."""
    cpu = min(os.sched_getaffinity(0))
    made = [Popen([executable, "-c", BUSY % cpu], stdout=PIPE) for _ in range(2)]
    for each in made:
        assert each.stdout is not None
        each.stdout.readline()
    yield [each.pid for each in made]
    for each in made:
        each.kill()
        each.communicate()


def test_two_processes_on_one_cpu_wait_for_each_other(rivals: list[int]) -> None:
    before = [thread_delays_s(pid)[pid] for pid in rivals]
    time.sleep(0.6)
    waited = [thread_delays_s(pid)[pid] - start for pid, start in zip(rivals, before, strict=True)]
    assert sum(waited) > 0.3, "one of the two always waits"


def test_a_gauge_reads_the_delay_of_a_process(rivals: list[int]) -> None:
    gauges = Gauges()
    began_s = time.perf_counter()
    gauges.start(rivals[0])
    time.sleep(1.2)
    gauges.stop()
    found = gauges.readings(began_s, time.perf_counter())
    assert 0.1 < found["run_delay"].average < 1.1


def test_a_thread_reads_its_own_and_a_process_that_is_gone_has_none() -> None:
    seen: list[float | None] = []
    thread = Thread(target=lambda: seen.append(RunDelay().seconds()))
    thread.start()
    thread.join()
    assert seen[0] is not None
    assert seen[0] >= 0
    assert thread_delays_s(2**22 + 1) == {}
