"""The CPUs a pipeline really has, on recorded trees."""

import os
import shutil
from pathlib import Path

import pytest

from stoker.machine import cpu
from stoker.machine.proc import cpu_list
from stoker.records import Throttling

TREES = Path(__file__).parents[1] / "trees"


@pytest.mark.parametrize(
    ("tree", "logical", "affinity", "quota", "usable"),
    [
        ("v2-nested", 16, 8, 2.5, 2.5),  # 500 ms in 200 ms at one ancestor, 6 CPUs at another
        ("v2-container", 64, 64, 1.5, 1.5),
        ("v1-docker", 32, 32, 4.0, 4.0),
        ("v1-lost", 4, 4, 0.5, 0.5),
        ("v1-nested", 32, 8, 6.0, 6.0),  # the job has the quota, its step has none
        ("hybrid", 2, 2, None, 2.0),
        ("none", 4, 4, None, 4.0),
    ],
)
def test_usable_is_the_least_of_affinity_and_every_quota(
    tree: str, logical: int, affinity: int, quota: float | None, usable: float
) -> None:
    found = cpu.read(TREES / tree)
    assert (found.logical, found.affinity, found.quota, found.usable) == (logical, affinity, quota, usable)


def test_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "v1-nested", tmp_path / "tree")
    (copy / "proc/self/status").write_text("Cpus_allowed_list:\t4,20\n")
    assert cpu.read(copy).usable == 2.0


def test_cores_are_counted_by_their_siblings() -> None:
    assert cpu.read(TREES / "v2-nested").physical == 8  # 16 logical CPUs, two a core
    assert cpu.read(TREES / "none").physical == 4  # the older name of the file
    assert cpu.read(TREES / "v2-container").physical is None  # nothing recorded says


def test_the_model_is_the_first_one_named() -> None:
    assert cpu.read(TREES / "v1-docker").model == "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz"


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("v2-nested", Throttling(periods=2000, throttled_periods=500, throttled_s=41.0)),
        ("v2-container", Throttling(periods=8000, throttled_periods=6400, throttled_s=512.5)),
        ("v1-docker", Throttling(periods=1200, throttled_periods=300, throttled_s=45.6)),
        ("v1-nested", Throttling(periods=77, throttled_periods=11, throttled_s=1.5)),
        ("hybrid", None),  # cpu.stat is there in both hierarchies, but no quota ever was
        ("none", None),
    ],
)
def test_throttling_is_told_by_the_group_that_was_held_back_longest(tree: str, expected: Throttling | None) -> None:
    assert cpu.throttling(TREES / tree) == expected


def test_a_quota_that_has_not_bitten_yet_counts_zero(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "v2-container", tmp_path / "tree")
    (copy / "sys/fs/cgroup/cpu.stat").write_text("usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    assert cpu.throttling(copy) == Throttling(periods=0, throttled_periods=0, throttled_s=0.0)


@pytest.mark.parametrize("written", ["", "max", "max 100000", "garbage", "0 100000"])
def test_a_file_that_sets_no_quota_is_no_quota(tmp_path: Path, written: str) -> None:
    copy = shutil.copytree(TREES / "v2-container", tmp_path / "tree")
    (copy / "sys/fs/cgroup/cpu.max").write_text(written)
    assert cpu.quota(copy) is None


@pytest.mark.parametrize(
    ("listed", "cpus"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0,2-3,8", {0, 2, 3, 8}), ("", set()), ("1, 3", {1, 3})]
)
def test_cpu_lists(listed: str, cpus: set[int]) -> None:
    assert cpu_list(listed) == cpus


def test_this_machine_agrees_with_the_kernel() -> None:
    found = cpu.read()
    assert found.affinity == len(os.sched_getaffinity(0))
    assert 0 < found.usable <= found.affinity <= found.logical


@pytest.mark.parametrize(("tree", "processes"), [("v2-nested", 2), ("v1-lost", 1), ("v1-docker", 4), ("none", 4)])
def test_as_many_processes_as_the_quota_lets_compute(tree: str, processes: int) -> None:
    assert cpu.worker_processes(TREES / tree) == processes
