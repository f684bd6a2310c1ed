"""The CPUs a pipeline really has: what affinity and every control group's quota leave of what the machine shows."""

import os
import platform
from pathlib import Path

from stoker.machine.cgroup import Group, groups
from stoker.machine.proc import SLASH, cpu_list, field, number, numbers, text
from stoker.records import Cpu, Throttling


def read(root: Path = SLASH) -> Cpu:
    return Cpu(
        model=_model(root),
        logical=_logical(root),
        physical=_physical(root),
        affinity=affinity(root),
        quota=quota(root),
        usable=usable(root),
        throttling=throttling(root),
    )


def usable(root: Path = SLASH) -> float:
    """The CPUs that we can use: the smaller of affinity and quota."""
    return min(float(affinity(root)), quota(root) or float("inf"))


def worker_processes(root: Path = SLASH) -> int:
    """How many processes can compute at the same time: the usable CPUs, rounded, and at least one."""
    return max(1, round(usable(root)))


def affinity(root: Path = SLASH) -> int:
    """How many CPUs the kernel may schedule us on; a cpuset is part of it."""
    allowed = field(root / "proc/self/status", "Cpus_allowed_list")
    if allowed:
        return len(cpu_list(allowed))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(root: Path = SLASH) -> list[list[int]]:
    """The CPUs that the kernel may schedule us on, those of one core together."""
    allowed = field(root / "proc/self/status", "Cpus_allowed_list")
    cpus = sorted(cpu_list(allowed) if allowed else os.sched_getaffinity(0))
    found: dict[str, list[int]] = {}
    for cpu in cpus:
        found.setdefault(_siblings(root, cpu) or str(cpu), []).append(cpu)
    return list(found.values())


def quota(root: Path = SLASH) -> float | None:
    """The least quota of our group and its ancestors, in CPUs; None where nothing sets one."""
    quotas = [_quota(group) for group in groups("cpu", root)]
    return min((found for found in quotas if found is not None), default=None)


def throttling(root: Path = SLASH) -> Throttling | None:
    """The counters of the group that was held back longest; None where no group counts. Cheap enough to poll."""
    found = [counted for group in groups("cpu", root) if (counted := _throttling(group)) is not None]
    return max(found, key=lambda counted: counted.throttled_s, default=None)


def _quota(group: Group) -> float | None:
    if group.version == 2:
        limit, _, period = (text(group.folder / "cpu.max") or "").partition(" ")
        return _share(int(limit), int(period or 100_000)) if limit.isdigit() else None
    quota_us, period_us = (number(group.folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _share(quota_us, period_us) if quota_us is not None and period_us is not None else None


def _share(quota_us: int, period_us: int) -> float | None:
    """Version 1 writes -1 for no quota."""
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _throttling(group: Group) -> Throttling | None:
    """Counters move only in a group with a quota of its own, so the others have nothing to say."""
    counts = numbers(group.folder / "cpu.stat")
    if not counts.get("nr_periods") and _quota(group) is None:
        return None
    if group.version == 2:
        throttled_s = counts.get("throttled_usec", 0) / 1e6
    else:
        throttled_s = counts.get("throttled_time", 0) / 1e9
    return Throttling(
        periods=counts.get("nr_periods", 0),
        throttled_periods=counts.get("nr_throttled", 0),
        throttled_s=throttled_s,
    )


def _model(root: Path) -> str:
    return field(root / "proc/cpuinfo", "model name") or platform.machine() or "unknown"


def _logical(root: Path) -> int:
    online = text(root / "sys/devices/system/cpu/online")
    return len(cpu_list(online)) if online else os.cpu_count() or 1


def _physical(root: Path) -> int | None:
    """Logical CPUs of one core name the same siblings."""
    online = text(root / "sys/devices/system/cpu/online")
    cores = {_siblings(root, cpu) for cpu in cpu_list(online or "")} - {None}
    if cores:
        return len(cores)
    return _physical_elsewhere() if root == SLASH else None


def _siblings(root: Path, cpu: int) -> str | None:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return text(topology / "core_cpus_list") or text(topology / "thread_siblings_list")


def _physical_elsewhere() -> int | None:
    import psutil  # only where /sys does not say: it costs more than all the rest

    return psutil.cpu_count(logical=False)
