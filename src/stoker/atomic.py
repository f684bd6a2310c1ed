"""Folders that are whole or not there: built in parallel beside their place, then moved into it in one step.

A build that fails or is ended takes its partial folder with it. One that is killed outright cannot: the next build of
the same folder does it then. Two builds of one folder take turns, and the second finds the work done.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import platformdirs

from stoker.errors import MachineError
from stoker.events import OnProgress, silent

CACHE_REMEDY = "free some, or set STOKER_CACHE to a folder with room"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def data_root() -> Path:
    """Where synthetic sets are kept: `STOKER_CACHE`, or the user's cache folder."""
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
    """Have `fill` fill a new folder, then give it the name `final`; nothing is done where that is there already.

    `needs_bytes` is about what the folder will hold; `remedy` says what to do where that does not fit.
    """
    if _is_made(final):
        return final
    with _termination_raised(), _said_plainly(final.parent, needs_bytes, remedy):
        final.parent.mkdir(parents=True, exist_ok=True)
        with _turn(final, progress):
            if not _is_made(final):
                _remove_leftovers(final)
                _check_room(final.parent, needs_bytes)
                _build(final, fill)
    return final


def write_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write a new file; a full disk shows as the error of the write itself."""
    with path.open("wb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest.nbytes:
                rest = rest[file.write(rest) :]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises MachineError where the machine refuses."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~_umask())  # noqa: PTH101
            os.replace(name, path)  # noqa: PTH105
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from None


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
    processes: int | None = None,
) -> None:
    """Do every task, each in one of as many processes as there are CPUs for us; the first failure ends them all."""
    count = min(processes or usable_cpus(), len(tasks))
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


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    # Forked workers need no guarded `__main__` in the user's script. They do what DataLoader's forked workers do too.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    # A bare byte: a worker that is killed could hold the lock of an event for ever.
    stop = context.RawValue(ctypes.c_bool, False)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(stop,))
    try:
        yield pool
    finally:
        stop.value = True
        pool.shutdown(wait=True, cancel_futures=True)


_stop: ctypes.c_bool | None = None
"""In a worker: true once its builder wants no more of it."""


def _start_worker(stop: ctypes.c_bool) -> None:
    """Ctrl-C and SIGTERM are the builder's to handle; a worker ends with its builder, however that ended."""
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


def _is_made(final: Path) -> bool:
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
    # Called in our turn: whoever made these is gone, for a builder and its workers keep their turn while they live.
    for partial in final.parent.glob(f".{glob.escape(final.name)}.partial-*"):
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _turn(final: Path, progress: OnProgress) -> Iterator[None]:
    """Hold the lock file of `final`. Its holder removes it at the end, so we may have waited for one that is gone."""
    path = final.parent / f".{final.name}.lock"
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(file, final, progress)
            if _same_file(file, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            # Closing alone would leave it locked while a process forked meanwhile lives.
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
    """SIGTERM came while we built."""


@contextlib.contextmanager
def _termination_raised() -> Iterator[None]:
    """Let SIGTERM unwind the stack instead of ending us on the spot, unless the program handles it in its own way."""
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


def _check_room(folder: Path, needs_bytes: int) -> None:
    if shutil.disk_usage(folder).free < needs_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _said_plainly(folder: Path, needs_bytes: int, remedy: str) -> Iterator[None]:
    """Turn what the file system refuses into one sentence for a person."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            need = max(1, round(needs_bytes / 10**6))
            raise MachineError(f"no space left in {folder}: the set needs about {need} MB; {remedy}") from None
        if error.errno in _NOT_OURS:
            raise MachineError(f"cannot write in {folder} ({error.strerror}); {remedy}") from None
        raise
