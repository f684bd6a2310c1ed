"""Calls in a child process: a crash, a hang or running out of memory costs the call, never the caller.

Children are forked from a server (`forkserver.py`) that has imported what they need, so a child starts within
milliseconds. Nothing that a child sends back is unpickled: events and results are JSON, checked against their records.
"""

import atexit
import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, Any, Generic, Literal, TypeVar

import cloudpickle
import msgspec

from stoker import errors
from stoker.errors import InputError, MachineError, StokerError
from stoker.events import AnyEvent, OnEvent
from stoker.process import failures, stacks
from stoker.process.forkserver import HEADER, RUNNING, STATUS, Call, kill_group
from stoker.process.wire import EVENT, Failure, FrameReader, read_outcome, receive, unreadable
from stoker.records import Record

T = TypeVar("T")

Output = Literal["captured", "passed"]
"""What becomes of a child's standard input, output and error: `captured` reads nothing and keeps the end of what is
written; `passed` gives the child those of the caller."""


class ChildRules(Record, frozen=True):
    """How much a child that failed may say."""

    output_tail_bytes: int = 8192
    """The end of its output: enough for a traceback."""


RULES = ChildRules()


class Ended(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How a call ended. `output` is the end of what it printed; `stacks` says where its processes stood when time ran
    out."""

    how: Literal["returned", "raised", "killed", "timed_out"]
    result: T | None = None
    failure: Failure | None = None
    signal: str | None = None
    output: str = ""
    stacks: str = ""
    seconds: float = 0.0


class ForkServer:
    """The caller's end of the process that children are forked from. Any number of threads may use it at once.

    The server imports `modules` before its first call; MachineError is raised if it cannot. `libraries` are imported
    too where they can be.
    """

    def __init__(self, modules: Sequence[str] = (), libraries: Sequence[str] = ()) -> None:
        self.modules = frozenset(modules)
        self._lock = threading.Lock()
        near, far = socket.socketpair()
        with far:
            command = [sys.executable, "-P", "-m", "stoker.process.forkserver", str(far.fileno())]
            self._process = subprocess.Popen(
                [*command, ",".join(modules), ",".join(libraries)],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=_environ(),
            )
        self._control = near
        self._owner = os.getpid()
        self._is_ready = self._is_closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether this process can have children forked: a process forked from the owner cannot."""
        return self._owner == os.getpid() and not self._is_closed and self._process.poll() is None

    def wait_ready(self) -> None:
        """Return when the server has imported its modules."""
        with self._lock:
            if self._is_closed:
                raise _ended_outside()
            if self._is_ready:
                return
            if len(receive(self._control, STATUS.size)) < STATUS.size:
                self._is_closed = True
                _, noise = self._process.communicate()
                last = noise.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
                raise MachineError(f"the process that runs trials could not start: {last[0]}")
            self._is_ready = True

    def fork(self, files: Sequence[int]) -> socket.socket:
        """Fork a child with these open files (events, stacks, standard input, output, error); its connection."""
        self.wait_ready()
        near, far = socket.socketpair()
        with far:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"C"], [far.fileno(), *files])
            except BaseException as error:
                near.close()
                if isinstance(error, OSError):
                    raise _ended_outside() from None
                raise
        return near

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the server, and with it all its children."""
        self._control.close()
        if self._owner == os.getpid() and not self._is_closed:
            self._is_closed = True
            self._process.kill()
            self._process.communicate()


_shared: ForkServer | None = None
_shared_lock = threading.Lock()


def shared(modules: Sequence[str] = (), libraries: Sequence[str] = ()) -> ForkServer:
    """The server that all calls of this process share: one that has imported `modules`.

    It is started at the first use, and again if it was killed or lacks a module. To ask for it early lets it import
    while the caller does other work. `libraries` matter only when it is started.
    """
    global _shared
    with _shared_lock:
        if _shared is None or not _shared.alive or not _shared.modules.issuperset(modules):
            _shared = ForkServer(modules, libraries)
            atexit.register(_shared.close)
        return _shared


def stop() -> None:
    """Kill the shared server, and with it all that it runs: calls under way in other threads raise MachineError."""
    if _shared is not None and _shared.alive:
        _shared.kill()


def _after_fork() -> None:
    """In a forked process: another thread of the parent may have held the lock."""
    global _shared_lock
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class _RunningCall(Generic[T]):
    """One call while it runs: its pipe for events, its output, its clocks."""

    def __init__(
        self,
        kind: type[T],
        *,
        output: Output,
        timeout_s: float | None,
        stall_s: float | Callable[[], float] | None,
        remaining_s: Callable[[], float | None] | None,
        on_event: OnEvent | None,
        on_start: Callable[[int], None] | None,
    ) -> None:
        self._kind = kind
        self._timeout_s, self._stall_s, self._remaining_s = timeout_s, stall_s, remaining_s
        self._on_event, self._on_start = on_event, on_start
        self._files = contextlib.ExitStack()
        self._is_passed = output == "passed"
        self._stacks: IO[bytes] = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._output: IO[bytes] = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._nothing = self._files.enter_context(Path(os.devnull).open("r+b"))  # noqa: SIM115
        self._read, self._write = os.pipe()
        self._files.callback(os.close, self._read)
        os.set_blocking(self._read, False)
        self._frames = FrameReader()
        self._result: T | None = None
        self._failure: Failure | None = None

    def close(self) -> None:
        self._close_childs_end()
        self._files.close()

    def run(self, server: ForkServer, payload: bytes) -> Ended[T]:
        """Have a child make the call, and follow it to its end; none of its processes is left behind."""
        with server.fork([self._write, self._stacks.fileno(), *self._standard_files()]) as connection:
            self._close_childs_end()
            with contextlib.suppress(ConnectionError):  # the child has ended already, and its status says how
                connection.sendall(payload)
            pid, status = _read_status(connection)
            assert status == RUNNING
            return self._follow(pid, connection)

    def _standard_files(self) -> list[int]:
        if not self._is_passed:
            return [self._nothing.fileno(), self._output.fileno(), self._output.fileno()]
        return [fd if _is_open(fd) else self._nothing.fileno() for fd in (0, 1, 2)]

    def _close_childs_end(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def _follow(self, pid: int, connection: socket.socket) -> Ended[T]:
        began = self._heard = monotonic()
        status: int | None = None
        timed_out = False
        try:
            if self._on_start:
                self._on_start(pid)
            with selectors.DefaultSelector() as selector:
                selector.register(connection, selectors.EVENT_READ)
                selector.register(self._read, selectors.EVENT_READ)
                while status is None:
                    ready = {key.fileobj for key, _ in selector.select(self._left_s(began))}
                    if self._read in ready and not self._drain():
                        selector.unregister(self._read)
                    if connection in ready:
                        _, status = _read_status(connection)
                    elif self._left_s(began) == 0:
                        timed_out = True
                        stacks.ask(pid, self._stacks.fileno())
                        kill_group(pid)
                        _, status = _read_status(connection)
        finally:
            kill_group(pid)
            if status is None:
                _read_status(connection)
        self._drain()
        return self._ended(status, timed_out, monotonic() - began)

    def _left_s(self, began: float) -> float | None:
        """Seconds until time is up, or None if nothing limits it."""
        ends = [began + self._timeout_s] if self._timeout_s is not None else []
        if self._stall_s is not None:
            ends.append(self._heard + (self._stall_s() if callable(self._stall_s) else self._stall_s))
        remaining_s = self._remaining_s() if self._remaining_s is not None else None
        if remaining_s is not None:
            ends.append(monotonic() + remaining_s)
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
            self._heard = monotonic()
            for tag, payload in self._frames.feed(part):
                self._take(tag, payload)

    def _take(self, tag: bytes, payload: bytes) -> None:
        if tag != EVENT:
            outcome = read_outcome(tag, payload, self._kind)
            if isinstance(outcome, Failure):
                self._failure = outcome
            else:
                self._result = outcome
        elif self._on_event:
            try:
                event = msgspec.json.decode(payload, type=AnyEvent)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._failure = unreadable(error)
                return
            self._on_event(event)
            self._heard = monotonic()  # the listener's own time is not the child's silence

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
            output=_tail(self._output, RULES.output_tail_bytes),
            stacks=_tail(self._stacks, stacks.RULES.most_bytes),
            seconds=seconds,
        )


def run(
    function: Callable[..., T],
    arguments: Sequence[Any],
    *,
    kind: type[T],
    server: ForkServer | None = None,
    output: Output = "captured",
    timeout_s: float | None = None,
    stall_s: float | Callable[[], float] | None = None,
    remaining_s: Callable[[], float | None] | None = None,
    on_event: OnEvent | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Ended[T]:
    """Call `function(*arguments, emit)` in a child and follow it to its end.

    The child is forked from `server`, by default from the one that calls of this process share (`shared`). `output`
    says what becomes of what it prints. `timeout_s` bounds the whole call, and `stall_s` the time without any event; if
    it is a function, it is asked each time. `remaining_s` is asked after each event how much time the call has left,
    None for no limit. `on_start` gets the child's pid. Raises InputError if the call cannot be pickled, and
    MachineError if the server cannot start or was killed.
    """
    server = server or shared()
    payload = _payload(function, arguments)
    call = _RunningCall(
        kind,
        output=output,
        timeout_s=timeout_s,
        stall_s=stall_s,
        remaining_s=remaining_s,
        on_event=on_event,
        on_start=on_start,
    )
    with contextlib.closing(call):
        return call.run(server, payload)


def value(ended: Ended[T]) -> T:
    """The result of a call that returned. Raises the call's own error if it is one of Stoker's, InputError if the
    user's code failed, and MachineError otherwise."""
    if ended.how == "returned" and ended.result is not None:
        return ended.result
    if ended.failure is not None and ended.failure.kind:
        raise error_of(ended.failure)
    said = ended.failure.trace if ended.failure else ended.output
    last = said.strip().splitlines()[-1:] or ["it printed nothing"]
    place = failures.own_place(ended.failure.trace) if ended.failure else None
    if place is not None:
        raise InputError(f"{last[0]}, at {place}")
    raise MachineError(f"a child process ended badly ({ended.signal or ended.how}): {last[0]}")


def error_of(failure: Failure) -> StokerError:
    """One of Stoker's own errors, as it was raised in another process."""
    kind: type[StokerError] = getattr(errors, failure.kind, StokerError) if failure.kind else MachineError
    return kind(failure.sentence)


def _payload(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    try:
        pickled = cloudpickle.dumps((function, tuple(arguments)))
    except Exception as error:  # whatever the user's own __reduce__ raises
        raise InputError(
            f"this workload cannot be sent to a child process ({error}); "
            "give functions that make the model and the dataset instead of the objects"
        ) from None
    path = [os.fsencode(entry) for entry in sys.path]
    call = msgspec.msgpack.encode(Call(path=path, folder=os.fsencode(Path.cwd()), environ=list(os.environb.items())))
    return b"".join((HEADER.pack(len(call)), call, HEADER.pack(len(pickled)), pickled))


def _read_status(connection: socket.socket) -> tuple[int, int]:
    """A child's pid and its wait status."""
    try:
        answer = receive(connection, STATUS.size)
    except ConnectionError:
        raise _ended_outside() from None
    if len(answer) < STATUS.size:
        raise _ended_outside()
    pid, status = STATUS.unpack(answer)
    return pid, status


def _ended_outside() -> MachineError:
    return MachineError("the process that runs trials was ended from outside")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _tail(file: IO[bytes], limit_bytes: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit_bytes))
    return file.read().decode(errors="replace")


def _environ() -> dict[str, str]:
    """This process' variables, and a way to find this package if it is not installed but lies on the path."""
    home = str(Path(errors.__file__).parents[1])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home}
