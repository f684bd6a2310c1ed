"""What a loop over a DataLoader writes down while it runs. Any loop can: Stoker's own, a callback, a patched loader.

```python
log = LoopLog()
log.run_began()
for _ in range(epochs):
    log.epoch_began()
    batches = iter(loader)
    log.loader_ready()
    while True:
        log.ask()
        batch = next(batches, None)
        if batch is None:
            break
        log.got()
        loss = forward(batch)
        log.stage("forward")
        ...
        log.done(items=len(batch))
    log.epoch_ended()
log.run_ended()
```

A writer that cannot see some of these moments leaves them out: `ask` begins an epoch if none is under way and ends the
batch before it, `got` asks, and `run_ended` ends the last batch and the last epoch.
"""

from time import perf_counter
from typing import Any, Protocol

from stoker.measure.device import Clock, HostClock


class WorkerStamp(Protocol):
    """What a loader worker noted about one batch. Moments are of the system-wide monotonic clock.

    `worker` is its number, or -1 for the loop's own process; `sums` are the seconds of each stage, `item_s` those of
    each item.
    """

    worker: int
    began: float
    ended: float
    cpu_s: float
    sums: dict[str, float]
    item_s: list[float]


class BatchLog:
    """One batch: when the loop asked for it, had it, and had handed its step to the device. `began` and `ends` are
    marks of the device's clock: when its step began, and when each stage ended."""

    __slots__ = ("asked", "began", "done", "ends", "got")

    def __init__(self, asked: float, got: float) -> None:
        self.asked, self.got, self.done = asked, got, got
        self.began: Any = None
        self.ends: list[tuple[str, Any]] = []


class EpochLog:
    """One epoch: when its iterator was asked for and there, its batches, when its end was asked for and over."""

    __slots__ = ("batches", "began", "ended", "exhausted", "ready")

    def __init__(self, began: float) -> None:
        self.began = self.ready = self.exhausted = self.ended = began
        self.batches: list[BatchLog] = []


class LoopLog:
    """The moments of a run. Nothing is computed until it is over.

    Every method takes the moment `at` which it happened, in seconds of `time.perf_counter`, for writers that learn of
    it later; by default it is now. Moments given this way need the host's clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or HostClock()
        self.epochs: list[EpochLog] = []
        self.items: list[int] = []
        self.bytes: list[int] = []
        self.stamps: list[WorkerStamp] = []
        self.scores: list[tuple[float, float | None]] = []
        """Seconds of each pass over the validation set, and the metric's value if there is one."""
        self.began_s = self.ended_s = 0.0
        self._epoch: EpochLog | None = None
        self._batch: BatchLog | None = None
        self._asked_s: float | None = None

    def run_began(self, at: float | None = None) -> None:
        self.began_s = perf_counter() if at is None else at

    def epoch_began(self, at: float | None = None) -> None:
        """The loop asks the loader for an iterator, which starts the workers."""
        at = perf_counter() if at is None else at
        if self._epoch is not None:
            self.epoch_ended(at)
        self._epoch = EpochLog(at)
        self.epochs.append(self._epoch)

    def loader_ready(self, at: float | None = None) -> None:
        """The iterator is there."""
        self._open_epoch(at).ready = perf_counter() if at is None else at

    def ask(self, at: float | None = None) -> None:
        """The loop asks for the next batch."""
        at = perf_counter() if at is None else at
        if self._batch is not None:
            self.done(at=at)
        self._open_epoch(at)
        self._asked_s = at

    def got(self, stamp: WorkerStamp | None = None, at: float | None = None) -> None:
        """The batch is there, and its step begins."""
        now = perf_counter() if at is None else at
        if self._asked_s is None:
            self.ask(now)
        assert self._asked_s is not None
        self._batch = BatchLog(self._asked_s, now)
        self._asked_s = None
        self._open_epoch(now).batches.append(self._batch)
        if stamp is not None:
            self.stamps.append(stamp)
        self._batch.began = self.clock.mark() if at is None else at

    def stage(self, name: str, at: float | None = None) -> None:
        """A stage of the step has ended: copy, forward, backward, update, step."""
        if self._batch is not None:
            self._batch.ends.append((name, self.clock.mark() if at is None else at))

    def done(self, items: int = 0, nbytes: int = 0, at: float | None = None) -> None:
        """The step of a batch of `items` items and `nbytes` bytes has been handed to the device."""
        if self._batch is not None:
            self._batch.done = perf_counter() if at is None else at
            self.items.append(items)
            self.bytes.append(nbytes)
            self._batch = None

    def epoch_ended(self, at: float | None = None) -> None:
        """The loader has no more batches, or the loop asks for no more, and its workers have ended."""
        at = perf_counter() if at is None else at
        if self._batch is not None:
            self.done(at=at)
        if self._epoch is not None:
            self._epoch.exhausted = at if self._asked_s is None else self._asked_s
            self._epoch.ended = at
            self._epoch = self._asked_s = None

    def scored(self, seconds: float, value: float | None) -> None:
        """A pass over the validation set is over."""
        self.scores.append((seconds, value))

    def run_ended(self, at: float | None = None) -> None:
        """The run is over once the device has finished."""
        if at is None:
            self.clock.settle()
            at = perf_counter()
        if self._epoch is not None:
            self.epoch_ended(at)
        self.ended_s = at

    def _open_epoch(self, at: float | None) -> EpochLog:
        if self._epoch is None:
            self.epoch_began(at)
        assert self._epoch is not None
        return self._epoch
