"""PyTorch's DataLoader as an event simulation: what a loop would cost at any batch size, workers and prefetch.

As the real one: workers are forked one after another; `prefetch_factor` index lists for each are handed out round
robin when the iterator is made; a worker loads whole batches, one at a time; the loop takes results as they arrive,
holds back what is out of order, and hands out one more list before it returns a batch; then the step. A batch is held
until the next is there.
Whatever computes shares the cores equally; what sleeps or reads does not.
"""

import math
from collections import deque
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from stoker.forecast.batches import PINNED_AT_ONCE
from stoker.forecast.costs import Costs, Table
from stoker.forecast.loader import Load, Loader, Seen, persists
from stoker.records import Setting

_MANY_ITEMS = 8192
"""The mean of more items than these is drawn whole, from the curve that such means follow."""
_MOST_BATCHES = 240
"""Longer runs are simulated over this many batches (and what the prefetch needs), then continued at the steady rate."""


def simulate(costs: Costs, setting: Setting, load: Load, *, seed: int = 0, cores: float | None = None) -> Seen:
    """One run of the loop. The same seed gives the same answer."""
    rng = np.random.default_rng(seed)
    if not load.batches(setting.batch_size):
        return Seen()
    costs = replace(_lucky(costs, seed), step=costs.step.accumulating(setting.accumulate))
    first = _epoch(costs, setting, load, rng, cores, fresh=True)
    if load.epochs == 1:
        return first
    step = replace(costs.step, first_s=Table())
    used = replace(costs, pin_anew_s=Table(), inline_cold_s=Table(), step=step)  # what the first epoch took is there
    later = _epoch(used, setting, load, rng, cores, fresh=not persists(setting))
    return Seen(
        total_s=first.total_s + (load.epochs - 1) * later.total_s,
        first_batch_s=first.first_batch_s,
        start_s=first.start_s,
        waited_s=first.waited_s + (load.epochs - 1) * later.waited_s,
        moments_s=first.moments_s,
        received_s=first.received_s,
    )


def _epoch(
    costs: Costs,
    setting: Setting,
    load: Load,
    rng: np.random.Generator,
    cores: float | None,
    *,
    fresh: bool,
) -> Seen:
    """One pass over the set, a long one cut short and continued at the rate of its second half."""
    sizes = load.sizes(setting.batch_size, _MOST_BATCHES + 4 * setting.num_workers * setting.prefetch_factor)
    seen = _loop(costs, setting, load, sizes, rng, cores, fresh=fresh)
    missing = load.batches(setting.batch_size) - len(sizes)
    if missing:
        half = len(seen.moments_s) // 2
        span = seen.moments_s[-2] - seen.moments_s[half]
        more = missing * span / max(1, len(seen.moments_s) - 2 - half)
        growth = 1 + more / max(seen.moments_s[-1] - seen.moments_s[0], 1e-12)
        seen.total_s += more
        begun = min(seen.waited_s, seen.first_batch_s - (0.0 if costs.step.asynchronous else seen.start_s))
        seen.waited_s = begun + (seen.waited_s - begun) * growth
        seen.received_s *= growth
    return seen


def _loop(
    costs: Costs,
    setting: Setting,
    load: Load,
    sizes: list[int],
    rng: np.random.Generator,
    cores: float | None,
    *,
    fresh: bool,
) -> Seen:
    draws = _draws(costs, sizes, rng)
    if setting.num_workers == 0:
        return _alone(costs, sizes, draws, pinned=bool(setting.pin_memory))
    uneven = _uneven(costs, len(sizes), setting.num_workers, rng)
    cores = costs.cores if cores is None else cores
    if setting.pin_memory:
        costs = replace(costs, first_sends=costs.first_sends.drawn(rng))
    return Loader(costs, setting, load, sizes, list(zip(draws, uneven, strict=True)), cores, fresh=fresh).run()


def _lucky(costs: Costs, seed: int) -> Costs:
    """As the costs would be if other items of the set had been probed: where a few are very slow, how many of them were
    among those decides what an item is said to take.

    Seeds share out what is likely evenly (by van der Corput's sequence): of the first 3, 7 or 15, the middle one has
    the items as they were seen, and so all settings are told with the same luck.
    """
    if not costs.sampled or len(costs.spread) == 1:
        return costs
    place = sum(1 / 2 ** (bit + 1) for bit in range((seed + 1).bit_length()) if (seed + 1) >> bit & 1)
    error = float(costs.spread.std() / costs.spread.mean()) / math.sqrt(costs.sampled)
    return replace(costs, spread=costs.spread * math.exp(error * NormalDist().inv_cdf(place)))


def _uneven(costs: Costs, batches: int, workers: int, rng: np.random.Generator) -> list[float]:
    """How much slower than usual the core is that loads each batch: some of it is so for all of a worker's batches."""
    staying = rng.normal(0.0, costs.unevenness * costs.lasting**0.5, workers)
    passing = rng.normal(0.0, costs.unevenness * (1 - costs.lasting) ** 0.5, batches)
    return [float(value) for value in np.exp(passing + staying[np.arange(batches) % workers])]


def _draws(costs: Costs, sizes: list[int], rng: np.random.Generator) -> list[float]:
    """How each batch's items differ from the mean: resampled from what was seen, a mean over the batch's items."""
    if costs.by_batch or len(costs.spread) == 1:
        return [float(value) for value in rng.choice(costs.spread, size=len(sizes))]
    if max(sizes) > _MANY_ITEMS:
        apart = costs.spread.std() / np.sqrt(np.asarray(sizes))
        return [float(value) for value in np.maximum(rng.normal(costs.spread.mean(), apart), 0.0)]
    drawn = rng.choice(costs.spread, size=sum(sizes))
    ends = np.cumsum(sizes)
    sums = np.add.reduceat(drawn, np.concatenate([[0], ends[:-1]]))
    return [float(value) for value in sums / np.asarray(sizes)]


def _alone(costs: Costs, sizes: list[int], draws: list[float], *, pinned: bool) -> Seen:
    """No workers: load, step, free, one after another."""
    seen = Seen()
    now = device_free = 0.0
    queue: deque[float] = deque()
    step = costs.step
    for size, draw in zip(sizes, draws, strict=True):
        loading = costs.inline_item_s.at(size) * size * draw
        if pinned and len(seen.moments_s) < PINNED_AT_ONCE:
            loading += costs.pin_anew_s.at(size)
        if not seen.moments_s:
            loading += costs.inline_cold_s.at(size)
            seen.first_batch_s = loading
        now += loading
        if not step.asynchronous:
            seen.waited_s += loading
        now += step.host_s.at(size) + (0.0 if seen.moments_s else step.first_s.at(size))
        if step.asynchronous:
            seen.waited_s += max(0.0, now - device_free)
            device_free = max(now, device_free) + step.device_s.at(size)
            queue.append(device_free)
            if len(queue) > step.ahead:
                now = max(now, queue.popleft())
        seen.moments_s.append(max(now, device_free))
        now += costs.inline_between_s.at(size)
    seen.total_s = max(now, device_free)
    return seen
