"""Calls in processes forked from this one: each begins where this process stands, and leaves nothing behind in it."""

import os
import signal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from stoker.errors import StokerError
from stoker.measure import outcomes
from stoker.measure.server import ERROR, FRAME, RESULT, Failure, write_frame
from stoker.records import encode

T = TypeVar("T")
_PART_BYTES = 1 << 16
"""Little enough for malloc to take it from its heap: a larger piece, once freed, changes how it serves later ones."""


class Forked(Generic[T]):
    """A call under way in a process forked from this one; `result` waits for it."""

    def __init__(self, function: Callable[[], T], kind: type[T]) -> None:
        self._kind = kind
        self.signal: int | None = None
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
        """What it returned, or how it failed; `signal` is what ended it, if something did."""
        parts = []
        while part := os.read(self._read, _PART_BYTES):
            parts.append(part)
        os.close(self._read)
        _, status = os.waitpid(self._pid, 0)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        data = b"".join(parts)
        if len(data) < FRAME.size or len(data) < FRAME.size + FRAME.unpack_from(data)[1]:
            name = outcomes.signal_name(self.signal) if self.signal is not None else "no signal"
            return Failure(kind="", sentence=f"its process was ended by {name}", trace="")
        tag, _ = FRAME.unpack_from(data)
        payload = data[FRAME.size :]
        if tag == RESULT:
            return msgspec.json.decode(payload, type=self._kind)
        return msgspec.json.decode(payload, type=Failure)


def _be_child(function: Callable[[], Any], write: int) -> None:
    try:
        write_frame(write, RESULT, encode(function()))
    except BaseException as error:
        kind = type(error).__name__ if isinstance(error, StokerError) else ""
        failure = Failure(kind=kind, sentence=str(error) or type(error).__name__, trace=outcomes.trace_of(error))
        write_frame(write, ERROR, encode(failure))
    finally:
        os._exit(0)
