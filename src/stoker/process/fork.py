"""Calls in processes forked from this one: each begins where this process stands, and leaves nothing behind in it."""

import contextlib
import os
import signal
from collections.abc import Callable
from select import select
from typing import Any, Generic, TypeVar

import msgspec
import psutil

from stoker.errors import StokerError
from stoker.process import failures
from stoker.process.forkserver import ERROR, FRAME, RESULT, Failure, write_frame
from stoker.records import encode

T = TypeVar("T")
_LOOK_S = 0.1
_PART_BYTES = 1 << 16
"""Little enough for malloc to take it from its heap: a larger piece, once freed, changes how it serves later ones."""


class Forked(Generic[T]):
    """A call under way in a process forked from this one; `result` waits for it."""

    def __init__(self, function: Callable[[], T], kind: type[T]) -> None:
        self._kind = kind
        self.signal: int | None = None
        self.exit_code: int | None = None
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            _be_child(function, write)
        os.close(write)

    def stop(self) -> None:
        """End it; nobody wants its result any more."""
        os.kill(self._pid, signal.SIGKILL)
        os.close(self._read)
        os.waitpid(self._pid, 0)

    def result(self) -> T | Failure:
        """What it returned, or how it failed; `signal` is what ended it, if something did, and `exit_code` how it ended
        itself without a word."""
        data, status = self._said()
        os.close(self._read)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if not _is_whole(data):
            self.exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            name = failures.signal_name(self.signal) if self.signal is not None else "no signal"
            return Failure(kind="", sentence=f"its process was ended by {name}", trace="")
        tag, _ = FRAME.unpack_from(data)
        payload = data[FRAME.size :]
        if tag == RESULT:
            return msgspec.json.decode(payload, type=self._kind)
        return msgspec.json.decode(payload, type=Failure)

    def _said(self) -> tuple[bytes, int]:
        """All that it wrote, and its status.

        Whoever it started may outlive it and hold the pipe open, so the pipe's end is not waited for: what it says has
        a length, and a process that ends without it will say no more.
        """
        data, ended, status = bytearray(), False, 0
        while not _is_whole(data):
            if select([self._read], [], [], 0 if ended else _LOOK_S)[0]:
                part = os.read(self._read, _PART_BYTES)
                if not part:
                    break
                data += part
            elif ended:
                break
            else:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                ended = pid != 0
        if not ended:
            _, status = os.waitpid(self._pid, 0)
        return bytes(data), status


def _is_whole(data: bytes | bytearray) -> bool:
    return len(data) >= FRAME.size and len(data) >= FRAME.size + int(FRAME.unpack_from(data)[1])


def _be_child(function: Callable[[], Any], write: int) -> None:
    try:
        write_frame(write, RESULT, encode(function()))
    except BaseException as error:
        kind = type(error).__name__ if isinstance(error, StokerError) else ""
        failure = Failure(kind=kind, sentence=str(error) or type(error).__name__, trace=failures.trace_of(error))
        write_frame(write, ERROR, encode(failure))
    finally:
        for worker in psutil.Process().children():  # of a run that failed: nobody else would end them
            with contextlib.suppress(psutil.Error):
                worker.kill()
        os._exit(0)
