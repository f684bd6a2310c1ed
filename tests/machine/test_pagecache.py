"""Dropping real files from the real page cache, and telling whether it worked."""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.errors import InputError
from stoker.machine import pagecache
from stoker.machine.pagecache import evict, resident, warm
from stoker.machine.storage import storage

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose pages can leave memory: beside this file, where the temporary folder is a tmpfs."""
    place = None if storage(Path(tempfile.gettempdir())).kind != "memory" else Path(__file__).parent
    with tempfile.TemporaryDirectory(dir=place) as name:
        if storage(Path(name)).kind == "memory":
            pytest.skip("every folder here lies in memory")
        yield Path(name)


def write(path: Path, pages: int) -> Path:
    path.write_bytes(os.urandom(pages * PAGE))
    return path


def test_evicted_files_leave_and_warmed_ones_return(folder: Path) -> None:
    files = [write(folder / f"{index}.bin", 64) for index in range(5)]
    assert warm(files) == 5 * 64 * PAGE
    assert resident(files) == 1.0
    assert evict(files) == 1.0
    assert resident(files) == 0.0
    warm(files[:1])
    assert resident(files) == pytest.approx(1 / 5)


def test_pages_that_were_never_written_back_leave_too(folder: Path) -> None:
    assert evict([write(folder / "fresh.bin", 256)]) == 1.0


def test_a_mapped_page_stays_and_is_counted(folder: Path) -> None:
    path = write(folder / "mapped.bin", 64)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[0] in range(256)  # touch it: the page is now in our page table
        evicted_while_mapped = evict([path])
    assert evicted_while_mapped < 1.0
    assert evict([path]) == 1.0


def test_only_the_first_bytes_are_dropped_where_told(folder: Path) -> None:
    path = write(folder / "long.bin", 2**26 // PAGE)
    warm([path])
    assert evict([path], first_bytes=64 * PAGE) == 1.0
    assert resident([path], first_bytes=64 * PAGE) == 0.0
    assert 0.4 < resident([path]) < 1.0  # what lies far behind stays


def test_a_file_larger_than_a_window_is_counted_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "_WINDOW_BYTES", 16 * PAGE)
    path = write(folder / "long.bin", 50)
    assert resident([path]) == 1.0
    assert evict([path]) == 1.0


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_memory_cannot_be_evicted_and_that_is_said() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        assert evict([write(Path(name) / "file.bin", 32)]) == 0.0


def test_empty_files_hold_no_pages(folder: Path) -> None:
    (folder / "empty").touch()
    assert resident([folder / "empty"]) == 0.0
    assert evict([folder / "empty"]) == 1.0
    assert warm([]) == 0


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    for question in (resident, evict, warm):
        with pytest.raises(InputError, match=r"cannot read .*missing\.bin: No such file"):
            question([folder / "missing.bin"])


def test_mincore_is_not_believed_about_files_we_may_only_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To such a reader Linux calls every page resident; probing for bytes that come at once tells better."""
    path = write(folder / "others.bin", 256)
    monkeypatch.setattr(pagecache, "_mincore_tells", lambda _: False)
    assert resident([path]) == 1.0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError:
        pytest.skip("this file system cannot be probed")
    finally:
        os.close(descriptor)
    assert evict([path]) > 0.0


@pytest.mark.parametrize("others_may", [0o644, 0o666])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_another_user_can_drop_our_files_and_is_told_so(folder: Path, others_may: int) -> None:
    """Where they may write it mincore tells them; where they may only read it, it claims that every page stayed."""
    folder.chmod(0o755)
    files = [write(folder / f"{index}.bin", pages) for index, pages in enumerate((1, 20, 1000))]
    for file in files:
        file.chmod(others_may)
    warm(files)
    assert _as_nobody(lambda: resident(files) == 1.0)
    assert _as_nobody(lambda: evict(files) > 0.5)
    assert resident(files) < 0.05  # what the questions fetched was dropped again


def _as_nobody(question: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        status = 2
        try:
            os.setuid(65534)
            status = 0 if question() else 1
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0
