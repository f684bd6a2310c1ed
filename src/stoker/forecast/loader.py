"""One simulated epoch with workers: the training loop, its workers, and the thread that pins memory."""

from collections import deque
from dataclasses import dataclass, field

from stoker.forecast.cores import Cores, Meeting, PinnedMemory, Then
from stoker.forecast.costs import Costs
from stoker.records import Setting


@dataclass(frozen=True)
class Amount:
    """How much a simulated run loads: the items of an epoch, and the epochs. The last batch may be short."""

    items: int
    epochs: int = 1

    def batches(self, batch_size: int) -> int:
        """Batches of an epoch."""
        return -(-self.items // batch_size)

    def last(self, batch_size: int) -> int:
        """Items of the last batch."""
        return self.items % batch_size or batch_size

    def sizes(self, batch_size: int, most: int | None = None) -> list[int]:
        """Items of each batch, or of `most` batches. The last batch is always among them, as it may be short."""
        count = self.batches(batch_size) if most is None else min(most, self.batches(batch_size))
        return [batch_size] * (count - 1) + [self.last(batch_size)]


@dataclass
class SimulatedRun:
    """Times of a simulated run, in seconds after its start."""

    total_s: float = 0.0
    first_batch_s: float = 0.0
    start_s: float = 0.0
    """Until the workers have been forked and have their first orders."""
    waited_s: float = 0.0
    """How long the device waited for data."""
    step_ends_s: list[float] = field(default_factory=list)
    """The end of each step, on the device."""
    received_s: float = 0.0
    """How long the loop was busy receiving batches from workers."""


def persists(setting: Setting) -> bool:
    return setting.persistent_workers and setting.num_workers > 0


class Loader:
    """The training loop, its workers and the pin thread of one epoch, as PyTorch's DataLoader arranges them.

    `draws` has two factors for each batch: how its items differ from the mean, and how slow the core is that loads it.
    `fresh` workers are forked first; others persist from the epoch before. The loaders of several ranks share `cores`,
    and their loops wait for each other at a `meeting`.
    """

    def __init__(
        self,
        costs: Costs,
        setting: Setting,
        sizes: list[int],
        draws: list[tuple[float, float]],
        *,
        fresh: bool,
        cores: Cores | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        self._meeting = meeting
        self._costs, self._setting, self._in_order, self._fresh = costs, setting, setting.in_order, fresh
        self._sizes = sizes
        self._work = [costs.worker_item_s.at(size) * size * draw for size, (draw, _) in zip(sizes, draws, strict=True)]
        self._uneven = [uneven for _, uneven in draws]
        self._cores = cores or Cores(costs)
        workers = setting.num_workers
        # Each worker's index queue, whether it is idle, whether it is cold, and how many batches it has been assigned.
        self._index_queues: list[deque[int]] = [deque() for _ in range(workers)]
        self._idle = [False] * workers
        self._cold = [fresh] * workers
        self._tasks = [0] * workers
        self._owner: dict[int, int] = {}
        self._assigned = 0
        self._next_worker = 0
        # Batches that arrived at the loop, that wait for the pin thread, and that arrived before their turn.
        self._arrived: deque[int] = deque()
        self._to_pin: deque[int] = deque()
        self._pinning = False
        self._pinned_memory = PinnedMemory(self._cores)
        self._out_of_order: set[int] = set()
        self._waiting = False
        self._asked = 0.0
        self._next = 0
        self._taken = 0
        # When the GPU will be free, and when each launched step will be finished.
        self._device_free = 0.0
        self._launched_until: deque[float] = deque()
        self.is_over = False
        self.result = SimulatedRun()

    def run(self) -> SimulatedRun:
        """The epoch of a loop that has the cores to itself."""
        self.begin()
        while not self.is_over:
            self._cores.advance()
        return self.result

    def begin(self) -> None:
        """Begin the epoch; it goes on as the cores advance."""
        if self._fresh:
            self._cores.compute(self._costs.fork_s, lambda: self._forked(0))
        else:
            self._idle = [True] * self._setting.num_workers
            self._started()

    # ------------------------------------------------------------ workers

    def _forked(self, worker: int) -> None:
        self._cores.compute(self._costs.init_s, lambda: self._become_idle(worker))
        if worker + 1 < self._setting.num_workers:
            self._cores.compute(self._costs.fork_s, lambda: self._forked(worker + 1))
        else:
            self._started()

    def _started(self) -> None:
        self._hand_first(self._setting.prefetch_factor * self._setting.num_workers)

    def _hand_first(self, left: int) -> None:
        """Assign the first batches, one after another."""
        if not left:
            self.result.start_s = self._cores.now
            self._ask()
            return
        self._assign()
        self._cores.compute(self._costs.hand_s, lambda: self._hand_first(left - 1))

    def _assign(self) -> None:
        """Assign one more batch to the next worker in turn; out of order, to the next worker with room."""
        if self._assigned == len(self._sizes):
            return
        workers = self._setting.num_workers
        for _ in range(workers):
            worker = self._next_worker
            self._next_worker = (worker + 1) % workers
            if self._in_order or self._tasks[worker] < self._setting.prefetch_factor:
                break
        else:
            return
        self._index_queues[worker].append(self._assigned)
        self._owner[self._assigned] = worker
        self._tasks[worker] += 1
        self._assigned += 1
        self._begin(worker)

    def _become_idle(self, worker: int) -> None:
        self._idle[worker] = True
        self._begin(worker)

    def _begin(self, worker: int) -> None:
        if not self._idle[worker] or not self._index_queues[worker]:
            return
        self._idle[worker] = False
        batch = self._index_queues[worker].popleft()
        size, costs = self._sizes[batch], self._costs
        cold = costs.cold_s.at(size) if self._cold[worker] else 0.0
        first = self._cold[worker]
        self._cold[worker] = False
        work = self._work[batch]
        reading = costs.waiting_share * work
        computing = (work - reading + costs.collate_s.at(size) + cold) * self._uneven[batch]
        if reading:
            self._cores.sleep(
                reading, lambda: self._cores.compute(computing, lambda: self._loaded(worker, batch, first))
            )
        else:
            self._cores.compute(computing, lambda: self._loaded(worker, batch, first))

    def _loaded(self, worker: int, batch: int, first: bool) -> None:
        size, costs = self._sizes[batch], self._costs
        flight = costs.flight_s.at(size)
        if first:
            goes_on = bool(self._index_queues[worker])
            flight += costs.first_flight_s.at(size)
            flight += costs.first_sends.of(worker, self._setting.num_workers, goes_on=goes_on)
        self._cores.sleep(flight, lambda: self._landed(batch))
        self._cores.compute(self._costs.gap_s.at(size), lambda: self._become_idle(worker))

    # ------------------------------------------------------------ from worker to loop

    def _landed(self, batch: int) -> None:
        if not self._setting.pin_memory:
            self._arrive(batch)
        elif self._pinning:
            self._to_pin.append(batch)
        else:
            self._pin(batch)

    def _pin(self, batch: int) -> None:
        """The pin thread receives and copies one batch at a time, independent of the loop."""
        self._pinning = True
        size = self._sizes[batch]
        pinning, anew = self._costs.pin_s.at(size), self._costs.pin_anew_s.at(size)

        def copy() -> None:
            self._cores.compute(pinning, lambda: self._pinned(batch))

        self._receive(batch, lambda: self._pinned_memory.allocate(anew, copy))

    def _pinned(self, batch: int) -> None:
        self._pinning = False
        if self._to_pin:
            self._pin(self._to_pin.popleft())
        self._arrive(batch)

    def _arrive(self, batch: int) -> None:
        self._arrived.append(batch)
        if self._waiting:
            self._waiting = False
            self._take()

    # ------------------------------------------------------------ the loop

    def _ask(self) -> None:
        self._asked = self._cores.now
        self._look()

    def _look(self) -> None:
        if self._next in self._out_of_order:
            self._out_of_order.discard(self._next)
            self._deliver(self._next)
        elif self._arrived:
            self._take()
        else:
            self._waiting = True

    def _take(self) -> None:
        batch = self._arrived.popleft()
        if self._setting.pin_memory:
            self._received(batch)
        else:
            self._receive(batch, lambda: self._received(batch))

    def _receive(self, batch: int, then: Then) -> None:
        """Ask the worker for the batch's memory. Idle workers answer at once, loading workers answer late."""
        size = self._sizes[batch]
        seconds = self._costs.receive_s.at(size)
        blocked = 0.0 if all(self._idle) else self._costs.blocked_s.at(size)
        self.result.received_s += seconds + blocked
        self._cores.sleep(blocked, lambda: self._cores.compute(seconds, then))

    def _received(self, batch: int) -> None:
        if batch == self._next or not self._in_order:
            self._deliver(batch)
        else:
            self._out_of_order.add(batch)
            self._look()

    def _deliver(self, batch: int) -> None:
        self._next, self._taken = batch + 1 if self._in_order else self._next, self._taken + 1
        self._tasks[self._owner.pop(batch)] -= 1
        self._assign()
        result, now, step = self.result, self._cores.now, self._costs.step
        if self._taken == 1:
            result.first_batch_s = now
        elif self._setting.pin_memory:
            self._pinned_memory.release(self._device_free - now)  # the previous batch is dropped now
        if not step.asynchronous:
            result.waited_s += now - self._asked
        size = self._sizes[batch]
        host = step.host_s.at(size) + (step.first_s.at(size) if self._taken == 1 else 0.0)
        if step.threads:
            self._cores.compute_with_threads(host, step.threads, lambda: self._stepped(batch))
        elif step.asynchronous:
            before_s = self._pinned_memory.busy_s
            self._cores.compute(host, lambda: self._pinned_memory.launch(before_s, lambda: self._launched(batch)))
        else:
            late = 0.0 if all(self._idle) else step.late_s
            self._cores.sleep(host + late, lambda: self._stepped(batch))

    def _launched(self, batch: int) -> None:
        """The step is on the GPU's queue. With other ranks, its end is known once all have launched theirs."""
        now, step = self._cores.now, self._costs.step
        self.result.waited_s += max(0.0, now - max(self._device_free, 0.0))
        done_s = max(now, self._device_free) + step.device_s.at(self._sizes[batch])
        if self._meeting is None:
            self._queued(batch, done_s)
        else:
            self._meeting.come(done_s, lambda over_s: self._queued(batch, over_s))

    def _queued(self, batch: int, done_s: float) -> None:
        """The host goes on, unless it is too far ahead of the GPU."""
        now, step = self._cores.now, self._costs.step
        self._device_free = done_s
        self._launched_until.append(self._device_free)
        until = self._launched_until.popleft() if len(self._launched_until) > step.ahead else now
        self._cores.sleep(until - now, lambda: self._ended(batch))

    def _stepped(self, batch: int) -> None:
        """A step on the host has ended; other ranks may still be at theirs."""
        if self._meeting is None:
            self._ended(batch)
            return
        came_s = self._cores.now
        self._meeting.come(came_s, lambda over_s: self._met(batch, came_s, over_s))

    def _met(self, batch: int, came_s: float, over_s: float) -> None:
        self.result.waited_s += self._cores.now - came_s
        self._cores.sleep(over_s - self._cores.now, lambda: self._ended(batch))

    def _ended(self, batch: int) -> None:
        self.result.step_ends_s.append(max(self._cores.now, self._device_free))
        self._cores.compute(self._costs.between_s.at(self._sizes[batch]), self._finish_batch)

    def _finish_batch(self) -> None:
        if self._taken < len(self._sizes):
            self._ask()
            return
        fixed, each = self._costs.stop_s
        stop = 0.0 if persists(self._setting) else fixed + each * self._setting.num_workers
        self.is_over = True
        self.result.total_s = max(self._cores.now + stop, self._device_free)
