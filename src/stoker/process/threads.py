"""Limits torch to one thread in a process that others are forked from.

A pool of threads does not survive a fork: a forked process that asked it to compute would wait for ever.
"""

from typing import Any

import torch

_set_num_threads, _get_num_threads = torch.set_num_threads, torch.get_num_threads


class ThreadLimit:
    """Torch computes with one thread while the user's code is opened. The number that this code asks for is noted, and
    set when the limit is released."""

    def __init__(self) -> None:
        self.wanted = _get_num_threads()
        _set_num_threads(1)
        torch.set_num_threads = self._note  # type: ignore[assignment]
        torch.get_num_threads = lambda: self.wanted

    def _note(self, number: Any) -> None:
        if torch.set_num_threads is _set_num_threads or not isinstance(number, int) or number < 1:
            # Either the limit is released and this was imported by name before, or torch says what is wrong.
            _set_num_threads(number)
        else:
            self.wanted = number

    def release(self, number: int | None = None) -> None:
        """In the process that runs: use `number` threads, or as many as the user's code asked for."""
        torch.set_num_threads, torch.get_num_threads = _set_num_threads, _get_num_threads
        _set_num_threads(number or self.wanted)


def limit_threads() -> ThreadLimit:
    """Limit torch to one thread until the limit is released. A limit that exists already is returned."""
    before = getattr(torch.set_num_threads, "__self__", None)
    return before if isinstance(before, ThreadLimit) else ThreadLimit()
