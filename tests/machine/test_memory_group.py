"""A memory limit that the kernel enforces: on this machine where it may be set, and on made-up hierarchies."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stoker
from stoker.errors import InputError, MachineError
from stoker.machine import memory_group
from stoker.machine.memory_group import MemoryGroup, problem
from tests.commands import here

MIB = 1 << 20
REASON = problem()
limited = pytest.mark.skipif(REASON is not None, reason=f"no memory limit can be set here: {REASON}")
HUNGRY = "tests/workloads/planted.py:hungry"

TAKE = """
import sys
from pathlib import Path
from stoker.machine.memory_group import join
join(Path(sys.argv[1]))
taken = bytearray(1) * (int(sys.argv[2]) << 20)
if len(sys.argv) > 3:
    Path(sys.argv[3]).write_bytes(taken)
"""


def take(group: MemoryGroup, mib: int, *file: str) -> int:
    """The exit status of a process of the group that takes so much memory."""
    command = [sys.executable, "-c", TAKE, str(group.folder), str(mib), *file]
    return subprocess.run(command, check=False).returncode


@limited
def test_a_process_that_takes_more_is_killed() -> None:
    with MemoryGroup(128 * MIB) as group:
        assert take(group, 32) == 0
        assert group.kills() == 0
        assert take(group, 256) == -9
        assert group.kills() == 1
        assert (group.peak_bytes() or 0) > 100 * MIB
    assert not group.folder.exists()


@limited
def test_the_page_cache_counts(tmp_path: Path) -> None:
    with MemoryGroup(256 * MIB) as group:
        assert take(group, 1, str(tmp_path / "small")) == 0
        without = group.peak_bytes() or 0
        assert take(group, 64, str(tmp_path / "large")) == 0
        assert (group.peak_bytes() or 0) > without + 100 * MIB  # the bytes and the file's pages


@limited
def test_what_still_runs_is_killed_with_the_group() -> None:
    with MemoryGroup(128 * MIB) as group:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (group.folder / "cgroup.procs").write_text(str(sleeper.pid))
        assert sleeper.pid in group.pids()
        threading.Thread(target=sleeper.wait, daemon=True).start()  # somebody has to reap it
    assert sleeper.wait(30) == -9
    assert not group.folder.exists()


@limited
def test_a_run_that_reaches_its_limit_says_with_how_many_workers_it_ran() -> None:
    extent = stoker.Extent(batches=8, warmup=0, memory_limit_bytes=400 * MIB)
    setting = stoker.Setting(batch_size=1, num_workers=6)
    trial = stoker.profile(HUNGRY, setting, extent, device="sleep:1ms", find_workers=True)
    assert trial.outcome == "oom"
    assert trial.fits_workers is not None
    assert 0 < trial.fits_workers < 6
    assert trial.problem is not None
    assert f"with {trial.fits_workers} worker" in trial.problem.sentence
    assert trial.peaks["limited_bytes"] <= 400 * MIB


@limited
def test_the_limit_is_part_of_the_answer() -> None:
    options = ("--batches", "4", "--warmup", "0", "--batch-size", "1", "--device", "sleep:1ms", "--quiet")
    done = here("profile", HUNGRY, "--limit-memory", "600MiB", *options)
    assert done.returncode == 0, done.stderr
    assert "memory limited to 600 MiB" in done.stdout
    assert "of the 600 MiB that the run may have" in done.stdout


def test_the_doctor_says_whether_memory_can_be_limited() -> None:
    machine = stoker.doctor(check_limits=True)
    assert machine.host.limits_memory == (REASON is None)
    assert machine.host.limits_problem == REASON
    assert stoker.doctor().host.limits_memory is None


def test_a_limit_below_what_python_needs_is_refused() -> None:
    with pytest.raises(InputError, match="at least 64 MiB, got 1 MiB"):
        MemoryGroup(MIB)


def tree(root: Path, kind: str, options: str, membership: str) -> Path:
    """A machine with one hierarchy of control groups; the folder of our group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(f"1 1 0:1 / /sys/fs/cgroup rw - {kind} cgroup {options}\n")
    (root / "proc/self/cgroup").write_text(membership)
    folder = root / "sys/fs/cgroup/user/job"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up group is a plain folder with files in it, which rmdir does not remove."""
    monkeypatch.setattr(memory_group, "RULES", memory_group.GroupRules(remove_s=0.0))


@pytest.mark.usefixtures("quickly")
def test_version_2_makes_the_group_beside_ours(tmp_path: Path) -> None:
    folder = tree(tmp_path, "cgroup2", "rw", "0::/user/job\n")
    (folder / "cgroup.subtree_control").write_text("")
    (folder.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    group = MemoryGroup(128 * MIB, tmp_path)
    assert group.folder.parent == folder.parent
    assert (group.folder / "memory.max").read_text() == str(128 * MIB)
    assert (group.folder / "memory.swap.max").read_text() == "0"
    (group.folder / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    (group.folder / "memory.peak").write_text("1234\n")
    assert group.kills() == 2
    assert group.peak_bytes() == 1234


@pytest.mark.usefixtures("quickly")
def test_version_1_makes_the_group_inside_ours(tmp_path: Path) -> None:
    folder = tree(tmp_path, "cgroup", "rw,memory", "4:memory:/user/job\n")
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712")
    group = MemoryGroup(128 * MIB, tmp_path)
    assert group.folder.parent == folder
    assert (group.folder / "memory.limit_in_bytes").read_text() == str(128 * MIB)


def test_more_than_the_present_limit_is_refused(tmp_path: Path) -> None:
    folder = tree(tmp_path, "cgroup", "rw,memory", "4:memory:/user/job\n")
    (folder / "memory.limit_in_bytes").write_text(str(256 * MIB))
    with pytest.raises(InputError, match="above the 256 MiB that this process already has"):
        MemoryGroup(512 * MIB, tmp_path)


def test_a_machine_without_a_group_to_write_gives_the_reason(tmp_path: Path) -> None:
    folder = tree(tmp_path, "cgroup2", "rw", "0::/user/job\n")
    assert folder.is_dir()
    with pytest.raises(MachineError, match="cannot be limited here: there is no control group for memory"):
        MemoryGroup(128 * MIB, tmp_path)


def test_a_hierarchy_that_may_not_be_written_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tree(tmp_path, "cgroup2", "rw", "0::/user/job\n")
    (folder.parent / "cgroup.subtree_control").write_text("memory\n")

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert "permission denied); it needs root" in (problem(tmp_path) or "")


def test_groups_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    folder = tree(tmp_path, "cgroup", "rw,memory", "4:memory:/user/job\n")
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712")
    stale, alive = folder / "stoker-4194999-0", folder / "stoker-1-0"
    stale.mkdir()
    alive.mkdir()
    MemoryGroup(128 * MIB, tmp_path)
    assert not stale.exists()
    assert alive.exists()
