"""Reading speed of real files: what is read, in which order, and what is refused. A counted clock stands for time."""

import os
import tempfile
from itertools import count
from pathlib import Path

import pytest

from stoker.errors import InputError, MachineError
from stoker.machine import disk
from stoker.machine.pagecache import resident

MIB = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def fill(folder: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))


def test_large_and_small_files_are_read_cold_and_again(folder: Path) -> None:
    fill(folder, {"a/large.bin": 3 * MIB + 5, "a/larger.bin": 5 * MIB, "empty": 0})
    fill(folder, {f"b/{index:02d}.jpg": 1000 + index for index in range(30)})
    found = disk.measure(folder)
    assert found.files == 32
    assert found.sequential_cold is not None
    assert found.small_cold is not None
    assert found.sequential_cold.samples_bytes == (MIB,) * 8 + (5,)  # the largest first
    assert sorted(found.small_cold.samples_bytes) == [1000 + index for index in range(30)]
    assert list(found.small_cold.samples_bytes) != [1000 + index for index in range(30)]  # shuffled
    assert found.sequential_cached is not None
    assert found.small_cached is not None
    assert found.sequential_cached.samples_bytes == found.sequential_cold.samples_bytes
    assert found.small_cached.samples_bytes == found.small_cold.samples_bytes
    assert found.sequential_cold.bytes_per_s > 0
    assert disk.measure(folder).small_cold.samples_bytes == found.small_cold.samples_bytes  # type: ignore[union-attr]


def test_the_share_that_left_the_page_cache_is_told(folder: Path) -> None:
    fill(folder, {"large.bin": 3 * MIB})
    found = disk.measure(folder)
    assert found.evicted == (0.0 if found.storage.kind == "memory" else 1.0)
    assert resident([folder / "large.bin"]) == 1.0  # read again since
    assert (found.small_cold, found.small_cached) == (None, None)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_files_in_memory_are_measured_and_said_to_have_stayed() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        fill(Path(name), {f"{index}.jpg": 64 * 1024 for index in range(20)})
        found = disk.measure(Path(name))
    assert found.evicted == 0.0
    assert found.storage.kind == "memory"
    assert (found.sequential_cold, found.sequential_cached) == (None, None)


def test_one_file_can_be_named(folder: Path) -> None:
    fill(folder, {"archive.tar": 2 * MIB + 1})
    found = disk.measure(folder / "archive.tar")
    assert found.files == 1
    assert found.sequential_cold is not None
    assert found.sequential_cold.samples_bytes == (MIB, MIB, 1)


def test_no_more_is_read_than_the_bytes_of_a_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SEQUENTIAL_BYTES", 4 * MIB)
    monkeypatch.setattr(disk, "SMALL_FILES", 7)
    fill(folder, {f"{index}.bin": 3 * MIB for index in range(4)})
    fill(folder, {f"{index}.jpg": 10 for index in range(20)})
    found = disk.measure(folder)
    assert found.files == 2 + 7
    assert found.sequential_cold is not None
    assert found.small_cold is not None
    assert sum(found.sequential_cold.samples_bytes) == 4 * MIB
    assert len(found.small_cold.samples_bytes) == 7


def test_a_slow_disk_ends_the_pass_early_and_the_second_pass_reads_the_same(folder: Path) -> None:
    fill(folder, {"large.bin": 30 * MIB})
    ticks = count()
    found = disk.measure(folder, clock=lambda: next(ticks) * 0.5)  # every look at the clock takes half a second
    assert found.sequential_cold is not None
    assert found.sequential_cached is not None
    assert 1 <= len(found.sequential_cold.samples_s) < 30
    assert set(found.sequential_cold.samples_s) == {0.5}
    assert found.sequential_cached.samples_bytes == found.sequential_cold.samples_bytes


def test_progress_is_heard(folder: Path) -> None:
    fill(folder, {"large.bin": 2 * MIB})
    heard: list[str] = []
    disk.measure(folder, progress=heard.append)
    assert heard[0].startswith("looking for files")
    assert "reading small files" in heard


def test_nothing_is_written_there(folder: Path) -> None:
    fill(folder, {"a/large.bin": 2 * MIB, "b/small.bin": 100})
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
    disk.measure(folder)
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before


def test_a_missing_folder_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        disk.measure(folder / "nowhere")


def test_a_folder_without_files_is_refused(folder: Path) -> None:
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")  # reading it would wait for ever
    (folder / "broken").symlink_to(folder / "nowhere")
    with pytest.raises(InputError, match="has no files to read"):
        disk.measure(folder)


def test_too_little_to_time_is_refused(folder: Path) -> None:
    fill(folder, {"one.txt": 1000, "two.txt": 24})
    with pytest.raises(InputError, match=r"has only 2 files of 1 KiB in all, too little to time; .* at least 1 MiB"):
        disk.measure(folder)


def test_a_file_that_goes_away_meanwhile_is_named(folder: Path) -> None:
    fill(folder, {"large.bin": 2 * MIB})

    def remove(doing: str) -> None:
        if doing == "reading large files":
            (folder / "large.bin").unlink()

    with pytest.raises(MachineError, match=r"failed at .*large\.bin: No such file"):
        disk.measure(folder, progress=remove)
