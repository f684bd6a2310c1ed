"""The clock of a simulated loop, and the cores that everything in it shares."""

import heapq
from collections.abc import Callable

from stoker.forecast.costs import Costs

Then = Callable[[], None]
"""What follows when a job has ended."""


class Cores:
    """The clock, and the cores that jobs share equally: all advance at one rate, so that a heap of ends suffices."""

    def __init__(self, costs: Costs, cores: float) -> None:
        self.now = 0.0
        self._costs, self._cores = costs, cores
        self._work = 0.0
        self._jobs: list[tuple[float, int, Then]] = []
        self._timers: list[tuple[float, int, Then]] = []
        self._team: tuple[float, int, Then] | None = None
        self._number = 0
        self._rates: dict[tuple[int, int], tuple[float, float]] = {}

    def compute(self, seconds: float, then: Then) -> None:
        self._number += 1
        heapq.heappush(self._jobs, (self._work + max(seconds, 0.0), self._number, then))

    def sleep(self, seconds: float, then: Then) -> None:
        self._number += 1
        heapq.heappush(self._timers, (self.now + max(seconds, 0.0), self._number, then))

    def together(self, seconds: float, threads: int, then: Then) -> None:
        """A step that computes with several threads; there is one at a time."""
        self._team = (max(seconds, 0.0), threads, then)

    def _rate(self, jobs: int, threads: int) -> tuple[float, float]:
        """Of a job, and of the step's team: equal shares, slowed by what busy cores cost each other. A team that has a
        thread on every core shares one with each job."""
        found = self._rates.get((jobs, threads))
        if found is None:
            wanted = jobs + threads
            share, team = (min(1.0, self._cores / wanted) if wanted else 1.0), 1.0
            if jobs and threads and wanted > self._cores:
                most = max(1.0, jobs / self._cores)  # on the fullest core, whose thread all others of the team wait for
                team = 1 / (1 + (self._costs.step.crowded - 1) * most)
                share = min(share, 1 / (1 + most)) if threads >= self._cores else share
            found = share / self._costs.slow(max(1.0, min(wanted, self._cores))), team
            self._rates[jobs, threads] = found
        return found

    def advance(self) -> None:
        """Go on to the next thing that ends, and do what follows from it."""
        team = self._team
        rate, team_rate = self._rate(len(self._jobs), team[1] if team else 0)
        until_job = (self._jobs[0][0] - self._work) / rate if self._jobs else float("inf")
        until_timer = self._timers[0][0] - self.now if self._timers else float("inf")
        until_team = team[0] / team_rate if team else float("inf")
        passed = max(0.0, min(until_job, until_timer, until_team))
        self.now += passed
        self._work += rate * passed
        if team:
            self._team = (team[0] - team_rate * passed, team[1], team[2])
        if until_job <= until_timer and until_job <= until_team:
            heapq.heappop(self._jobs)[2]()
        elif until_timer <= until_team:
            heapq.heappop(self._timers)[2]()
        else:
            assert team is not None
            self._team = None
            team[2]()
