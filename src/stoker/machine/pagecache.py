"""The kernel's page cache under given files: what of them it holds, dropping them from it, reading them into it.

Only file contents are dropped, which needs no root; names and inodes stay cached.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from stoker.errors import InputError

# A window bounds the memory that the answer for one huge file takes: a byte a page.
_WINDOW_BYTES = 2**28
# Pages are cached in folios that leave as a whole or not at all; none is larger.
_FOLIO_BYTES = 2**25
_READ_BYTES = 2**20
_PROBES = 16
_FAILED = ctypes.c_void_p(-1).value


def resident(paths: Iterable[Path], *, first_bytes: int | None = None) -> float:
    """The share of the files' pages that the page cache holds; of each file's first bytes alone where told."""
    held = pages = 0.0
    for path in paths:
        descriptor = _open(path)
        try:
            length = _length(descriptor, first_bytes)
            held += _held_pages(descriptor, length)
            pages += _pages(length)
        finally:
            os.close(descriptor)
    return held / pages if pages else 0.0


def evict(paths: Iterable[Path], *, first_bytes: int | None = None) -> float:
    """Drop the files from the page cache; the share of their pages that is no longer there, as measured.

    Where pages cannot leave (tmpfs, files that are mapped or locked) the share says so: it is near 0.
    """
    listed = list(paths)
    for path in listed:
        descriptor = _open(path)
        try:
            _drop(descriptor, _length(descriptor, first_bytes))
        finally:
            os.close(descriptor)
    return 1.0 - resident(listed, first_bytes=first_bytes)


def warm(paths: Iterable[Path]) -> int:
    """Read every file into the page cache; how many bytes were read."""
    buffer, total = bytearray(_READ_BYTES), 0
    for path in paths:
        descriptor = _open(path)
        try:
            while count := os.readv(descriptor, [buffer]):
                total += count
        finally:
            os.close(descriptor)
    return total


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _length(descriptor: int, first_bytes: int | None) -> int:
    size = os.fstat(descriptor).st_size
    return size if first_bytes is None else min(size, first_bytes)


def _pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE)


def _drop(descriptor: int, length: int) -> None:
    if not hasattr(os, "posix_fadvise"):  # macOS has no such call; the share measured afterwards tells
        return
    with suppress(OSError):  # read-only and special file systems refuse; then there is nothing to write back
        os.fdatasync(descriptor)  # a page that is not yet on disk cannot be dropped
    os.posix_fadvise(descriptor, 0, length + _FOLIO_BYTES, os.POSIX_FADV_DONTNEED)


def _held_pages(descriptor: int, length: int) -> float:
    if not _mincore_tells(descriptor):
        return _held_pages_by_probing(descriptor, length)
    return float(
        sum(
            _held_pages_in_window(descriptor, start, min(_WINDOW_BYTES, length - start))
            for start in range(0, length, _WINDOW_BYTES)
        )
    )


def _mincore_tells(descriptor: int) -> bool:
    """Since Linux 5.2 mincore calls every page of a file resident to those who could not write it."""
    return os.geteuid() in (0, os.fstat(descriptor).st_uid) or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def _held_pages_in_window(descriptor: int, start: int, length: int) -> int:
    libc = _libc()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        return _pages(length)  # some network file systems cannot be mapped: claim nothing was dropped
    try:
        answer = ctypes.create_string_buffer(_pages(length))
        if libc.mincore(address, length, answer) != 0:
            return _pages(length)
        return _pages(length) - answer.raw.count(0)
    finally:
        libc.munmap(address, length)


def _held_pages_by_probing(descriptor: int, length: int) -> float:
    """For files we may only read: ask for single bytes that must come without waiting, here and there.

    A byte that is not held may be fetched by the question: questions are few, and what they fetched is dropped again.
    """
    if not length or not hasattr(os, "RWF_NOWAIT"):
        return float(_pages(length))
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    probes = _PROBES if length > _READ_BYTES else 1
    held = 0
    for probe in range(probes):
        offset = (2 * probe + 1) * length // (2 * probes)
        try:
            held += os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            os.pread(descriptor, 1, offset)  # a page on its way cannot be dropped
            os.posix_fadvise(descriptor, offset // mmap.PAGESIZE * mmap.PAGESIZE, mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        except OSError:  # this file system cannot say: claim nothing was dropped
            return float(_pages(length))
    return _pages(length) * held / probes


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size]
    libc.mincore.argtypes = [pointer, size, ctypes.c_char_p]
    return libc
