"""Who owns a claim: a process that others recognise as dead at once, in this container and in others of this host."""

import fcntl
import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from stoker.records import Record

_PLACES = 2**40
"""Bytes to choose from: so many that two processes never choose the same. A lock takes no room in the file."""


class Owner(Record, frozen=True):
    """A process on this host. A PID alone is reused; its start time, PID namespace and the boot make it unique.

    `lock` is the byte that the process keeps locked in the file `<store>-owners`. Processes of another PID namespace,
    such as another container, cannot see the PID, but they can see the lock. None where the file system has no locks.
    """

    boot: str
    namespace: str
    pid: int
    started: float
    lock: int | None = None

    @property
    def is_visible(self) -> bool:
        """Whether this process shares the owner's PID namespace."""
        return self.namespace == _namespace()


def new_owner(store: Path) -> Owner:
    """This process as an owner in a store, until `forget` or its end."""
    pid = os.getpid()
    lock = _LOCKS.take(_owners(store))
    return Owner(boot=_boot(), namespace=_namespace(), pid=pid, started=_started(pid) or 0.0, lock=lock)


def forget(owner: Owner, store: Path) -> None:
    """End an owner of this process: from now on its claims count as those of the dead."""
    if owner.lock is not None:
        _LOCKS.give_back(_owners(store), owner.lock)


def is_alive(owner: Owner, store: Path) -> bool:
    """Whether the owner of a claim in a store still runs. An owner that cannot be judged counts as alive."""
    if owner.boot != _boot():
        return False
    if owner.is_visible and _started(owner.pid) != owner.started:
        return False
    if owner.lock is None or (owner.is_visible and owner.pid != os.getpid()):
        return True
    return _LOCKS.is_held(_owners(store), owner.lock)


class _Locks:
    """This process' locks. A file stays open until the process ends: to close it would give up all its locks."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._files: dict[Path, int] = {}
        self._own: set[tuple[Path, int]] = set()

    def take(self, path: Path) -> int | None:
        """Lock a byte of the file; None where locks do not work."""
        place = secrets.randbelow(_PLACES)
        with self._guard:
            try:
                fcntl.lockf(self._file(path), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError:
                return None
            self._own.add((path, place))
        return place

    def give_back(self, path: Path, place: int) -> None:
        with self._guard, suppress(OSError):
            fcntl.lockf(self._file(path), fcntl.LOCK_UN, 1, place)
            self._own.discard((path, place))

    def is_held(self, path: Path, place: int) -> bool:
        """Whether this process or another keeps the byte locked."""
        with self._guard:
            try:
                file = self._file(path)
                if (path, place) in self._own:
                    return True
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, place)
                fcntl.lockf(file, fcntl.LOCK_UN, 1, place)
            except OSError:
                return True
            return False

    def _file(self, path: Path) -> int:
        if self._pid != os.getpid():  # forked since: locks are not inherited
            self._pid, self._files, self._own = os.getpid(), {}, set()
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self._files[path]


_LOCKS = _Locks()


def _owners(store: Path) -> Path:
    return store.resolve().with_name(f"{store.name}-owners")


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
