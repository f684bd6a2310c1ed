"""From probes to costs.

Every run goes over the same items in the same order, so that means at different batch sizes compare like with like.
The first batch of each worker is cold (pages never touched, caches to fill) and is kept apart from the warm ones.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError
from stoker.predict.costs import Costs, Step, Table, table
from stoker.predict.probes import Probes, Run

_IO_LEAST = 0.15
"""Waiting below this share of a worker's time is other processes' noise; above it, it is reading."""


def fit(probes: Probes) -> Costs:
    """The costs behind a set of probes."""
    loads = [run for run in probes.of("load") if run.began_s]
    if not loads:
        raise InputError("these probes have no loading run in them; probe again")
    inline = [run for run in loads if run.num_workers == 0]
    single = [run for run in loads if run.num_workers == 1] or inline or loads
    moved = [*single, *(run for run in probes.of("transport") if run.began_s)]
    many = [run for run in probes.of("load", "slow", "transport") if run.num_workers and run.began_s]
    usual = _usual([*inline, *single])
    item = _item_table(single, usual)
    collate = table(_by_size(moved, lambda run: _each(run, run.collate_s)), median)
    flight, first, receive, blocked, pin = _transport(moved, many)
    spread, by_batch = _spread(loads)
    init = [run.began_s[0] - run.start_s for run in many if run.num_workers == 1]
    return Costs(
        cores=probes.machine.usable_cores,
        spread=spread,
        by_batch=by_batch,
        inline_item_s=_inline_table(inline, usual) if inline else item,
        inline_free_s=table(_by_size(inline, _free), median) if inline else Table(),
        worker_item_s=item,
        waiting_share=_waiting(single),
        collate_s=collate,
        cold_s=_cold(single, usual, item, collate),
        gap_s=table(_by_size(moved, _gaps), median, flat=True),
        flight_s=flight,
        first_flight_s=first,
        receive_s=receive,
        blocked_s=blocked,
        pin_s=pin,
        pin_anew_s=_pin_anew(moved, pin),
        free_s=table(_by_size(many or single, _free), median),
        fork_s=median(run.start_s / run.num_workers for run in many) if many else 0.0,
        init_s=max(0.0, median(init)) if init else 0.0,
        stop_s=_stop(many),
        slowdown=_slowdown(loads, probes.machine.usable_cores),
        step=_step(probes),
        shares=_shares(single),
    )


# ---------------------------------------------------------------- from runs to tables


def _by_size(runs: Sequence[Run], samples: Callable[[Run], list[float]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.batch_size, []).extend(samples(run))
    return found


def _warm(run: Run) -> list[int]:
    """Full batches that were not a worker's first; in a run of first batches only, all of them."""
    firsts = max(1, run.num_workers)
    full = [place for place in range(len(run.items)) if run.items[place] == run.batch_size]
    return [place for place in full if place >= firsts]


def _each(run: Run, values: Sequence[float]) -> list[float]:
    return [values[place] for place in _warm(run) or range(len(run.items))]


def _usual(runs: Sequence[Run]) -> dict[int, float]:
    """By its place in the order, the least that each item took: the measure that runs over some of them share."""
    least: dict[int, float] = {}
    for run in runs:
        for place, seconds in enumerate(_per_item(run)):
            least[place] = min(seconds, least.get(place, seconds))
    return least


def _per_item(run: Run) -> Sequence[float]:
    """An item's seconds, each; where the dataset loads batches whole, the batch's mean for each."""
    if len(run.item_s) == sum(run.items):
        return run.item_s
    return [load / count for load, count in zip(run.load_s, run.items, strict=True) for _ in range(count)]


def _against(run: Run, seconds: Sequence[float], usual: dict[int, float]) -> float | None:
    """What a warm batch took against what its items usually take; None where none of those are known.

    The middle one of all batches: whatever else the machine did for a moment is not the loader's.
    """
    begins = _begins(run)
    ratios = []
    for place in _warm(run) or range(len(run.items)):
        places = range(begins[place], begins[place] + run.items[place])
        if all(item in usual for item in places):
            ratios.append(seconds[place] / max(sum(usual[item] for item in places), 1e-12))
    return median(ratios) if ratios else None


def _begins(run: Run) -> list[int]:
    """Where in the order each batch begins."""
    return [0, *(int(end) for end in np.cumsum(run.items))]


def _means(runs: Sequence[Run], usual: dict[int, float], seconds: Callable[[Run], Sequence[float]]) -> Table:
    """Mean seconds an item at each batch size, as if every run had gone over all the items that any went over."""
    mean = fmean(usual.values())
    found: dict[int, list[float]] = {}
    for run in runs:
        ratio = _against(run, seconds(run), usual)
        if ratio is None:
            ratio = median(_each(run, seconds(run))) / run.batch_size / mean
        found.setdefault(run.batch_size, []).append(ratio * mean)
    return table(found, fmean)


def _item_table(runs: Sequence[Run], usual: dict[int, float]) -> Table:
    return _means(runs, usual, lambda run: run.load_s)


def _inline_table(runs: Sequence[Run], usual: dict[int, float]) -> Table:
    """With no workers an item's loading, its share of collating, and what next() adds, are one."""
    return _means(runs, usual, lambda run: [got - asked for asked, got in zip(run.asked_s, run.got_s, strict=True)])


def _free(run: Run) -> list[float]:
    gaps = [after - before for before, after in zip(run.done_s, run.asked_s[1:], strict=False)]
    return gaps[1:] or gaps


def _gaps(run: Run) -> list[float]:
    gaps = [after - before for before, after in zip(run.ended_s, run.began_s[1:], strict=False)]
    return [max(0.0, gap) for gap in gaps]


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


def _waiting(runs: Sequence[Run]) -> float:
    """The share of a worker's time that uses no core: reading, or sleeping."""
    shares = [
        1 - cpu / max(ended - began, 1e-12)
        for run in runs
        for cpu, began, ended in zip(
            _each(run, run.cpu_s), _each(run, run.began_s), _each(run, run.ended_s), strict=True
        )
    ]
    share = median(shares) if shares else 0.0
    return share if share > _IO_LEAST else 0.0


def _cold(runs: Sequence[Run], usual: dict[int, float], item: Table, collate: Table) -> Table:
    """What a worker's first batch costs more than later ones, for the same items."""
    mean = fmean(usual.values())
    extra: dict[int, list[float]] = {}
    for run in runs:
        if run.num_workers:
            size = run.items[0]
            ratio = item.at(size) / mean
            expected = ratio * sum(usual.get(place, mean) for place in range(size)) + collate.at(size)
            extra.setdefault(run.batch_size, []).append(run.ended_s[0] - run.began_s[0] - expected)
    return table(extra, fmean)


def _transport(moved: Sequence[Run], many: Sequence[Run]) -> tuple[Table, Table, Table, Table, Table]:
    """On its way from worker to loop: in flight (the first time, more), received, blocked while received, pinned.

    To receive a batch, the loop asks the worker that made it for its memory; while workers load, the answer comes late.
    With pinned memory a thread does that, and all of a landing is its work, one batch after another.
    """
    landed = table(_by_size(moved, _landings), _trimmed, flat=True)
    first = {
        run.batch_size: [run.got_s[0] - run.ended_s[0] - landed.at(run.batch_size)] for run in moved if run.num_workers
    }
    free = table(_by_size(many, lambda run: _ready(run, landed, busy=False)), _trimmed, flat=True)
    busy = table(_by_size(many, lambda run: _ready(run, landed, busy=True)), _trimmed, flat=True)
    pinned = table(_by_size(many, lambda run: _each(run, run.pin_s) if run.pin_s else []), median)
    if any(pinned.seconds):
        return Table(flat=True), table(first, median, flat=True), _apart(landed, pinned), Table(flat=True), pinned
    blocked = _apart(busy, free) if any(busy.seconds) else Table(flat=True)
    flight = _apart(landed, free, blocked, pinned)
    return flight, table(first, median, flat=True), free, blocked, pinned


def _pin_anew(runs: Sequence[Run], pin: Table) -> Table:
    """What the first batch of a run costs more to pin: nothing of its size has been pinned before."""
    alone = [run for run in runs if run.pin_s and run.num_workers == 1]
    return table(_by_size(alone, lambda run: [run.pin_s[0] - pin.at(run.batch_size)]), min)


def _trimmed(values: Iterable[float]) -> float:
    """The mean without the largest twentieth: tails are part of the cost, a stolen core is not."""
    ordered = sorted(values)
    return fmean(ordered[: max(1, round(0.95 * len(ordered)))])


def _apart(whole: Table, *parts: Table) -> Table:
    """A cost without some parts of it, never below nothing."""
    rows = zip(whole.sizes, whole.seconds, strict=True)
    return Table(
        whole.sizes, tuple(max(0.0, value - sum(part.at(size) for part in parts)) for size, value in rows), True
    )


def _landings(run: Run) -> list[float]:
    """From a worker's end of a batch to the loop's having it, while the loop stood waiting."""
    return [
        got - ended
        for place, (asked, got, ended) in enumerate(zip(run.asked_s, run.got_s, run.ended_s, strict=True))
        if place and asked < ended < got
    ]


def _ready(run: Run, landed: Table, *, busy: bool) -> list[float]:
    """How long the loop took for a batch that was there already, while workers were or were not loading others."""
    found = []
    for place in range(1, len(run.items)):
        asked = run.asked_s[place]
        loading = any(run.began_s[other] < asked < run.ended_s[other] for other in range(place + 1, len(run.items)))
        if asked > run.ended_s[place] + 2 * landed.at(run.batch_size) and loading == busy:
            found.append(run.got_s[place] - asked)
    return found


def _stop(runs: Sequence[Run]) -> tuple[float, float]:
    """Ending the workers: so much, and so much for each."""
    points = [(run.num_workers, run.total_s - run.done_s[-1]) for run in runs]
    counts = sorted({count for count, _ in points})
    if len(counts) < 2:
        return (median(seconds for _, seconds in points) if points else 0.0), 0.0
    means = [median(seconds for count, seconds in points if count == each) for each in counts]
    slope = max(0.0, (means[-1] - means[0]) / (counts[-1] - counts[0]))
    return max(0.0, means[0] - slope * counts[0]), slope


def _slowdown(runs: Sequence[Run], cores: float) -> Table:
    """CPU seconds for the same items, with so many workers against one: what sharing caches and memory costs."""
    alone = {run.batch_size: _cpu_by_item(run) for run in runs if run.num_workers == 1}
    found: dict[float, list[float]] = {1.0: [1.0]}
    for run in runs:
        if run.num_workers > 1 and run.batch_size in alone:
            mine, base = _cpu_by_item(run), alone[run.batch_size]
            shared = [place for place in mine if place in base]
            if shared:
                ratio = sum(mine[place] for place in shared) / max(sum(base[place] for place in shared), 1e-12)
                found.setdefault(min(float(run.num_workers), max(1.0, cores)), []).append(ratio)
    sizes = sorted(found)
    values: list[float] = []
    for size in sizes:
        value = max(fmean(found[size]), values[-1] if values else 1.0)
        if values:  # more busy cores never do less work together
            value = min(value, values[-1] * size / sizes[len(values) - 1])
        values.append(value)
    return Table(tuple(sizes), tuple(values))


def _cpu_by_item(run: Run) -> dict[int, float]:
    """CPU seconds of each full batch that is warm, keyed by where in the order it begins."""
    begins = _begins(run)
    return {begins[place]: run.cpu_s[place] for place in _warm(run)}


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """Of an item's time, what each stage takes; members of a stage beside it."""
    sums: dict[str, float] = {}
    for run in runs:
        for name, seconds in run.stages_s.items():
            sums[name] = sums.get(name, 0.0) + seconds
    sums.pop("collate", None)
    whole = sum(seconds for name, seconds in sums.items() if "." not in name)
    return {name: seconds / whole for name, seconds in sums.items()} if whole else {}


def _step(probes: Probes) -> Step:
    """The consumer's times, alone and beside busy workers."""
    runs = probes.of("step")
    kind = probes.subject.device.partition(":")[0]
    host = table(_by_size(runs, lambda run: _later(_host(run))), median)
    device = table(_by_size(runs, lambda run: _later(run.device_s)), median)
    if kind == "cuda":
        return Step(host_s=_launch(runs), device_s=device, asynchronous=True, ahead=_ahead(runs))
    if kind == "cpu":
        crowded = [fmean(_busy_steps(run)) / max(host.at(run.batch_size), 1e-9) for run in probes.of("crowded")]
        threads = max(1, round(probes.machine.usable_cores))
        return Step(host_s=host, threads=threads, crowded=max(1.0, fmean(crowded)) if crowded else 1.0)
    return Step(host_s=host, late_s=_late(probes.of("slow")))


def _late(runs: Sequence[Run]) -> float:
    """How much later than it should a sleeping step comes back while workers compute."""
    return _trimmed([seconds - min(_host(run)) for run in runs for seconds in _host(run)]) if runs else 0.0


def _host(run: Run) -> list[float]:
    return [done - got for got, done in zip(run.got_s, run.done_s, strict=True)]


def _later(values: Sequence[float]) -> list[float]:
    """Without the first: it makes what the later ones find made."""
    return list(values[1:]) or list(values)


def _launch(runs: Sequence[Run]) -> Table:
    """What handing a step to a GPU costs the host while the device's queue has room: the least seen."""
    return table(_by_size(runs, lambda run: [min(_later(_host(run)))] if run.got_s else []), min)


def _ahead(runs: Sequence[Run]) -> int:
    """How many steps the host got ahead of the device before it had to wait; where it never had to, any number."""
    most = 1_000_000
    for run in runs:
        host, device = _host(run), run.device_s
        blocked = [place for place in range(1, len(host)) if host[place] > 0.5 * device[place] > 2 * min(host)]
        if blocked:
            most = min(most, max(1, blocked[0]))
    return most


def _busy_steps(run: Run) -> list[float]:
    """Steps that ran while workers still had batches to load."""
    hosts = _host(run)
    last = max(run.ended_s, default=0.0)
    busy = [seconds for seconds, done in zip(hosts, run.done_s, strict=True) if done <= last]
    return busy[1:] or busy or hosts
