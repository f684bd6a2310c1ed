"""What a setting would cost, from probes: a time with an interval, and what would limit it."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np

from stoker.errors import InputError
from stoker.forecast.costs import Costs, Step, faster
from stoker.forecast.fit import fit
from stoker.forecast.items import drift
from stoker.forecast.loader import Load, Seen
from stoker.forecast.simulate import simulate
from stoker.records import Prediction, Probes, Run, Setting

SEEDS = 15
_NOISE, _FIRST_NOISE = 0.12, 0.2
"""The least half-width of an interval, and of one for the first batch alone, which nothing averages: what two runs of
the same setting on a shared machine differ by."""
NO_LENGTH = "the dataset has no length; say how many items to count with: --items 10000"
_MOST_SIMULATED = 1024
_CROWDED = 2.0
"""With more workers than cores, the order in which they get them decides the first batch: so much wider."""


class Predictor:
    """Costs fitted once, for any number of settings; `cores` and `faster` ask what if."""

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

    def changed(self, faster_stages: dict[str, float], *, item: float = 1.0) -> "Predictor":
        """The same, with some stages so many times faster, or items that take so much of what they do."""
        other = copy(self)
        costs = faster(self.costs, faster_stages)
        other.costs = replace(
            costs, worker_item_s=costs.worker_item_s.scaled(item), inline_item_s=costs.inline_item_s.scaled(item)
        )
        return other

    def predict(
        self,
        setting: Setting,
        items: int,
        *,
        epochs: int = 1,
        drop_last: bool = False,
        seed: int = 0,
        seeds: int = SEEDS,
    ) -> Prediction:
        """The middle of `seeds` simulated runs; few of them tell roughly, and soon."""
        for name, value in (("items", items), ("epochs", epochs)):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        for name, value in (("workers", setting.num_workers), ("prefetch factor", setting.prefetch_factor)):
            if value > _MOST_SIMULATED:
                raise InputError(f"{name} can be simulated up to {_MOST_SIMULATED}, got {value}")
        load = Load(items=items, epochs=epochs, drop_last=drop_last)
        if not load.batches(setting.batch_size):
            raise InputError(f"{items} items make no whole batch of {setting.batch_size}")
        runs = [simulate(self.costs, setting, load, seed=seed + each) for each in range(seeds)]
        total = median(run.total_s for run in runs)
        first = median(run.first_batch_s for run in runs)
        chosen = min(runs, key=lambda run: abs(run.total_s - total))
        half = self._half_width([run.total_s for run in runs], _NOISE)
        crowded = _CROWDED if setting.num_workers > self.costs.cores else 1.0
        first_half = self._half_width([run.first_batch_s for run in runs], _FIRST_NOISE) * crowded
        return Prediction(
            setting=setting,
            items=items,
            epochs=epochs,
            total_s=total,
            interval_s=(total * (1 - half), total * (1 + half)),
            first_batch_s=first,
            first_batch_interval_s=(first * max(0.0, 1 - first_half), first * (1 + first_half)),
            steady_items_per_s=self._steady(chosen, setting, load),
            wait_share=min(1.0, chosen.waited_s / max(chosen.total_s, 1e-12)),
            limited_by=_limit(self.costs, setting, chosen),
        )

    def _steady(self, seen: Seen, setting: Setting, load: Load) -> float:
        """Items a second once the first batches of all workers are through; where there are too few batches to tell, of
        a run that has more."""
        skip = max(3, setting.num_workers)
        if len(seen.moments_s) <= 2 * skip:
            load = replace(load, items=4 * (skip + setting.prefetch_factor) * setting.batch_size, epochs=1)
            seen = simulate(self.costs, setting, load)
        moments = seen.moments_s
        last = load.last(setting.batch_size)
        items = (len(moments) - skip - 1) * setting.batch_size + last
        return items / max(moments[-1] - moments[skip - 1], 1e-12)

    def _half_width(self, totals: Sequence[float], least: float) -> float:
        """Relative: what the probes' own replay missed or the noise of any run, what resampled items differ by, and how
        much faster or slower the machine became while it was probed."""
        centre = median(totals)
        spread = (max(totals) - min(totals)) / 2 / max(centre, 1e-12)
        return min(0.9, float(np.linalg.norm([max(least, 1.5 * self.residual), spread, self.drift])))


def predict(
    probes: Probes,
    setting: Setting,
    *,
    items: int | None = None,
    epochs: int = 1,
    cores: float | None = None,
    faster: dict[str, float] | None = None,
) -> Prediction:
    """What `setting` would cost for `items` items, from probes alone: neither model nor data is needed."""
    return Predictor(probes, cores=cores, faster_stages=faster).predict(
        setting, items_of(probes) if items is None else items, epochs=epochs
    )


def items_of(probes: Probes) -> int:
    """How many items an epoch has; a stream of unknown length must be told."""
    if probes.subject.items is None:
        raise InputError(NO_LENGTH)
    return probes.subject.items


def _residual(costs: Costs, probes: Probes) -> float:
    """How far off the replay of the probes' own loading runs is, relative, for four in five of them.

    What that may be by chance, as the replay draws other items than the run had, is taken off.
    """
    quiet = replace(costs, step=Step())
    differ = float(costs.spread.std() / max(costs.spread.mean(), 1e-12))
    misses = []
    for run in probes.of("load"):
        seen = simulate(quiet, _setting(run), Load(items=sum(run.items)))
        steps = (done - got for got, done in zip(run.got_s, run.done_s, strict=True))
        loading = run.total_s - (0.0 if run.num_workers else sum(steps))
        miss = seen.total_s / loading - 1 if loading > 0 else 0.0
        by_chance = differ / math.sqrt(len(run.items) if costs.by_batch else sum(run.items))
        misses.append(math.sqrt(max(0.0, miss**2 - by_chance**2)))
    return float(np.quantile(misses, 0.8)) if misses else 0.0


def _setting(run: Run) -> Setting:
    return Setting(
        batch_size=run.batch_size,
        num_workers=run.num_workers,
        prefetch_factor=run.prefetch_factor,
        pin_memory=run.pinned,
    )


def _limit(costs: Costs, setting: Setting, seen: Seen) -> str:
    if seen.first_batch_s > 0.5 * seen.total_s:
        return "start"
    if seen.waited_s < 0.5 * seen.total_s:
        return "step"
    loading = costs.worker_item_s.at(setting.batch_size) * setting.batch_size
    stages = {name: share * loading for name, share in costs.shares.items() if "." not in name}
    stages["collate"] = costs.collate_s.at(setting.batch_size)
    if setting.num_workers and seen.received_s > 0.5 * seen.waited_s:
        return "send"
    return max(stages, key=lambda name: stages[name]) if stages else "load"


def with_pinning(setting: Setting, probes: Probes) -> Setting:
    """The setting with the choice about pinned memory made as the probes made it."""
    pinned = any(run.pinned for run in probes.runs) if setting.pin_memory is None else setting.pin_memory
    return msgspec.structs.replace(setting, pin_memory=pinned)


_GRID_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def landscape(predictor: Predictor, probes: Probes, items: int, *, epochs: int = 1) -> list[Prediction]:
    """Every batch size between the least and the largest that were probed, with workers up to twice the cores."""
    sizes = [run.batch_size for run in probes.runs]
    least, most = min(sizes), max(sizes)
    between = [2**power for power in range(31) if least <= 2**power <= most]
    counts = [count for count in _GRID_WORKERS if count <= 2 * max(1.0, predictor.costs.cores)]
    settings = [
        with_pinning(Setting(batch_size=size, num_workers=count), probes)
        for size in sorted({least, *between, most})
        for count in counts
    ]
    return [predictor.predict(setting, items, epochs=epochs) for setting in settings]


def parse_faster(texts: Sequence[str]) -> dict[str, float]:
    """`decode=2x`, `step=3`."""
    changes = {}
    for text in texts:
        name, _, times = text.partition("=")
        try:
            changes[name.strip()] = float(times.strip().removesuffix("x"))
        except ValueError:
            raise InputError(f"{text!r} is no change; write it like decode=2x") from None
    return changes
