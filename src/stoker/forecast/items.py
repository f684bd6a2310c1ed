"""What items take, so that runs over different ones compare like with like."""

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean, median

import numpy as np

from stoker.forecast.batches import begins, each, warm
from stoker.forecast.costs import Table, table
from stoker.records import Run

_ENOUGH_TO_AGREE = 24


def usual_s(runs: Sequence[Run]) -> dict[int, float]:
    """By its place in the order, what each item usually takes: the measure that runs over some of them share.

    That is the least it took, drawn towards the mean as far as two runs disagree about which items are slow. A run's
    first batch is cold, and a single look may have been unlucky: items seen warm twice are enough, if most are.
    """
    later: list[dict[int, float]] = []
    for run in runs:
        seconds, first = per_item(run), run.items[0] if len(run.items) > 1 else 0
        later.append({place: seconds[place] for place in range(first, len(seconds))})
    seen = {place: [one[place] for one in later if place in one] for place in set().union(*later)}
    often = {place: values for place, values in seen.items() if len(values) > 1}
    least = {place: min(values) for place, values in (often if 2 * len(often) >= len(seen) else seen).items()}
    agreed, mean = _agreement(later), fmean(least.values())
    return {place: mean + agreed * (seconds - mean) for place, seconds in least.items()}


def _agreement(runs: Sequence[dict[int, float]]) -> float:
    """How far two runs put the same items into the same order, from 0 to 1: the most that any two do."""
    found = [0.0]
    for one, other in combinations(runs, 2):
        both = sorted(one.keys() & other.keys())
        if len(both) >= _ENOUGH_TO_AGREE:
            ranks = [np.argsort(np.argsort([run[place] for place in both])) for run in (one, other)]
            found.append(float(np.corrcoef(ranks[0], ranks[1])[0, 1]))
    return max(found) if len(found) > 1 else 1.0


def per_item(run: Run) -> Sequence[float]:
    """An item's seconds, each; where the dataset loads batches whole, the batch's mean for each."""
    if len(run.item_s) == sum(run.items):
        return run.item_s
    return [load / count for load, count in zip(run.load_s, run.items, strict=True) for _ in range(count)]


def against(
    run: Run, seconds: Sequence[float], usual: dict[int, float], middle: Callable[[Sequence[float]], float] = median
) -> float:
    """What a warm batch took against what its items usually take, or where none of those are known, the mean item.

    The middle one of all batches: whatever else the machine did for a moment is not the loader's. Where some batches
    are slow for a reason of their own, another `middle` counts them all.
    """
    first = begins(run)
    ratios = []
    for place in warm(run) or range(len(run.items)):
        places = range(first[place], first[place] + run.items[place])
        if all(item in usual for item in places):
            ratios.append(seconds[place] / max(sum(usual[item] for item in places), 1e-12))
    return middle(ratios) if ratios else middle(each(run, seconds)) / run.batch_size / fmean(usual.values())


_UNKNOWN_DRIFT = 0.12
"""About what two probes of one setting differ by, in the middle of the workloads of `benchmarks/` that have both."""


def drift(runs: Sequence[Run]) -> float:
    """How far apart runs of the same setting lie that were made at different times, relative: some machines are not
    always as fast. Where none was made twice, what is usual."""
    found: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        found.setdefault((run.batch_size, run.num_workers), []).append(median(each(run, run.load_s)))
    apart = [max(values) / max(min(values), 1e-12) - 1 for values in found.values() if len(values) > 1]
    return max(apart, default=_UNKNOWN_DRIFT)


def means(
    runs: Sequence[Run],
    usual: dict[int, float],
    seconds: Callable[[Run], Sequence[float]],
    middle: Callable[[Sequence[float]], float] = median,
) -> Table:
    """Mean seconds an item at each batch size, as if every run had gone over all the items that any went over."""
    mean = fmean(usual.values())
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.batch_size, []).append(against(run, seconds(run), usual, middle) * mean)
    return table(found, fmean, flat=True)
