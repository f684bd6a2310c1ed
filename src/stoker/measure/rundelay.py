"""How long threads were ready to run and got no CPU, as the Linux scheduler counts it (`schedstat`)."""

import os
from contextlib import suppress

_NS = 1e-9


class RunDelay:
    """The run delay of the thread that makes this object. The file stays open, so that a reading takes microseconds."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float | None:
        """Seconds so far. None where the system does not say."""
        return None if self._file is None else _delay_s(self._file)

    def __del__(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)


def thread_delays_s(pid: int) -> dict[int, float]:
    """Seconds so far of each thread of a process; empty if it is gone, or where the system does not say."""
    found: dict[int, float] = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - called for each process, several times a second
            seconds = None
            with suppress(OSError):
                file = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    seconds = _delay_s(file)
                finally:
                    os.close(file)
            if seconds is not None:
                found[int(thread)] = seconds
    return found


def _delay_s(file: int) -> float | None:
    try:
        return int(os.pread(file, 100, 0).split()[1]) * _NS
    except (OSError, ValueError, IndexError):
        return None
