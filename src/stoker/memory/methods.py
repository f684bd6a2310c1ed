"""Answers from real steps, in a process that forks one for each try; a trace says where to look first."""

import msgspec
import torch

from stoker.errors import InputError, MachineError
from stoker.events import OnEvent, Phase
from stoker.machine import gpu as driver
from stoker.measure.session import open_workload
from stoker.memory import traced, two_point
from stoker.memory.bracket import Bracket, bisected, close, doubled
from stoker.memory.limit import Question
from stoker.memory.replay import CEILING
from stoker.memory.search import Search
from stoker.memory.trace import compiled
from stoker.memory.trace.gpus import is_known
from stoker.memory.trace.log import AllocationLog
from stoker.memory.traced import Estimate, Replays
from stoker.process.threads import limit_threads
from stoker.records import Attempt, Gpu, Limit, LimitRemedy, WorkloadSpec
from stoker.units import format_seconds
from stoker.workload import calls
from stoker.workload.example import worst_example
from stoker.workload.workload import Workload

_CEILING = 2**20
_COMFORT_TRIES, _LESS = 3, 95
"""How often a size without a retry is looked for, each of so many per cent of the one before."""
_MANY_RETRIES = 8
"""From so many on at the likely size, tries are in each other's way: the driver takes memory back from one at once."""
_FIRST_DOUBLING = 32
_SHARE, _RUN_ITERATIONS = 0.01, 20
"""The thesis' manual search runs 0.5 to 2 % of an epoch's iterations at a size; we run so many and reckon the rest."""
_APART_BYTES = 512 * 2**20
"""How much more memory a batch must take for what an item takes to be told: the rest of a process comes and goes."""
_PATIENCE_S = 60.0
"""How long tries on the host may take together before an answer is reckoned from those made."""


def answer(source: Workload | WorkloadSpec, question: Question, emit: OnEvent) -> Limit:
    """The limit by the method asked for. Runs in a process that has touched no device."""
    compiled.watch()
    limit_threads()
    workload = open_workload(source, question.mode, emit)
    mode = question.mode or workload.default_mode()
    if question.optimizer:
        from stoker.memory.trace.follow import OPTIMIZERS

        workload = workload.with_(optimizer=OPTIMIZERS[question.optimizer])
    card = _card(question)
    gpu = _kind(card) if card else None
    name = source.spec if isinstance(source, WorkloadSpec) else source.name
    search = Search(workload, name, mode, question, gpu, emit)
    search.one_at_a_time = card is not None and card.exclusive
    search.free_by_driver_bytes = card.memory_free_bytes if card else 0
    search.weights_matter = not isinstance(source, WorkloadSpec) or source.from_function
    elsewhere = gpu is None and question.gpu_memory_bytes is not None and question.device != "cpu"
    if question.method == "trace" or (elsewhere and question.method == "auto"):
        return by_trace(search)
    if gpu is None and (question.method != "auto" or question.device.startswith("cuda")):
        raise MachineError(f"--method {question.method} runs steps on a GPU, and torch finds none here; use trace")
    search.prepare()
    by = {"auto": by_auto, "search": by_search, "doubling": by_doubling, "two-point": by_two_points}
    return by[question.method](search)


def _card(question: Question) -> Gpu | None:
    """The GPU by the driver's word: nothing here may touch the device. None where none is to be used."""
    if question.device == "cpu" or not torch.backends.cuda.is_built():
        return None
    cards, cuda = driver.read()
    cards = driver.visible(cards, cuda.visible_devices)
    index = int(question.device.partition(":")[2] or 0)
    if question.device.startswith("cuda") and cards and index >= len(cards):
        raise InputError(f"{question.device} was asked for, but there are only {len(cards)} GPUs here")
    return cards[index] if cards else None


def _kind(card: Gpu) -> str:
    """What a trace assumes the kernels of: its name or else its generation."""
    return card.name if is_known(card.name) else card.compute_capability or "8.0"


def by_trace(search: Search) -> Limit:
    """One step followed on a GPU that is not there, and replayed at any size."""
    memory = search.question.gpu_memory_bytes
    if memory is None:
        raise InputError("without a GPU, say how much memory the one you mean has: --gpu-memory 16GiB")
    search.budget_bytes = memory - search.question.reserve_bytes
    search.emit(Phase(name="tracing", text="tracing one step on a simulated GPU"))
    example = worst_example(search.workload)
    search.see(example)
    gpu = search.question.gpu or search.gpu
    search.log = traced.record(search.workload, search.mode, search.question, gpu, example)
    found = Replays(search.log, search.budget_bytes).estimate()
    if found.likely >= CEILING:
        search.notes.append(f"the search ends at {found.likely}: larger batches were not looked at")
    return search.limit(found.likely, found.interval, found.calm, estimate=found, method="trace")


def by_auto(search: Search) -> Limit:
    """From the trace's guess, close in by real steps until one ran and the next just above it failed."""
    if search.on_host:
        return _by_host(search)
    try:
        guide = _Guide(search, search.log) if search.log else None
        found = _closed(search, guide)
        search.need(found)
        estimate = guide.estimate if guide else None
        comfortable = _comfortable(search, found.ran, estimate)
    finally:
        search.end()
    limit = search.ran(found, comfortable, estimate, "auto")
    return msgspec.structs.replace(limit, remedies=_remedies(search, found)) if search.question.advise else limit


class _Guide:
    """What the replay says of where to look: the likely size first, the rest while that is being tried."""

    def __init__(self, search: Search, log: AllocationLog) -> None:
        self._search = search
        self._replays = Replays(log, search.budget_bytes)
        self.guess = self._replays.likely
        self.estimate: Estimate | None = None

    def ahead(self, sizes: list[int]) -> int | None:
        """Begin what may be needed next, and say what is the most that is likely, where that can still change it."""
        first = self.estimate is None
        if self._replays.retries > _MANY_RETRIES:
            sizes = sizes[: 2 if first else 1]
        if self.estimate is None:
            self._search.begin(sizes)
            self.estimate = self._replays.estimate()
        retries = min(self.estimate.calm, sizes[0]) < self.guess  # the largest will need some, by all that is known
        self._search.begin((*sizes, _calm_guess(self.estimate, sizes[0])) if retries else sizes)
        return None if first and self._search.at_once > 1 else self.estimate.most


def _closed(search: Search, guide: _Guide | None) -> Bracket:
    """The edge, from where it is told to be."""
    tolerance = search.question.tolerance
    if not guide:
        wide = doubled(search.holds, start=_FIRST_DOUBLING, ceiling=_CEILING)
        return bisected(search.holds, wide, tolerance=tolerance)
    return close(search.holds, guess=guide.guess, ceiling=_CEILING, tolerance=tolerance, ahead=guide.ahead)


def by_search(search: Search) -> Limit:
    """Doubling, then bisection, to the exact edge of what runs from a fresh start."""
    wide = doubled(search.holds, start=1, ceiling=_CEILING)
    found = bisected(search.holds, wide, tolerance=0.0)
    search.need(found)
    return search.ran(found, None, None, "search")


def by_doubling(search: Search) -> Limit:
    """The thesis' manual search (5.5.1): powers of two from 32 up, each for a share of an epoch's iterations."""
    items = search.cradle.example.of or 0
    times: list[tuple[float, int]] = []

    def holds(batch_size: int) -> bool:
        iterations = max(1, round(_SHARE * items / batch_size))
        probe = search.try_size(batch_size, steps=min(_RUN_ITERATIONS, max(3, iterations)))
        if probe.outcome == "done":
            steady = probe.step_s[1:]
            times.append((sum(steady) / len(steady), iterations))
        return probe.outcome == "done"

    found = doubled(holds, start=_FIRST_DOUBLING, ceiling=_CEILING)
    search.need(found)
    total = sum(seconds * iterations for seconds, iterations in times)
    search.notes.append(
        f"{_SHARE:.0%} of an epoch of {items} items at each size would take {format_seconds(total)} (equation 5.2)"
    )
    return search.ran(found, None, None, "doubling")


def by_two_points(search: Search) -> Limit:
    """The thesis' estimate (4.1): reserved memory at two sizes, and the line through them."""
    readings = []
    for batch_size in two_point.BATCHES:
        probe = search.try_size(batch_size, steps=two_point.ITERATIONS, weigh=True)
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
    most = solved.largest(search.budget_bytes, gpus=search.question.gpus)
    if any(isinstance(module, torch.nn.RNNBase) for module in search.cradle.model.modules()):
        search.notes.append("the thesis makes no claim for recurrent nets, and this model has recurrent layers")
    limit = search.limit(most, (most, most), None, estimate=None, method="two-point")
    return msgspec.structs.replace(
        limit,
        peak_bytes_at_max=round(solved.memory(most // search.question.gpus)),
        bytes_per_item=round(solved.item_bytes),
        fixed_bytes=max(0, round(solved.x_bytes)),
    )


def _by_host(search: Search) -> Limit:
    """Host memory bounds it. Large steps are slow there, so the guess comes from small ones."""
    search.notes.append("no GPU here: host memory bounds the batch")
    low, high = _two_sizes(search)
    if high is None:
        found = doubled(search.holds, start=1, ceiling=8)
        search.need(found)
        return search.ran(found, found.ran, None, "auto")
    own_bytes = calls.batch_bytes(search.cradle.example.item)
    item = max(1, own_bytes, (high.peak_bytes - low.peak_bytes) // (high.batch_size - low.batch_size))
    guess = max(1, (search.budget_bytes - high.peak_bytes) // item + high.batch_size)
    step_s = high.step_s[-1] / high.batch_size * guess
    if step_s * 3 * 3 <= _PATIENCE_S:
        found = close(search.holds, guess=guess, ceiling=_CEILING, tolerance=search.question.tolerance)
        search.need(found)
        return search.ran(found, found.ran, None, "auto")
    search.notes.append(
        f"reckoned from batches of {low.batch_size} to {high.batch_size}, not run: "
        f"a step of {guess} would take about {format_seconds(step_s)}"
    )
    limit = search.limit(guess, (int(guess * 0.9), int(guess * 1.1)), None, estimate=None, method="auto")
    return msgspec.structs.replace(
        limit,
        peak_bytes_at_max=high.peak_bytes + item * (guess - high.batch_size),
        bytes_per_item=item,
        fixed_bytes=max(0, high.peak_bytes - item * high.batch_size),
    )


def _two_sizes(search: Search) -> tuple[Attempt, Attempt | None]:
    """A batch and a larger one that takes so much more memory that the difference can be trusted; None in its place
    where a small one does not run. Sizes grow while they are quick, and while the difference is a small part of what is
    left: most of what a small batch takes may be torch's own."""
    low, high = search.try_size(2, steps=2), None
    while low.outcome == "done":
        probe = search.try_size(4 * (high or low).batch_size, steps=2)
        if probe.outcome != "done":
            break
        low, high = high or low, probe
        apart = high.peak_bytes - low.peak_bytes
        if apart >= min(_APART_BYTES, (search.budget_bytes - low.peak_bytes) // 8):
            break
        if 4 * high.step_s[-1] > _PATIENCE_S / 20:
            break
    return low, high


def _comfortable(search: Search, ran: int, estimate: Estimate | None) -> int | None:
    """The largest size seen to run without a retry; a few more are tried where the largest needed one."""
    size = _calm_guess(estimate, ran) if estimate else ran * 9 // 10
    benchmark = search.question.cudnn_benchmark  # its tries take long, and its algorithms make the allocator retry
    for _ in range(1 if benchmark else _COMFORT_TRIES):
        if search.calm() or size < 1:
            break
        search.try_size(size)
        size = size * _LESS // 100
    return max(search.calm(), default=None)


def _calm_guess(estimate: Estimate, size: int) -> int:
    """Where to look for a size without a retry, below one that needs some: as told, or else a little less."""
    told = (estimate.calm, estimate.likely * _LESS // 100, size * _LESS // 100)
    return next((each for each in told if each < size), 0)


def _remedies(search: Search, found: Bracket) -> tuple[LimitRemedy, ...]:
    """What priming with a tiny batch, or segments that grow, would bring: tried."""
    remedies = []
    for what, how in (
        ("primed", "run one tiny batch before the first large one: stoker.prime(model, example)"),
        ("expandable", "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ):
        guess = _primed_guess(search) if what == "primed" else None

        def holds(batch_size: int, what: str = what) -> bool:
            search.emit(Phase(name="trying_batch", text=f"trying a batch of {batch_size}, {what}"))
            probe = search.cradle.attempt(batch_size, primed=what == "primed", expandable=what == "expandable")
            return probe.outcome == "done"

        best = close(holds, guess=guess or found.ran, ceiling=_CEILING, tolerance=search.question.tolerance)
        remedies.append(LimitRemedy(what=what, how=how, predicted_batch=guess, max_batch=best.ran))
    return tuple(remedies)


def _primed_guess(search: Search) -> int | None:
    return Replays(search.log, search.budget_bytes).primed() if search.log else None
