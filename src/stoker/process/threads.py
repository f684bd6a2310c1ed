"""Torch's threads, held at one in a process that others are forked from: a pool of them would not survive the fork, and
whoever waited for it would wait for ever."""

from typing import Any

import torch

_set_num_threads, _get_num_threads = torch.set_num_threads, torch.get_num_threads


class Held:
    """One thread while a person's code is opened; the number that it asks for meanwhile is kept for the runs."""

    def __init__(self) -> None:
        self.wanted = _get_num_threads()
        _set_num_threads(1)
        torch.set_num_threads = self._asked  # type: ignore[assignment]
        torch.get_num_threads = lambda: self.wanted

    def _asked(self, number: Any) -> None:
        if torch.set_num_threads is _set_num_threads or not isinstance(number, int) or number < 1:
            _set_num_threads(number)  # it was imported by name, and is called in a run; or torch says what is wrong
        else:
            self.wanted = number

    def release(self, number: int | None = None) -> None:
        """In the process that runs: so many threads, or as many as were asked for."""
        torch.set_num_threads, torch.get_num_threads = _set_num_threads, _get_num_threads
        _set_num_threads(number or self.wanted)


def hold() -> Held:
    """One thread from here on, until it is released."""
    before = getattr(torch.set_num_threads, "__self__", None)
    return before if isinstance(before, Held) else Held()
