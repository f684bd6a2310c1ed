"""The loop itself: asks for a batch, steps, and keeps every moment; nothing is computed until it is over."""

from time import perf_counter
from typing import Any

from stoker.events import BatchDone, OnEvent
from stoker.measure.account import Epoch, Step
from stoker.measure.device import Clock
from stoker.measure.feed import Feed
from stoker.measure.spy import wrappers
from stoker.measure.steps import ModelStep, NapStep
from stoker.process import failures
from stoker.workload import calls

_EVENT_GAP_S = 0.1


class Loop:
    """Runs epochs and keeps every moment; nothing is computed until it is over."""

    def __init__(self, feed: Feed, step: ModelStep | NapStep, clock: Clock, emit: OnEvent, *, of: int | None) -> None:
        self._feed, self._step, self._clock, self._emit, self._of = feed, step, clock, emit, of
        self.epochs: list[tuple[float, float, float, float, list[Any]]] = []
        self.stamps: list[wrappers.Stamp] = []
        self.items: list[int] = []
        self.bytes: list[int] = []
        self._told = 0.0

    def epoch(self) -> None:
        began = perf_counter()
        batches = iter(self._feed)
        started = perf_counter()
        rows: list[Any] = []
        while True:
            asked = perf_counter()
            if self._feed.cut and len(rows) == self._feed.batches:
                break
            try:
                parcel = next(batches)
            except StopIteration:
                break
            except Exception as error:
                _raise_worker_died(error, batches)
                raise
            rows.append(self._one(asked, parcel))  # and kept until the next is there, as `for batch in loader` does
        del batches
        self.epochs.append((began, started, asked, perf_counter(), rows))

    def _one(self, asked: float, parcel: Any) -> Any:
        got = perf_counter()
        batch = parcel.batch if isinstance(parcel, wrappers.Parcel) else parcel
        if isinstance(parcel, wrappers.Parcel):
            self.stamps.append(parcel.stamp)
        ends: list[tuple[str, Any]] = []
        began = self._clock.mark()
        self._step(batch, lambda name: ends.append((name, self._clock.mark())))
        done = perf_counter()
        self.items.append(calls.count_items(batch))
        self.bytes.append(calls.batch_bytes(batch))
        if done - self._told > _EVENT_GAP_S:
            self._told = done
            self._emit(BatchDone(done=len(self.items), of=self._of))
        return asked, got, done, began, ends

    def settled(self) -> list[Epoch]:
        """The epochs with the device's moments read."""
        when = self._clock.seconds
        return [
            Epoch(
                began=began,
                started=started,
                exhausted=exhausted,
                ended=ended,
                steps=tuple(
                    Step(asked=asked, got=got, began=when(mark), ends=tuple((name, when(end)) for name, end in ends))
                    for asked, got, _, mark, ends in rows
                ),
            )
            for began, started, exhausted, ended, rows in self.epochs
        ]


def _raise_worker_died(error: Exception, batches: Any) -> None:
    """The loader does not always know that a worker died, or by which signal; its processes do."""
    for worker in getattr(batches, "_workers", ()):
        if isinstance(error, OSError | EOFError):  # a connection that broke: its other end may be dying
            worker.join(0.5)
        if worker.exitcode is not None and worker.exitcode < 0:
            raise failures.WorkerDied(-worker.exitcode) from error
