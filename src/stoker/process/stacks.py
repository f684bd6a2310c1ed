"""Where processes stand: at SIGUSR1 each of them writes its stacks into one file that all of them have open."""

import contextlib
import faulthandler
import os
import signal
from time import monotonic, sleep

from stoker.process.tree import family
from stoker.records import Record


class StackRules(Record, frozen=True):
    """How long a process is waited for."""

    wait_s: float = 0.5
    """How long each process may take to write its stacks; one that cannot is not waited for."""
    look_s: float = 0.02
    most_bytes: int = 1 << 17
    """The end of the file: a stack for each thread of each worker."""


RULES = StackRules()
_file: int | None = None


def write_into(fd: int) -> None:
    """Have this process, and those forked from it, write their stacks into an open file at SIGUSR1."""
    global _file
    _file = fd
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True)


def ask(pid: int, fd: int) -> None:
    """Have a process and all below it write where they stand, workers first, one after another so that they do not
    mix."""
    for each in reversed(family(pid)):
        size = os.fstat(fd).st_size
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGUSR1)
        deadline = monotonic() + RULES.wait_s
        while monotonic() < deadline:
            sleep(RULES.look_s)
            before, size = size, os.fstat(fd).st_size
            if size and size == before:
                break


def of_process(pid: int) -> str:
    """Where a process below this one stands, and those below it; empty if nobody gave this process a file."""
    if _file is None:
        return ""
    before = os.fstat(_file).st_size
    ask(pid, _file)
    return os.pread(_file, RULES.most_bytes, before).decode(errors="replace")
