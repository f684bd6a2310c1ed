"""Answers from real steps, in a process that forks one for each try; a trace says where to look first."""

import msgspec
import torch

from stoker.errors import InputError, MachineError, StokerError
from stoker.machine import gpu as driver
from stoker.measure.allocation_log import AllocationLog
from stoker.measure.attempts import Cradle, Forked, Job, Probe, Room
from stoker.measure.isolate import Emit
from stoker.measure.server import Failure
from stoker.measure.trial import Named, opened
from stoker.predict import two_point
from stoker.records import Mode
from stoker.tune import traced
from stoker.tune.bracket import Bracket, bisected, close, doubled
from stoker.tune.limit import Limit, Question, Remedy
from stoker.tune.traced import Estimate
from stoker.units import format_bytes, format_seconds
from stoker.workload.definition import Workload

_CEILING = 2**20
_COMFORT_TRIES = 3
_FIRST_DOUBLING = 32
_SHARE, _RUN_ITERATIONS = 0.01, 20
"""The thesis' manual search runs 0.5 to 2 % of an epoch's iterations at a size; we run so many and reckon the rest."""
_PATIENCE_S = 60.0
"""How long tries on the host may take together before an answer is reckoned from those made."""
_HOST_SHARE = 0.9
"""Of the host's free memory: the rest of the machine lives there too."""
_NOTABLE_BYTES = 64 * 2**20


def answer(source: Workload | Named, question: Question, emit: Emit) -> Limit:
    """The limit by the method asked for. Runs in a process that has touched no device."""
    workload = opened(source, question.mode, emit)
    mode = question.mode or workload.default_mode()
    if question.optimizer:
        from stoker.measure.allocations import OPTIMIZERS

        workload = workload.with_(optimizer=OPTIMIZERS[question.optimizer])
    capability = _capability(question)
    name = source.spec if isinstance(source, Named) else source.name
    search = _Search(workload, name, mode, question, capability, emit)
    search.weights_matter = not isinstance(source, Named) or ":" in source.spec
    elsewhere = capability is None and question.gpu_memory_bytes is not None and question.device != "cpu"
    if question.method == "trace" or (elsewhere and question.method == "auto"):
        return search.by_trace()
    if capability is None and (question.method != "auto" or question.device.startswith("cuda")):
        raise MachineError(f"--method {question.method} runs steps on a GPU, and torch finds none here; use trace")
    search.prepare()
    by = {"auto": search.by_auto, "search": search.by_search, "doubling": search.by_doubling}
    return search.by_two_points() if question.method == "two-point" else by[question.method]()


def _capability(question: Question) -> str | None:
    """The GPU's generation by the driver's word: nothing here may touch the device. None where none is to be used."""
    if question.device == "cpu" or not torch.backends.cuda.is_built():
        return None
    cards, cuda = driver.read()
    cards = driver.visible(cards, cuda.visible_devices)
    index = int(question.device.partition(":")[2] or 0)
    if question.device.startswith("cuda") and cards and index >= len(cards):
        raise InputError(f"{question.device} was asked for, but there are only {len(cards)} GPUs here")
    return (cards[index].compute_capability or "8.0") if cards else None


class _Search:
    """One question about one workload, and what has been tried for it."""

    def __init__(
        self, workload: Workload, name: str, mode: Mode, question: Question, capability: str | None, emit: Emit
    ) -> None:
        self._workload, self._name, self._mode, self._question = workload, name, mode, question
        self._capability, self._emit = capability, emit
        self._probes: dict[int, Probe] = {}
        self._notes: list[str] = []
        self._on_host = capability is None
        self._log: AllocationLog | None = None
        self._budget = 0
        self.weights_matter = True

    # ------------------------------------------------------------ without running

    def by_trace(self) -> Limit:
        memory = self._question.gpu_memory_bytes
        if memory is None:
            raise InputError("without a GPU, say how much memory the one you mean has: --gpu-memory 16GiB")
        self._budget = memory - self._question.reserve_bytes
        self._emit("phase", "following one step on a GPU that is not there")
        self._log = traced.record(self._workload, self._mode, self._question, self._question.gpu or self._capability)
        found = traced.estimate(self._log, self._budget)
        return self._limit(found.likely, found.interval, found.calm, estimate=found, method="trace")

    # ------------------------------------------------------------ what every run needs

    def prepare(self) -> None:
        """Look at the device, follow the step and make the model, side by side."""
        self._emit("phase", "following one step, and making the model")
        question = self._question
        job = Job(
            mode=self._mode,
            precision=question.precision,
            device="cpu" if self._on_host else question.device,
            validate=question.validate,
            cudnn_benchmark=question.cudnn_benchmark,
        )
        self._cradle = Cradle(self._workload, job, lazy=not self.weights_matter)
        room = self._cradle.room()
        tracing = self._trace() if question.method == "auto" and not self._on_host else None
        self._cradle.model  # noqa: B018 - made now, while the others run
        self._settle_budget(_value(room))
        if tracing is not None:
            log = tracing.result()
            if isinstance(log, Failure):
                self._notes.append(f"found by trying alone: {log.sentence}")
            else:
                self._log = log
        if self._cradle.example.note:
            self._notes.append(self._cradle.example.note)
        if question.cudnn_benchmark:
            self._notes.append("cudnn.benchmark tries algorithms at each new size: memory differs from run to run")

    def _trace(self) -> Forked[AllocationLog]:
        return Forked(
            lambda: traced.record(self._workload, self._mode, self._question, self._capability), AllocationLog
        )

    def _settle_budget(self, room: Room) -> None:
        """What tensors may take, with what others hold taken off."""
        asked, reserve = self._question.gpu_memory_bytes, self._question.reserve_bytes
        if asked is not None and asked > room.total_bytes:
            raise InputError(
                f"{room.device} has {format_bytes(room.total_bytes)}, and {format_bytes(asked)} was asked for; "
                "--method trace answers for a GPU that is not here"
            )
        taken = room.total_bytes - room.free_bytes
        if asked is None:
            what = "what runs here now" if self._on_host else "the CUDA context and other processes"
            self._notes.append(f"{format_bytes(taken)} of {format_bytes(room.total_bytes)} is held by {what}")
        elif asked > room.free_bytes:
            self._notes.append(
                f"only {format_bytes(room.free_bytes)} of the {format_bytes(asked)} asked for is free: the CUDA "
                f"context and other processes hold {format_bytes(taken)}"
            )
        free = int(room.free_bytes * _HOST_SHARE) if self._on_host else room.free_bytes
        self._budget = min(asked if asked is not None else free, free) - reserve
        if self._budget < 1:
            raise InputError(f"nothing is left: {format_bytes(room.free_bytes)} is free on {room.device}")
        capped = asked is not None or reserve or self._on_host
        self._cradle.job = msgspec.structs.replace(self._cradle.job, budget_bytes=self._budget if capped else None)

    def _holds(self, batch_size: int) -> bool:
        return self._try(batch_size).outcome == "done"

    def _try(self, batch_size: int, *, steps: int = 3, weigh: bool = False) -> Probe:
        """Run it; a step that fails for want of anything but memory ends the search where nothing smaller ran."""
        self._emit("phase", f"trying a batch of {batch_size}")
        probe = self._cradle.attempt(batch_size, steps=steps, weigh=weigh)
        self._probes[batch_size] = probe
        if probe.outcome in ("failed", "crashed") and not any(
            other.outcome == "done" and other.batch_size < batch_size for other in self._probes.values()
        ):
            self._fail(probe)
        if probe.outcome in ("failed", "crashed") and probe.problem:
            self._notes.append(
                f"a batch of {batch_size} fails for another reason than memory: {probe.problem.sentence}"
            )
        self._watch_others(probe)
        return probe

    def _fail(self, probe: Probe) -> None:
        """Where a small batch fails too, it is no question of the size."""
        tiny = probe if probe.batch_size == 1 else self._cradle.attempt(1)
        if tiny.outcome in ("failed", "crashed") and tiny.problem:
            where = f", at {tiny.problem.where}" if tiny.problem.where else ""
            raise InputError(f"the step fails, and not for want of memory: {tiny.problem.sentence}{where}")
        self._probes[1] = tiny

    def _watch_others(self, probe: Probe) -> None:
        """A GPU that someone else fills meanwhile makes a size fail that would have fitted."""
        short = self._budget + self._question.reserve_bytes - probe.free_bytes
        told = any("took" in note for note in self._notes)
        if probe.outcome == "oom" and short > _NOTABLE_BYTES and not told:
            self._notes.append(
                f"another process took {format_bytes(short)} during the search: the answer is for what it left"
            )

    # ------------------------------------------------------------ the methods

    def by_auto(self) -> Limit:
        """From the trace's guess, close in by real steps until one ran and the next just above it failed."""
        if self._on_host:
            return self._by_host()
        estimate = traced.estimate(self._log, self._budget) if self._log else None
        if estimate:
            found = close(self._holds, guess=estimate.likely, ceiling=_CEILING, tolerance=self._question.tolerance)
        else:
            wide = doubled(self._holds, start=_FIRST_DOUBLING, ceiling=_CEILING)
            found = bisected(self._holds, wide, tolerance=self._question.tolerance)
        self._need(found)
        comfortable = self._comfortable(found.ran, estimate)
        limit = self._ran(found, comfortable, estimate, "auto")
        return msgspec.structs.replace(limit, remedies=self._remedies(found)) if self._question.advise else limit

    def by_search(self) -> Limit:
        """Doubling, then bisection, to the exact edge of what runs from a fresh start."""
        wide = doubled(self._holds, start=1, ceiling=_CEILING)
        found = bisected(self._holds, wide, tolerance=0.0)
        self._need(found)
        return self._ran(found, None, None, "search")

    def by_doubling(self) -> Limit:
        """The thesis' manual search (5.5.1): powers of two from 32 up, each for a share of an epoch's iterations."""
        items = self._cradle.example.of or 0
        times: list[tuple[float, int]] = []

        def holds(batch_size: int) -> bool:
            iterations = max(1, round(_SHARE * items / batch_size))
            probe = self._try(batch_size, steps=min(_RUN_ITERATIONS, max(3, iterations)))
            if probe.outcome == "done":
                steady = probe.step_s[1:]
                times.append((sum(steady) / len(steady), iterations))
            return probe.outcome == "done"

        found = doubled(holds, start=_FIRST_DOUBLING, ceiling=_CEILING)
        self._need(found)
        total = sum(seconds * iterations for seconds, iterations in times)
        self._notes.append(
            f"{_SHARE:.0%} of an epoch of {items} items at each size would take {format_seconds(total)} (equation 5.2)"
        )
        return self._ran(found, None, None, "doubling")

    def by_two_points(self) -> Limit:
        """The thesis' estimate (4.1): reserved memory at two sizes, and the line through them."""
        readings = []
        for batch_size in two_point.BATCHES:
            probe = self._try(batch_size, steps=two_point.ITERATIONS, weigh=True)
            if probe.outcome != "done":
                raise InputError(f"the two-point method needs batches of 10 and 50, and {batch_size} does not fit")
            later = probe.reserved_samples[-two_point.COUNTED :]
            readings.append(
                two_point.Reading(
                    batch_size=batch_size,
                    memory_bytes=sum(later) / len(later),
                    input_bytes=probe.input_bytes,
                    output_bytes=probe.output_bytes,
                )
            )
        solved = two_point.solve(*readings)
        most = solved.largest(self._budget, gpus=self._question.gpus)
        if any(isinstance(module, torch.nn.RNNBase) for module in self._cradle.model.modules()):
            self._notes.append("the thesis makes no claim for recurrent nets, and this model has recurrent layers")
        limit = self._limit(most, (most, most), None, estimate=None, method="two-point")
        return msgspec.structs.replace(
            limit,
            peak_bytes_at_max=round(solved.memory(most // self._question.gpus)),
            bytes_per_item=round(solved.item_bytes),
            fixed_bytes=max(0, round(solved.x_bytes)),
        )

    def _by_host(self) -> Limit:
        """Host memory bounds it. Large steps are slow there, so the guess comes from small ones."""
        self._notes.append("no GPU here: host memory bounds the batch")
        small = [self._try(batch_size, steps=2) for batch_size in (2, 4, 8)]
        if any(probe.outcome != "done" for probe in small):
            found = doubled(self._holds, start=1, ceiling=8)
            self._need(found)
            return self._ran(found, found.ran, None, "auto")
        low, high = small[0], small[-1]
        item = max(1, (high.peak_bytes - low.peak_bytes) // (high.batch_size - low.batch_size))
        guess = max(1, (self._budget - high.peak_bytes) // item + high.batch_size)
        step_s = high.step_s[-1] / high.batch_size * guess
        if step_s * 3 * 3 <= _PATIENCE_S:
            found = close(self._holds, guess=guess, ceiling=_CEILING, tolerance=self._question.tolerance)
            self._need(found)
            return self._ran(found, found.ran, None, "auto")
        self._notes.append(
            f"reckoned from batches of 2 to 8, not run: a step of {guess} would take about {format_seconds(step_s)}"
        )
        limit = self._limit(guess, (int(guess * 0.9), int(guess * 1.1)), None, estimate=None, method="auto")
        return msgspec.structs.replace(
            limit,
            peak_bytes_at_max=high.peak_bytes + item * (guess - high.batch_size),
            bytes_per_item=item,
            fixed_bytes=max(0, high.peak_bytes - item * high.batch_size),
        )

    def _need(self, found: Bracket) -> None:
        if not found.ran:
            needed = self._probes[1].peak_bytes if 1 in self._probes else 0
            raise InputError(traced.too_large(max(needed, self._budget), self._budget))

    def _comfortable(self, ran: int, estimate: Estimate | None) -> int | None:
        """The largest size seen to run without a retry; a few more are tried where the largest needed one."""
        size = min(estimate.calm, ran - 1) if estimate else ran * 9 // 10
        for _ in range(_COMFORT_TRIES):
            calm = [
                probe.batch_size for probe in self._probes.values() if probe.outcome == "done" and not probe.retries
            ]
            if calm or size < 1:
                break
            self._try(size)
            size = size * 95 // 100
        return max(calm, default=None)

    def _remedies(self, found: Bracket) -> tuple[Remedy, ...]:
        """What priming with a tiny batch, or segments that grow, would bring: tried."""
        remedies = []
        for what, how in (
            ("primed", "run one tiny batch before the first large one: stoker.prime(model, example)"),
            ("expandable", "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ):
            guess = self._primed_guess() if what == "primed" else None

            def holds(batch_size: int, what: str = what) -> bool:
                self._emit("phase", f"trying a batch of {batch_size}, {what}")
                probe = self._cradle.attempt(batch_size, primed=what == "primed", expandable=what == "expandable")
                return probe.outcome == "done"

            best = close(holds, guess=guess or found.ran, ceiling=_CEILING, tolerance=self._question.tolerance)
            remedies.append(Remedy(what=what, how=how, predicted_batch=guess, max_batch=best.ran))
        return tuple(remedies)

    def _primed_guess(self) -> int | None:
        return traced.primed(self._log, self._budget) if self._log else None

    # ------------------------------------------------------------ the answer

    def _ran(self, found: Bracket, comfortable: int | None, estimate: Estimate | None, method: str) -> Limit:
        done = [size for size, probe in self._probes.items() if probe.outcome == "done"]
        larger = [size for size in done if found.failed is not None and size > found.failed]
        if larger:
            self._notes.append(
                f"fitting is not monotone: {found.failed} failed, and {max(larger)}, which is larger, ran too"
            )
        if found.failed is None:
            self._notes.append(f"the search ends at {found.ran}: larger batches were not tried")
        last = max([found.ran, *larger])
        limit = self._limit(found.ran, (found.ran, last), comfortable, estimate=estimate, method=method)
        peak = self._probes[found.ran].peak_bytes
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
        done = sorted(size for size, probe in self._probes.items() if probe.outcome == "done")
        if len(done) < 2:
            return 0
        low, high = done[0], done[-1]
        return max(0, (self._probes[high].peak_bytes - self._probes[low].peak_bytes) // (high - low))

    def _limit(
        self,
        most: int,
        interval: tuple[int, int],
        comfortable: int | None,
        *,
        estimate: Estimate | None,
        method: str,
    ) -> Limit:
        items = self._cradle.example.of if hasattr(self, "_cradle") else None
        if items is not None and most > items and not self._workload.facts.get("on_device"):
            self._notes.append(f"the set has only {items} items: no batch of it can be larger")
        return Limit(
            max_batch=most,
            interval=interval,
            comfortable_batch=comfortable,
            method=method,  # type: ignore[arg-type]
            gpu_memory_bytes=self._budget,
            peak_bytes_at_max=estimate.peak_bytes if estimate else 0,
            bytes_per_item=estimate.bytes_per_item if estimate else 0,
            fixed_bytes=estimate.fixed_bytes if estimate else 0,
            workload=self._name,
            mode=self._mode,
            precision=self._question.precision,
            optimizer=self._question.optimizer,
            memory="host" if self._on_host and method != "trace" else "GPU",
            predicted_batch=estimate.likely if estimate else None,
            predicted_interval=estimate.interval if estimate else None,
            probes=tuple(self._probes.values()),
            notes=tuple(dict.fromkeys(self._notes)),
            attention=self._log.attention if self._log else (),
            unseen=self._log.unseen if self._log else (),
        )


def _value(forked: Forked[Room]) -> Room:
    result = forked.result()
    if isinstance(result, Failure):
        raise (StokerError if result.kind else MachineError)(result.sentence)
    return result
