"""One question about the largest batch while it is being answered: the device, the budget, and every size tried."""

from collections.abc import Iterable

import msgspec

from stoker.errors import InputError
from stoker.events import OnEvent, Phase
from stoker.memory import traced
from stoker.memory.bracket import Bracket
from stoker.memory.device_memory import Room
from stoker.memory.limit import Question
from stoker.memory.trace.log import AllocationLog
from stoker.memory.traced import Estimate
from stoker.memory.tries import Job, RunningAttempt, TryFactory
from stoker.process import child
from stoker.process.fork import Forked
from stoker.process.wire import Failure
from stoker.records import Attempt, Limit, Method, Mode
from stoker.units import format_bytes
from stoker.workload import calls
from stoker.workload.example import Example
from stoker.workload.workload import Workload

_HOST_SHARE = 0.9
"""Of the host's free memory: the rest of the machine lives there too."""
_NOTABLE_BYTES = 64 * 2**20
_CONTEXT_BYTES = 2**30
"""More than a process holds on a device beside its tensors."""
_STAND_BY = 3
"""Tries that wait at the device while the step is followed: for the guess, the size above it and a calm one."""


class Search:
    """One question about one workload, and what has been tried for it."""

    def __init__(
        self, workload: Workload, name: str, mode: Mode, question: Question, gpu: str | None, emit: OnEvent
    ) -> None:
        self.workload, self.name, self.mode, self.question = workload, name, mode, question
        self.gpu, self.emit = gpu, emit
        self.probes: dict[int, Attempt] = {}
        self.notes: list[str] = []
        self.on_host = gpu is None
        self.log: AllocationLog | None = None
        self.budget_bytes = 0
        self.weights_matter = True
        self.one_at_a_time = False
        self.free_by_driver_bytes = 0
        self._items: int | None = None
        self._free_bytes = 0
        self._begun: dict[int, RunningAttempt] = {}

    # ------------------------------------------------------------ what every run needs

    def prepare(self) -> None:
        """Look at the device, follow the step and make the model, side by side."""
        self.emit(Phase(name="building_model", text="tracing one step, and building the model"))
        question = self.question
        job = Job(
            mode=self.mode,
            precision=question.precision,
            device="cpu" if self.on_host else question.device,
            validate=question.validate,
            cudnn_benchmark=question.cudnn_benchmark,
        )
        self.cradle = TryFactory(self.workload, job, lazy=not self.weights_matter)
        self.see(self.cradle.example)
        room = self.cradle.room()
        tracing = self._trace() if question.method == "auto" and not self.on_host else None
        self.cradle.model  # noqa: B018 - made now, while the others run
        early = self._known_budget() if tracing is not None else None
        if early is not None:
            self.cradle.job = msgspec.structs.replace(self.cradle.job, budget_bytes=early)
            self.cradle.stand_by(_STAND_BY)
        try:
            self._settle_budget(_value(room))
        finally:
            if early not in (None, self.budget_bytes):
                self.cradle.end()  # someone took it meanwhile, or there is no answer
        if tracing is not None:
            self.cradle.stand_by(min(_STAND_BY, self.at_once + self._beside))
            log = tracing.result()
            if isinstance(log, Failure):
                self.notes.append(f"found by trying alone: {log.sentence}")
            else:
                self.log = log
        if question.cudnn_benchmark:
            self.notes.append("cudnn.benchmark tries algorithms at each new size: memory differs from run to run")

    def _known_budget(self) -> int | None:
        """What tensors may take, where the driver says that there is room for all who will stand by: they need not
        wait until someone has looked from within. None where it is not as clear."""
        asked, reserve = self.question.gpu_memory_bytes, self.question.reserve_bytes
        if asked is None or asked <= reserve or self.one_at_a_time:
            return None
        return asked - reserve if self.free_by_driver_bytes >= _STAND_BY * (asked + _CONTEXT_BYTES) else None

    def see(self, example: Example) -> None:
        """Keep what there is to say of the data."""
        self._items = example.of
        if example.note:
            self.notes.append(example.note)

    def _trace(self) -> Forked[AllocationLog]:
        return Forked(
            lambda: traced.record(self.workload, self.mode, self.question, self.gpu, self.cradle.example),
            AllocationLog,
        )

    def _settle_budget(self, room: Room) -> None:
        """What tensors may take, with what others hold taken off."""
        self._free_bytes = room.free_bytes
        asked, reserve = self.question.gpu_memory_bytes, self.question.reserve_bytes
        if asked is not None and asked > room.total_bytes:
            raise InputError(
                f"{room.device} has {format_bytes(room.total_bytes)}, and {format_bytes(asked)} was asked for; "
                "--method trace answers for a GPU that is not here"
            )
        taken = room.total_bytes - room.free_bytes
        if asked is None:
            what = "what runs here now" if self.on_host else "the CUDA context and other processes"
            self.notes.append(f"{format_bytes(taken)} of {format_bytes(room.total_bytes)} is held by {what}")
        elif asked > room.free_bytes:
            self.notes.append(
                f"only {format_bytes(room.free_bytes)} of the {format_bytes(asked)} asked for is free: the CUDA "
                f"context and other processes hold {format_bytes(taken)}"
            )
        free = int(room.free_bytes * _HOST_SHARE) if self.on_host else room.free_bytes
        self.budget_bytes = min(asked if asked is not None else free, free) - reserve
        if self.budget_bytes < 1:
            raise InputError(f"nothing is left: {format_bytes(room.free_bytes)} is free on {room.device}")
        capped = asked is not None or reserve or self.on_host
        self.cradle.job = msgspec.structs.replace(self.cradle.job, budget_bytes=self.budget_bytes if capped else None)

    @property
    def at_once(self) -> int:
        """How many tries the device has room for, and lets come. Where none is capped, each may take all there is."""
        if self.one_at_a_time or self.cradle.job.budget_bytes is None:
            return 1
        return max(1, self._free_bytes // (self.budget_bytes + _CONTEXT_BYTES))

    @property
    def _beside(self) -> int:
        """How many more may wait at the device with their model while as many as it has room for are under way."""
        capped = self.cradle.job.budget_bytes is not None
        if self.on_host or self.one_at_a_time or not capped or self.question.method != "auto":
            return 0
        rest = self._free_bytes - self.at_once * (self.budget_bytes + _CONTEXT_BYTES)
        return max(0, rest // (calls.model_bytes(self.cradle.model) + _CONTEXT_BYTES))

    def begin(self, sizes: Iterable[int]) -> None:
        """Try sizes side by side, the first ones first, as many as the device has room for; `try_size` finds them
        under way. Those that were begun before and are not among these are not wanted any more."""
        wanted = [size for size in dict.fromkeys(sizes) if size and size not in self.probes][: self.at_once]
        for size in [size for size in self._begun if size not in wanted]:
            self._begun.pop(size).stop()
        for size in wanted:
            if size not in self._begun:
                self._begun[size] = self.cradle.begin(size)

    def end(self) -> None:
        """Whatever is still under way or waits is not wanted any more."""
        while self._begun:
            self._begun.popitem()[1].stop()
        self.cradle.end()

    def holds(self, batch_size: int) -> bool:
        return self.try_size(batch_size).outcome == "done"

    def try_size(self, batch_size: int, *, steps: int = 3, weigh: bool = False) -> Attempt:
        """Run it; a step that fails for want of anything but memory ends the search where nothing smaller ran."""
        self.emit(Phase(name="trying_batch", text=f"trying a batch of {batch_size}"))
        begun = self._begun.pop(batch_size, None) or self.cradle.begin(batch_size, steps=steps, weigh=weigh)
        if self._beside:
            self.cradle.stand_by(1)  # whichever comes next
        probe = begun.probe()
        self.probes[batch_size] = probe
        if probe.outcome in ("failed", "crashed") and not any(
            other.outcome == "done" and other.batch_size < batch_size for other in self.probes.values()
        ):
            self._fail(probe)
        if probe.outcome in ("failed", "crashed") and probe.problem:
            self.notes.append(f"a batch of {batch_size} fails for another reason than memory: {probe.problem.sentence}")
        self._watch_others(probe)
        return probe

    def _fail(self, probe: Attempt) -> None:
        """Where a small batch fails too, it is no question of the size."""
        tiny = probe if probe.batch_size == 1 else self.cradle.attempt(1)
        if tiny.outcome in ("failed", "crashed") and tiny.problem:
            where = f", at {tiny.problem.where}" if tiny.problem.where else ""
            raise InputError(f"the step fails, and not for want of memory: {tiny.problem.sentence}{where}")
        self.probes[1] = tiny

    def _watch_others(self, probe: Attempt) -> None:
        """A GPU that someone else fills meanwhile makes a size fail that would have fitted."""
        short = self.budget_bytes + self.question.reserve_bytes - probe.free_bytes
        told = any("took" in note for note in self.notes)
        if probe.outcome == "oom" and short > _NOTABLE_BYTES and not told:
            self.notes.append(
                f"another process took {format_bytes(short)} during the search: the answer is for what it left"
            )

    def calm(self) -> list[int]:
        """The sizes that ran without a retry."""
        return [size for size, probe in self.probes.items() if probe.outcome == "done" and not probe.retries]

    # ------------------------------------------------------------ the answer

    def need(self, found: Bracket) -> None:
        if not found.ran:
            needed = self.probes[1].peak_bytes if 1 in self.probes else 0
            raise InputError(traced.too_large(max(needed, self.budget_bytes), self.budget_bytes))

    def ran(self, found: Bracket, comfortable: int | None, estimate: Estimate | None, method: Method) -> Limit:
        done = [size for size, probe in self.probes.items() if probe.outcome == "done"]
        larger = [size for size in done if found.failed is not None and size > found.failed]
        if larger:
            self.notes.append(
                f"fitting is not monotone: {found.failed} failed, and {max(larger)}, which is larger, ran too"
            )
        if found.failed is None:
            self.notes.append(f"the search ends at {found.ran}: larger batches were not tried")
        last = max([found.ran, *larger])
        limit = self.limit(found.ran, (found.ran, last), comfortable, estimate=estimate, method=method)
        peak = self.probes[found.ran].peak_bytes
        per_item = limit.bytes_per_item or self._slope(found.ran)
        return msgspec.structs.replace(
            limit,
            ran=True,
            peak_bytes_at_max=peak,
            bytes_per_item=per_item,
            fixed_bytes=max(0, peak - per_item * found.ran),
        )

    def _slope(self, ran: int) -> int:
        """Bytes an item by the two sizes that lie farthest apart."""
        done = sorted(size for size, probe in self.probes.items() if probe.outcome == "done")
        if len(done) < 2:
            return 0
        low, high = done[0], done[-1]
        return max(0, (self.probes[high].peak_bytes - self.probes[low].peak_bytes) // (high - low))

    def limit(
        self,
        most: int,
        interval: tuple[int, int],
        comfortable: int | None,
        *,
        estimate: Estimate | None,
        method: Method,
    ) -> Limit:
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
            precision=self.question.precision,
            optimizer=self.question.optimizer,
            memory="host" if self.on_host and method != "trace" else "GPU",
            predicted_batch=estimate.likely if estimate else None,
            predicted_interval=estimate.interval if estimate else None,
            probes=tuple(self.probes.values()),
            notes=tuple(dict.fromkeys(self.notes)),
            attention=self.log.attention if self.log else (),
            unseen=self.log.unseen if self.log else (),
        )


def _value(forked: Forked[Room]) -> Room:
    result = forked.result()
    if isinstance(result, Failure):
        raise child.error_of(result)
    return result
