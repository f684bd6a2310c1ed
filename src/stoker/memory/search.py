"""The search for the largest batch: every size tried for one request, and the answer made from them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stoker.errors import InputError
from stoker.events import OnEvent, Phase
from stoker.memory import ahead
from stoker.memory.bracket import Bracket
from stoker.memory.limit import LimitRequest
from stoker.memory.peak import alive_at_peak
from stoker.memory.replay import Estimate, too_large
from stoker.memory.trace import follow
from stoker.memory.trace.gpus import DEFAULT_GPU, is_known
from stoker.memory.trace.log import AllocationLog
from stoker.memory.tries import RULES as TRY
from stoker.memory.tries import DeviceMemory, TryFactory, TryJob, TryOrder
from stoker.process import child
from stoker.process.fork import Forked
from stoker.process.wire import Failure
from stoker.records import Attempt, Gpu, Limit, Method, Mode, Record
from stoker.units import format_bytes
from stoker.workload.example import Example
from stoker.workload.workload import Workload


class SearchRules(Record, frozen=True):
    """Numbers of every search."""

    ceiling: int = 2**20
    """No larger batch is tried."""
    first_doubling: int = 32
    """Doubling starts here if there is no guess."""
    host_share: float = 0.9
    """Of the host's free memory: the rest of the machine lives there too."""
    notable_bytes: int = 64 * 2**20
    """Memory that another process must have taken during the search to be worth a note."""


RULES = SearchRules()


class Search(ABC):
    """The sizes tried for one request. A subclass says how a size is run."""

    memory = "GPU"

    def __init__(self, workload: Workload, name: str, mode: Mode, request: LimitRequest, emit: OnEvent) -> None:
        self.workload, self.name, self.mode, self.request, self.emit = workload, name, mode, request, emit
        self.attempts: dict[int, Attempt] = {}
        self.notes: list[str] = []
        self.mode_reason = ""
        self.log: AllocationLog | None = None
        self.budget_bytes = 0
        self._items: int | None = None

    @abstractmethod
    def run(self, order: TryOrder) -> Attempt:
        """Run steps at a batch size. Running out of memory is an outcome."""

    def see(self, example: Example) -> None:
        """Note the number of items, and what there is to know about their sizes."""
        self._items = example.of
        if example.note:
            self.notes.append(example.note)

    # ------------------------------------------------------------ tries

    def holds(self, batch_size: int) -> bool:
        return self.attempt(batch_size).outcome == "done"

    def attempt(self, batch_size: int, *, steps: int = TRY.steps, weigh: bool = False) -> Attempt:
        """Try a size and keep the outcome. Raises `InputError` if the step fails for another reason than memory, and
        no smaller size ran."""
        self.emit(Phase(name="trying_batch", text=f"trying a batch of {batch_size}"))
        attempt = self.run(TryOrder(batch_size=batch_size, steps=steps, weigh=weigh))
        self.attempts[batch_size] = attempt
        if attempt.outcome not in ("failed", "crashed"):
            return attempt
        if not any(size < batch_size for size in self._done()):
            self._check_smallest(attempt)
        if attempt.problem:
            self.notes.append(
                f"a batch of {batch_size} fails for another reason than memory: {attempt.problem.sentence}"
            )
        return attempt

    def _check_smallest(self, attempt: Attempt) -> None:
        """If a batch of 1 fails too, the failure has nothing to do with the size."""
        tiny = attempt if attempt.batch_size == 1 else self.run(TryOrder(batch_size=1))
        if tiny.outcome in ("failed", "crashed") and tiny.problem:
            where = f", at {tiny.problem.where}" if tiny.problem.where else ""
            raise InputError(f"the step fails, and not for want of memory: {tiny.problem.sentence}{where}")
        self.attempts[1] = tiny

    def _done(self) -> list[int]:
        return sorted(size for size, attempt in self.attempts.items() if attempt.outcome == "done")

    def without_retry(self) -> list[int]:
        """The sizes that ran without a retry of the allocator."""
        return [size for size in self._done() if not self.attempts[size].retries]

    # ------------------------------------------------------------ the answer

    def need(self, found: Bracket) -> None:
        """Raise `InputError` if no size ran."""
        if not found.ran:
            needed = self.attempts[1].peak_bytes if 1 in self.attempts else 0
            raise InputError(too_large(max(needed, self.budget_bytes), self.budget_bytes))

    def ran(self, found: Bracket, comfortable: int | None, estimate: Estimate | None, method: Method) -> Limit:
        """The answer from sizes that were run."""
        larger = [size for size in self._done() if found.failed is not None and size > found.failed]
        if larger:
            self.notes.append(
                f"fitting is not monotone: {found.failed} failed, and {max(larger)}, which is larger, ran too"
            )
        if found.failed is None:
            self.notes.append(f"the search ends at {found.ran}: larger batches were not tried")
        last = max([found.ran, *larger])
        limit = self.limit(found.ran, (found.ran, last), comfortable, estimate=estimate, method=method)
        peak = self.attempts[found.ran].peak_bytes
        per_item = limit.bytes_per_item or self._slope()
        return msgspec.structs.replace(
            limit,
            ran=True,
            peak_bytes_at_max=peak,
            bytes_per_item=per_item,
            fixed_bytes=max(0, peak - per_item * found.ran),
        )

    def _slope(self) -> int:
        """Bytes an item, from the two sizes that lie farthest apart."""
        done = self._done()
        if len(done) < 2:
            return 0
        low, high = done[0], done[-1]
        return max(0, (self.attempts[high].peak_bytes - self.attempts[low].peak_bytes) // (high - low))

    def limit(
        self,
        most: int,
        interval: tuple[int, int],
        comfortable: int | None,
        *,
        estimate: Estimate | None,
        method: Method,
    ) -> Limit:
        """The answer, with all that was tried and noted."""
        items = self._items
        is_set = not (self.workload.on_device or self.workload.from_example)
        if items is not None and most > items and is_set:
            self.notes.append(f"the set has only {items} items: no batch of it can be larger")
        return Limit(
            max_batch=most,
            interval=interval,
            comfortable_batch=comfortable,
            method=method,
            gpu_memory_bytes=self.budget_bytes,
            peak_bytes_at_max=estimate.peak_bytes if estimate else 0,
            bytes_per_item=estimate.bytes_per_item if estimate else 0,
            fixed_bytes=estimate.fixed_bytes if estimate else 0,
            workload=self.name,
            mode=self.mode,
            mode_reason=self.mode_reason,
            precision=self.request.precision,
            optimizer=self.request.optimizer,
            memory="GPU" if method == "trace" else self.memory,
            predicted_batch=estimate.likely if estimate else None,
            predicted_interval=estimate.interval if estimate else None,
            probes=tuple(self.attempts.values()),
            notes=tuple(dict.fromkeys(self.notes)),
            attention=self.log.attention if self.log else (),
            unseen=self.log.unseen if self.log else (),
            alive=alive_at_peak(self.log, most, self.budget_bytes) if self.log else (),
        )


class ForkedSearch(Search):
    """A search whose tries run in forked processes, on a GPU or on the host."""

    def __init__(
        self,
        workload: Workload,
        name: str,
        mode: Mode,
        request: LimitRequest,
        card: Gpu | None,
        emit: OnEvent,
        *,
        lazy: bool = False,
    ) -> None:
        super().__init__(workload, name, mode, request, emit)
        self.card, self._lazy = card, lazy
        self.on_host = card is None
        self.memory = "host" if self.on_host else "GPU"
        self.ahead: ahead.Ahead | None = None
        self._shortage_noted = False

    def prepare(self) -> None:
        """Read the device's memory, follow the step and make the model, side by side."""
        self.emit(Phase(name="building_model", text="tracing one step, and building the model"))
        request = self.request
        job = TryJob(
            mode=self.mode,
            setting=request.setting,
            device="cpu" if self.on_host else request.device,
            validate=request.validate,
        )
        self.factory = TryFactory(self.workload, job, lazy=self._lazy)
        self.see(self.factory.example)
        device = self.factory.look()
        tracing = self._trace() if request.method == "auto" and self.card is not None else None
        self.factory.model  # noqa: B018 - made now, while the others run
        if tracing is None or self.card is None:
            self._settle_budget(_value(device))
        else:
            self.ahead = ahead.begin(self.factory, request, self.card, lambda: self._settle_budget(_value(device)))
            log = tracing.result()
            if isinstance(log, Failure):
                self.notes.append(f"found by trying alone: {log.sentence}")
            else:
                self.log = log
        if request.cudnn_benchmark:
            self.notes.append("cudnn.benchmark tries algorithms at each new size: memory differs from run to run")

    def trace(self, example: Example) -> AllocationLog:
        """Follow the step. Changes torch for good in this process."""
        return follow.record(
            self.workload,
            self.mode,
            self.request.setting,
            gpu=self.request.gpu or (kind_of(self.card) if self.card else DEFAULT_GPU),
            validate=self.request.validate,
            example=example,
        )

    def _trace(self) -> Forked[AllocationLog]:
        return Forked(lambda: self.trace(self.factory.example), AllocationLog)

    def _settle_budget(self, found: DeviceMemory) -> DeviceMemory:
        """Set what tensors may take: what was asked for, less what others hold and what is reserved."""
        asked, reserve = self.request.gpu_memory_bytes, self.request.reserve_bytes
        if asked is not None and asked > found.total_bytes:
            raise InputError(
                f"{found.device} has {format_bytes(found.total_bytes)}, and {format_bytes(asked)} was asked for; "
                "--method trace answers for a GPU that is not here"
            )
        taken = found.total_bytes - found.free_bytes
        if asked is None:
            what = "what runs here now" if self.on_host else "the CUDA context and other processes"
            self.notes.append(f"{format_bytes(taken)} of {format_bytes(found.total_bytes)} is held by {what}")
        elif asked > found.free_bytes:
            self.notes.append(
                f"only {format_bytes(found.free_bytes)} of the {format_bytes(asked)} asked for is free: the CUDA "
                f"context and other processes hold {format_bytes(taken)}"
            )
        free = int(found.free_bytes * RULES.host_share) if self.on_host else found.free_bytes
        self.budget_bytes = min(asked if asked is not None else free, free) - reserve
        if self.budget_bytes < 1:
            raise InputError(f"nothing is left: {format_bytes(found.free_bytes)} is free on {found.device}")
        capped = asked is not None or reserve or self.on_host
        self.factory.job = msgspec.structs.replace(self.factory.job, budget_bytes=self.budget_bytes if capped else None)
        return found

    def run(self, order: TryOrder) -> Attempt:
        attempt = (self.ahead or self.factory).attempt(order)
        self._watch_others(attempt)
        return attempt

    @contextmanager
    def trying(self) -> Iterator[None]:
        """While sizes are tried. Ends whatever was begun and not needed."""
        try:
            yield
        finally:
            if self.ahead is not None:
                self.ahead.end()

    def _watch_others(self, attempt: Attempt) -> None:
        """Another process that fills the GPU meanwhile makes a size fail that would have fitted."""
        short = self.budget_bytes + self.request.reserve_bytes - attempt.free_bytes
        if attempt.outcome == "oom" and short > RULES.notable_bytes and not self._shortage_noted:
            self._shortage_noted = True
            self.notes.append(
                f"another process took {format_bytes(short)} during the search: the answer is for what it left"
            )


def kind_of(card: Gpu) -> str:
    """What a trace takes the kernels of: the GPU's name if it is known, or else its compute capability."""
    return card.name if is_known(card.name) else card.compute_capability or "8.0"


def _value(forked: Forked[DeviceMemory]) -> DeviceMemory:
    result = forked.result()
    if isinstance(result, Failure):
        raise child.error_of(result)
    return result
