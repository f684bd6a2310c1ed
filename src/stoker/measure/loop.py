"""The measured loop: asks for a batch, makes the step, and writes every moment into a log."""

from time import perf_counter
from typing import Any

from stoker.events import BatchDone, OnEvent
from stoker.measure.feed import Feed
from stoker.measure.log import LoopLog
from stoker.measure.spy import Parcel
from stoker.measure.steps import ModelStep, SleepStep
from stoker.process import failures
from stoker.records import Record
from stoker.workload import calls


class LoopRules(Record, frozen=True):
    """What the loop does beside the steps."""

    event_gap_s: float = 0.1
    """How often the loop reports its progress at most: an event costs a system call."""
    broken_wait_s: float = 0.5
    """How long a worker whose connection broke may take to end, so that its signal is known."""


RULES = LoopRules()


class DeadlinePassed(Exception):
    """The run was not over at its deadline."""


class Loop:
    """Runs epochs of batches, one step a batch. Raises DeadlinePassed after a batch that ends past `deadline_s`, a
    moment of `time.perf_counter`, and WorkerDied if the loader failed because a worker was ended by a signal."""

    def __init__(
        self,
        feed: Feed,
        step: ModelStep | SleepStep,
        log: LoopLog,
        emit: OnEvent,
        *,
        of: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self._feed, self._step, self._log, self._emit, self._of = feed, step, log, emit, of
        self._deadline_s = deadline_s
        self._reported_s = 0.0
        self._lists = False
        """Whether batches are lists of their items."""

    def epoch(self) -> None:
        log, count = self._log, 0
        log.epoch_began()
        batches = iter(self._feed)
        log.loader_ready()
        while True:
            log.ask()
            if self._feed.cut and count == self._feed.batches:
                break
            try:
                parcel = next(batches)  # the batch before lives until this one is there, as in `for batch in loader`
            except StopIteration:
                break
            except Exception as error:
                _raise_worker_died(error, batches)
                raise
            self._one(parcel)
            count += 1
        del batches
        log.epoch_ended()

    def _one(self, parcel: Any) -> None:
        is_parcel = isinstance(parcel, Parcel)
        self._log.got(parcel.stamp if is_parcel else None)
        batch = parcel.batch if is_parcel else parcel
        loaded = len(parcel.stamp.item_s) if is_parcel else 0
        items = 0
        if isinstance(self._step, SleepStep):  # what takes time on a device is counted after it
            items = self._step.items = self._count(batch, loaded)
        self._step(batch, self._log.stage)
        done_s = perf_counter()
        self._log.done(items or self._count(batch, loaded), calls.batch_bytes(batch), at=done_s)
        if done_s - self._reported_s > RULES.event_gap_s:
            self._reported_s = done_s
            self._emit(BatchDone(done=len(self._log.items), of=self._of))
        if self._deadline_s is not None and done_s > self._deadline_s:
            raise DeadlinePassed

    def _count(self, batch: Any, loaded: int) -> int:
        """The batch's items. If nothing in it says how many, they are taken to be as many as the loader put in it.

        A list as long as the items that were `loaded` for it holds these, even if all begin with an equal dimension, as
        images do with their channels. A list of two may be inputs and targets, unless a longer one came before it.
        """
        if isinstance(batch, list | tuple) and len(batch) == loaded:
            self._lists = self._lists or loaded > 2
            if self._lists:
                return loaded
        count = calls.known_count(batch)
        if count is not None:
            return count
        taken = self._feed.items_a_batch
        if taken is None:
            return calls.count_items(batch)  # raises
        note = f"a batch of type {type(batch).__name__} does not say how many items it holds: counted as {taken}"
        if note not in self._feed.notes:
            self._feed.notes.append(note)
        return taken


def _raise_worker_died(error: Exception, batches: Any) -> None:
    """The loader does not always know that a worker died, or by which signal; its processes do."""
    for worker in getattr(batches, "_workers", ()):
        if isinstance(error, OSError | EOFError):  # a connection that broke: its other end may be dying
            worker.join(RULES.broken_wait_s)
        if worker.exitcode is not None and worker.exitcode < 0:
            raise failures.WorkerDied(-worker.exitcode) from error
