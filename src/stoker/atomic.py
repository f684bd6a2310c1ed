"""Folders that appear complete or not at all: built in parallel in a hidden folder, then renamed in one step.

A build that fails or is terminated removes its partial folder. After SIGKILL, the next build of the same folder removes
it. Two builds of one folder wait for each other, and the second one finds the folder complete.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import platformdirs

from stoker.errors import InputError, MachineError
from stoker.events import OnProgress, silent

CACHE_REMEDY = "free some, or set STOKER_CACHE to a folder with room"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def data_root() -> Path:
    """The folder of the synthetic sets: below `STOKER_CACHE`, or below the user's cache folder."""
    chosen = os.environ.get("STOKER_CACHE")
    base = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("stoker")
    return base / "data"


def build_folder(
    final: Path,
    fill: Callable[[Path], None],
    *,
    needs_bytes: int,
    remedy: str,
    progress: OnProgress = silent,
) -> Path:
    """Let `fill` write a new folder, then rename it to `final`. Does nothing if `final` exists and is not empty.

    `needs_bytes` estimates the size of the folder. Raises MachineError, with `remedy` as the advice, if the disk is too
    full or the folder cannot be written.
    """
    if _is_complete(final):
        return final
    with _termination_raised(), _clear_errors(final.parent, needs_bytes, remedy):
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final, progress):
            if not _is_complete(final):
                _remove_leftovers(final)
                _check_space(final.parent, needs_bytes)
                _build(final, fill)
    return final


def write_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write a new file without buffering, so that a full disk is an error of this call."""
    with path.open("wb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest.nbytes:
                rest = rest[file.write(rest) :]


def check_target(path: Path) -> None:
    """Raise InputError or MachineError if `write_whole` could not or must not write to `path`."""
    place = Path(os.path.realpath(path))
    try:
        status = place.stat()
    except FileNotFoundError:
        if not (place.parent.is_dir() and os.access(place.parent, os.W_OK)):
            raise InputError(f"cannot write {path}: {place.parent} is not a folder that can be written to") from None
        return
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISCHR(status.st_mode):
        raise InputError(f"cannot write {path}: it is not a regular file; name another")
    if not status.st_mode & _WRITABLE or not os.access(place, os.W_OK):
        raise InputError(f"cannot write {path}: the file is read-only")
    if stat.S_ISREG(status.st_mode) and not os.access(place.parent, os.W_OK):
        raise InputError(f"cannot write {path}: {place.parent} is not a folder that can be written to")


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file whole or not at all. Raises InputError or MachineError if that is not possible.

    Data that is too large for memory comes in parts, which are written one after another.
    A link stays a link: the file that it points to is replaced. A file that is there keeps its permissions. A
    character device, such as /dev/stdout or /dev/null, is written to and never replaced.
    """
    check_target(path)
    place = Path(os.path.realpath(path))
    parts = [data] if isinstance(data, bytes) else data
    try:
        if place.exists() and not place.is_file():
            write_device(place, parts)
            return
        mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
            os.chmod(name, mode)  # noqa: PTH101
            os.replace(name, place)  # noqa: PTH105
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from None


def write_device(place: Path, parts: Iterable[bytes]) -> None:
    """Write to a character device, each part in as many pieces as it takes."""
    with place.open("wb", buffering=0) as device:
        for part in parts:
            rest = memoryview(part)
            while rest.nbytes:
                rest = rest[device.write(rest) :]


_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _umask() -> int:
    """The umask of this process. To ask for it is to set it, so it is put back."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def in_parallel(
    work: Callable[[Any], None],
    tasks: Sequence[Any],
    *,
    what: str,
    progress: OnProgress = silent,
    processes: int,
) -> None:
    """Do every task in one of `processes` processes, or here if one is enough. The first failure ends them all.

    Raises MachineError if a process ends unexpectedly, and whatever a task raises.
    """
    count = min(processes, len(tasks))
    progress(what, 0, len(tasks))
    if count <= 1:
        for done, task in enumerate(tasks, start=1):
            work(task)
            progress(what, done, len(tasks))
        return
    size = max(1, min(16, len(tasks) // (4 * count)))
    chunks = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    with _pool(count) as pool:
        _follow([pool.submit(_do_chunk, work, chunk) for chunk in chunks], what, len(tasks), progress)


def _follow(futures: list[Future[int]], what: str, total: int, progress: OnProgress) -> None:
    done = 0
    try:
        for future in as_completed(futures):
            done += future.result()
            progress(what, done, total)
    except BrokenProcessPool:
        raise MachineError(
            f"a process that was {what} ended unexpectedly, after {done} of {total}; most often memory ran out"
        ) from None


@contextlib.contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    # Forked workers need no guarded `__main__` in the user's script; DataLoader forks for the same reason.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    # A raw byte: a worker that is killed while it holds the lock of an Event would block the others for ever.
    stop = context.RawValue(ctypes.c_bool, False)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(stop,))
    try:
        yield pool
    except BaseException:
        stop.value = True
        pool.shutdown(wait=False, cancel_futures=True)
        _end_workers(set(multiprocessing.active_children()) - before)
        raise
    stop.value = True
    pool.shutdown(wait=True)


_GRACE_S = 3.0
"""How long workers may take to finish their file after a failure. One that hangs in a read is killed then."""


def _end_workers(workers: set[BaseProcess]) -> None:
    """Wait a moment for the workers to end by themselves, then kill them, so that nobody waits for them for ever."""
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


_stop: ctypes.c_bool | None = None
"""In a worker: true when the builder wants it to stop."""


def _start_worker(stop: ctypes.c_bool) -> None:
    """Leave Ctrl-C to the builder, and end with the builder even if that is killed."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do_chunk(work: Callable[[Any], None], chunk: Sequence[Any]) -> int:
    for task in chunk:
        if _stop is not None and _stop.value:
            break
        work(task)
    return len(chunk)


def _is_complete(final: Path) -> bool:
    return final.is_dir() and any(final.iterdir())


def _build(final: Path, fill: Callable[[Path], None]) -> None:
    partial = final.parent / f".{final.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        partial.mkdir()
        fill(partial)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _remove_leftovers(final: Path) -> None:
    # We hold the lock, and a builder and its workers hold it while they live. So these folders belong to nobody.
    for partial in final.parent.glob(f".{glob.escape(final.name)}.partial-*"):
        if re.fullmatch(r"partial-\d+-[0-9a-f]{8}", partial.name.removeprefix(f".{final.name}.")):
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(final: Path, progress: OnProgress) -> Iterator[None]:
    """Hold the lock file of `final`. The last holder removes the file: check that ours is still there."""
    path = final.parent / f".{final.name}.lock"
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(file).st_size:
                raise MachineError(f"{path} is in the way: it has content and is no lock of ours; move it elsewhere")
            _lock(file, final, progress)
            if _same_file(file, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            # Closing is not enough: a process that was forked meanwhile has the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _lock(file: int, final: Path, progress: OnProgress) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(f"waiting for another process that builds {final.name}", 0, 1)
        fcntl.flock(file, fcntl.LOCK_EX)


def _same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


class _Terminated(BaseException):
    """SIGTERM arrived during a build."""


@contextlib.contextmanager
def _termination_raised() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the build cleans up, unless the program handles SIGTERM itself."""
    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not ours:
        yield
        return

    def unwind(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check_space(folder: Path, needs_bytes: int) -> None:
    if shutil.disk_usage(folder).free < needs_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _clear_errors(folder: Path, needs_bytes: int, remedy: str) -> Iterator[None]:
    """Turn errors of the file system into one clear sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            need = max(1, round(needs_bytes / 10**6))
            raise MachineError(f"no space left in {folder}: the set needs about {need} MB; {remedy}") from None
        if error.errno in _NOT_OURS:
            raise MachineError(f"cannot write in {folder} ({error.strerror}); {remedy}") from None
        raise
