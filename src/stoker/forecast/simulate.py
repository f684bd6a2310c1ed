"""PyTorch's DataLoader as an event simulation: what a loop costs at any batch size, workers and prefetch.

The simulation follows the real DataLoader. Workers are forked one after another. When the iterator is made, it assigns
`prefetch_factor` batches to each worker in turn. A worker loads whole batches, one at a time. The loop takes results as
they arrive, holds back what is out of order, and assigns one more batch before it returns one. Then comes the step. A
batch is kept until the next one is there.

Jobs that compute share the cores equally (processor sharing). Sleeping and reading use no core.
"""

import math
from collections import deque
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from stoker.forecast.cores import Cores, Meeting
from stoker.forecast.costs import Costs, Table
from stoker.forecast.loader import Amount, Loader, SimulatedRun, persists
from stoker.forecast.samples import RULES as SAMPLES
from stoker.records import Record, Setting


class SimulationRules(Record, frozen=True):
    """Where the simulation takes a shortcut."""

    drawn_items: int = 8192
    """Larger batches do not draw each item. Their mean is drawn from the normal distribution that such means follow."""
    batches: int = 240
    """Longer epochs are simulated over this many batches (and four times what is prefetched), then continued at the
    steady rate."""


RULES = SimulationRules()


def simulate(costs: Costs, setting: Setting, amount: Amount, *, seed: int = 0) -> SimulatedRun:
    """One run of the loop. The same seed gives the same answer."""
    rng = np.random.default_rng(seed)
    costs = replace(_resampled(costs, seed), step=costs.step.accumulating(setting.accumulate))
    first = _epoch(costs, setting, amount, rng, fresh=True)
    if amount.epochs == 1:
        return first
    # Later epochs find the memory and threads that the first one made.
    step = replace(costs.step, first_s=Table())
    used = replace(costs, pin_anew_s=Table(), inline_cold_s=Table(), step=step)
    later = _epoch(used, setting, amount, rng, fresh=not persists(setting))
    return SimulatedRun(
        total_s=first.total_s + (amount.epochs - 1) * later.total_s,
        first_batch_s=first.first_batch_s,
        start_s=first.start_s,
        waited_s=first.waited_s + (amount.epochs - 1) * later.waited_s,
        step_ends_s=first.step_ends_s,
        received_s=first.received_s,
    )


def _epoch(costs: Costs, setting: Setting, amount: Amount, rng: np.random.Generator, *, fresh: bool) -> SimulatedRun:
    """One epoch. A long one is cut short and continued at the rate of its second half."""
    sizes = amount.sizes(setting.batch_size, RULES.batches + 4 * setting.num_workers * setting.prefetch_factor)
    run = _loop(costs, setting, sizes, rng, fresh=fresh)
    missing = amount.batches(setting.batch_size) - len(sizes)
    if missing:
        half = len(run.step_ends_s) // 2
        span = run.step_ends_s[-2] - run.step_ends_s[half]
        more = missing * span / max(1, len(run.step_ends_s) - 2 - half)
        growth = 1 + more / max(run.step_ends_s[-1] - run.step_ends_s[0], 1e-12)
        run.total_s += more
        begun = min(run.waited_s, run.first_batch_s - (0.0 if costs.step.asynchronous else run.start_s))
        run.waited_s = begun + (run.waited_s - begun) * growth
        run.received_s *= growth
    return run


def _loop(costs: Costs, setting: Setting, sizes: list[int], rng: np.random.Generator, *, fresh: bool) -> SimulatedRun:
    if setting.processes > 1:
        return _ranks(costs, setting, sizes, rng, fresh=fresh)
    draws = _draws(costs, sizes, rng)
    if setting.num_workers == 0:
        return _without_workers(costs, sizes, draws, pinned=bool(setting.pin_memory))
    uneven = _uneven(costs, len(sizes), setting.num_workers, rng)
    if setting.pin_memory:
        costs = replace(costs, first_sends=costs.first_sends.drawn(rng))
    return Loader(costs, setting, sizes, list(zip(draws, uneven, strict=True)), fresh=fresh).run()


def _ranks(costs: Costs, setting: Setting, sizes: list[int], rng: np.random.Generator, *, fresh: bool) -> SimulatedRun:
    """Ranks with a loader each, on the same cores. At the end of every step they wait for the slowest, where they
    train: a step takes as long as the longest load and step of any rank, and the exchange."""
    ranks = setting.processes
    draws = [_draws(costs, sizes, rng) for _ in range(ranks)]
    exchange_s = None if costs.exchange_s is None else costs.exchange_s / setting.accumulate
    if setting.num_workers == 0:
        crowded = _beside_others(costs, ranks)
        if exchange_s is None:
            runs = [_without_workers(crowded, sizes, each, pinned=bool(setting.pin_memory)) for each in draws]
            return max(runs, key=lambda run: run.total_s)
        slowest = [max(each) for each in zip(*draws, strict=True)]
        return _without_workers(crowded, sizes, slowest, pinned=bool(setting.pin_memory), exchange_s=exchange_s)
    cores = Cores(costs)
    meeting = None if exchange_s is None else Meeting(cores, ranks, exchange_s)
    loaders = []
    for own in draws:
        uneven = _uneven(costs, len(sizes), setting.num_workers, rng)
        mine = replace(costs, first_sends=costs.first_sends.drawn(rng)) if setting.pin_memory else costs
        pairs = list(zip(own, uneven, strict=True))
        loaders.append(Loader(mine, setting, sizes, pairs, fresh=fresh, cores=cores, meeting=meeting))
    for loader in loaders:
        loader.begin()
    while not all(loader.is_over for loader in loaders):
        cores.advance()
    return max((loader.result for loader in loaders), key=lambda run: run.total_s)


def _beside_others(costs: Costs, ranks: int) -> Costs:
    """What a rank without workers pays while the others do the same: cores slow each other, and may be too few."""
    threads = max(1, costs.step.threads)
    turns = max(1.0, ranks / costs.cores)
    loading = costs.waiting_share + (1 - costs.waiting_share) * costs.slow(ranks) * turns
    computing = costs.slow(ranks * threads) / costs.slow(threads) * max(1.0, ranks * threads / costs.cores)
    step = replace(costs.step, host_s=costs.step.host_s.scaled(computing)) if costs.step.threads else costs.step
    return replace(costs, inline_item_s=costs.inline_item_s.scaled(loading), step=step)


def _resampled(costs: Costs, seed: int) -> Costs:
    """The costs if other items of the set had been probed. If a few items are very slow, the mean depends on how many
    of them were among the probed ones.

    Seeds are quasi-random quantiles (van der Corput), so every setting is compared under the same draws. Of the first
    3, 7 or 15 seeds, the middle quantile leaves the items as they were measured.
    """
    if not costs.sampled or len(costs.spread) == 1:
        return costs
    quantile = sum(1 / 2 ** (bit + 1) for bit in range((seed + 1).bit_length()) if (seed + 1) >> bit & 1)
    error = float(costs.spread.std() / costs.spread.mean()) / math.sqrt(costs.sampled)
    return replace(costs, spread=costs.spread * math.exp(error * NormalDist().inv_cdf(quantile)))


def _uneven(costs: Costs, batches: int, workers: int, rng: np.random.Generator) -> list[float]:
    """How slow the core is that loads each batch. One part stays with the worker, the other changes with each batch."""
    staying = rng.normal(0.0, costs.unevenness * costs.lasting**0.5, workers)
    passing = rng.normal(0.0, costs.unevenness * (1 - costs.lasting) ** 0.5, batches)
    return [float(value) for value in np.exp(passing + staying[np.arange(batches) % workers])]


def _draws(costs: Costs, sizes: list[int], rng: np.random.Generator) -> list[float]:
    """How the items of each batch differ from the mean: a mean of resampled items."""
    if costs.by_batch or len(costs.spread) == 1:
        return [float(value) for value in rng.choice(costs.spread, size=len(sizes))]
    if max(sizes) > RULES.drawn_items:
        deviation = costs.spread.std() / np.sqrt(np.asarray(sizes))
        return [float(value) for value in np.maximum(rng.normal(costs.spread.mean(), deviation), 0.0)]
    drawn = rng.choice(costs.spread, size=sum(sizes))
    ends = np.cumsum(sizes)
    sums = np.add.reduceat(drawn, np.concatenate([[0], ends[:-1]]))
    return [float(value) for value in sums / np.asarray(sizes)]


def _without_workers(
    costs: Costs, sizes: list[int], draws: list[float], *, pinned: bool, exchange_s: float = 0.0
) -> SimulatedRun:
    """No workers: load, step, exchange with other ranks, free, one after another."""
    run = SimulatedRun()
    now = device_free = 0.0
    launched_until: deque[float] = deque()
    step = costs.step
    for size, draw in zip(sizes, draws, strict=True):
        loading = costs.inline_item_s.at(size) * size * draw
        if pinned and len(run.step_ends_s) < SAMPLES.pinned_at_once:
            loading += costs.pin_anew_s.at(size)
        if not run.step_ends_s:
            loading += costs.inline_cold_s.at(size)
            run.first_batch_s = loading
        now += loading
        if not step.asynchronous:
            run.waited_s += loading
        now += step.host_s.at(size) + (0.0 if run.step_ends_s else step.first_s.at(size))
        now += 0.0 if step.asynchronous else exchange_s
        if step.asynchronous:
            run.waited_s += max(0.0, now - device_free)
            device_free = max(now, device_free) + step.device_s.at(size) + exchange_s
            launched_until.append(device_free)
            if len(launched_until) > step.ahead:
                now = max(now, launched_until.popleft())
        run.step_ends_s.append(max(now, device_free))
        now += costs.inline_between_s.at(size)
    run.total_s = max(now, device_free)
    return run
