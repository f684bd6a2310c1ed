"""The process that calls are forked from. It imports modules once, touches no device, and forks a child for each call.

`child.ForkServer` starts it as `python -m stoker.process.forkserver FD MODULES LIBRARIES`: FD is one end of a socket
pair, the control socket; MODULES and LIBRARIES are names to import, separated by commas. Each message on the control
socket asks for one child and brings six open files: a connection, the pipe for events, the file for stacks, and the
child's standard input, output and error. The child reads its call from the connection. The server answers on it with
the child's pid and, when the child has ended, its wait status. A caller that closes the connection has its child
killed; when the control socket closes, all children are killed.
"""

import contextlib
import ctypes
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
from pathlib import Path
from typing import Any

import msgspec

from stoker.events import OnEvent
from stoker.process.stacks import write_into as write_stacks_into
from stoker.process.wire import EVENT, receive, write_frame, write_outcome
from stoker.records import encode

HEADER = struct.Struct("!Q")
STATUS = struct.Struct("!qq")
FILES = 6
SEMAPHORES = Path("/dev/shm")
"""Where Linux has them; elsewhere their names can hardly be longer than they are."""
RUNNING = -1
"""In place of a wait status, for a child that has just begun."""
_PR_SET_PDEATHSIG = 1
_LONGEST_FOLDER = 85
"""Bytes in the name of a folder for sockets: a socket's own name has 18 more, and may have 103 on every system."""


class Call(msgspec.Struct):
    """The surroundings of a call. Names of files and variables are bytes, because they need not be valid text.

    It is sent after its length and followed by a pickled (callable, arguments), which may be of any size.
    """

    path: list[bytes]
    folder: bytes
    environ: list[tuple[bytes, bytes]]


class ForkServer:
    """Serves any number of callers at once, all over one control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._connections: dict[int, socket.socket] = {}
        """The connection of each child, by its pid."""
        self._folders: dict[int, str | None] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    def serve(self) -> None:
        """Fork children until the control socket closes."""
        self._control.sendall(STATUS.pack(os.getpid(), RUNNING))
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake_read:
                    os.read(fd, 4096)
                elif fd != self._control.fileno():
                    self._caller_left(fd)
                elif not self._fork():
                    for pid in self._connections:
                        kill_group(pid)
                        remove_socket_folder(self._folders[pid])
                    return
            self._reap()

    def _fork(self) -> bool:
        """Fork the child that the next message asks for; False if the control socket has closed."""
        message, files, _, _ = socket.recv_fds(self._control, 1, FILES)
        if not message:
            return False
        connection, *others = files
        folder = socket_folder()
        pid = os.fork()
        if pid == 0:
            self._leave()
            use_socket_folder(folder)
            run_child(socket.socket(fileno=connection), *others)
        for fd in others:
            os.close(fd)
        self._connections[pid] = socket.socket(fileno=connection)
        self._folders[pid] = folder
        self._poll.register(connection, 0)  # only the caller's hanging up is of interest: the child reads the rest
        self._answer(pid, RUNNING)
        return True

    def _leave(self) -> None:
        """In a new child: close what belongs to the server and to other children."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        for each in (self._control, *self._connections.values()):
            each.close()

    def _caller_left(self, fd: int) -> None:
        self._poll.unregister(fd)
        for pid, connection in self._connections.items():
            if connection.fileno() == fd:
                kill_group(pid)

    def _reap(self) -> None:
        """Report each child that has ended."""
        for pid in list(self._connections):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                remove_socket_folder(self._folders.pop(pid))
                self._answer(pid, status)
                connection = self._connections.pop(pid)
                with contextlib.suppress(KeyError):  # the caller left before
                    self._poll.unregister(connection)
                connection.close()

    def _answer(self, pid: int, status: int) -> None:
        with contextlib.suppress(OSError):  # the caller has left
            self._connections[pid].sendall(STATUS.pack(pid, status))


def socket_folder() -> str | None:
    """A new folder for the sockets over which a child's loader workers pass tensors; None if none can be made.

    multiprocessing makes such a folder for each worker, and a worker that is killed leaves it behind. This one is
    removed by the server, which outlives its children however they end.
    """
    try:
        folder = tempfile.mkdtemp(prefix="stoker-sockets-")
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            Path(folder).rmdir()
            folder = tempfile.mkdtemp(prefix="stoker-sockets-", dir="/tmp")
        return folder
    except OSError:
        return None  # the child says what is wrong, if it needs one


def use_socket_folder(folder: str | None) -> None:
    """Have multiprocessing use the folder, in this process and in those it starts, and its name for semaphores.

    Those of spawned workers have a name until they are closed, which whoever is killed does not do.
    """
    if folder is not None:
        config = vars(multiprocessing.current_process())["_config"]  # as `multiprocessing` does itself
        config["tempdir"] = folder
        if SEMAPHORES.is_dir():
            config["semprefix"] = f"/{Path(folder).name}"


def remove_socket_folder(folder: str | None) -> None:
    """Remove the folder, what is left in it, and the semaphores of its name."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        for path in SEMAPHORES.glob(f"sem.{Path(folder).name}-*"):
            path.unlink(missing_ok=True)


def kill_group(pid: int) -> None:
    """Kill a child and all that it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def run_child(connection: socket.socket, events: int, stacks: int, *standard: int) -> None:
    """Be the child: read the call, make it, report, and exit without running anybody's exit handlers."""
    os.setsid()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for target, fd in enumerate(standard):
        os.dup2(fd, target)
    write_stacks_into(stacks)
    try:
        write_outcome(events, lambda: _make_call(connection, lambda event: write_frame(events, EVENT, encode(event))))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _make_call(connection: socket.socket, emit: OnEvent) -> Any:
    call = msgspec.msgpack.decode(_received(connection), type=Call)
    pickled = _received(connection)  # alive until the call returns: to free it would change malloc's state
    connection.close()
    os.environb.clear()
    os.environb.update(call.environ)
    os.chdir(call.folder)
    sys.path[:] = map(os.fsdecode, call.path)
    function, arguments = pickle.loads(pickled)  # written by `child.run`, over a private socket
    return function(*arguments, emit)


def _received(connection: socket.socket) -> bytearray:
    """The next part, which is sent after its length."""
    header = receive(connection, HEADER.size)
    size = HEADER.unpack(header)[0] if len(header) == HEADER.size else 0
    data = receive(connection, size)
    if not data or len(data) < size:
        os._exit(1)  # the caller was interrupted while it sent the call
    return data


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when the one that forked it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)


def preload(modules: list[str], libraries: list[str]) -> None:
    """Import what calls need. Nothing here may touch a device or start a thread.

    A module that cannot be imported ends the server; a library that cannot be imported is left to the calls that need
    it, which say what is wrong.
    """
    for module in modules:
        importlib.import_module(module)
    for library in libraries:
        with contextlib.suppress(Exception):
            importlib.import_module(library)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    modules, libraries = (list(filter(None, names.split(","))) for names in sys.argv[2:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    preload(modules, libraries)
    ForkServer(control).serve()


if __name__ == "__main__":
    main()
