"""One simulated epoch with workers: the loop, those that load for it, and the thread that pins."""

from collections import deque
from dataclasses import dataclass, field

from stoker.forecast.cores import Cores, Then
from stoker.forecast.costs import Costs
from stoker.forecast.driver import Driver
from stoker.records import Setting


@dataclass(frozen=True)
class Load:
    """How much is run: whole batches of so many items, the last one short unless it is dropped."""

    items: int
    epochs: int = 1
    drop_last: bool = False

    def batches(self, batch_size: int) -> int:
        whole, rest = divmod(self.items, batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def last(self, batch_size: int) -> int:
        """How many items the last batch has."""
        return batch_size if self.drop_last else self.items % batch_size or batch_size

    def sizes(self, batch_size: int, most: int | None = None) -> list[int]:
        """Of each batch, or of `most` of them: the last is among them, as it may be the short one."""
        count = self.batches(batch_size) if most is None else min(most, self.batches(batch_size))
        return [batch_size] * (count - 1) + [self.last(batch_size)] if count else []


@dataclass
class Seen:
    """What the simulated loop saw, in seconds after its start. `moments_s` are the ends of steps, on the device."""

    total_s: float = 0.0
    first_batch_s: float = 0.0
    start_s: float = 0.0
    waited_s: float = 0.0
    moments_s: list[float] = field(default_factory=list)
    received_s: float = 0.0


def persists(setting: Setting) -> bool:
    return setting.persistent_workers and setting.num_workers > 0


class Loader:
    """The loop, its workers and the pin thread of one epoch.

    `draws` has for each batch how its items differ from the mean, and how the core that loads it does.
    """

    def __init__(
        self,
        costs: Costs,
        setting: Setting,
        load: Load,
        sizes: list[int],
        draws: list[tuple[float, float]],
        cores: float,
        *,
        fresh: bool,
    ) -> None:
        self._costs, self._setting, self._in_order, self._fresh = costs, setting, setting.in_order, fresh
        self._sizes = sizes
        self._work = [costs.worker_item_s.at(size) * size * draw for size, (draw, _) in zip(sizes, draws, strict=True)]
        self._uneven = [uneven for _, uneven in draws]
        self._cpu = Cores(costs, cores)
        workers = setting.num_workers
        self._lists: list[deque[int]] = [deque() for _ in range(workers)]
        self._idle = [False] * workers
        self._cold = [fresh] * workers
        self._tasks = [0] * workers
        self._owner: dict[int, int] = {}
        self._sent = 0
        self._next_worker = 0
        self._arrived: deque[int] = deque()
        self._to_pin: deque[int] = deque()
        self._pinning = False
        self._driver = Driver(self._cpu)
        self._held: set[int] = set()
        self._waiting = False
        self._asked = 0.0
        self._next = 0
        self._taken = 0
        self._device_free = 0.0
        self._queue: deque[float] = deque()
        self._over = False
        self._seen = Seen()

    def run(self) -> Seen:
        if self._fresh:
            self._cpu.compute(self._costs.fork_s, lambda: self._forked(0))
        else:
            self._idle = [True] * self._setting.num_workers
            self._started()
        while not self._over:
            self._cpu.advance()
        return self._seen

    # ------------------------------------------------------------ workers

    def _forked(self, worker: int) -> None:
        self._cpu.compute(self._costs.init_s, lambda: self._ready(worker))
        if worker + 1 < self._setting.num_workers:
            self._cpu.compute(self._costs.fork_s, lambda: self._forked(worker + 1))
        else:
            self._started()

    def _started(self) -> None:
        self._hand_on(self._setting.prefetch_factor * self._setting.num_workers)

    def _hand_on(self, left: int) -> None:
        """The first orders, one after another."""
        if not left:
            self._seen.start_s = self._cpu.now
            self._ask()
            return
        self._hand_out()
        self._cpu.compute(self._costs.hand_s, lambda: self._hand_on(left - 1))

    def _hand_out(self) -> None:
        """One more index list to the next worker in turn; out of order, to the next that has room."""
        if self._sent == len(self._sizes):
            return
        workers = self._setting.num_workers
        for _ in range(workers):
            worker = self._next_worker
            self._next_worker = (worker + 1) % workers
            if self._in_order or self._tasks[worker] < self._setting.prefetch_factor:
                break
        else:
            return
        self._lists[worker].append(self._sent)
        self._owner[self._sent] = worker
        self._tasks[worker] += 1
        self._sent += 1
        self._begin(worker)

    def _ready(self, worker: int) -> None:
        self._idle[worker] = True
        self._begin(worker)

    def _begin(self, worker: int) -> None:
        if not self._idle[worker] or not self._lists[worker]:
            return
        self._idle[worker] = False
        batch = self._lists[worker].popleft()
        size, costs = self._sizes[batch], self._costs
        cold = costs.cold_s.at(size) if self._cold[worker] else 0.0
        first = self._cold[worker]
        self._cold[worker] = False
        work = self._work[batch]
        reading = costs.waiting_share * work
        computing = (work - reading + costs.collate_s.at(size) + cold) * self._uneven[batch]
        if reading:
            self._cpu.sleep(reading, lambda: self._cpu.compute(computing, lambda: self._loaded(worker, batch, first)))
        else:
            self._cpu.compute(computing, lambda: self._loaded(worker, batch, first))

    def _loaded(self, worker: int, batch: int, first: bool) -> None:
        size, costs = self._sizes[batch], self._costs
        flight = costs.flight_s.at(size)
        if first:
            goes_on = bool(self._lists[worker])
            flight += costs.first_flight_s.at(size)
            flight += costs.first_sends.of(worker, self._setting.num_workers, goes_on=goes_on)
        self._cpu.sleep(flight, lambda: self._landed(batch))
        self._cpu.compute(self._costs.gap_s.at(size), lambda: self._ready(worker))

    # ------------------------------------------------------------ the way to the loop

    def _landed(self, batch: int) -> None:
        if not self._setting.pin_memory:
            self._arrive(batch)
        elif self._pinning:
            self._to_pin.append(batch)
        else:
            self._pin(batch)

    def _pin(self, batch: int) -> None:
        """The pin thread: it receives and copies, one batch at a time, whatever the loop does."""
        self._pinning = True
        size = self._sizes[batch]
        pinning, anew = self._costs.pin_s.at(size), self._costs.pin_anew_s.at(size)

        def copy() -> None:
            self._cpu.compute(pinning, lambda: self._pinned(batch))

        self._receive(batch, lambda: self._driver.pinned(anew, copy))

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
        self._asked = self._cpu.now
        self._look()

    def _look(self) -> None:
        if self._next in self._held:
            self._held.discard(self._next)
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
        """Ask the worker for the batch's memory: answered at once where all are idle, late while they load."""
        size = self._sizes[batch]
        seconds = self._costs.receive_s.at(size)
        blocked = 0.0 if all(self._idle) else self._costs.blocked_s.at(size)
        self._seen.received_s += seconds + blocked
        self._cpu.sleep(blocked, lambda: self._cpu.compute(seconds, then))

    def _received(self, batch: int) -> None:
        if batch == self._next or not self._in_order:
            self._deliver(batch)
        else:
            self._held.add(batch)
            self._look()

    def _deliver(self, batch: int) -> None:
        self._next, self._taken = batch + 1 if self._in_order else self._next, self._taken + 1
        self._tasks[self._owner.pop(batch)] -= 1
        self._hand_out()
        seen, now, step = self._seen, self._cpu.now, self._costs.step
        if self._taken == 1:
            seen.first_batch_s = now
        elif self._setting.pin_memory:
            self._driver.give_back(self._device_free - now)  # that of the batch before, held until now
        if not step.asynchronous:
            seen.waited_s += now - self._asked
        size = self._sizes[batch]
        host = step.host_s.at(size) + (step.first_s.at(size) if self._taken == 1 else 0.0)
        if step.threads:
            self._cpu.together(host, step.threads, lambda: self._stepped(batch))
        elif step.asynchronous:
            before_s = self._driver.busy_s
            self._cpu.compute(host, lambda: self._driver.launched(before_s, lambda: self._launched(batch)))
        else:
            late = 0.0 if all(self._idle) else step.late_s
            self._cpu.sleep(host + late, lambda: self._stepped(batch))

    def _launched(self, batch: int) -> None:
        """The GPU has it; the host goes on, unless it is too far ahead."""
        now, step = self._cpu.now, self._costs.step
        self._seen.waited_s += max(0.0, now - max(self._device_free, 0.0))
        self._device_free = max(now, self._device_free) + step.device_s.at(self._sizes[batch])
        self._queue.append(self._device_free)
        until = self._queue.popleft() if len(self._queue) > step.ahead else now
        self._cpu.sleep(until - now, lambda: self._stepped(batch))

    def _stepped(self, batch: int) -> None:
        self._seen.moments_s.append(max(self._cpu.now, self._device_free))
        self._cpu.compute(self._costs.between_s.at(self._sizes[batch]), self._went_on)

    def _went_on(self) -> None:
        if self._taken < len(self._sizes):
            self._ask()
            return
        fixed, each = self._costs.stop_s
        stop = 0.0 if persists(self._setting) else fixed + each * self._setting.num_workers
        self._over = True
        self._seen.total_s = max(self._cpu.now + stop, self._device_free)
