"""Calls in processes forked from this one: each begins with all that this process has, and changes nothing in it."""

import contextlib
import os
import signal
from collections.abc import Callable
from select import select
from typing import Any, Generic, TypeVar

import psutil

from stoker.process import failures
from stoker.process.wire import Failure, FrameReader, read_outcome, write_outcome
from stoker.records import Record

T = TypeVar("T")


class ForkRules(Record, frozen=True):
    """How the result of a forked process is read."""

    look_s: float = 0.1
    """How often to look whether the process has ended without a result: a failure may be noticed this late."""
    part_bytes: int = 1 << 16
    """Small enough for malloc to take it from its heap. To free a larger piece changes how malloc serves later ones,
    and with that the speed of the runs that follow."""


RULES = ForkRules()


class Forked(Generic[T]):
    """A call that runs in a process forked from this one; `result` waits for it."""

    def __init__(self, function: Callable[[], T], kind: type[T]) -> None:
        self._kind = kind
        self.signal: int | None = None
        self.exit_code: int | None = None
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            _run_and_exit(function, write)
        os.close(write)

    def stop(self) -> None:
        """End the process; its result is not wanted any more."""
        os.kill(self._pid, signal.SIGKILL)
        os.close(self._read)
        os.waitpid(self._pid, 0)

    def result(self) -> T | Failure:
        """What the call returned, or how it failed.

        Afterwards `signal` is the signal that ended the process, if one did, and `exit_code` its exit status if it
        ended by itself without a result.
        """
        frame, status = self._wait()
        os.close(self._read)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if frame is None:
            self.exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            name = failures.signal_name(self.signal) if self.signal is not None else "no signal"
            return Failure(kind="", sentence=f"its process was ended by {name}", trace="")
        return read_outcome(*frame, self._kind)

    def _wait(self) -> tuple[tuple[bytes, bytes] | None, int]:
        """The frame that the process wrote, and its wait status.

        The end of the pipe is not waited for, because processes that the call started may outlive it and hold the pipe
        open. A frame has a length, and a process that has ended writes nothing more.
        """
        reader, frame, ended, status = FrameReader(), None, False, 0
        while frame is None:
            if select([self._read], [], [], 0 if ended else RULES.look_s)[0]:
                part = os.read(self._read, RULES.part_bytes)
                if not part:
                    break
                frame = next(reader.feed(part), None)
            elif ended:
                break
            else:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                ended = pid != 0
        if not ended:
            _, status = os.waitpid(self._pid, 0)
        return frame, status


def _run_and_exit(function: Callable[[], Any], write: int) -> None:
    try:
        write_outcome(write, function)
    finally:
        for worker in psutil.Process().children():  # of a run that failed: nobody else would end them
            with contextlib.suppress(psutil.Error):
                worker.kill()
        os._exit(0)
