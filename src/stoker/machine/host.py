"""Host memory and the limits that break loaders: RAM and control groups, /dev/shm, open files, the start method."""

import multiprocessing
import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stoker.machine.cgroup import groups
from stoker.machine.proc import SLASH, number, numbers, text
from stoker.records import Host

# Version 1 writes "no limit" as the largest whole page count of 63 bits; nothing real comes near it.
_NO_LIMIT_BYTES = 2**60


class MemoryLimit(NamedTuple):
    """A control group's limit, and what of it is taken: usage less the file cache that the kernel drops first."""

    limit_bytes: int
    taken_bytes: int


class Space(NamedTuple):
    total_bytes: int
    free_bytes: int


def read(root: Path = SLASH) -> Host:
    ram, limits = _ram(root), memory_limits(root)
    limit = min((found.limit_bytes for found in limits), default=None)
    shm = shared_memory(root)
    soft, hard = _open_files(root)
    return Host(
        ram_bytes=ram.total_bytes,
        cgroup_limit_bytes=limit,
        limit_bytes=ram.total_bytes if limit is None else min(ram.total_bytes, limit),
        available_bytes=_available(ram, limits),
        shm_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        open_files_soft=soft,
        open_files_hard=hard,
        start_method=_start_method(),
    )


def available_bytes(root: Path = SLASH) -> int:
    """What could be allocated now without swapping or being killed. Cheap enough to poll."""
    return _available(_ram(root), memory_limits(root))


def shm_used_bytes(root: Path = SLASH) -> int | None:
    """What /dev/shm holds now; None where there is none. Cheap enough to poll."""
    shm = shared_memory(root)
    return shm.total_bytes - shm.free_bytes if shm else None


def shared_memory(root: Path = SLASH) -> Space | None:
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    if found.f_blocks == 0:  # a tmpfs mounted with size=0 has no limit of its own
        return _ram(root)
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def memory_limits(root: Path = SLASH) -> tuple[MemoryLimit, ...]:
    """Every memory limit above us, innermost first."""
    return tuple(
        limit
        for group in groups("memory", root)
        for limit in (_limits_1(group.folder) if group.version == 1 else _limits_2(group.folder))
    )


def _limits_1(folder: Path) -> Iterator[MemoryLimit]:
    counts = numbers(folder / "memory.stat")
    # The second holds for ancestors too, seen or not.
    found = [number(folder / "memory.limit_in_bytes"), counts.get("hierarchical_memory_limit")]
    limits = [limit for limit in found if limit is not None and limit < _NO_LIMIT_BYTES]
    if limits:
        droppable = counts.get("total_inactive_file", counts.get("inactive_file", 0))
        yield MemoryLimit(min(limits), max(0, (number(folder / "memory.usage_in_bytes") or 0) - droppable))


def _limits_2(folder: Path) -> Iterator[MemoryLimit]:
    # Past memory.high the kernel stalls us rather than killing us: a pipeline cannot count on more either.
    found = [number(folder / "memory.max"), number(folder / "memory.high")]
    limits = [limit for limit in found if limit is not None]
    if limits:
        droppable = numbers(folder / "memory.stat").get("inactive_file", 0)
        yield MemoryLimit(min(limits), max(0, (number(folder / "memory.current") or 0) - droppable))


def _available(ram: Space, limits: tuple[MemoryLimit, ...]) -> int:
    left = [ram.free_bytes, *(limit.limit_bytes - limit.taken_bytes for limit in limits)]
    return max(0, min(left))


def _ram(root: Path) -> Space:
    found = numbers(root / "proc/meminfo")
    if "MemTotal" in found:
        # Kernels before 3.14 do not estimate what is available.
        guess = sum(found.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
        return Space(found["MemTotal"], found.get("MemAvailable", guess))
    import psutil  # only where there is no /proc: it costs more than all the rest

    memory = psutil.virtual_memory()
    return Space(memory.total, memory.available)


def _open_files(root: Path) -> tuple[int, int]:
    match = re.search(r"^Max open files\s+(\S+)\s+(\S+)", text(root / "proc/self/limits") or "", re.MULTILINE)
    if match:
        soft, hard = (sys.maxsize if limit == "unlimited" else int(limit) for limit in match.groups())
        return soft, hard
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (soft if soft >= 0 else sys.maxsize), (hard if hard >= 0 else sys.maxsize)  # unlimited is negative


def _start_method() -> str:
    """Asked without fixing it: the plain question would settle the default, and the user could no longer set it."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def out_of_memory_kills(root: Path = SLASH) -> int:
    """How often the kernel has killed a process of our control group for want of memory."""
    for group in groups("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            count = numbers(group.folder / name).get("oom_kill")
            if count is not None:
                return count
    return 0
