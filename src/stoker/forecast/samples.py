"""Samples of probe runs: which batches count, and what an item costs, so that runs over different items compare."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import fmean, median

import numpy as np

from stoker.forecast.costs import Table, table
from stoker.records import Probes, Record, Run


class SampleRules(Record, frozen=True):
    """How samples of probe runs are read."""

    pinned_at_once: int = 2
    """Without workers, one batch is copied to the device while the next is pinned. PyTorch makes this many pieces of
    pinned memory and uses them again for all later batches."""
    trimmed_share: float = 0.05
    """A trimmed mean drops this share of the largest values: tails are part of the cost, a stolen core is not."""
    agreement_items: int = 24
    """Two runs need this many items in common before the rank correlation of their times says anything."""
    unknown_drift: float = 0.12
    """The median difference between two probes of one setting, over the workloads of `benchmarks/` that have both. It
    stands in where no setting was probed twice."""


RULES = SampleRules()

# ---------------------------------------------------------------- batches


def by_size(runs: Sequence[Run], samples: Callable[[Run], list[float]]) -> dict[int, list[float]]:
    """The samples of all runs, by batch size."""
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.batch_size, []).extend(samples(run))
    return found


def warm_batches(run: Run) -> list[int]:
    """The positions of full batches that are not cold.

    A worker's first batch is cold. Without workers, batches are cold until the pinned memory for them exists.
    """
    firsts = run.num_workers or (RULES.pinned_at_once if run.pinned else 1)
    full = [place for place in range(len(run.items)) if run.items[place] == run.batch_size]
    return [place for place in full if place >= firsts]


def warm_values(run: Run, values: Sequence[float]) -> list[float]:
    """The values of warm batches; all of them if no batch is warm."""
    return [values[place] for place in warm_batches(run) or range(len(run.items))]


def waits_s(run: Run) -> list[float]:
    """How long next() took for each batch."""
    return [got - asked for asked, got in zip(run.asked_s, run.got_s, strict=True)]


def mean_wait_s(run: Run) -> float:
    """The trimmed mean of next() over warm batches."""
    return trimmed_mean(warm_values(run, waits_s(run)))


def batch_starts(run: Run) -> list[int]:
    """The position of each batch's first item in the order of items; the last entry is the end."""
    return [0, *(int(end) for end in np.cumsum(run.items))]


def trimmed_mean(values: Iterable[float]) -> float:
    """The mean without the largest values."""
    ordered = sorted(values)
    return fmean(ordered[: max(1, round((1 - RULES.trimmed_share) * len(ordered)))])


# ---------------------------------------------------------------- items


def item_bytes_of(probes: Probes) -> float:
    """Bytes of an item inside a batch; the largest value of all batches."""
    rows = [(size, count) for run in probes.runs for size, count in zip(run.bytes, run.items, strict=False) if count]
    return max((size / count for size, count in rows), default=0.0)


def item_seconds(run: Run) -> Sequence[float]:
    """Seconds of each item. If the dataset loads whole batches, each item gets its batch's mean."""
    if len(run.item_s) == sum(run.items):
        return run.item_s
    return [load / count for load, count in zip(run.load_s, run.items, strict=True) for _ in range(count)]


def usual_item_s(runs: Sequence[Run]) -> dict[int, float]:
    """The usual seconds of each item, by its position in the order.

    This is the least time of the item, shrunk towards the mean of all items. The shrinkage is strong where two runs
    disagree about which items are slow. The first batch of a run is cold and left out. A single sample may be unlucky:
    if most items have two samples, only those count.
    """
    later: list[dict[int, float]] = []
    for run in runs:
        seconds, first = item_seconds(run), run.items[0] if len(run.items) > 1 else 0
        later.append({place: seconds[place] for place in range(first, len(seconds))})
    seen = {place: [one[place] for one in later if place in one] for place in set().union(*later)}
    often = {place: values for place, values in seen.items() if len(values) > 1}
    least = {place: min(values) for place, values in (often if 2 * len(often) >= len(seen) else seen).items()}
    agreed, mean = _agreement(later), fmean(least.values())
    return {place: mean + agreed * (seconds - mean) for place, seconds in least.items()}


def _agreement(runs: Sequence[dict[int, float]]) -> float:
    """The largest rank correlation of item times between any two runs, from 0 to 1."""
    found = [0.0]
    for one, other in combinations(runs, 2):
        both = sorted(one.keys() & other.keys())
        if len(both) >= RULES.agreement_items:
            ranks = [np.argsort(np.argsort([run[place] for place in both])) for run in (one, other)]
            found.append(float(np.corrcoef(ranks[0], ranks[1])[0, 1]))
    return max(found) if len(found) > 1 else 1.0


def relative_to_usual(
    run: Run, seconds: Sequence[float], usual: dict[int, float], middle: Callable[[Sequence[float]], float] = median
) -> float:
    """How long warm batches took, relative to the usual time of their items.

    Batches with unknown items are compared with the mean item. The median ignores moments in which other processes
    disturbed the run. Where some batches are slow for a reason of their own, another `middle` counts them too.
    """
    first = batch_starts(run)
    ratios = []
    for place in warm_batches(run) or range(len(run.items)):
        places = range(first[place], first[place] + run.items[place])
        if all(item in usual for item in places):
            ratios.append(seconds[place] / max(sum(usual[item] for item in places), 1e-12))
    return middle(ratios) if ratios else middle(warm_values(run, seconds)) / run.batch_size / fmean(usual.values())


def mean_item_s(
    runs: Sequence[Run],
    usual: dict[int, float],
    seconds: Callable[[Run], Sequence[float]],
    middle: Callable[[Sequence[float]], float] = median,
) -> Table:
    """Mean seconds of an item at each batch size, as if every run had loaded all the items that any run loaded."""
    mean = fmean(usual.values())
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.batch_size, []).append(relative_to_usual(run, seconds(run), usual, middle) * mean)
    return table(found, fmean, flat=True)


def drift(runs: Sequence[Run]) -> float:
    """The largest relative difference between runs of one setting at different times: how much the machine changed.

    Where no setting ran twice, this is the usual drift.
    """
    found: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        found.setdefault((run.batch_size, run.num_workers), []).append(median(warm_values(run, run.load_s)))
    apart = [max(values) / max(min(values), 1e-12) - 1 for values in found.values() if len(values) > 1]
    return max(apart, default=RULES.unknown_drift)
