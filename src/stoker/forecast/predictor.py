"""What a setting would cost, from probes: a time with an interval, and what limits it."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np

from stoker.errors import InputError
from stoker.forecast.constraints import WORKER_COUNTS
from stoker.forecast.costs import Costs, StepCosts, faster
from stoker.forecast.fit import fit, starts_of, thread_shares
from stoker.forecast.loader import Amount, SimulatedRun
from stoker.forecast.samples import drift
from stoker.forecast.simulate import simulate
from stoker.records import Prediction, Probes, Record, Run, Setting


class PredictionRules(Record, frozen=True):
    """How many runs a prediction simulates, and how wide its interval is."""

    seeds: int = 15
    """A prediction is the median of this many simulated runs."""
    noise: float = 0.12
    """The least relative half-width of an interval: two runs of one setting on a shared machine differ by this."""
    first_noise: float = 0.2
    """The same for the first batch alone, which nothing averages."""
    residual_weight: float = 1.5
    """The replay error of the probes counts this many times: other settings are predicted worse than the probes."""
    residual_quantile: float = 0.8
    """The replay error is this quantile over the probes: a single disturbed probe does not widen every interval."""
    widest: float = 0.9
    """The largest relative half-width: a time is never predicted as low as 0."""
    crowded: float = 2.0
    """With more workers than cores, the order in which they get a core decides the first batch: its interval is this
    many times wider."""
    most_simulated: int = 1024
    """More workers, or a larger prefetch factor, would take too long to simulate."""
    most_in_flight: int = 1 << 16
    """So would more batches that are loaded ahead by all workers together."""
    most_items: int = 2**50
    """No machine holds a batch, and nobody runs an epoch, of more items."""


RULES = PredictionRules()
NO_LENGTH = "the dataset has no length; say how many items to count with: --items 10000"


class Predictor:
    """Costs fitted once, for any number of settings.

    `cores` and `faster_stages` ask what if. Raises InputError if they are not above 0, or a stage is unknown.
    """

    def __init__(
        self, probes: Probes, *, cores: float | None = None, faster_stages: dict[str, float] | None = None
    ) -> None:
        if cores is not None and not 0 < cores < math.inf:
            raise InputError(f"cores must be above 0, got {cores:g}")
        self.probes = probes
        fitted = fit(probes)
        self.residual = _residual(fitted, probes)
        self.drift = drift([run for run in probes.of("load") if run.began_s])
        self.costs = replace(faster(fitted, faster_stages or {}), cores=cores or fitted.cores)
        self.starts, self.thread_shares = starts_of(probes), thread_shares(probes)

    def changed(self, faster_stages: dict[str, float], *, item: float = 1.0, inline: float = 1.0) -> "Predictor":
        """The same predictor with faster stages, with items that take the share `item` of their time, or where loading
        a batch without workers takes the share `inline`."""
        other = copy(self)
        costs = faster(self.costs, faster_stages).with_items(item)
        other.costs = replace(costs, inline_item_s=costs.inline_item_s.scaled(inline))
        return other

    def with_step_cores(self, used: float) -> "Predictor":
        """The same predictor, where a step on the CPU is known to use so many cores on average. One that only waits
        uses none, and is not held up by workers."""
        threads = round(used)
        # A step that computes on all cores has to share one with the first worker.
        crowded = 1.0 + min(1.0, max(0.0, used - (self.costs.cores - 1)))
        other = copy(self)
        known = any(self.probes.of("crowded"))
        step = replace(self.costs.step, threads=threads, crowded=self.costs.step.crowded if known else crowded)
        other.costs = replace(self.costs, step=step)
        return other

    def predict(
        self, setting: Setting, items: int, *, epochs: int = 1, seed: int = 0, seeds: int = RULES.seeds
    ) -> Prediction:
        """The median of `seeds` simulated runs. Fewer seeds are quicker and rougher.

        Raises InputError for counts below 1, and for more workers than can be simulated.
        """
        for name, value in (("items", items), ("epochs", epochs)):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        for name, value in (("batch size", setting.batch_size), ("items", items), ("epochs", epochs)):
            if value > RULES.most_items:
                raise InputError(f"{name} can be predicted up to {RULES.most_items:,}, got {value:,}")
        for name, value in (("workers", setting.num_workers), ("prefetch factor", setting.prefetch_factor)):
            if value > RULES.most_simulated:
                raise InputError(f"{name} can be simulated up to {RULES.most_simulated}, got {value}")
        ahead = setting.num_workers * setting.prefetch_factor
        if ahead > RULES.most_in_flight:
            raise InputError(
                f"workers times prefetch factor can be simulated up to {RULES.most_in_flight:,}, got {ahead:,}"
            )
        amount = Amount(items=items, epochs=epochs)
        costs = self._costs_of(setting)
        runs = [simulate(costs, setting, amount, seed=seed + each) for each in range(seeds)]
        total = median(run.total_s for run in runs)
        first = median(run.first_batch_s for run in runs)
        chosen = min(runs, key=lambda run: abs(run.total_s - total))
        half = self._half_width([run.total_s for run in runs], RULES.noise)
        crowded = RULES.crowded if setting.num_workers > self.costs.cores else 1.0
        first_half = self._half_width([run.first_batch_s for run in runs], RULES.first_noise) * crowded
        return Prediction(
            setting=setting,
            items=items,
            epochs=epochs,
            total_s=total,
            interval_s=(total * (1 - half), total * (1 + half)),
            first_batch_s=first,
            first_batch_interval_s=(first * max(0.0, 1 - first_half), first * (1 + first_half)),
            steady_items_per_s=self._steady_rate(costs, chosen, setting, amount),
            wait_share=min(1.0, chosen.waited_s / max(chosen.total_s, 1e-12)),
            limited_by=_limit(costs, setting, chosen),
        )

    def _costs_of(self, setting: Setting) -> Costs:
        """The costs under the setting's start method and threads. Raises InputError for what was not probed."""
        costs = self.costs
        if not setting.num_workers:
            return costs
        method, threads = setting.multiprocessing_context, setting.worker_threads
        if method is not None and method != self.start_method:
            if method not in self.starts:
                raise InputError(f"starting workers by {method} was not probed; probe with --start-methods {method}")
            costs = replace(costs, **self.starts[method]._asdict())
        if threads is not None and threads != (self.probes.setting.worker_threads or 1):
            if threads not in self.thread_shares:
                raise InputError(
                    f"{threads} threads in each worker were not probed; probe with --worker-threads {threads}"
                )
            share = self.thread_shares[threads].at(setting.num_workers)
            costs = replace(costs, worker_item_s=costs.worker_item_s.scaled(share))
        return costs

    @property
    def start_method(self) -> str | None:
        """How the probes' workers were started; None if the probes do not say."""
        own = self.probes.setting.multiprocessing_context
        return own or next((run.start_method for run in self.probes.of("load") if run.start_method), None)

    def _steady_rate(self, costs: Costs, run: SimulatedRun, setting: Setting, amount: Amount) -> float:
        """Items per second after the first batches of all workers. A run with too few batches is simulated again with
        more."""
        skip = max(3, setting.num_workers)
        if len(run.step_ends_s) <= 2 * skip:
            amount = replace(amount, items=4 * (skip + setting.prefetch_factor) * setting.batch_size, epochs=1)
            run = simulate(costs, setting, amount)
        ends = run.step_ends_s
        items = (len(ends) - skip - 1) * setting.batch_size + amount.last(setting.batch_size)
        return items / max(ends[-1] - ends[skip - 1], 1e-12)

    def _half_width(self, totals: Sequence[float], least: float) -> float:
        """Relative half-width: root sum of squares of the replay error (at least `least`), the spread over resampled
        items, and the drift of the machine."""
        centre = median(totals)
        spread = (max(totals) - min(totals)) / 2 / max(centre, 1e-12)
        replayed = max(least, RULES.residual_weight * self.residual)
        return min(RULES.widest, float(np.linalg.norm([replayed, spread, self.drift])))


def predict(
    probes: Probes,
    setting: Setting,
    *,
    items: int | None = None,
    epochs: int = 1,
    cores: float | None = None,
    faster: dict[str, float] | None = None,
) -> Prediction:
    """What `setting` would cost for `items` items, from probes alone: neither model nor data is needed.

    Without `items`, an epoch of the probed data set. Raises InputError if its length is not known.
    """
    return Predictor(probes, cores=cores, faster_stages=faster).predict(
        setting, items_of(probes) if items is None else items, epochs=epochs
    )


def items_of(probes: Probes) -> int:
    """How many items an epoch has. Raises InputError for a stream of unknown length."""
    if probes.subject.items is None:
        raise InputError(NO_LENGTH)
    return probes.subject.items


def _residual(costs: Costs, probes: Probes) -> float:
    """The relative replay error: how far a simulation of the probes' own loading runs is off.

    The replay draws other items than the run had. The error expected from that is taken off.
    """
    quiet = replace(costs, step=StepCosts())
    deviation = float(costs.spread.std() / max(costs.spread.mean(), 1e-12))
    misses = []
    for run in probes.of("load"):
        replayed = simulate(quiet, _setting(run), Amount(items=sum(run.items)))
        steps = (done - got for got, done in zip(run.got_s, run.done_s, strict=True))
        loading = run.total_s - (0.0 if run.num_workers else sum(steps))
        miss = replayed.total_s / loading - 1 if loading > 0 else 0.0
        by_chance = deviation / math.sqrt(len(run.items) if costs.by_batch else sum(run.items))
        misses.append(math.sqrt(max(0.0, miss**2 - by_chance**2)))
    return float(np.quantile(misses, RULES.residual_quantile)) if misses else 0.0


def _setting(run: Run) -> Setting:
    return Setting(
        batch_size=run.batch_size,
        num_workers=run.num_workers,
        prefetch_factor=run.prefetch_factor,
        pin_memory=run.pinned,
    )


def _limit(costs: Costs, setting: Setting, run: SimulatedRun) -> str:
    """What takes most of a simulated run: a code as in `Prediction.limited_by`."""
    if run.first_batch_s > 0.5 * run.total_s:
        return "start"
    if run.waited_s < 0.5 * run.total_s:
        return "step"
    loading = costs.worker_item_s.at(setting.batch_size) * setting.batch_size
    stages = {name: share * loading for name, share in costs.shares.items() if "." not in name}
    stages["collate"] = costs.collate_s.at(setting.batch_size)
    if setting.num_workers and run.received_s > 0.5 * run.waited_s:
        return "send"
    return max(stages, key=lambda name: stages[name]) if stages else "load"


def with_pinning(setting: Setting, probes: Probes) -> Setting:
    """The setting with pinned memory as in the probes, if it leaves that open."""
    pinned = any(run.pinned for run in probes.runs) if setting.pin_memory is None else setting.pin_memory
    return msgspec.structs.replace(setting, pin_memory=pinned)


def landscape(predictor: Predictor, items: int, *, epochs: int = 1) -> list[Prediction]:
    """Every batch size between the least and the largest that were probed, with workers up to twice the cores."""
    probes = predictor.probes
    sizes = [run.batch_size for run in probes.runs]
    least, most = min(sizes), max(sizes)
    between = [2**power for power in range(31) if least <= 2**power <= most]
    counts = [count for count in WORKER_COUNTS if count <= 2 * max(1.0, predictor.costs.cores)]
    settings = [
        with_pinning(Setting(batch_size=size, num_workers=count), probes)
        for size in sorted({least, *between, most})
        for count in counts
    ]
    return [predictor.predict(setting, items, epochs=epochs) for setting in settings]


def parse_faster(texts: Sequence[str]) -> dict[str, float]:
    """The factors in `decode=2x` or `step=3`. Raises InputError for anything else."""
    changes = {}
    for text in texts:
        name, _, times = text.partition("=")
        try:
            changes[name.strip()] = float(times.strip().removesuffix("x"))
        except ValueError:
            raise InputError(f"{text!r} is no change; write it like decode=2x") from None
    return changes
