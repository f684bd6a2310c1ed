"""The process that trials are forked from: it imports torch once, touches no device, and forks a child for each job.

It is started by `child.Server` as `python -m stoker.process.forkserver FD LIBRARY...`, where FD is one end of a
socket pair and the libraries are those of `SHARED` that the caller has imported. For each job it gets three open files
(events, output, stacks) and a pickled call, and answers with the child's pid and, when that has ended, its wait status.
When the other end of the socket closes, whatever still runs is killed.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.errors import StokerError
from stoker.events import OnEvent
from stoker.records import encode

HEADER = struct.Struct("!Q")
STATUS = struct.Struct("!qq")
FRAME = struct.Struct("!cI")
EVENT, RESULT, ERROR = b"E", b"R", b"X"
SHARED = ("timm", "transformers")
"""Libraries of models, which take seconds to import."""
_PR_SET_PDEATHSIG = 1
_LONGEST_FOLDER = 85
"""Bytes in the name of a folder for sockets: a socket's own name has 18 more, and may have 103 on every system."""


class Call(msgspec.Struct):
    """The surroundings that a call expects; names of files and variables as bytes, which need not be any text.

    It is sent behind its length, and a pickled (callable, arguments) behind it: that may be larger than a message.
    """

    path: list[bytes]
    folder: bytes
    environ: list[tuple[bytes, bytes]]


class Failure(msgspec.Struct):
    """An error that ended a child's call: a `StokerError` by its class' name, or anything else with its traceback."""

    kind: str
    sentence: str
    trace: str = ""


def write_frame(fd: int, tag: bytes, payload: bytes) -> None:
    """Write one tagged frame whole, however the pipe cuts it."""
    data = memoryview(FRAME.pack(tag, len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


def receive(sock: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes, or fewer where the other end closed."""
    parts: list[bytes] = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve(sock: socket.socket) -> None:
    """Take jobs until the other end closes."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    sock.sendall(STATUS.pack(os.getpid(), 0))
    while True:
        header, fds, _, _ = socket.recv_fds(sock, HEADER.size, 3)
        if len(header) < HEADER.size:
            return
        size = HEADER.unpack(header)[0]
        payload = receive(sock, size)
        if len(payload) < size:
            return
        with socket_folder() as folder:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sock.close()
                use_socket_folder(folder)
                run_child(payload, *fds)
            for fd in fds:
                os.close(fd)
            sock.sendall(STATUS.pack(pid, -1))
            status = _wait(pid, sock, wake_read)
        if status is None:
            return
        sock.sendall(STATUS.pack(pid, status))


@contextlib.contextmanager
def socket_folder() -> Iterator[str | None]:
    """A folder for the sockets over which a child's loader workers pass tensors; None where none can be made.

    multiprocessing makes one for each worker, and a worker that is killed leaves it behind. This one is removed by the
    server, which outlives its child however that ends.
    """
    try:
        folder = tempfile.mkdtemp(prefix="stoker-sockets-")
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            Path(folder).rmdir()
            folder = tempfile.mkdtemp(prefix="stoker-sockets-", dir="/tmp")
    except OSError:
        yield None  # the child says what is wrong, if it needs one
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def use_socket_folder(folder: str | None) -> None:
    """Have multiprocessing use the folder, in this process and in those it starts."""
    if folder is not None:
        vars(multiprocessing.current_process())["_config"]["tempdir"] = folder  # as `multiprocessing.util` does


def _wait(pid: int, sock: socket.socket, wake_read: int) -> int | None:
    """The child's wait status; None where the other end closed first and the child was killed for it."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        ready, _, _ = select.select([sock.fileno(), wake_read], [], [], 5.0)
        if wake_read in ready:
            os.read(wake_read, 4096)
        if sock.fileno() in ready and not sock.recv(1, socket.MSG_PEEK):
            kill_group(pid)
            return None


def kill_group(pid: int) -> None:
    """Kill a child and everything it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def run_child(payload: bytes, events: int, output: int, stacks: int) -> None:
    """Be the child: run the call, report, and leave without running anybody's exit handlers."""
    os.setsid()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a file descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    try:
        result = _call(payload, lambda event: write_frame(events, EVENT, encode(event)))
        write_frame(events, RESULT, encode(result))
    except BaseException as error:
        failure = Failure(
            kind=type(error).__name__ if isinstance(error, StokerError) else "",
            sentence=str(error) or type(error).__name__,
            trace=traceback.format_exc(),
        )
        write_frame(events, ERROR, encode(failure))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _call(payload: bytes, emit: OnEvent) -> Any:
    ends = HEADER.size + HEADER.unpack_from(payload)[0]
    call = msgspec.msgpack.decode(payload[HEADER.size : ends], type=Call)
    os.environb.clear()
    os.environb.update(call.environ)
    os.chdir(call.folder)
    sys.path[:] = map(os.fsdecode, call.path)
    function, arguments = pickle.loads(memoryview(payload)[ends:])  # written by `isolate`, over a private socket
    return function(*arguments, emit)


def _die_with_parent() -> None:
    """On Linux, have the kernel kill this child when the server is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)


def preload(libraries: Sequence[str] = ()) -> None:
    """Import what every trial needs, and libraries that the caller has imported too; nothing here may touch a device or
    start a thread."""
    for module in ("torch.utils.data", "torchvision.transforms", "stoker.measure.run", "stoker.workload.load"):
        importlib.import_module(module)
    for library in libraries:
        with contextlib.suppress(Exception):  # a trial that needs it will say what is wrong
            importlib.import_module(library)


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    preload(sys.argv[2:])
    serve(sock)


if __name__ == "__main__":
    main()
