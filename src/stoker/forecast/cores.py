"""The clock of a simulated loop, the CPU cores it shares, and its pinned memory."""

import heapq
from collections.abc import Callable

from stoker.forecast.costs import Costs

Then = Callable[[], None]
"""What follows when a job has ended."""


class _Team:
    """The threads of a step, and what they have left to do."""

    __slots__ = ("left_s", "then", "threads")

    def __init__(self, left_s: float, threads: int, then: Then) -> None:
        self.left_s, self.threads, self.then = left_s, threads, then


class Meeting:
    """Where ranks wait for each other at the end of each step, and then exchange their gradients."""

    def __init__(self, cores: "Cores", ranks: int, exchange_s: float) -> None:
        self._cores, self._ranks, self._exchange_s = cores, ranks, exchange_s
        self._came: list[tuple[float, Callable[[float], None]]] = []

    def come(self, done_s: float, then: Callable[[float], None]) -> None:
        """A rank whose step is done at a moment, which may lie ahead on a GPU. `then` gets the moment at which all have
        exchanged their gradients."""
        self._came.append((done_s, then))
        if len(self._came) < self._ranks:
            return
        came, self._came = self._came, []
        over_s = max(done for done, _ in came) + self._exchange_s
        for _, go_on in came:
            go_on(over_s)


class Cores:
    """The clock and a processor-sharing queue: all runnable jobs share the cores equally.

    All jobs advance at one common rate, so that a heap of the work at which each one ends is enough.
    """

    def __init__(self, costs: Costs) -> None:
        self.now = 0.0
        self._costs, self._cores = costs, costs.cores
        self._work = 0.0
        self._jobs: list[tuple[float, int, Then]] = []
        self._timers: list[tuple[float, int, Then]] = []
        self._teams: list[_Team] = []
        self._number = 0
        self._rates: dict[tuple[int, int, int], tuple[float, float]] = {}

    def compute(self, seconds: float, then: Then) -> None:
        """A job of one thread."""
        self._number += 1
        heapq.heappush(self._jobs, (self._work + max(seconds, 0.0), self._number, then))

    def sleep(self, seconds: float, then: Then) -> None:
        """Something that uses no core."""
        self._number += 1
        heapq.heappush(self._timers, (self.now + max(seconds, 0.0), self._number, then))

    def compute_with_threads(self, seconds: float, threads: int, then: Then) -> None:
        """A step that computes with a team of threads. Each rank has one at a time."""
        self._teams.append(_Team(max(seconds, 0.0), threads, then))

    def _rate(self, jobs: int, threads: int, teams: int) -> tuple[float, float]:
        """The speed of a job, and of each step's team; `threads` are those of all teams.

        Jobs have equal shares, slowed by what busy cores cost each other. If the teams have a thread on every core,
        each job shares a core with one of these threads. A team was measured alone: the teams of other ranks slow it.
        """
        found = self._rates.get((jobs, threads, teams))
        if found is None:
            wanted = jobs + threads
            share, team = (min(1.0, self._cores / wanted) if wanted else 1.0), 1.0
            if jobs and threads and wanted > self._cores:
                # All threads of the team wait for the one on the fullest core.
                most = max(1.0, jobs / self._cores)
                team = 1 / (1 + (self._costs.step.crowded - 1) * most)
                share = min(share, 1 / (1 + most)) if threads >= self._cores else share
            if teams > 1:
                team /= self._costs.slow(threads) / self._costs.slow(threads / teams) * max(1.0, threads / self._cores)
            found = share / self._costs.slow(max(1.0, min(wanted, self._cores))), team
            self._rates[jobs, threads, teams] = found
        return found

    def advance(self) -> None:
        """Move the clock to the next end of a job, and call what follows."""
        teams = self._teams
        rate, team_rate = self._rate(len(self._jobs), sum(each.threads for each in teams), len(teams))
        until_job = (self._jobs[0][0] - self._work) / rate if self._jobs else float("inf")
        until_timer = self._timers[0][0] - self.now if self._timers else float("inf")
        until_team = min(each.left_s for each in teams) / team_rate if teams else float("inf")
        passed = max(0.0, min(until_job, until_timer, until_team))
        self.now += passed
        self._work += rate * passed
        for each in teams:
            each.left_s -= team_rate * passed
        if until_job <= until_timer and until_job <= until_team:
            heapq.heappop(self._jobs)[2]()
        elif until_timer <= until_team:
            heapq.heappop(self._timers)[2]()
        else:
            first = min(teams, key=lambda each: each.left_s)
            teams.remove(first)
            first.then()


class PinnedMemory:
    """Pinned memory of a GPU's driver: pieces are used again, and no step is launched while a new piece is made."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._free = 0
        self._began: float | None = None
        self._made_s = 0.0
        self._waiting: list[Then] = []

    @property
    def busy_s(self) -> float:
        """How long the driver has been making memory until now."""
        return self._made_s + (0.0 if self._began is None else self._cores.now - self._began)

    def allocate(self, anew_s: float, then: Then) -> None:
        """Memory for a batch: a free piece, or a new one that takes `anew_s` to make."""
        if self._free:
            self._free -= 1
            then()
            return
        self._began = self._cores.now
        self._cores.compute(anew_s, lambda: self._made(then))

    def _made(self, then: Then) -> None:
        self._made_s, self._began = self.busy_s, None
        waiting, self._waiting = self._waiting, []
        then()
        for launch in waiting:
            launch()

    def release(self, after_s: float) -> None:
        """Free a piece once the device has finished what was queued when the batch was dropped."""
        self._cores.sleep(after_s, self._freed)

    def _freed(self) -> None:
        self._free += 1

    def launch(self, before_s: float, then: Then) -> None:
        """Launch a step. It is many launches: all memory made since `busy_s` was `before_s` delays it."""
        held_s = self.busy_s - before_s
        if self._began is not None:
            self._waiting.append(lambda: self.launch(self.busy_s - held_s, then))
        elif held_s > 0:
            self._cores.sleep(held_s, lambda: self.launch(before_s + held_s, then))
        else:
            then()
