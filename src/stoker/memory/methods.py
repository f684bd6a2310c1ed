"""The methods of `limit`: a trace, real steps that close in on its guess, and three simpler searches by real steps."""

from collections.abc import Sequence

import msgspec
import torch

from stoker.errors import InputError, MachineError
from stoker.events import OnEvent, Phase
from stoker.machine import gpu as driver
from stoker.measure.session import open_workload
from stoker.memory import ahead, two_point
from stoker.memory.bracket import Bracket, bisected, close, doubled
from stoker.memory.limit import LimitRequest
from stoker.memory.replay import RULES as REPLAY
from stoker.memory.replay import Estimate, Replays, less, replay
from stoker.memory.search import RULES as SEARCH
from stoker.memory.search import ForkedSearch
from stoker.memory.trace import quirks
from stoker.memory.trace.log import AllocationLog
from stoker.memory.tries import TryOrder
from stoker.process.threads import limit_threads
from stoker.records import Attempt, Gpu, Limit, LimitRemedy, Record, WorkloadSpec
from stoker.units import format_seconds
from stoker.workload import calls
from stoker.workload.example import worst_example
from stoker.workload.optimizers import OPTIMIZERS
from stoker.workload.workload import Workload


class ComfortRules(Record, frozen=True):
    """The search for a size without a retry of the allocator."""

    tries: int = 3
    """Sizes that are tried."""
    tries_with_benchmark: int = 1
    """With cudnn.benchmark tries take long, and its algorithms make the allocator retry anyway."""
    first_percent: int = 90
    """The first size without a trace, as a share of the largest."""


class DoublingRules(Record, frozen=True):
    """Doubling as published (5.5.1 of A. Tripathi's thesis, UT Austin, 2019)."""

    epoch_share: float = 0.01
    """It runs 0.5 to 2 % of an epoch's iterations at each size."""
    least_iterations: int = 3
    most_iterations: int = 20
    """Of those, so many are run here; the time of the rest is extrapolated."""


class HostRules(Record, frozen=True):
    """The search in host memory, where large steps are slow."""

    patience_s: float = 60.0
    """How long tries may take together before the answer is extrapolated from smaller ones."""
    apart_bytes: int = 512 * 2**20
    """How much more memory the larger batch must take: the rest of a process comes and goes."""
    apart_share: int = 8
    """Or this part of what is left, if that is less."""
    growth: int = 4
    """The factor from one batch size to the next."""
    slow_share: int = 20
    """The larger batch is not grown further if its step takes this part of the patience."""
    steps: int = 2
    """Steps of the two tries that the guess comes from."""
    tries: int = 3
    """How many tries closing in is expected to take, of three steps each."""
    margin: float = 0.1
    """The half-width of an extrapolated interval."""
    small_ceiling: int = 8
    """Where a batch of 2 does not run, sizes up to this are tried."""


COMFORT, DOUBLING, HOST = ComfortRules(), DoublingRules(), HostRules()


def answer(source: Workload | WorkloadSpec, request: LimitRequest, emit: OnEvent) -> Limit:
    """The limit by the method asked for. Runs in a process that has touched no device."""
    quirks.watch_compile()
    limit_threads()
    workload = open_workload(source, request.mode, emit)
    mode, reason = workload.mode_choice(request.mode)
    workload = calls.opened(workload)
    if request.optimizer:
        workload = workload.with_(optimizer=OPTIMIZERS[request.optimizer])
    card = _card(request)
    by_name = isinstance(source, WorkloadSpec)
    name = source.spec if isinstance(source, WorkloadSpec) else source.name
    search = ForkedSearch(workload, name, mode, request, card, emit, lazy=by_name and ":" not in name)
    search.mode_reason = reason
    elsewhere = card is None and request.gpu_memory is not None and request.device != "cpu"
    if request.method == "trace" or (elsewhere and request.method == "auto"):
        return by_trace(search)
    if elsewhere and request.method == "two-point":
        return by_traced_two_points(search)
    if card is None and (request.method != "auto" or request.device.startswith("cuda")):
        raise MachineError(f"--method {request.method} runs steps on a GPU, and torch finds none here; use trace")
    search.prepare()
    by = {"auto": by_auto, "search": by_search, "doubling": by_doubling, "two-point": by_two_points}
    return by[request.method](search)


def _card(request: LimitRequest) -> Gpu | None:
    """The GPU as the driver describes it, without touching it; None if none is to be used."""
    if request.device == "cpu" or not torch.backends.cuda.is_built():
        return None
    cards, cuda = driver.read()
    cards = driver.visible(cards, cuda.visible_devices)
    index = int(request.device.partition(":")[2] or 0)
    if request.device.startswith("cuda") and cards and index >= len(cards):
        raise InputError(f"{request.device} was asked for, but there are only {len(cards)} GPUs here")
    return cards[index] if cards else None


def by_trace(search: ForkedSearch) -> Limit:
    """Follow one step on a simulated GPU, and replay it at any size."""
    search.log = _traced(search)
    found = Replays(search.log, search.budget_bytes).estimate()
    if found.likely >= REPLAY.ceiling:
        search.notes.append(f"the search ends at {found.likely}: larger batches were not looked at")
    return search.limit(found.likely, found.interval, found.without_retry, estimate=found, method="trace")


def _traced(search: ForkedSearch) -> AllocationLog:
    """The log of one step on a simulated GPU that has as much memory as was asked about."""
    memory = search.request.gpu_memory_bytes
    if memory is None:
        raise InputError("without a GPU, say how much memory the one you mean has: --gpu-memory 16GiB")
    search.budget_bytes = memory - search.request.reserve_bytes
    search.emit(Phase(name="tracing", text="tracing one step on a simulated GPU"))
    example = worst_example(search.workload)
    search.see(example)
    return search.trace(example)


def by_auto(search: ForkedSearch) -> Limit:
    """Close in on the trace's guess by real steps, until one size ran and the next just above it failed."""
    if search.on_host:
        return _by_host(search)
    with search.trying():
        found, estimate = _closed(search)
        search.need(found)
        comfortable = _comfortable(search, found.ran, estimate)
    limit = search.ran(found, comfortable, estimate, "auto")
    return msgspec.structs.replace(limit, remedies=_remedies(search, found)) if search.request.advise else limit


def _closed(search: ForkedSearch) -> tuple[Bracket, Estimate | None]:
    """The edge, from the trace's guess; by doubling and bisection if the step could not be followed."""
    ceiling, tolerance = SEARCH.ceiling, search.request.tolerance
    if search.log is None or search.ahead is None:
        wide = doubled(search.holds, start=SEARCH.first_doubling, ceiling=ceiling)
        return bisected(search.holds, wide, tolerance=tolerance), None
    replays = Replays(search.log, search.budget_bytes)
    return ahead.close_in(search.ahead, search.holds, replays, ceiling=ceiling, tolerance=tolerance)


def by_search(search: ForkedSearch) -> Limit:
    """Double, then bisect, to the exact edge of what runs in a fresh process."""
    wide = doubled(search.holds, start=1, ceiling=SEARCH.ceiling)
    found = bisected(search.holds, wide, tolerance=0.0)
    search.need(found)
    return search.ran(found, None, None, "search")


def by_doubling(search: ForkedSearch) -> Limit:
    """Powers of two from 32 up, each for a share of an epoch's iterations (5.5.1)."""
    items = search.factory.example.of or 0
    times: list[tuple[float, int]] = []

    def holds(batch_size: int) -> bool:
        iterations = max(1, round(DOUBLING.epoch_share * items / batch_size))
        steps = min(DOUBLING.most_iterations, max(DOUBLING.least_iterations, iterations))
        attempt = search.attempt(batch_size, steps=steps)
        if attempt.outcome == "done":
            steady = attempt.step_s[1:]
            times.append((sum(steady) / len(steady), iterations))
        return attempt.outcome == "done"

    found = doubled(holds, start=SEARCH.first_doubling, ceiling=SEARCH.ceiling)
    search.need(found)
    total = sum(seconds * iterations for seconds, iterations in times)
    search.notes.append(
        f"{DOUBLING.epoch_share:.0%} of an epoch of {items} items at each size would take {format_seconds(total)} "
        "(equation 5.2)"
    )
    return search.ran(found, None, None, "doubling")


def by_two_points(search: ForkedSearch) -> Limit:
    """Reserved memory at two sizes, and the line through them (4.1)."""
    rules = two_point.RULES
    readings = []
    for batch_size in rules.batches:
        attempt = search.attempt(batch_size, steps=rules.iterations, weigh=True)
        if attempt.outcome != "done":
            raise _does_not_fit(batch_size)
        later = attempt.reserved_samples[-rules.counted :]
        readings.append(
            two_point.Reading(
                batch_size=batch_size,
                memory_bytes=sum(later) / len(later),
                input_bytes=attempt.input_bytes,
                output_bytes=attempt.output_bytes,
            )
        )
    if any(isinstance(module, torch.nn.RNNBase) for module in search.factory.model.modules()):
        search.notes.append("two-point makes no claim for recurrent nets, and this model has recurrent layers")
    return _on_the_line(search, readings)


def by_traced_two_points(search: ForkedSearch) -> Limit:
    """The same where there is no GPU: memory at both sizes as a traced step reserves it."""
    search.log = log = _traced(search)
    readings = []
    for batch_size in two_point.RULES.batches:
        found = replay(log, batch_size, search.budget_bytes)
        if not found.fits:
            raise _does_not_fit(batch_size)
        # The bytes of inputs and outputs are part of what grows with the batch: the answer is the same without them.
        readings.append(
            two_point.Reading(
                batch_size=batch_size, memory_bytes=found.reserved_peak_bytes, input_bytes=0.0, output_bytes=0.0
            )
        )
    search.notes.append("two-point: memory at both sizes was traced on a simulated GPU, not read from one")
    return msgspec.structs.replace(_on_the_line(search, readings), memory="GPU")


def _does_not_fit(batch_size: int) -> InputError:
    return InputError(f"the two-point method needs batches of 10 and 50, and {batch_size} does not fit")


def _on_the_line(search: ForkedSearch, readings: Sequence[two_point.Reading]) -> Limit:
    """The batch at which the line through two readings reaches the memory there is."""
    solved = two_point.solve(*readings)
    gpus = search.request.gpus
    most = solved.largest(search.budget_bytes, gpus=gpus)
    limit = search.limit(most, (most, most), None, estimate=None, method="two-point")
    return msgspec.structs.replace(
        limit,
        peak_bytes_at_max=round(solved.memory(most // gpus)),
        bytes_per_item=round(solved.item_bytes),
        fixed_bytes=max(0, round(solved.x_bytes)),
    )


def _by_host(search: ForkedSearch) -> Limit:
    """Host memory bounds the batch. Large steps are slow there, so the guess comes from small ones."""
    search.notes.append("no GPU here: host memory bounds the batch")
    low, high = _two_sizes(search)
    if high is None:
        found = doubled(search.holds, start=1, ceiling=HOST.small_ceiling)
        search.need(found)
        return search.ran(found, found.ran, None, "auto")
    own_bytes = calls.batch_bytes(search.factory.example.item)
    item = max(1, own_bytes, (high.peak_bytes - low.peak_bytes) // (high.batch_size - low.batch_size))
    guess = max(1, (search.budget_bytes - high.peak_bytes) // item + high.batch_size)
    step_s = high.step_s[-1] / high.batch_size * guess
    if step_s * HOST.tries * HOST.tries <= HOST.patience_s:
        found = close(search.holds, guess=guess, ceiling=SEARCH.ceiling, tolerance=search.request.tolerance)
        search.need(found)
        return search.ran(found, found.ran, None, "auto")
    search.notes.append(
        f"extrapolated from batches of {low.batch_size} to {high.batch_size}, not run: "
        f"a step of {guess} would take about {format_seconds(step_s)}"
    )
    interval = (int(guess * (1 - HOST.margin)), int(guess * (1 + HOST.margin)))
    limit = search.limit(guess, interval, None, estimate=None, method="auto")
    return msgspec.structs.replace(
        limit,
        peak_bytes_at_max=high.peak_bytes + item * (guess - high.batch_size),
        bytes_per_item=item,
        fixed_bytes=max(0, high.peak_bytes - item * high.batch_size),
    )


def _two_sizes(search: ForkedSearch) -> tuple[Attempt, Attempt | None]:
    """A batch, and a larger one that takes so much more memory that the difference can be trusted.

    The larger one is None if a small one does not run. Sizes grow while they are quick, and while the difference is a
    small part of what is left: most of what a small batch takes may be torch's own.
    """
    low, high = search.attempt(2, steps=HOST.steps), None
    while low.outcome == "done":
        attempt = search.attempt(HOST.growth * (high or low).batch_size, steps=HOST.steps)
        if attempt.outcome != "done":
            break
        low, high = high or low, attempt
        apart = high.peak_bytes - low.peak_bytes
        if apart >= min(HOST.apart_bytes, (search.budget_bytes - low.peak_bytes) // HOST.apart_share):
            break
        if HOST.growth * high.step_s[-1] > HOST.patience_s / HOST.slow_share:
            break
    return low, high


def _comfortable(search: ForkedSearch, ran: int, estimate: Estimate | None) -> int | None:
    """The largest size seen to run without a retry. If the largest of all needed one, try a few smaller ones."""
    size = estimate.smaller_without_retry(ran) if estimate else ran * COMFORT.first_percent // 100
    for _ in range(COMFORT.tries_with_benchmark if search.request.cudnn_benchmark else COMFORT.tries):
        if search.without_retry() or size < 1:
            break
        search.attempt(size)
        size = less(size)
    return max(search.without_retry(), default=None)


def _remedies(search: ForkedSearch, found: Bracket) -> tuple[LimitRemedy, ...]:
    """Try what a tiny batch first, or segments that grow, would bring."""
    remedies = []
    for what, how in (
        ("primed", "run one tiny batch before the first large one: stoker.prime(model, example)"),
        ("expandable", "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ):
        guess = _primed_guess(search) if what == "primed" else None

        def holds(batch_size: int, what: str = what) -> bool:
            search.emit(Phase(name="trying_batch", text=f"trying a batch of {batch_size}, {what}"))
            order = TryOrder(batch_size=batch_size, primed=what == "primed", expandable=what == "expandable")
            return search.factory.attempt(order).outcome == "done"

        best = close(holds, guess=guess or found.ran, ceiling=SEARCH.ceiling, tolerance=search.request.tolerance)
        remedies.append(LimitRemedy(what=what, how=how, predicted_batch=guess, max_batch=best.ran))
    return tuple(remedies)


def _primed_guess(search: ForkedSearch) -> int | None:
    return Replays(search.log, search.budget_bytes).primed() if search.log else None
