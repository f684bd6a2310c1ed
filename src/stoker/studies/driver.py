"""Drives a study: claims one task after another, runs it, records it. Several drivers may share a file.

Only the driver writes the store, also where the nodes of a cluster run the tasks.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from statistics import median
from time import monotonic, sleep
from typing import NamedTuple

import msgspec

from stoker.analysis.machines import facts_of
from stoker.errors import StokerError
from stoker.events import OnEvent
from stoker.records import Machine, Record, Task
from stoker.studies.executors import Executor, Finished
from stoker.studies.fingerprint import fingerprint_of
from stoker.studies.grid import order
from stoker.studies.store import Claim, Cluster, Place, Slot, Store, TrialRow


class DriverRules(Record, frozen=True):
    """How a driver waits and estimates."""

    poll_s: float = 0.5
    """How often a driver that waits for others looks again: short beside a trial, long beside a transaction."""
    jitter: float = 0.5
    """The share of `poll_s` that is random, so that several waiting drivers do not look at the same moment."""
    estimate_every_s: float = 1.0
    """How old an estimate of the time left may be: it looks at every task, which for many is slower than a trial."""
    most_losses: int = 2
    """How often a run is tried again whose node was lost: nodes do fail, but a run that takes three with it is why."""
    most_threads: int = 10_000
    """Of a cluster's runs, each in a thread that waits: more than any cluster has nodes."""


RULES = DriverRules()


class Progress(NamedTuple):
    """How far a study is on this machine, or in the cluster. `running` has the keys of the driver's tasks; it waits for
    the claims in `waits_for`."""

    done: int
    of: int
    running: tuple[str, ...]
    left_s: float | None
    waits_for: tuple[Claim, ...] = ()


class Summary(Record, frozen=True):
    """What one drive did. `unfinished` counts the slots without an outcome on this machine, or in the cluster. `lost`
    counts the runs whose node was lost and that were tried again; they are not among the `outcomes`."""

    machines: tuple[str, ...]
    slots: int
    ran: int
    outcomes: dict[str, int]
    unfinished: int
    seconds: float
    stopped: str | None = None
    lost: int = 0


def place_of(executor: Executor) -> Place:
    """Where an executor's tasks are run: on this machine, or on any node that there is now."""
    machines = tuple(fingerprint_of(machine) for machine in executor.machines())
    return machines[0] if executor.per is None else Cluster(executor.per, machines)


class Driver:
    """One process' part in a study. `run` may be called once."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task],
        executor: Executor,
        *,
        seed: int = 0,
        repeats: int = 1,
        jobs: int = 1,
        budget_s: float | None = None,
        timeout_s: float | None = None,
        retry: Sequence[str] = (),
        on_trial: Callable[[Slot, TrialRow], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_event: OnEvent | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store, self._tasks, self._executor = store, tasks, executor
        self._slots = [Slot(*each) for each in order(tasks, seed, repeats)]
        self._jobs, self._timeout_s, self._retry = jobs, timeout_s, tuple(retry)
        self._on_trial, self._on_progress, self._on_event = on_trial, on_progress, on_event
        self._clock = clock
        self._began = clock()
        self._deadline = math.inf if budget_s is None else self._began + budget_s
        self._stored: set[str] = set()
        self._seconds: dict[str, list[float]] = {}
        self._retries: dict[Slot, int] = {}
        self._pending: dict[Slot, None] = {}
        self._running: dict[Future[Finished] | None, Slot] = {}
        self._outcomes: dict[str, int] = {}
        self._losses: dict[Slot, int] = {}
        self._estimate: tuple[float, float | None] = (-math.inf, None)

    def run(self) -> Summary:
        """Run what is missing, until every slot has an outcome or the budget is spent."""
        self._executor.begin(list(self._tasks.values()))
        for machine in self._executor.machines():
            self._known(machine)
        last = self._store.last_attempts(self._place)
        self._retries = {slot: attempt for slot, (outcome, attempt) in last.items() if outcome in self._retry}
        self._pending = dict.fromkeys(slot for slot in self._slots if slot not in last or slot in self._retries)
        self._seconds = self._store.wall_seconds(self._place)
        is_alone = self._jobs == 1 and self._executor.per is None
        stopped = self._one_by_one() if is_alone else self._side_by_side()
        ended = self._store.last_attempts(self._place)
        return Summary(
            machines=tuple(sorted(self._stored)),
            slots=len(self._slots),
            ran=sum(self._outcomes.values()),
            outcomes=self._outcomes,
            unfinished=sum(1 for slot in self._slots if slot not in ended),
            seconds=self._clock() - self._began,
            stopped=stopped,
            lost=sum(self._losses.values()),
        )

    def forecast(self) -> tuple[int, float | None]:
        """How many slots have an outcome on this machine, and how long the rest should take. Writes nothing."""
        self._executor.begin(list(self._tasks.values()))
        last = self._store.last_attempts(self._place)
        self._seconds = self._store.wall_seconds(self._place)
        left = [slot for slot in self._slots if slot not in last]
        return len(self._slots) - len(left), self._left_s(left) if left else 0.0

    @property
    def _place(self) -> Place:
        return place_of(self._executor)

    def _known(self, machine: Machine) -> str:
        """The machine's fingerprint, once the store has its facts."""
        fingerprint = fingerprint_of(machine)
        if fingerprint not in self._stored:
            self._store.add_machine(fingerprint, facts_of(machine))
            self._stored.add(fingerprint)
        return fingerprint

    def _one_by_one(self) -> str | None:
        """One trial at a time, in this thread, where an interrupt reaches it."""
        while self._pending:
            stopped = self._out_of_budget()
            if stopped:
                return stopped
            slot = self._claim()
            if slot is None:
                if self._pending:
                    sleep(self._pause_s())
                continue
            self._running[None] = slot
            try:
                self._report()
                self._record(None, self._execute(slot))
            except BaseException:
                self._release()
                raise
        self._report()
        return None

    def _side_by_side(self) -> str | None:
        """Several trials at a time, each in a thread that waits for its child processes, or for its node."""
        stopped: str | None = None
        threads = self._jobs if self._executor.per is None else RULES.most_threads
        pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="stoker-trial")
        try:
            while self._running or (self._pending and not stopped):
                stopped = stopped or self._out_of_budget()
                has_room = len(self._running) < self._executor.at_once(self._jobs)
                slot = self._claim() if self._pending and not stopped and has_room else None
                if slot is not None:
                    self._running[pool.submit(self._execute, slot)] = slot
                    self._report()
                elif self._running:
                    futures = [future for future in self._running if future is not None]
                    for future in wait(futures, timeout=self._pause_s(), return_when=FIRST_COMPLETED).done:
                        self._record(future, future.result())
                elif self._pending and not stopped:
                    sleep(self._pause_s())
        except BaseException:
            self._executor.stop()
            self._release()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        self._report()
        return stopped

    def _claim(self) -> Slot | None:
        """The next slot, claimed. Slots that other drivers finished meanwhile leave the queue."""
        claimed = self._store.claim(self._pending, self._place, jobs=self._jobs, retries=self._retries)
        for slot in (*claimed.finished, claimed.slot):
            if slot is not None:
                del self._pending[slot]
        if claimed.waits_for:
            self._report(claimed.waits_for)
        return claimed.slot

    def _release(self) -> None:
        """Give claims back at once where that works; otherwise they end with the store's connection."""
        for slot in self._running.values():
            with suppress(StokerError):
                self._store.release(slot, self._place)

    def _estimate_s(self, slots: Iterable[Slot]) -> float | None:
        """Seconds that these slots will take: each as its own earlier runs, else as the median of all. None where
        nothing has finished yet."""
        medians = {key: median(seconds) for key, seconds in self._seconds.items()}
        if not medians:
            return None
        usual = median(medians.values())
        return sum(medians.get(slot.key, usual) for slot in slots)

    def _left_s(self, slots: Iterable[Slot]) -> float | None:
        """Seconds until these slots are run, as many at once as there is room for."""
        seconds = self._estimate_s(slots)
        return None if seconds is None else seconds / max(1, self._executor.at_once(self._jobs))

    def _out_of_budget(self) -> str | None:
        if self._deadline == math.inf:
            return None
        now = self._clock()
        if now >= self._deadline:
            return "the budget is spent"
        estimate = self._estimate_s([next(iter(self._pending))]) if self._pending else None
        if estimate is not None and now + estimate > self._deadline:
            return "the next trial would not end within the budget"
        return None

    def _pause_s(self) -> float:
        return RULES.poll_s * (1 - RULES.jitter * random.random())

    def _execute(self, slot: Slot) -> Finished:
        return self._executor.run(self._tasks[slot.key], timeout_s=self._timeout_s, on_event=self._on_event)

    def _record(self, future: Future[Finished] | None, finished: Finished) -> None:
        slot = self._running[future]
        row = TrialRow(
            key=slot.key,
            repeat=slot.repeat,
            machine=self._known(finished.machine or self._executor.machines()[0]),
            outcome=finished.outcome,
            began=finished.began,
            wall_s=finished.wall_s,
            figures=finished.figures,
            problem=finished.problem,
            versions=finished.versions,
            document=finished.document,
        )
        attempt = self._store.record(row, self._place)
        del self._running[future]
        if finished.is_lost and self._losses.get(slot, 0) < RULES.most_losses:
            self._run_again(slot)
        else:
            self._outcomes[row.outcome] = self._outcomes.get(row.outcome, 0) + 1
            self._seconds.setdefault(slot.key, []).append(finished.wall_s)
        if self._on_trial:
            self._on_trial(slot, msgspec.structs.replace(row, attempt=attempt))

    def _run_again(self, slot: Slot) -> None:
        """Put a slot whose node was lost in front of the others. The loss has been recorded as an attempt."""
        self._losses[slot] = self._losses.get(slot, 0) + 1
        attempt = self._store.last_attempt(slot, self._place)
        if attempt is not None:
            self._retries[slot] = attempt
        self._pending = {slot: None, **self._pending}

    def _report(self, waits_for: tuple[Claim, ...] = ()) -> None:
        if self._on_progress is None:
            return
        now = self._clock()
        running = list(self._running.values())
        if now - self._estimate[0] >= RULES.estimate_every_s:
            self._estimate = (now, self._left_s([*self._pending, *running]))
        self._on_progress(
            Progress(
                done=len(self._slots) - len(self._pending) - len(running),
                of=len(self._slots),
                running=tuple(slot.key for slot in running),
                left_s=self._estimate[1],
                waits_for=waits_for,
            )
        )
