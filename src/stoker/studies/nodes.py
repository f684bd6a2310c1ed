"""What runs on each node of a Ray cluster: a runner, which describes its node and runs tasks in child processes.

This module does not import Ray. What crosses between driver and node is JSON, or MessagePack where it has bytes; Ray
pickles nothing of ours but the reference to `Runner`.
"""

import getpass
import os
import queue
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from stoker.machine import inspect
from stoker.machine.cpu import cores, worker_processes
from stoker.machine.gpu import visible
from stoker.records import Machine, Record, Task, decode, encode
from stoker.studies.executors import Finished, LocalExecutor, execute
from stoker.workload.data.open import KINDS


class NeededPath(Record, frozen=True):
    """A path that tasks read. `digest` is that of a file's content where every node must have the same."""

    path: str
    digest: str | None = None


class Node(Record, frozen=True):
    """What a runner found on its node. `lacks` has a sentence for each path that is not there, or not the same."""

    host: str
    machine: Machine
    lacks: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str | None]:
        """What should be the same on all nodes."""
        software = self.machine.software
        return {"stoker": software.stoker, "torch": software.torch, "python": software.python}


class Candidate(Record, frozen=True):
    """A candidate of a search that is over, by its place among those that the node was given."""

    index: int
    finished: Finished


def needed_paths(tasks: Iterable[Task]) -> tuple[NeededPath, ...]:
    """The files and folders that these tasks name: the user's files, folders of data, files of weights."""
    found: dict[str, NeededPath] = {}
    for task in tasks:
        spec = task.workload
        if spec is None:
            continue
        file = spec.spec.rpartition(":")[0] or spec.spec
        if spec.from_function and file.endswith(".py"):
            if file not in found:
                found[file] = NeededPath(path=file, digest=_digest(file))
        elif spec.spec.startswith("hf/") and Path(spec.spec[3:]).is_dir():
            found.setdefault(spec.spec, NeededPath(path=spec.spec[3:]))
        if spec.data is not None and spec.data not in (*KINDS, "device"):
            found.setdefault(spec.data, NeededPath(path=spec.data))
        if spec.weights is not None:
            found.setdefault(spec.weights, NeededPath(path=spec.weights))
    return tuple(found.values())


def _digest(path: str) -> str | None:
    try:
        return sha256(Path(path).expanduser().read_bytes()).hexdigest()
    except OSError:
        return None


class Runner:
    """Runs tasks on a node, one at a time. `folder` is the driver's current folder: relative paths are as they are
    there, unless Ray has brought files along (`brings_files`). With `share=(n, of)` it has the n-th of so many equal
    shares of the node's CPUs, and the one GPU that Ray gives it."""

    def __init__(self, folder: str, brings_files: bool, share: tuple[int, int] | None) -> None:
        if not brings_files and Path(folder).is_dir():
            os.chdir(folder)
        _undo_thread_count()
        self._folder = _OwnFolder()
        self._share = share
        if share is not None:
            os.sched_setaffinity(0, share_of(cores(), worker_processes(), *share))

    def describe(self, needed: bytes) -> bytes:
        """The node, and which of these paths it lacks."""
        machine = inspect()
        if self._share is not None:
            gpus = visible(machine.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
            machine = msgspec.structs.replace(machine, gpus=gpus)
        lacks = tuple(
            sentence for each in decode(needed, tuple[NeededPath, ...]) if (sentence := _lack(each)) is not None
        )
        return encode(Node(host=socket.gethostname(), machine=machine, lacks=lacks))

    def run(self, task: bytes, timeout_s: float | None) -> bytes:
        """Run a task to its end; whatever becomes of it is an outcome."""
        return msgspec.msgpack.encode(execute(decode(task, Task), timeout_s=timeout_s))

    def search(self, tasks: bytes, host_memory_bytes: int | None, timeout_s: float | None) -> Iterator[bytes]:
        """Run candidates of a search one after another; each gives a `Candidate` as soon as it is over."""
        listed = decode(tasks, tuple[Task, ...])
        results: queue.SimpleQueue[Candidate | BaseException | None] = queue.SimpleQueue()

        def ended(index: int, finished: Finished) -> None:
            results.put(Candidate(index=index, finished=finished))

        def run() -> None:
            try:
                LocalExecutor().search(listed, ended, host_memory_bytes=host_memory_bytes, timeout_s=timeout_s)
                results.put(None)
            except BaseException as error:
                results.put(error)

        threading.Thread(target=run, name="stoker-search", daemon=True).start()
        while (result := results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield msgspec.msgpack.encode(result)


class _OwnFolder:
    """A folder for the temporary files of this process' runs, which is gone when the process is, however it ended: Ray
    kills a worker and its children without a chance to tidy up. A shell outlives them all and removes it."""

    def __init__(self) -> None:
        place = tempfile.gettempdir()
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{place}/torchinductor_{getpass.getuser()}")  # as it would be
        folder = tempfile.mkdtemp(prefix="stoker-node-", dir=place if len(place) <= _LONGEST_PLACE else "/tmp")
        ended, self._open = os.pipe()
        # What runs in the background has no standard input, hence 3. `read` ends when this process has ended.
        script = 'exec 3<&0; (read line <&3; sleep 1; rm -rf -- "$1") >/dev/null 2>&1 &'
        subprocess.run(["/bin/sh", "-c", script, "sh", folder], stdin=ended, start_new_session=True, check=True)
        os.close(ended)
        os.environ["TMPDIR"] = tempfile.tempdir = folder

    def __del__(self) -> None:
        os.close(self._open)


_LONGEST_PLACE = 40
"""Characters in the name of the folder for temporary files: a socket's name, far below it, may have 103 in all."""


def _lack(needed: NeededPath) -> str | None:
    if not Path(needed.path).expanduser().exists():
        return f"{needed.path} is not there"
    if needed.digest is not None and _digest(needed.path) != needed.digest:
        return f"{needed.path} has other content"
    return None


def _undo_thread_count() -> None:
    """Ray sets OMP_NUM_THREADS in its workers to the CPUs that they asked for. Runs here shall have as many threads as
    they would have without Ray, so only what the node's own environment says is kept."""
    own = Path("/proc/self/environ").read_bytes().split(b"\0")
    if not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in own):
        os.environ.pop("OMP_NUM_THREADS", None)


def share_of(cores: Sequence[Sequence[int]], usable: int, number: int, of: int) -> list[int]:
    """One of `of` equal shares of so many usable CPUs, at least one CPU. A core's CPUs go to the same share where there
    are enough of them."""
    cpus = [cpu for core in cores for cpu in core]
    size = max(1, min(usable, len(cpus)) // of)
    first = number * size % len(cpus)
    return cpus[first : first + size]
