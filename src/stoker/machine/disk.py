"""How fast real files can be read where the data lies: large reads and whole small files, cold and cached.

Nothing is ever written there. The page cache is emptied of the files first; what a disk or a host itself caches stays.
"""

import os
import random
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from stoker.errors import InputError, MachineError
from stoker.machine.pagecache import evict, resident, warm
from stoker.machine.proc import SLASH
from stoker.machine.storage import storage
from stoker.records import Disk, ReadSpeed
from stoker.units import format_bytes

__all__ = ["evict", "measure", "resident", "storage", "warm"]

CHUNK_BYTES = 2**20
SEQUENTIAL_BYTES = 256 * 2**20
SMALL_FILE_BYTES = 2**20
SMALL_FILES = 400
LEAST_BYTES = 2**20
SCANNED_FILES = 20_000
PASS_S = 4.0
SCAN_S = 5.0

Clock = Callable[[], float]


class File(NamedTuple):
    path: Path
    size: int


class _Chosen(NamedTuple):
    large: tuple[File, ...]
    small: tuple[File, ...]

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self.large + self.small]


def measure(
    path: Path, *, root: Path = SLASH, progress: Callable[[str], None] = lambda _: None, clock: Clock = perf_counter
) -> Disk:
    """Read files under `path`: cold first, then the same ones again from the page cache."""
    progress(f"looking for files in {path}")
    chosen = _choose(path, _find(path, clock))
    try:
        return _measure(path, chosen, root, progress, clock)
    except OSError as error:
        raise MachineError(f"reading under {path} failed at {error.filename}: {error.strerror}") from None


def _measure(path: Path, chosen: _Chosen, root: Path, progress: Callable[[str], None], clock: Clock) -> Disk:
    progress(f"dropping {len(chosen.paths)} files from the page cache")
    evicted = evict(chosen.paths, first_bytes=SEQUENTIAL_BYTES)
    progress("reading large files")
    sequential_cold = _read_large(chosen.large, clock) if chosen.large else None
    sequential_cached = _read_large(chosen.large, clock, like=sequential_cold) if chosen.large else None
    progress("reading small files")
    small_cold = _read_small(chosen.small, clock) if chosen.small else None
    small_cached = _read_small(chosen.small, clock, like=small_cold) if chosen.small else None
    return Disk(
        storage=storage(path, root),
        files=len(chosen.paths),
        evicted=evicted,
        sequential_cold=sequential_cold,
        sequential_cached=sequential_cached,
        small_cold=small_cold,
        small_cached=small_cached,
    )


def _find(path: Path, clock: Clock) -> list[File]:
    """Readable files under the path, as many as a few seconds of looking give."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give --disk a folder that holds your data")
    found: list[File] = []
    end = clock() + SCAN_S
    for file in _walk(path):
        found.append(file)
        if len(found) >= SCANNED_FILES or clock() > end:
            break
    return found


def _walk(path: Path) -> Iterator[File]:
    if path.is_file():
        yield from _readable(path)
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            yield from _readable(Path(folder, name))


def _readable(path: Path) -> Iterator[File]:
    """Devices and pipes are left alone: reading one may wait for ever."""
    try:
        found = path.stat()
    except OSError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_size and os.access(path, os.R_OK):
        yield File(path, found.st_size)


def _choose(path: Path, found: Sequence[File]) -> _Chosen:
    if not found:
        raise InputError(f"{path} has no files to read; give --disk a folder that holds your data")
    total = sum(file.size for file in found)
    if total < LEAST_BYTES:
        files = "1 file" if len(found) == 1 else f"{len(found)} files"
        raise InputError(
            f"{path} has only {files} of {format_bytes(total)} in all, too little to time; "
            f"give --disk a folder with at least {format_bytes(LEAST_BYTES)}"
        )
    small = [file for file in found if file.size <= SMALL_FILE_BYTES]
    random.Random(0).shuffle(small)
    return _Chosen(tuple(_largest(found)), tuple(small[:SMALL_FILES]))


def _largest(found: Sequence[File]) -> Iterator[File]:
    """The largest files, until together they hold what a pass reads."""
    left = SEQUENTIAL_BYTES
    for file in sorted(found, key=lambda file: file.size, reverse=True):
        if left <= 0 or file.size <= SMALL_FILE_BYTES:
            return
        yield file
        left -= file.size


def _read_large(files: Sequence[File], clock: Clock, like: ReadSpeed | None = None) -> ReadSpeed:
    return _timed(_chunks(files, clock), clock, like)


def _read_small(files: Sequence[File], clock: Clock, like: ReadSpeed | None = None) -> ReadSpeed:
    return _timed(_whole_files(files, clock), clock, like)


def _timed(samples: Iterator[tuple[float, int]], clock: Clock, like: ReadSpeed | None) -> ReadSpeed:
    """Take samples until time is up, or as many as `like` has: a second pass reads just what the first one did."""
    taken: list[tuple[float, int]] = []
    end = clock() + PASS_S
    for sample in samples:
        taken.append(sample)
        if clock() > end if like is None else len(taken) >= len(like.samples_s):
            break
    return ReadSpeed(samples_s=tuple(s for s, _ in taken), samples_bytes=tuple(size for _, size in taken))


def _chunks(files: Sequence[File], clock: Clock) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of each large read, to the end of the last file or of the pass's bytes."""
    buffer, left = bytearray(CHUNK_BYTES), SEQUENTIAL_BYTES
    for file in files:
        with file.path.open("rb", buffering=0) as stream:
            while left > 0:
                began = clock()
                count = stream.readinto(buffer)
                took = clock() - began
                if not count:
                    break
                left -= count
                yield took, count


def _whole_files(files: Sequence[File], clock: Clock) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of each file: opened, read to its end and closed, as a dataset does it."""
    for file in files:
        began = clock()
        count = len(file.path.read_bytes())
        yield clock() - began, count
