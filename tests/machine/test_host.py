"""Host memory and its limits, on recorded trees and on this machine."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.machine import host

TREES = Path(__file__).parents[1] / "trees"
GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(
    ("tree", "ram", "cgroup_limit"),
    [
        ("v2-nested", 32768000 * 1024, 8 * GIB),  # an ancestor's
        ("v2-container", 263168000 * 1024, 1536 * MIB),  # memory.high, below memory.max
        ("v1-docker", 131072000 * 1024, 4 * GIB),
        ("v1-lost", 16384000 * 1024, 512 * MIB),
        ("v1-nested", 196608000 * 1024, 64 * GIB),
        ("v2-machine", 131980916 * 1024, 128 * GIB),  # just above what the kernel shows as RAM
        ("none", 8192000 * 1024, None),
    ],
)
def test_the_limit_is_the_least_of_ram_and_every_group(tree: str, ram: int, cgroup_limit: int | None) -> None:
    found = host.read(TREES / tree)
    assert (found.ram_bytes, found.cgroup_limit_bytes) == (ram, cgroup_limit)
    assert found.limit_bytes == min(ram, cgroup_limit or ram)


def test_a_limit_above_ram_does_not_add_any(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "v1-docker", tmp_path / "tree")
    (copy / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(str(2**40))
    (copy / "sys/fs/cgroup/memory/memory.stat").unlink()
    found = host.read(copy)
    assert found.cgroup_limit_bytes == 2**40
    assert found.limit_bytes == found.ram_bytes


@pytest.mark.parametrize(
    ("tree", "available"),
    [
        ("v2-nested", 8 * GIB - (6 * GIB - 2 * GIB)),  # the ancestor's own usage and file cache, not ours
        ("v2-container", (1536 - (1400 - 1000)) * MIB),
        ("v1-docker", 4 * GIB - (3 * GIB - 1 * GIB)),  # the total of the group and those below it
        ("v1-lost", (512 - 128) * MIB),
        ("v1-nested", 64 * GIB - (60 * GIB - 16 * GIB)),
        ("v2-machine", 130558148 * 1024),  # the whole machine has less left than the group
        ("none", (1000000 + 500000 + 2000000) * 1024),  # a kernel that does not estimate it
    ],
)
def test_inactive_file_cache_counts_as_available(tree: str, available: int) -> None:
    assert host.read(TREES / tree).available_bytes == available
    assert host.available_bytes(TREES / tree) == available


def test_no_more_is_available_than_the_whole_machine_has(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "v1-docker", tmp_path / "tree")
    (copy / "proc/meminfo").write_text("MemTotal:  131072000 kB\nMemAvailable:  1000 kB\n")
    assert host.available_bytes(copy) == 1000 * 1024


def test_a_group_over_its_limit_has_nothing_available(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "v2-container", tmp_path / "tree")
    (copy / "sys/fs/cgroup/memory.current").write_text(str(8 * GIB))
    assert host.available_bytes(copy) == 0


def test_a_hidden_ancestors_limit_is_read_from_the_group_itself(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "hybrid", tmp_path / "tree")
    assert host.read(copy).cgroup_limit_bytes is None
    stat = copy / "sys/fs/cgroup/memory/jobs/job1/memory.stat"
    stat.write_text(f"total_inactive_file 0\nhierarchical_memory_limit {3 * GIB}\n")
    assert host.read(copy).cgroup_limit_bytes == 3 * GIB


def test_open_files_come_from_the_recorded_limits() -> None:
    assert (host.read(TREES / "v2-nested").open_files_soft, host.read(TREES / "v2-nested").open_files_hard) == (
        1024,
        1048576,
    )
    assert host.read(TREES / "v2-container").open_files_soft == sys.maxsize


def test_a_tree_without_shared_memory_has_none() -> None:
    found = host.read(TREES / "none")
    assert (found.shm_bytes, found.shm_free_bytes) == (None, None)
    assert host.shm_used_bytes(TREES / "none") is None


def test_shared_memory_is_counted_in_its_own_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(f_blocks=1000, f_bavail=900, f_bfree=950, f_frsize=4096, f_bsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: answer if path == TREES / "none/dev/shm" else None)
    found = host.read(TREES / "none")
    assert (found.shm_bytes, found.shm_free_bytes) == (1000 * 4096, 900 * 4096)
    assert host.shm_used_bytes(TREES / "none") == 100 * 4096


def test_shared_memory_without_a_size_is_as_large_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096))
    assert host.read(TREES / "none").shm_bytes == 8192000 * 1024


def test_this_machine_agrees_with_the_kernel() -> None:
    found = host.read()
    assert (found.open_files_soft, found.open_files_hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.ram_bytes == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
    assert 0 < found.available_bytes <= found.limit_bytes <= found.ram_bytes


def test_asking_for_the_start_method_does_not_settle_it() -> None:
    script = (
        "import multiprocessing; from stoker.machine import host; method = host.read().start_method; "
        "assert method == multiprocessing.get_all_start_methods()[0], method; "
        "multiprocessing.set_start_method('spawn'); assert host.read().start_method == 'spawn'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
