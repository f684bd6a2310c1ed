"""Studies on a real Ray cluster of two nodes: the same rows, and nothing lost when a node or the driver is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stoker.studies.store import Store, TrialRow
from stoker.studies.study import stored_study
from tests.commands import here
from tests.ranking.cases import workloads
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


def stoker(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stoker", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)


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
        until(lambda: cluster.leftovers() == leftovers(folder, runners) == [])
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
        until(lambda: cluster.leftovers() == [])
        assert running(folder) == 0
        assert {row.outcome for row in rows_of(folder)} == {"done"}


@pytest.mark.slow
def test_a_trial_out_of_memory_is_an_outcome_and_costs_no_node(cluster: TwoNodes) -> None:
    with place() as folder:
        planted = Path(__file__).parents[1] / "workloads" / "planted.py"
        (folder / "grid.toml").write_text(f"""
            name = "killed"
            fixed = {{ workload = "{planted}:out_of_memory", device = "cpu", batches = 4 }}
            axes = {{ batch_size = [2, 4] }}
        """)
        done = stoker(folder, "study", "run", "grid.toml", "--ray-address", cluster.address, "--json")
        summary = json.loads(done.stdout)
        assert (summary["outcomes"], summary["lost"]) == ({"oom": 2}, 0), done.stderr


@pytest.mark.slow
def test_a_node_that_lacks_the_data_is_named_and_left_out(cluster: TwoNodes, tmp_path: Path) -> None:
    cluster.kill_node()
    cluster.add_node(home=tmp_path)
    with place(repeats=1) as folder:
        data = Path.home() / f"stoker-test-{os.getpid()}"
        data.write_text("weights of nobody")
        try:
            grid = GRID_OF_WEIGHTS.format(weights=f"~/{data.name}")
            (folder / "grid.toml").write_text(grid)
            done = stoker(folder, "study", "run", "grid.toml", "--ray-address", cluster.address)
        finally:
            data.unlink()
        assert f"is left out: ~/{data.name} is not there" in done.stderr
        assert len(rows_of(folder)) == 1
    cluster.kill_node()
    cluster.add_node()


GRID_OF_WEIGHTS = """
name = "killed"
[fixed]
workload = "resnet18"
weights = "{weights}"
data = "device"
mode = "infer"
items = 16
device = "sleep:0s"
[axes]
batch_size = [4]
"""


@pytest.mark.slow
def test_a_search_gives_the_ranking_of_one_machine(cluster: TwoNodes, tmp_path: Path) -> None:
    models = ",".join(f"{workloads(tmp_path)}:seed{number}" for number in range(4))
    answers = []
    for store, options in (("ray.db", ("--ray-address", cluster.address)), ("local.db", ())):
        done = stoker(tmp_path, "search", "--models", models, "--db", store, "--json", *options)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    there, here = ([(each["place"], each["model"]) for each in answer["ranked"]["models"]] for answer in answers)
    assert there == here
    again = stoker(tmp_path, "search", "--models", models, "--db", "ray.db", "--json", "--ray-address", cluster.address)
    assert len(json.loads(again.stdout)["reused"]) == 4


# ---------------------------------------------------------------- a cluster of our own


def started(driver: Driver) -> list[psutil.Process]:
    """The processes of a local cluster that runs trials."""
    assert driver.await_line(), driver.wait()
    return psutil.Process(driver.pid).children(recursive=True)


def open_ports(processes: list[psutil.Process]) -> set[str]:
    """The addresses at which these processes listen."""
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_local_cluster_is_for_this_machine_alone_and_ends_with_its_driver(number: int) -> None:
    with place(repeats=50) as folder:
        driver = Driver(folder, "--ray")
        processes = started(driver)
        assert any("raylet" in " ".join(each.cmdline()) for each in processes)
        assert open_ports([psutil.Process(driver.pid), *processes]) == {"127.0.0.1"}
        os.kill(driver.pid, number)
        assert driver.wait() == (-number if number == signal.SIGKILL else 128 + number)
        pids = {each.pid for each in processes}
        assert survivors(pids) == []
        until(lambda: leftovers(folder, pids) == [])
        assert {row.outcome for row in rows_of(folder)} == {"done"}


# ---------------------------------------------------------------- what cannot be used


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--per", "gpu"), "--per goes with --ray: it says what a run takes of the cluster"),
        (("--ray", "--jobs", "2"), "--jobs is for this machine; with --ray as many trials run at once as"),
        (
            ("--ray-address", "cluster"),
            "'cluster' is no address of a Ray cluster; write it like 10.0.0.1:6379, or auto",
        ),
        (("--ray-address", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(options: tuple[str, ...], sentence: str) -> None:
    with place() as folder:
        done = here("study", "run", str(folder / "grid.toml"), "--db", str(folder / "stoker.db"), *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
