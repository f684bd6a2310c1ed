"""Runs the candidates of a search one after another in a process of its own, and outlives the death of that process."""

from collections.abc import Callable, Sequence

from stoker.events import OnEvent
from stoker.records import CandidateTrial, Task

OnTrial = Callable[[int, CandidateTrial], None]


def run_candidates(
    tasks: Sequence[Task],
    on_trial: OnTrial,
    *,
    host_memory_bytes: int | None = None,
    timeout_s: float | None = None,
    on_event: OnEvent | None = None,
) -> None:
    """Run candidates in one child process, and give each trial to `on_trial` with its place, when it is over.

    While one candidate computes, the weights of the next are read. Items are kept between candidates, in at most
    `host_memory_bytes`. If the process dies, the candidate that it ran is recorded as crashed, and a new one goes on
    with the rest. `timeout_s` limits each candidate. What `on_trial` and `on_event` raise ends the search.
    """
    raise NotImplementedError
