"""A build is whole or not there, whatever ends it."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.atomic import build_folder, data_root, in_parallel, write_file
from stoker.errors import InputError, MachineError

REMEDY = "free some"


def hidden(folder: Path) -> list[str]:
    """What lies beside a set: partial folders and lock files."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("."))


class fill_with:  # noqa: N801 - reads as what it does
    def __init__(self, content: bytes, *, count: int = 1) -> None:
        self.content, self.count, self.calls = content, count, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        for number in range(self.count):
            write_file(folder / f"{number}", self.content)


def test_a_folder_appears_whole_and_is_built_once(tmp_path: Path) -> None:
    fill = fill_with(b"abc", count=3)
    for _ in range(2):
        made = build_folder(tmp_path / "below" / "set", fill, needs_bytes=9, remedy=REMEDY)
    assert fill.calls == 1
    assert [path.read_bytes() for path in sorted(made.iterdir())] == [b"abc"] * 3
    assert hidden(made.parent) == []


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write_file(folder / "0", b"half")
        raise InputError("the source ended")

    with pytest.raises(InputError, match="the source ended"):
        build_folder(tmp_path / "set", fill, needs_bytes=9, remedy=REMEDY)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write_file(folder / "0", b"half")
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            build_folder(tmp_path / "set", fill, needs_bytes=9, remedy=REMEDY)
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(tmp_path.iterdir()) == []


def test_a_set_larger_than_the_disk_is_refused_before_any_work(tmp_path: Path) -> None:
    fill = fill_with(b"abc")
    with pytest.raises(MachineError, match=r"no space left in .*: the set needs about 1000000000 MB; free some"):
        build_folder(tmp_path / "set", fill, needs_bytes=10**15, remedy=REMEDY)
    assert fill.calls == 0
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_while_building_is_told_and_cleaned(small_disk: Path) -> None:
    with pytest.raises(MachineError, match=f"no space left in {small_disk}: the set needs about 1 MB; free some"):
        build_folder(small_disk / "set", fill_with(bytes(300_000), count=9), needs_bytes=0, remedy=REMEDY)
    assert list(small_disk.iterdir()) == []


def write_much(path: Path) -> None:
    write_file(path, bytes(300_000))


def test_a_disk_that_fills_up_in_a_worker_is_told_too(small_disk: Path) -> None:
    def fill(folder: Path) -> None:
        in_parallel(write_much, [folder / f"{number}" for number in range(9)], what="filling", processes=2)

    with pytest.raises(MachineError, match="no space left"):
        build_folder(small_disk / "set", fill, needs_bytes=0, remedy=REMEDY)
    assert list(small_disk.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(MachineError, match=f"cannot write in {tmp_path} .Permission denied.; free some"):
        build_folder(tmp_path / "set", fill, needs_bytes=0, remedy=REMEDY)


def remember(task: tuple[Path, int]) -> None:
    folder, number = task
    write_file(folder / str(number), str(os.getpid()).encode())


def test_every_task_is_done_in_other_processes_and_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    tasks = [(tmp_path, number) for number in range(40)]
    in_parallel(remember, tasks, what="counting", progress=lambda *event: told.append(event), processes=2)
    owners = {path.read_text() for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 40
    assert str(os.getpid()) not in owners
    assert told[0] == ("counting", 0, 40)
    assert told[-1] == ("counting", 40, 40)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def refuse_seven(number: int) -> None:
    if number == 7:
        raise InputError("7 is not a picture")


def die_at_seven(number: int) -> None:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_first_failure_of_a_task_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="7 is not a picture"):
        in_parallel(refuse_seven, list(range(100)), what="counting", processes=2)


def test_a_worker_that_is_killed_is_told() -> None:
    with pytest.raises(MachineError, match="a process that was counting ended unexpectedly"):
        in_parallel(die_at_seven, list(range(100)), what="counting", processes=2)


BUILDER = """
import os, sys, time
from pathlib import Path
from stoker.atomic import build_folder, in_parallel, write_file

root, count = Path(sys.argv[1]), int(sys.argv[2])

def work(path):
    write_file(path, str(os.getpid()).encode())
    if path.name == "5":
        write_file(root / "reached", b"")
    time.sleep(0.01)

def fill(folder):
    in_parallel(work, [folder / str(number) for number in range(count)], what="building", processes=2)

build_folder(root / "set", fill, needs_bytes=0, remedy="")
"""


@contextmanager
def building(tmp_path: Path, count: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is in the middle of a build, with workers of its own."""
    script, root = tmp_path / "builder.py", tmp_path / "root"
    script.write_text(BUILDER)
    root.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(root), str(count)]) as process:
        try:
            wait_until((root / "reached").exists)
            yield process
        finally:
            process.kill()


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.01)


def worker_ids(root: Path) -> set[int]:
    found = [path.read_text() for path in root.glob(".set.partial-*/*")]
    return {int(text) for text in found if text}


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_killed_build_leaves_no_set_and_no_process_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with building(tmp_path, count=20_000) as builder:
        workers = worker_ids(root)
        builder.kill()
        builder.wait()
    assert workers
    assert not (root / "set").exists()
    assert any(".partial-" in name for name in hidden(root))
    build_folder(root / "set", fill_with(b"new", count=2), needs_bytes=0, remedy=REMEDY)
    assert sorted(path.name for path in (root / "set").iterdir()) == ["0", "1"]
    assert hidden(root) == []
    assert all(gone(pid) for pid in workers)


def test_sigterm_ends_a_build_and_takes_its_partial_folder_along(tmp_path: Path) -> None:
    with building(tmp_path, count=20_000) as builder:
        builder.terminate()
        assert builder.wait(timeout=60) == -signal.SIGTERM
    assert [entry.name for entry in (tmp_path / "root").iterdir()] == ["reached"]


def test_a_second_builder_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    root, told, fill = tmp_path / "root", list[str](), fill_with(b"mine")
    with building(tmp_path, count=100) as first:
        build_folder(root / "set", fill, needs_bytes=0, remedy=REMEDY, progress=lambda what, *_: told.append(what))
        assert first.wait() == 0
    assert told == ["waiting for another process that builds set"]
    assert fill.calls == 0
    assert len(list((root / "set").iterdir())) == 100
    assert hidden(root) == []


def test_the_cache_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "data"
    monkeypatch.delenv("STOKER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert data_root() == tmp_path / "home" / "stoker" / "data"
