"""Studies on a real Ray cluster of two nodes: the same rows, and nothing lost when a node or the driver is killed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.studies.store import Store, TrialRow
from stoker.studies.study import stored_study
from tests.studies.clusters import LOOPBACK, TwoNodes, needs_ray, two_nodes
from tests.studies.kills import Driver, leftovers, place, survivors

pytestmark = needs_ray

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    before = {name: os.environ.get(name) for name in LOOPBACK}
    os.environ.update(LOOPBACK)
    with two_nodes() as started:
        yield started
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def rows_of(folder: Path) -> list[TrialRow]:
    return stored_study("killed", folder / "stoker.db").rows()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(folder: Path) -> int:
    with Store(folder / "stoker.db", create=False) as store:
        return len(store.claims())


def test_a_cluster_gives_the_rows_of_one_machine_and_a_lost_node_costs_a_second_try(cluster: TwoNodes) -> None:
    with place(repeats=3) as folder:
        driver = Driver(folder, "--ray-address", cluster.address)
        assert driver.await_line(), driver.wait()
        until(lambda: running(folder) == 2)
        cluster.kill_node()
        assert driver.wait() == 0, driver.errors
        rows = rows_of(folder)
        last = {(row.key, row.repeat): row for row in rows}
        lost = [row for row in rows if row.outcome != "done"]
        assert [row.attempt for row in lost] == [0]
        assert lost[0].outcome == "crashed"
        assert "was lost while it ran this" in str(lost[0].problem)
        assert last[lost[0].key, lost[0].repeat].attempt == 1
        assert len(rows) == len(last) + 1 == 6 * 3 + 1
        assert {row.outcome for row in last.values()} == {"done"}
        assert {row.figures["per"] for row in rows} == {"node"}
        again = Driver(folder)
        assert again.wait() == 0
        assert again.lines == [], "the nodes are machines of this kind, so nothing is left to run here"
    cluster.add_node()


def test_a_killed_driver_loses_nothing_and_its_tasks_end(cluster: TwoNodes) -> None:
    with place(repeats=3) as folder:
        driver = Driver(folder, "--ray-address", cluster.address)
        for _ in range(3):
            assert driver.await_line(), driver.wait()
        runners = cluster.runners()
        assert len(runners) > 2
        driver.kill()
        assert survivors(runners) == []
        reported = len(driver.lines)
        last = Driver(folder, "--ray-address", cluster.address)
        assert last.wait() == 0, last.errors
        rows = rows_of(folder)
        assert {(row.attempt, row.outcome) for row in rows} == {(0, "done")}
        assert len(rows) == len({(row.key, row.repeat) for row in rows}) == 6 * 3
        assert 3 <= reported <= 6 * 3 - len(last.lines), "none was run again after it had been recorded"
        seconds = {(line["key"], line["repeat"]): line["seconds"] for line in (*driver.lines, *last.lines)}
        assert all(row.figures["seconds"] == seconds.get((row.key, row.repeat), row.figures["seconds"]) for row in rows)
        assert survivors(cluster.runners()) == []
        assert leftovers(folder, runners) == []
        assert running(folder) == 0


@pytest.mark.slow
def test_an_interrupt_ends_the_tasks_and_gives_the_claims_back(cluster: TwoNodes) -> None:
    with place(repeats=50) as folder:
        driver = Driver(folder, "--ray-address", cluster.address)
        assert driver.await_line(), driver.wait()
        runners = cluster.runners()
        os.kill(driver.pid, signal.SIGINT)
        assert driver.wait() == 130
        assert driver.errors == "stoker: interrupted\n"
        assert survivors(runners) == []
        assert running(folder) == 0
        assert {row.outcome for row in rows_of(folder)} == {"done"}
