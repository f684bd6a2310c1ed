"""Drives a study: claims one task after another, runs it, records it. Several drivers may share a file."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from statistics import median
from time import monotonic, sleep
from typing import NamedTuple

import psutil

from stoker.events import AnyEvent
from stoker.records import Record, Task
from stoker.studies.executors import Executor, Finished
from stoker.studies.fingerprint import facts_of, fingerprint_of
from stoker.studies.grid import order
from stoker.studies.store import Slot, Store, TrialRow


class DriverRules(Record, frozen=True):
    """How a driver waits."""

    poll_s: float = 0.5
    """How often a driver that waits for others looks again: short beside a trial, long beside a transaction."""
    jitter: float = 0.5
    """The share of `poll_s` that is random, so that several waiting drivers do not look at the same moment."""


RULES = DriverRules()


class Progress(NamedTuple):
    """How far a study is, on this machine."""

    done: int
    of: int
    running: str | None
    left_s: float | None


class Summary(Record, frozen=True):
    """What one drive did. `unfinished` counts the slots without an outcome on this machine."""

    machine: str
    slots: int
    ran: int
    outcomes: dict[str, int]
    unfinished: int
    seconds: float
    stopped: str | None = None


class Driver:
    """One process' part in a study."""

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
        on_event: Callable[[AnyEvent], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store, self._tasks, self._executor = store, tasks, executor
        self._slots = [Slot(*each) for each in order(tasks, seed, repeats)]
        self._jobs, self._timeout_s, self._retry = jobs, timeout_s, tuple(retry)
        self._on_trial, self._on_progress, self._on_event = on_trial, on_progress, on_event
        self._clock = clock
        self._began = clock()
        self._deadline = math.inf if budget_s is None else self._began + budget_s
        machine = executor.machine()
        self.machine, self._facts = fingerprint_of(machine), facts_of(machine)
        self._seconds: dict[str, list[float]] = {}
        self._retries: dict[Slot, int] = {}
        self._pending: list[Slot] = []
        self._outcomes: dict[str, int] = {}

    def run(self) -> Summary:
        """Run what is missing, until every slot has an outcome or the budget is spent."""
        self._store.add_machine(self.machine, self._facts)
        last = self._store.last_attempts(self.machine)
        self._retries = {slot: attempt for slot, (outcome, attempt) in last.items() if outcome in self._retry}
        self._pending = [slot for slot in self._slots if slot not in last or slot in self._retries]
        self._seconds = self._store.wall_seconds(self.machine)
        self._outcomes = {}
        stopped = self._alone() if self._jobs == 1 else self._side_by_side()
        ended = self._store.last_attempts(self.machine)
        return Summary(
            machine=self.machine,
            slots=len(self._slots),
            ran=sum(self._outcomes.values()),
            outcomes=self._outcomes,
            unfinished=sum(1 for slot in self._slots if slot not in ended),
            seconds=self._clock() - self._began,
            stopped=stopped,
        )

    def forecast(self) -> tuple[int, float | None]:
        """How many slots have an outcome on this machine, and how long the rest should take. Writes nothing."""
        last = self._store.last_attempts(self.machine)
        self._seconds = self._store.wall_seconds(self.machine)
        left = [slot for slot in self._slots if slot not in last]
        return len(self._slots) - len(left), self.estimate_s(left) if left else 0.0

    def _alone(self) -> str | None:
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
            self._tell(slot)
            try:
                finished = self._execute(slot)
            except BaseException:
                self._store.release(slot, self.machine)
                raise
            self._record(slot, finished)
        self._tell(None)
        return None

    def _side_by_side(self) -> str | None:
        """Several trials at a time, each in a thread that waits for its child processes."""
        running: dict[Future[Finished], Slot] = {}
        stopped: str | None = None
        pool = ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="stoker-trial")
        try:
            while running or (self._pending and not stopped):
                stopped = stopped or self._out_of_budget()
                slot = self._claim() if not stopped and self._pending and len(running) < self._jobs else None
                if slot is not None:
                    running[pool.submit(self._execute, slot)] = slot
                    self._tell(slot)
                    continue
                if not running:
                    sleep(self._pause_s() if self._pending else 0)
                    continue
                for future in wait(running, timeout=self._pause_s(), return_when=FIRST_COMPLETED).done:
                    self._record(running[future], future.result())
                    del running[future]
        except BaseException:
            end_children()
            for slot in running.values():
                self._store.release(slot, self.machine)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        self._tell(None)
        return stopped

    def _claim(self) -> Slot | None:
        """The next slot, claimed; slots that other drivers finished meanwhile leave the queue."""
        claimed = self._store.claim(self._pending, self.machine, jobs=self._jobs, retries=self._retries)
        gone = {*claimed.finished, claimed.slot}
        if len(gone) > 1 or claimed.slot is not None:
            self._pending = [slot for slot in self._pending if slot not in gone]
        return claimed.slot

    def estimate_s(self, slots: Sequence[Slot]) -> float | None:
        """Seconds that these slots will take: each like its own earlier runs, else like the median of all. None where
        nothing has finished yet."""
        every = [seconds for values in self._seconds.values() for seconds in values]
        if not every:
            return None
        usual = median(every)
        return sum(median(self._seconds[slot.key]) if slot.key in self._seconds else usual for slot in slots)

    def _out_of_budget(self) -> str | None:
        if self._deadline == math.inf:
            return None
        now = self._clock()
        if now >= self._deadline:
            return "the budget is spent"
        estimate = self.estimate_s(self._pending[:1])
        if estimate is not None and now + estimate > self._deadline:
            return "the next trial would not end within the budget"
        return None

    def _pause_s(self) -> float:
        return RULES.poll_s * (1 - RULES.jitter * random.random())

    def _execute(self, slot: Slot) -> Finished:
        return self._executor.run(self._tasks[slot.key], timeout_s=self._timeout_s, on_event=self._on_event)

    def _record(self, slot: Slot, finished: Finished) -> None:
        row = TrialRow(
            key=slot.key,
            repeat=slot.repeat,
            machine=self.machine,
            outcome=finished.outcome,
            began=finished.began,
            wall_s=finished.wall_s,
            figures=finished.figures,
            problem=finished.problem,
            versions=finished.versions,
            document=finished.document,
        )
        self._store.record(row)
        self._outcomes[row.outcome] = self._outcomes.get(row.outcome, 0) + 1
        self._seconds.setdefault(slot.key, []).append(finished.wall_s)
        if self._on_trial:
            self._on_trial(slot, row)

    def _tell(self, slot: Slot | None) -> None:
        if self._on_progress:
            running = [] if slot is None else [slot]
            self._on_progress(
                Progress(
                    done=len(self._slots) - len(self._pending) - len(running),
                    of=len(self._slots),
                    running=None if slot is None else slot.key,
                    left_s=self.estimate_s([*self._pending, *running]),
                )
            )


def end_children() -> None:
    """Kill every process below this one, so that threads which wait for them return."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
