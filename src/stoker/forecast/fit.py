"""Fits costs to probes.

Every run loads the same items in the same order, so that means at different batch sizes are comparable. A worker's
first batch is slower (new memory pages, empty caches), so it is fitted by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError
from stoker.forecast.costs import Costs, Table, slowed, table
from stoker.forecast.fit_step import fit_step
from stoker.forecast.fit_transport import fit_transport
from stoker.forecast.samples import (
    batch_starts,
    by_size,
    mean_item_s,
    relative_to_usual,
    trimmed_mean,
    usual_item_s,
    waits_s,
    warm_batches,
    warm_values,
)
from stoker.records import Probes, Record, Run


class FitRules(Record, frozen=True):
    """How probes become costs."""

    least_waiting: float = 0.15
    """A smaller share of waiting in a worker's time is noise of other processes; from here on it is reading."""
    enough_batches: int = 6
    """Fewer batches say nothing about how batches differ."""
    malloc_bytes: int = 32 * 2**20
    """glibc's malloc never keeps a freed block above this size (M_MMAP_THRESHOLD at its largest): the pages of a larger
    batch are new every time."""


RULES = FitRules()


class Starts(NamedTuple):
    """What starting and stopping workers takes, as in `Costs`."""

    fork_s: float
    init_s: float
    stop_s: tuple[float, float]


def fit(probes: Probes) -> Costs:
    """The costs behind a set of probes. Raises InputError if no probe loaded anything."""
    loads = [run for run in probes.of("load") if run.began_s]
    if not loads:
        raise InputError("these probes have no loading run in them; probe again")
    inline = [run for run in loads if run.num_workers == 0]
    single = [run for run in loads if run.num_workers == 1] or inline or loads
    moved = [*single, *(run for run in probes.of("transport") if run.began_s)]
    many = [run for run in probes.of("load", "slow", "transport") if run.num_workers and run.began_s]
    usual = usual_item_s([*inline, *single])
    slowdown, corrections = _slowdown(loads, probes.machine.usable_cores)
    waiting = _waiting_share(single)
    item = _corrected(mean_item_s(single, usual, lambda run: run.load_s), corrections, waiting)
    collate = _collate(moved)
    transport = fit_transport(moved, many)
    spread, by_batch = _spread(loads)
    hand = _handing(many)
    alone = Table((1.0,), (1.0,), True)
    return Costs(
        cores=probes.machine.usable_cores,
        spread=spread,
        unevenness=_unevenness([run for run in loads if run.num_workers > 1] or loads, spread, by_batch=by_batch),
        lasting=_lasting(loads),
        by_batch=by_batch,
        inline_item_s=_inline_table(inline, usual) if inline else item,
        inline_between_s=table(by_size(inline, _between), median) if inline else Table(),
        worker_item_s=item,
        waiting_share=waiting,
        collate_s=collate,
        cold_s=_cold([run for run in loads if run.num_workers and warm_batches(run)], usual, collate, slowdown),
        inline_cold_s=_cold([run for run in inline if warm_batches(run)], usual, _collate(inline), alone),
        gap_s=table(by_size([run for run in moved if run.num_workers], _gaps), median, flat=True),
        flight_s=transport.flight,
        first_flight_s=transport.first_flight,
        first_sends=transport.first_sends,
        receive_s=transport.receive,
        blocked_s=transport.blocked,
        pin_s=transport.pin,
        pin_anew_s=transport.pin_anew,
        between_s=table(by_size(many or single, _between), median),
        fork_s=_forking(many, hand),
        hand_s=hand,
        init_s=_becoming_ready(many, probes.machine.usable_cores),
        stop_s=_stop(many),
        slowdown=slowdown,
        step=fit_step(probes),
        shares=_shares(single),
        inline_load_share=_inline_load_share(inline),
        exchange_s=_exchange_s(probes),
        sampled=max((len(run.items) if by_batch else sum(run.items) for run in loads), default=0),
    )


# ---------------------------------------------------------------- items and batches


def _exchange_s(probes: Probes) -> float | None:
    """The time of one exchange of gradients; ranks that infer do not wait for each other."""
    if probes.subject.mode == "infer":
        return None
    return median(probes.exchange_s) if probes.exchange_s else 0.0


def _corrected(item: Table, corrections: dict[int, float], waiting: float) -> Table:
    """The table without the slow cores that some runs happened to have. Waiting is not corrected."""
    rows = zip(item.sizes, item.seconds, strict=True)
    shares = {size: waiting + (1 - waiting) * share for size, share in corrections.items()}
    return replace(item, seconds=tuple(seconds * shares.get(int(size), 1.0) for size, seconds in rows))


def _inline_table(runs: Sequence[Run], usual: dict[int, float]) -> Table:
    """Without workers, loading an item, its share of collating and next() are one cost.

    A batch is quick or slow, as the threads of the process are awake or have to be woken to collate it: the trimmed
    mean counts both. With pinned memory a slow batch is one that memory was made for: the median leaves it out.

    malloc never keeps a large block, so that large batches cost more. If the limit lies between two probed sizes, the
    table has a step there.
    """
    runs = [run for run in runs if warm_batches(run)] or runs
    found = mean_item_s(runs, usual, waits_s, median if any(run.pinned for run in runs) else trimmed_mean)
    item_bytes = median(run.bytes[0] / run.items[0] for run in runs)
    edge = float(RULES.malloc_bytes // max(item_bytes, 1))
    above = next((place for place, size in enumerate(found.sizes) if size > edge), 0)
    if not above or edge + 1 >= found.sizes[above] or edge <= found.sizes[above - 1]:
        return found
    low, high = found.seconds[above - 1], found.seconds[above]
    sizes = (*found.sizes[:above], edge, edge + 1, *found.sizes[above:])
    return replace(found, sizes=sizes, seconds=(*found.seconds[:above], low, high, *found.seconds[above:]))


def _inline_load_share(runs: Sequence[Run]) -> float:
    """The share of a batch's time without workers that is loading its items."""
    loading_s = sum(sum(warm_values(run, run.load_s)) for run in runs)
    collating_s = sum(sum(warm_values(run, run.collate_s)) for run in runs)
    return loading_s / (loading_s + collating_s) if loading_s > 0 else 1.0


def _between(run: Run) -> list[float]:
    gaps = [after - before for before, after in zip(run.done_s, run.asked_s[1:], strict=False)]
    return gaps[1:] or gaps


def _gaps(run: Run) -> list[float]:
    """From the end of a worker's batch to the start of its next one, if that had been assigned before."""
    ahead = run.prefetch_factor
    return [
        max(0.0, run.began_s[place] - run.ended_s[place - 1])
        for place in range(1, len(run.items))
        if place < ahead or run.got_s[place - ahead] < run.ended_s[place - 1]
    ]


def _spread(runs: Sequence[Run]) -> tuple[NDArray[np.float64], bool]:
    """Times of items relative to their mean. If a dataset loads whole batches, times of batches, and True."""
    pooled: list[NDArray[np.float64]] = []
    single = all(len(run.item_s) == sum(run.items) for run in runs)
    for run in runs:
        values = np.asarray(run.item_s if single else run.load_s, dtype=np.float64)
        skip = sum(run.items[: max(1, run.num_workers)]) if single else 1
        values = values[skip:] if len(values) > skip else values
        if values.size and values.mean() > 0:
            pooled.append(values / values.mean())
    return (np.concatenate(pooled) if pooled else np.ones(1)), not single


def _unevenness(runs: Sequence[Run], spread: NDArray[np.float64], *, by_batch: bool) -> float:
    """How much more the times of batches differ than a random choice of items explains: some cores are slower than
    others, or have slow moments."""
    excess: list[float] = []
    for run in runs:
        places = warm_batches(run)
        if len(places) > RULES.enough_batches:
            whole = np.asarray([run.ended_s[place] - run.began_s[place] for place in places])
            of_items = float(np.mean([run.load_s[place] for place in places]) / whole.mean())
            by_chance = spread.var() / (1 if by_batch else run.batch_size) * of_items**2
            excess.append(float(np.var(np.log(np.maximum(whole, 1e-12)), ddof=1) - by_chance))
    return float(np.sqrt(max(0.0, median(excess)))) if excess else 0.0


def _lasting(runs: Sequence[Run]) -> float:
    """How much of a worker's slowness is still there in its next batch: the autocorrelation, from 0 to 1."""
    pairs: list[tuple[float, float]] = []
    for run in runs:
        count = run.num_workers
        rounds = [np.log(np.maximum(run.load_s[at : at + count], 1e-12)) for at in range(0, len(run.items), count or 1)]
        whole = [each - each.mean() for each in rounds if len(each) == count] if count > 1 else []
        pairs += [pair for one, other in pairwise(whole) for pair in zip(one, other, strict=True)]
    if len(pairs) <= RULES.enough_batches or not np.ptp(pairs, axis=0).all():
        return 0.0
    return float(np.clip(np.corrcoef(np.transpose(pairs))[0, 1], 0.0, 1.0))


def _waiting_share(runs: Sequence[Run]) -> float:
    """The share of a worker's time in which it uses no core and wants none: it reads or sleeps."""
    shares = [
        1 - (cpu + delay) / max(ended - began, 1e-12)
        for run in runs
        for cpu, delay, began, ended in zip(
            warm_values(run, run.cpu_s),
            warm_values(run, run.delay_s or (0.0,) * len(run.items)),
            warm_values(run, run.began_s),
            warm_values(run, run.ended_s),
            strict=True,
        )
    ]
    share = median(shares) if shares else 0.0
    return share if share > RULES.least_waiting else 0.0


def _collate(runs: Sequence[Run]) -> Table:
    return table(by_size(runs, lambda run: warm_values(run, run.collate_s)), median)


def _cold(runs: Sequence[Run], usual: dict[int, float], collate: Table, slowdown: Table) -> Table:
    """The extra time of the first batch of a worker (or of a loop without workers), for the same items.

    Later batches of the same run say how fast the machine was at that moment. What many workers at once cost each other
    is taken off, as the simulation adds it again.
    """
    mean = fmean(usual.values())
    extra: dict[int, list[float]] = {}
    for run in runs:
        first = batch_starts(run)
        own = relative_to_usual(run, run.load_s, usual)
        slower = slowed(slowdown, run.num_workers)
        for place in range(min(run.num_workers or 1, len(run.items))):
            places = range(first[place], first[place + 1])
            expected = own * sum(usual.get(item, mean) for item in places) + slower * collate.at(run.items[place])
            more = run.ended_s[place] - run.began_s[place] - expected
            extra.setdefault(run.batch_size, []).append(more / slower)
    return table(extra, fmean)


# ---------------------------------------------------------------- starting and stopping workers


def _handing(runs: Sequence[Run]) -> float:
    """How much later each worker gets its first orders than the one before. The last worker is new and left out."""
    steps = [
        (run.began_s[run.num_workers - 2] - run.began_s[0]) / (run.num_workers - 2)
        for run in runs
        if run.num_workers > 2 and len(run.items) >= run.num_workers
    ]
    return max(0.0, median(steps)) if steps else 0.0


def starts_of(probes: Probes) -> dict[str, Starts]:
    """What starting and stopping workers takes with each start method that was probed beside the usual one."""
    usual = [run for run in probes.of("load", "slow", "transport") if run.num_workers and run.began_s]
    hand_s, (_, each_s) = _handing(usual), _stop(usual)
    return {
        run.start_method: Starts(
            fork_s=max(0.0, run.start_s / run.num_workers - run.prefetch_factor * hand_s),
            init_s=_becoming_ready([run], probes.machine.usable_cores),
            stop_s=(max(0.0, run.total_s - run.done_s[-1]), each_s),
        )
        for run in probes.of("started")
        if run.start_method and run.num_workers and run.began_s
    }


def thread_shares(probes: Probes) -> dict[int, Table]:
    """The share of an item's time that is left with so many threads in each worker, by the number of workers."""
    found: dict[int, dict[int, list[float]]] = {}
    for run in probes.of("threaded"):
        for usual in probes.of("load"):
            if run.worker_threads and (usual.batch_size, usual.num_workers) == (run.batch_size, run.num_workers):
                ours, theirs = (fmean(warm_values(each, each.load_s)) for each in (run, usual))
                shares = found.setdefault(run.worker_threads, {}).setdefault(run.num_workers, [])
                shares.append(ours / max(theirs, 1e-12))
    return {threads: table(points, median, flat=True) for threads, points in found.items()}


def _forking(runs: Sequence[Run], hand_s: float) -> float:
    """What one more worker adds to the start, without its orders."""
    found = [run.start_s / run.num_workers - run.prefetch_factor * hand_s for run in runs]
    return max(0.0, median(found)) if found else 0.0


def _becoming_ready(runs: Sequence[Run], cores: float) -> float:
    """CPU seconds from a worker's start to its first item: imports, where it was spawned. By runs with one worker; of
    several, each has a part of the CPUs."""
    found = [run for run in runs if run.num_workers == 1] or runs
    shares = [min(1.0, cores / run.num_workers) for run in found]
    times = [(run.began_s[0] - run.start_s) * share for run, share in zip(found, shares, strict=True)]
    return max(0.0, median(times)) if times else 0.0


def _stop(runs: Sequence[Run]) -> tuple[float, float]:
    """Stopping the workers: a fixed part, and a part for each worker."""
    points = [(run.num_workers, run.total_s - run.done_s[-1]) for run in runs]
    counts = sorted({count for count, _ in points})
    if len(counts) < 2:
        return (median(seconds for _, seconds in points) if points else 0.0), 0.0
    means = [median(seconds for count, seconds in points if count == each) for each in counts]
    slope = max(0.0, (means[-1] - means[0]) / (counts[-1] - counts[0]))
    return max(0.0, means[0] - slope * counts[0]), slope


# ---------------------------------------------------------------- contention


def _slowdown(runs: Sequence[Run], cores: float) -> tuple[Table, dict[int, float]]:
    """CPU seconds for the same items with several workers, relative to one: what shared caches and memory cost.

    A core never gets faster because others are busy. If it seems so, the run with one worker, which is the shortest,
    had a slow core: isotonic regression pools the two. The second answer is, by batch size, by how much to correct the
    run with one worker.
    """
    alone: dict[int, dict[int, float]] = {}
    for run in runs:
        if run.num_workers == 1:
            before = alone.get(run.batch_size, {})
            again = {
                place: fmean((seconds, before.get(place, seconds))) for place, seconds in _cpu_by_item(run).items()
            }
            alone[run.batch_size] = before | again
    found = {1.0: Level(1.0, sum(run.num_workers == 1 for run in runs))}
    for run in sorted(runs, key=lambda run: run.num_workers):
        if run.num_workers > 1 and run.batch_size in alone:
            mine, base = _cpu_by_item(run), alone[run.batch_size]
            if mine and base:
                same = mine.keys() & base.keys()
                # Without batches in common, the means of all batches are compared.
                ours, theirs = (fmean(one[place] for place in same or one) for one in (mine, base))
                busy = min(float(run.num_workers), max(1.0, cores))
                found[busy] = found.get(busy, Level(0.0, 0)).pooled(ours / max(theirs, 1e-12), round(busy))
    values = isotonic(list(found.values()))
    least, sizes = values[0], list(found)
    for place in range(1, len(values)):  # more busy cores never do less work together
        values[place] = min(values[place], values[place - 1] * sizes[place] / sizes[place - 1])
    crowds = {run.batch_size for run in runs if run.num_workers > 1} & alone.keys()
    return Table(tuple(sizes), tuple(value / least for value in values)), dict.fromkeys(crowds, least)


class Level(NamedTuple):
    """A ratio, weighted by the number of cores behind it: a core is slow or fast for as long as a run takes."""

    value: float
    weight: int

    def pooled(self, value: float, weight: int) -> "Level":
        """The weighted mean with another value."""
        together = self.weight + weight
        return Level((self.value * self.weight + value * weight) / max(1, together), together)


def isotonic(levels: Sequence[Level]) -> list[float]:
    """Isotonic regression: the nearest values that never fall, by pooling adjacent violators."""
    pools: list[tuple[Level, int]] = []
    for level in levels:
        count = 1
        while pools and pools[-1][0].value > level.value:
            before, more = pools.pop()
            level, count = before.pooled(level.value, level.weight), count + more
        pools.append((level, count))
    return [level.value for level, count in pools for _ in range(count)]


def _cpu_by_item(run: Run) -> dict[int, float]:
    """CPU seconds of each warm full batch, by the position of its first item."""
    first = batch_starts(run)
    return {first[place]: run.cpu_s[place] for place in warm_batches(run)}


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """The share of each stage in an item's time. Named parts of a stage stand beside it."""
    sums: dict[str, float] = {}
    for run in runs:
        for name, seconds in run.stages_s.items():
            sums[name] = sums.get(name, 0.0) + seconds
    sums.pop("collate", None)
    whole = sum(seconds for name, seconds in sums.items() if "." not in name)
    return {name: seconds / whole for name, seconds in sums.items()} if whole else {}
