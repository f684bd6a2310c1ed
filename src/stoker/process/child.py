"""Calls in a child process of their own: a crash, a hang or running out of memory costs the call, never the caller.

Children are forked from a server (`server.py`) that has imported torch, so that one more costs milliseconds. Nothing
that a child sends back is unpickled: events and results are JSON, checked against the record they must be.
"""

import atexit
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any, Generic, Literal, TypeVar

import cloudpickle
import msgspec
import psutil

from stoker import errors
from stoker.errors import InputError, MachineError, StokerError
from stoker.events import AnyEvent, OnEvent
from stoker.process import failures
from stoker.process.forkserver import (
    ERROR,
    EVENT,
    FRAME,
    HEADER,
    RESULT,
    SHARED,
    STATUS,
    Call,
    Failure,
    kill_group,
    receive,
)

T = TypeVar("T")

_OUTPUT_TAIL_BYTES = 8192
_STACK_WAIT_S = 0.5


class Ended(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How a call ended. `output` is the end of what it printed; `stacks` where each process stood when time ran out."""

    how: Literal["returned", "raised", "killed", "timed_out"]
    result: T | None = None
    failure: Failure | None = None
    signal: str | None = None
    output: str = ""
    stacks: str = ""
    seconds: float = 0.0


class Server:
    """The caller's end of the process that children are forked from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            libraries = [name for name in SHARED if name in sys.modules]
            command = [sys.executable, "-P", "-m", "stoker.process.forkserver", str(theirs.fileno()), *libraries]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=_environ(),
            )
        self._socket = ours
        self._owner = os.getpid()
        self._ready = self._is_closed = False

    @property
    def alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def wait_ready(self) -> None:
        """Return when torch is imported there; its error is ours where it cannot start."""
        if self._ready:
            return
        if len(receive(self._socket, STATUS.size)) < STATUS.size:
            _, noise = self._process.communicate()
            last = noise.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise MachineError(f"the process that runs trials could not start: {last[0]}")
        self._ready = True

    def run(self, payload: bytes, job: "_Job[T]") -> Ended[T]:
        with self._lock:
            self.wait_ready()
            pid = self._hand_over(payload, job)
            return job.follow(pid, self._socket)

    def _hand_over(self, payload: bytes, job: "_Job[T]") -> int:
        """The pid of the child that has the call. A server that was interrupted meanwhile is of no more use."""
        try:
            socket.send_fds(self._socket, [HEADER.pack(len(payload))], job.files)
            self._socket.sendall(payload)
            job.close_childs_end()
            return _read_status(self._socket)[0]
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise _ended_outside() from None
            raise

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._socket.close()
        if self._owner == os.getpid() and not self._is_closed:
            self._is_closed = True
            self._process.kill()
            self._process.communicate()


class _Job(Generic[T]):
    """One call while it runs: its pipe, its output, its clock."""

    def __init__(
        self,
        kind: type[T],
        *,
        timeout_s: float | None,
        stall_s: float | Callable[[], float] | None,
        on_event: OnEvent | None,
        on_start: Callable[[int], None] | None,
    ) -> None:
        self._kind = kind
        self._timeout_s, self._stall_s = timeout_s, stall_s
        self._on_event, self._on_start = on_event, on_start
        self._read, write = os.pipe()
        self._write: int | None = write
        os.set_blocking(self._read, False)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._buffer = bytearray()
        self._result: T | None = None
        self._failure: Failure | None = None

    @property
    def files(self) -> list[int]:
        assert self._write is not None
        return [self._write, self._output.fileno(), self._stacks.fileno()]

    def close_childs_end(self) -> None:
        if self._write is not None:
            os.close(self._write)
            self._write = None

    def close(self) -> None:
        self.close_childs_end()
        os.close(self._read)
        self._output.close()
        self._stacks.close()

    def follow(self, pid: int, sock: socket.socket) -> Ended[T]:
        """Pass on events until the child has ended or its time is up; leave none of its processes behind."""
        began = self._heard = monotonic()
        status: int | None = None
        timed_out = False
        try:
            if self._on_start:
                self._on_start(pid)
            with selectors.DefaultSelector() as selector:
                selector.register(sock, selectors.EVENT_READ)
                selector.register(self._read, selectors.EVENT_READ)
                while status is None:
                    ready = {key.fileobj for key, _ in selector.select(self._patience(began))}
                    if self._read in ready and not self._drain():
                        selector.unregister(self._read)
                    if sock in ready:
                        _, status = _read_status(sock)
                    elif self._patience(began) == 0:
                        timed_out = True
                        self._ask_for_stacks(pid)
                        kill_group(pid)
                        _, status = _read_status(sock)
        finally:
            kill_group(pid)
            if status is None:
                _read_status(sock)
        self._drain()
        return self._ended(status, timed_out, monotonic() - began)

    def _patience(self, began: float) -> float | None:
        """Seconds until time is up, or None where nothing limits it."""
        ends = [began + self._timeout_s] if self._timeout_s is not None else []
        if self._stall_s is not None:
            ends.append(self._heard + (self._stall_s() if callable(self._stall_s) else self._stall_s))
        return max(0.0, min(ends) - monotonic()) if ends else None

    def _drain(self) -> bool:
        """Read what is there and pass it on; False at the end of the pipe."""
        while True:
            try:
                part = os.read(self._read, 1 << 20)
            except BlockingIOError:
                return True
            if not part:
                return False
            self._buffer += part
            self._heard = monotonic()
            self._take_frames()

    def _take_frames(self) -> None:
        while len(self._buffer) >= FRAME.size:
            tag, length = FRAME.unpack_from(self._buffer)
            if len(self._buffer) < FRAME.size + length:
                return
            payload = bytes(self._buffer[FRAME.size : FRAME.size + length])
            del self._buffer[: FRAME.size + length]
            if tag == RESULT:
                self._result = msgspec.json.decode(payload, type=self._kind)
            elif tag == ERROR:
                self._failure = msgspec.json.decode(payload, type=Failure)
            elif tag == EVENT and self._on_event:
                self._on_event(msgspec.json.decode(payload, type=AnyEvent))

    def _ask_for_stacks(self, pid: int) -> None:
        """Have each process write down where it stands, workers first, in turn so that they do not mix."""
        for each in reversed(_family(pid)):
            size = os.fstat(self._stacks.fileno()).st_size
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGUSR1)
            deadline = monotonic() + _STACK_WAIT_S
            while monotonic() < deadline:
                sleep(0.02)
                before, size = size, os.fstat(self._stacks.fileno()).st_size
                if size and size == before:
                    break

    def _ended(self, status: int, timed_out: bool, seconds: float) -> Ended[T]:
        killed = failures.signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
        how: Literal["returned", "raised", "killed", "timed_out"]
        if timed_out:
            how = "timed_out"
        elif self._failure is not None:
            how = "raised"
        else:
            how = "returned" if self._result is not None else "killed"
        return Ended(
            how=how,
            result=None if timed_out else self._result,
            failure=self._failure,
            signal=killed,
            output=_tail(self._output),
            stacks=_tail(self._stacks, limit=1 << 17),
            seconds=seconds,
        )


def _family(pid: int) -> list[int]:
    """A process and all below it, parents before children."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def _read_status(sock: socket.socket) -> tuple[int, int]:
    """A child's pid, and its wait status where it has ended."""
    answer = receive(sock, STATUS.size)
    if len(answer) < STATUS.size:
        raise _ended_outside()
    pid, status = STATUS.unpack(answer)
    return pid, status


def _ended_outside() -> MachineError:
    return MachineError("the process that runs trials was ended from outside")


def _tail(file: IO[bytes], limit: int = _OUTPUT_TAIL_BYTES) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))
    return file.read().decode(errors="replace")


def _environ() -> dict[str, str]:
    """Ours, and a way to find this package where it is not installed but lies on the path."""
    home = str(Path(errors.__file__).parents[1])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home}


_server: Server | None = None


def server() -> Server:
    """The server of this process, started when first asked for. Asking early lets it import torch meanwhile."""
    global _server
    if _server is None or not _server.alive:
        _server = Server()
        atexit.register(_server.close)
    return _server


def stop() -> None:
    """Kill the server, and with it all that it runs: calls under way in other threads raise MachineError."""
    if _server is not None and _server.alive:
        _server.kill()


def run(
    function: Callable[..., T],
    arguments: Sequence[Any],
    *,
    kind: type[T],
    timeout_s: float | None = None,
    stall_s: float | Callable[[], float] | None = None,
    on_event: OnEvent | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Ended[T]:
    """Call `function(*arguments, emit)` in a child and follow it to its end.

    `timeout_s` bounds the whole call, `stall_s` the time without any event, and may be asked for anew each time;
    `on_start` gets the child's pid.
    """
    job = _Job(kind, timeout_s=timeout_s, stall_s=stall_s, on_event=on_event, on_start=on_start)
    try:
        return server().run(_payload(function, arguments), job)
    finally:
        job.close()


def value(ended: Ended[T]) -> T:
    """The result of a call that returned; its own error where it raised one of ours."""
    if ended.how == "returned" and ended.result is not None:
        return ended.result
    if ended.failure is not None and ended.failure.kind:
        raise error_of(ended.failure)
    last = (ended.failure.trace if ended.failure else ended.output).strip().splitlines()[-1:] or ["it said nothing"]
    place = failures.own_place(ended.failure.trace) if ended.failure else None
    if place is not None:
        raise InputError(f"{last[0]}, at {place}")
    raise MachineError(f"a process of ours ended badly ({ended.signal or ended.how}): {last[0]}")


def error_of(failure: Failure) -> StokerError:
    """One of our own errors, as it was raised in another process."""
    kind: type[StokerError] = getattr(errors, failure.kind, StokerError) if failure.kind else MachineError
    return kind(failure.sentence)


def _payload(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    try:
        pickled = cloudpickle.dumps((function, tuple(arguments)))
    except Exception as error:  # whatever the person's own __reduce__ raises
        raise InputError(
            f"this workload cannot be sent to a process of its own ({error}); "
            "give functions that make the model and the dataset instead of the objects"
        ) from None
    path = [os.fsencode(entry) for entry in sys.path]
    call = msgspec.msgpack.encode(Call(path=path, folder=os.fsencode(Path.cwd()), environ=list(os.environb.items())))
    return b"".join((HEADER.pack(len(call)), call, pickled))
