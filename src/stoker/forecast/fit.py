"""From probes to costs.

Every run goes over the same items in the same order, so that means at different batch sizes compare like with like.
The first batch of each worker is cold (pages never touched, caches to fill) and is kept apart from the warm ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError
from stoker.forecast.batches import begins, by_size, each, trimmed, waits, warm
from stoker.forecast.costs import Costs, Table, slowed, table
from stoker.forecast.fit_step import step_of
from stoker.forecast.fit_transport import transport
from stoker.forecast.items import against, means, usual_s
from stoker.records import Probes, Run

_IO_LEAST = 0.15
"""Waiting below this share of a worker's time is other processes' noise; above it, it is reading."""
_ENOUGH_BATCHES = 6
_KEPT_BYTES = 32 * 2**20


def fit(probes: Probes) -> Costs:
    """The costs behind a set of probes."""
    loads = [run for run in probes.of("load") if run.began_s]
    if not loads:
        raise InputError("these probes have no loading run in them; probe again")
    inline = [run for run in loads if run.num_workers == 0]
    single = [run for run in loads if run.num_workers == 1] or inline or loads
    moved = [*single, *(run for run in probes.of("transport") if run.began_s)]
    many = [run for run in probes.of("load", "slow", "transport") if run.num_workers and run.began_s]
    usual = usual_s([*inline, *single])
    slowdown, luck = _slowdown(loads, probes.machine.usable_cores)
    waiting = _waiting(single)
    item = _eased(means(single, usual, lambda run: run.load_s), luck, waiting)
    collate = _collate(moved)
    moving = transport(moved, many)
    spread, by_batch = _spread(loads)
    init = [run.began_s[0] - run.start_s for run in many if run.num_workers == 1]
    hand = _handing(many)
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
        cold_s=_cold([run for run in loads if run.num_workers and warm(run)], usual, collate, slowdown),
        inline_cold_s=_cold([run for run in inline if warm(run)], usual, _collate(inline), Table((1.0,), (1.0,), True)),
        gap_s=table(by_size(moved, _gaps), median, flat=True),
        flight_s=moving.flight,
        first_flight_s=moving.first,
        first_sends=moving.first_sends,
        receive_s=moving.receive,
        blocked_s=moving.blocked,
        pin_s=moving.pin,
        pin_anew_s=moving.pin_anew,
        between_s=table(by_size(many or single, _between), median),
        fork_s=_forking(many, hand),
        hand_s=hand,
        init_s=max(0.0, median(init)) if init else 0.0,
        stop_s=_stop(many),
        slowdown=slowdown,
        step=step_of(probes),
        shares=_shares(single),
        sampled=max((len(run.items) if by_batch else sum(run.items) for run in loads), default=0),
    )


# ---------------------------------------------------------------- from runs to tables


def _eased(item: Table, luck: dict[int, float], waiting: float) -> Table:
    """Without the bad luck of some sizes' runs, which was the cores': waiting takes as long as it does."""
    rows = zip(item.sizes, item.seconds, strict=True)
    shares = {size: waiting + (1 - waiting) * share for size, share in luck.items()}
    return replace(item, seconds=tuple(seconds * shares.get(int(size), 1.0) for size, seconds in rows))


def _inline_table(runs: Sequence[Run], usual: dict[int, float]) -> Table:
    """With no workers an item's loading, its share of collating, and what next() adds, are one. A batch is now quick,
    now slow, as the process' threads are still awake or have to be woken to collate it: all of them count; but with
    pinned memory, where a slow one is one that memory was made for, the middle one.

    C's malloc never keeps a piece above 32 MiB: a batch that is larger is made of pages that have to be filled anew.
    Between a probed size that is smaller and one that is larger, the step is there.
    """
    runs = [run for run in runs if warm(run)] or runs
    found = means(runs, usual, waits, median if any(run.pinned for run in runs) else trimmed)
    item_bytes = median(run.bytes[0] / run.items[0] for run in runs)
    edge = float(_KEPT_BYTES // max(item_bytes, 1))
    above = next((place for place, size in enumerate(found.sizes) if size > edge), 0)
    if not above or edge + 1 >= found.sizes[above] or edge <= found.sizes[above - 1]:
        return found
    low, high = found.seconds[above - 1], found.seconds[above]
    sizes = (*found.sizes[:above], edge, edge + 1, *found.sizes[above:])
    return replace(found, sizes=sizes, seconds=(*found.seconds[:above], low, high, *found.seconds[above:]))


def _between(run: Run) -> list[float]:
    gaps = [after - before for before, after in zip(run.done_s, run.asked_s[1:], strict=False)]
    return gaps[1:] or gaps


def _gaps(run: Run) -> list[float]:
    """From a worker's end of a batch to its next one, where that was handed out before: else it stood idle."""
    ahead = run.prefetch_factor
    return [
        max(0.0, run.began_s[place] - run.ended_s[place - 1])
        for place in range(1, len(run.items))
        if place < ahead or run.got_s[place - ahead] < run.ended_s[place - 1]
    ]


def _spread(runs: Sequence[Run]) -> tuple[NDArray[np.float64], bool]:
    """How items' times differ, with mean 1. Where a dataset loads batches whole, the spread is of batches."""
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
    """How much more the times of whole batches differ than their items at random would make them, relative: one core is
    slower than another, or has a slow moment."""
    excess: list[float] = []
    for run in runs:
        places = warm(run)
        if len(places) > _ENOUGH_BATCHES:
            whole = np.asarray([run.ended_s[place] - run.began_s[place] for place in places])
            of_items = float(np.mean([run.load_s[place] for place in places]) / whole.mean())
            by_chance = spread.var() / (1 if by_batch else run.batch_size) * of_items**2
            excess.append(float(np.var(np.log(np.maximum(whole, 1e-12)), ddof=1) - by_chance))
    return float(np.sqrt(max(0.0, median(excess)))) if excess else 0.0


def _lasting(runs: Sequence[Run]) -> float:
    """How much of a worker's slowness is still there in its next batch: 0 for none, 1 for all of it."""
    pairs: list[tuple[float, float]] = []
    for run in runs:
        count = run.num_workers
        rounds = [np.log(np.maximum(run.load_s[at : at + count], 1e-12)) for at in range(0, len(run.items), count or 1)]
        whole = [each - each.mean() for each in rounds if len(each) == count] if count > 1 else []
        pairs += [pair for one, other in pairwise(whole) for pair in zip(one, other, strict=True)]
    if len(pairs) <= _ENOUGH_BATCHES or not np.ptp(pairs, axis=0).all():
        return 0.0
    return float(np.clip(np.corrcoef(np.transpose(pairs))[0, 1], 0.0, 1.0))


def _waiting(runs: Sequence[Run]) -> float:
    """The share of a worker's time that uses no core: reading, or sleeping."""
    shares = [
        1 - cpu / max(ended - began, 1e-12)
        for run in runs
        for cpu, began, ended in zip(each(run, run.cpu_s), each(run, run.began_s), each(run, run.ended_s), strict=True)
    ]
    share = median(shares) if shares else 0.0
    return share if share > _IO_LEAST else 0.0


def _collate(runs: Sequence[Run]) -> Table:
    return table(by_size(runs, lambda run: each(run, run.collate_s)), median)


def _cold(runs: Sequence[Run], usual: dict[int, float], collate: Table, slowdown: Table) -> Table:
    """What the first batch of a worker, or of a loop without any, costs more than later ones, for the same items.

    Later batches of the same run say how fast the machine was just then: it may have been otherwise in other runs. What
    many workers at once cost each other is taken off: the simulation puts it on again.
    """
    mean = fmean(usual.values())
    extra: dict[int, list[float]] = {}
    for run in runs:
        first = begins(run)
        own = against(run, run.load_s, usual)
        slower = slowed(slowdown, run.num_workers)
        for place in range(min(run.num_workers or 1, len(run.items))):
            places = range(first[place], first[place + 1])
            expected = own * sum(usual.get(item, mean) for item in places) + slower * collate.at(run.items[place])
            more = run.ended_s[place] - run.began_s[place] - expected
            extra.setdefault(run.batch_size, []).append(more / slower)
    return table(extra, fmean)


def _handing(runs: Sequence[Run]) -> float:
    """How much later each worker gets its first order than the one before it; the last one left out, which is new."""
    steps = [
        (run.began_s[run.num_workers - 2] - run.began_s[0]) / (run.num_workers - 2)
        for run in runs
        if run.num_workers > 2 and len(run.items) >= run.num_workers
    ]
    return max(0.0, median(steps)) if steps else 0.0


def _forking(runs: Sequence[Run], hand_s: float) -> float:
    """What one worker more adds to the start, the orders that it gets apart."""
    found = [run.start_s / run.num_workers - run.prefetch_factor * hand_s for run in runs]
    return max(0.0, median(found)) if found else 0.0


def _stop(runs: Sequence[Run]) -> tuple[float, float]:
    """Ending the workers: so much, and so much for each."""
    points = [(run.num_workers, run.total_s - run.done_s[-1]) for run in runs]
    counts = sorted({count for count, _ in points})
    if len(counts) < 2:
        return (median(seconds for _, seconds in points) if points else 0.0), 0.0
    means = [median(seconds for count, seconds in points if count == each) for each in counts]
    slope = max(0.0, (means[-1] - means[0]) / (counts[-1] - counts[0]))
    return max(0.0, means[0] - slope * counts[0]), slope


def _slowdown(runs: Sequence[Run], cores: float) -> tuple[Table, dict[int, float]]:
    """CPU seconds for the same items, with so many workers against one: what sharing caches and memory costs.

    A core never gets faster because others are busy: where it seems so, the run with one worker, which is the shortest,
    was unlucky, and all are counted together. The second answer is, by batch size, how much less it should have taken.
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
                same = mine.keys() & base.keys()  # where there are none, the mean of many has to do
                ours, theirs = (fmean(one[place] for place in same or one) for one in (mine, base))
                busy = min(float(run.num_workers), max(1.0, cores))
                found[busy] = found.get(busy, Level(0.0, 0)).with_(ours / max(theirs, 1e-12), round(busy))
    values = rising(list(found.values()))
    least, sizes = values[0], list(found)
    for place in range(1, len(values)):  # more busy cores never do less work together
        values[place] = min(values[place], values[place - 1] * sizes[place] / sizes[place - 1])
    crowds = {run.batch_size for run in runs if run.num_workers > 1} & alone.keys()
    return Table(tuple(sizes), tuple(value / least for value in values)), dict.fromkeys(crowds, least)


class Level(NamedTuple):
    """A ratio, and how many cores stand behind it: a core is slow or fast for as long as a run takes."""

    value: float
    weight: int

    def with_(self, value: float, weight: int) -> "Level":
        together = self.weight + weight
        return Level((self.value * self.weight + value * weight) / max(1, together), together)


def rising(levels: Sequence[Level]) -> list[float]:
    """The nearest values that never fall: neighbours that do are counted together."""
    pooled: list[tuple[Level, int]] = []
    for level in levels:
        count = 1
        while pooled and pooled[-1][0].value > level.value:
            before, more = pooled.pop()
            level, count = before.with_(level.value, level.weight), count + more
        pooled.append((level, count))
    return [level.value for level, count in pooled for _ in range(count)]


def _cpu_by_item(run: Run) -> dict[int, float]:
    """CPU seconds of each full batch that is warm, keyed by where in the order it begins."""
    first = begins(run)
    return {first[place]: run.cpu_s[place] for place in warm(run)}


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """Of an item's time, what each stage takes; members of a stage beside it."""
    sums: dict[str, float] = {}
    for run in runs:
        for name, seconds in run.stages_s.items():
            sums[name] = sums.get(name, 0.0) + seconds
    sums.pop("collate", None)
    whole = sum(seconds for name, seconds in sums.items() if "." not in name)
    return {name: seconds / whole for name, seconds in sums.items()} if whole else {}
