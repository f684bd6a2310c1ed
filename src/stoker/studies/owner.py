"""Who owns a claim: a process that another one can recognise as dead at once."""

import os
from pathlib import Path

import psutil

from stoker.records import Record


class Owner(Record, frozen=True):
    """A process on this host. A PID alone is reused; its start time, PID namespace and the boot make it unique."""

    boot: str
    namespace: str
    pid: int
    started: float


def this_process() -> Owner:
    """The owner that this process is."""
    pid = os.getpid()
    return Owner(boot=_boot(), namespace=_namespace(), pid=pid, started=_started(pid) or 0.0)


def is_alive(owner: Owner) -> bool:
    """Whether the owner may still be running. A process of another PID namespace of this boot counts as alive, because
    nobody here can see it."""
    if owner.boot != _boot():
        return False
    if owner.namespace != _namespace():
        return True
    return _started(owner.pid) == owner.started


def _started(pid: int) -> float | None:
    """When a process began, in ticks since boot: unlike the wall clock, it never changes. None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else float(fields[19])
    except (OSError, IndexError, ValueError):
        try:
            return psutil.Process(pid).create_time() if not Path("/proc/self/stat").exists() else None
        except psutil.Error:
            return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
