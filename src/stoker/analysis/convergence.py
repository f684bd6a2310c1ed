"""What training runs with two batch sizes say: how far apart they end, and how soon each reaches the same loss.

Runs are compared seed by seed, because both sizes begin from the same weights and see the items in the same order. Of
the differences comes a t interval. One seed has none: the next seed might say the opposite.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal

from stoker.analysis.student import Estimate, estimate
from stoker.records import Checkpoint, Convergence, Record, TrainingRun
from stoker.units import format_count

_WIDE = 100
"""An interval of a ratio that is wider than this factor says nothing: its ends are left out."""


class Ratio(Record, frozen=True):
    """The geometric mean of ratios, and the interval of the true one. No interval for a single value."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @property
    def is_one(self) -> bool:
        """Whether the true ratio may be one, as far as these values tell."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high


class Difference(Record, frozen=True):
    """`against` compared with `batch_size`, over the seeds that finished with both.

    `metric` and `loss` are differences at the end of the training. `metric_scale` is 100 where the metric is a share,
    so that `metric` is in points, and 1 elsewhere. `same_loss` is the time in which `against` reaches the lowest loss
    that both reach, as a share of the time of `batch_size`. `learned` says for each size whether it ends better than it
    began. `diverged` counts the seeds of each size whose loss was no finite number.
    """

    pairs: int
    metric: Estimate | None
    metric_scale: int
    loss: Estimate | None
    training_time: Ratio | None
    same_loss: Ratio | None
    learned: dict[int, bool]
    diverged: dict[int, int]


def difference(found: Convergence) -> Difference:
    """What the runs say."""
    sizes = (found.batch_size, found.against)
    pairs = _pairs(found)
    return Difference(
        pairs=len(pairs),
        metric=_estimate([_ends(pair, lambda end: end.metric) for pair in pairs], scale=_metric_scale(found)),
        metric_scale=_metric_scale(found),
        loss=_estimate([_ends(pair, lambda end: end.validation_loss) for pair in pairs]),
        training_time=_ratio([_times(pair) for pair in pairs]),
        same_loss=_ratio([_time_to_same_loss(*pair) for pair in pairs]),
        learned={size: _learned(found.of(size)) for size in sizes},
        diverged={size: sum(run.diverged for run in found.of(size)) for size in sizes},
    )


def sentences(found: Convergence, seen: Difference | None = None) -> list[str]:
    """The answer in plain sentences, the most important first."""
    seen = seen or difference(found)
    told = [*_divergence(found, seen), *_learning(found, seen)]
    if seen.pairs and not any(seen.diverged.values()):
        told += _times_told(found, seen)
    return told


# ---------------------------------------------------------------- figures


def _pairs(found: Convergence) -> list[tuple[TrainingRun, TrainingRun]]:
    """The runs of each seed that finished with both sizes and did not diverge."""
    usable = {
        (run.batch_size, run.seed): run
        for run in found.runs
        if run.outcome == "done" and not run.diverged and run.checkpoints
    }
    seeds = [seed for seed in found.seeds if all((size, seed) in usable for size in (found.batch_size, found.against))]
    return [(usable[found.batch_size, seed], usable[found.against, seed]) for seed in seeds]


def _metric_scale(found: Convergence) -> int:
    values = [each.metric for run in found.runs for each in run.checkpoints if each.metric is not None]
    return 100 if values and all(0 <= value <= 1 for value in values) else 1


Pair = tuple[float, float] | None


def _ends(pair: tuple[TrainingRun, TrainingRun], of: Callable[[Checkpoint], float | None]) -> Pair:
    """A figure at the end of both runs."""
    before, after = (of(run.checkpoints[-1]) for run in pair)
    return None if before is None or after is None else (before, after)


def _estimate(pairs: Sequence[Pair], *, scale: int = 1) -> Estimate | None:
    values = [(pair[1] - pair[0]) * scale for pair in pairs if pair is not None]
    return estimate(values) if values and len(values) == len(pairs) else None


def _ratio(pairs: Sequence[Pair]) -> Ratio | None:
    logs = [math.log(pair[1] / pair[0]) for pair in pairs if pair is not None and pair[0] > 0 and pair[1] > 0]
    if not logs or len(logs) < len(pairs):
        return None
    found = estimate(logs)
    low, high = (None, None) if found.margin is None else (found.mean - found.margin, found.mean + found.margin)
    return Ratio(
        mean=math.exp(found.mean),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        values=tuple(map(math.exp, logs)),
    )


def _times(pair: tuple[TrainingRun, TrainingRun]) -> Pair:
    return pair[0].train_s, pair[1].train_s


def _time_to_same_loss(first: TrainingRun, second: TrainingRun) -> Pair:
    """Seconds of training until each run has the lowest loss that both reach. None where one starts with it."""
    lowest = [min((loss for _, loss in curve(run)), default=None) for run in (first, second)]
    if lowest[0] is None or lowest[1] is None:
        return None
    target = max(lowest[0], lowest[1])
    before, after = (_reached_s(curve(run), target) for run in (first, second))
    return None if not before or not after else (before, after)


def curve(run: TrainingRun) -> list[tuple[float, float]]:
    """Seconds of training and the validation loss, at each checkpoint that has one."""
    points, seconds = [], 0.0
    for each in run.checkpoints:
        seconds += each.train_s
        if each.validation_loss is not None:
            points.append((seconds, each.validation_loss))
    return points


def _reached_s(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """When the loss was first as low as `target`, on straight lines between the checkpoints."""
    if points and points[0][1] <= target:
        return points[0][0]
    for (began_s, above), (ended_s, below) in pairwise(points):
        if below <= target:
            return began_s + (ended_s - began_s) * (above - target) / (above - below)
    return None


def _learned(runs: Sequence[TrainingRun]) -> bool:
    """Whether the runs end better than they began: by the metric where there is one, else by the loss."""
    gains = [gain for run in runs if (gain := _gain(run)) is not None]
    if not gains:
        return False
    seen = estimate(gains)
    return seen.mean > 0 if seen.margin is None else seen.mean > seen.margin


def _gain(run: TrainingRun) -> float | None:
    if run.outcome != "done" or len(run.checkpoints) < 2:
        return None
    first, last = run.checkpoints[0], run.checkpoints[-1]
    if first.metric is not None and last.metric is not None:
        return last.metric - first.metric
    if first.validation_loss is not None and last.validation_loss is not None:
        return first.validation_loss - last.validation_loss
    losses = [each.validation_loss for each in run.checkpoints if each.validation_loss is not None]
    return losses[0] - losses[-1] if len(losses) > 1 else None


# ---------------------------------------------------------------- sentences


def _divergence(found: Convergence, seen: Difference) -> list[str]:
    seeds = len(found.seeds)
    return [
        f"batch {size:,} diverged in {count} of {format_count(seeds, 'seed')}: its loss was no finite number"
        for size, count in seen.diverged.items()
        if count
    ]


def _learning(found: Convergence, seen: Difference) -> list[str]:
    if not seen.pairs:
        return ["no seed finished with both batch sizes, so they cannot be compared"]
    judged = seen.metric if seen.metric is not None else seen.loss
    unit = _unit(found, seen)
    if judged is None:
        return ["the runs have neither a metric nor a validation loss at their end, so they cannot be compared"]
    told = [_verdict(found, seen.pairs, judged, unit, is_loss=seen.metric is None)]
    if seen.metric is not None and seen.loss is not None and seen.metric.is_zero and not seen.loss.is_zero:
        told.append(_verdict(found, seen.pairs, seen.loss, "", is_loss=True))
    idle = [f"batch {size:,}" for size, learned in seen.learned.items() if not learned]
    if idle:
        began = "it began" if len(idle) == 1 else "they began"
        told.append(f"{' and '.join(idle)} cannot be seen to end better than {began}: train longer")
    return told


def _unit(found: Convergence, seen: Difference) -> str:
    return " points" if seen.metric is not None and seen.metric_scale == 100 else ""


def _verdict(found: Convergence, pairs: int, judged: Estimate, unit: str, *, is_loss: bool) -> str:
    sizes = f"batch {found.against:,}", f"batch {found.batch_size:,}"
    size = number(abs(judged.mean))
    what = "validation loss" if is_loss else ("metric" if not unit else "")
    where = "above" if judged.mean > 0 else "below"
    place = f"{size}{unit} {where} {sizes[1]}" if judged.mean else f"level with {sizes[1]}"
    by = f" in the {what}" if what else ""
    if judged.margin is None:
        return f"one seed proves nothing: here {sizes[0]} ends {place}{by}; run at least 3 seeds"
    margin = number(judged.margin)
    if judged.is_zero:
        signed = f"{'+' if judged.mean >= 0 else '−'}{size} ± {margin}{unit}"
        return f"no difference can be seen in {format_count(pairs, 'seed')}: {signed}{by}"
    if is_loss:
        return f"{sizes[0]} ends with a validation loss {size} ± {margin} {where} that of {sizes[1]}"
    verb = "gains" if judged.mean > 0 else "loses"
    return f"{sizes[0]} {verb} {size} ± {margin}{unit}{by} against {sizes[1]}"


def _times_told(found: Convergence, seen: Difference) -> list[str]:
    name = f"batch {found.against:,}"
    if seen.same_loss is None:
        return []
    share = number(seen.same_loss.mean)
    if seen.same_loss.low is None or seen.same_loss.high is None:
        return [f"in this seed {name} reaches the same loss in {share} of the time"]
    span = f"{number(seen.same_loss.low)} to {number(seen.same_loss.high)}"
    if seen.same_loss.is_one and seen.same_loss.high > _WIDE * seen.same_loss.low:
        seeds = format_count(seen.pairs, "seed")
        return [f"the time to the same loss differs too much between {seeds} to be compared: here {share} of the time"]
    if seen.same_loss.is_one:
        return [f"no difference can be seen in the time to the same loss: {share} of the time, {span}"]
    return [f"{name} reaches the same loss in {share} of the time ({span})"]


def number(value: float) -> str:
    """Two digits after the point, or two that mean something where that is less."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def epoch_means(found: Convergence) -> list[dict[str, float | int | None]]:
    """For each size and checkpoint, the means over the seeds that reached it. Runs that failed or diverged are left
    out where they have no figure."""
    rows: list[dict[str, float | int | None]] = []
    for size in (found.batch_size, found.against):
        runs = [run for run in found.of(size) if run.checkpoints]
        for place in range(max((len(run.checkpoints) for run in runs), default=0)):
            seen = [run.checkpoints[place] for run in runs if len(run.checkpoints) > place]
            rows.append(
                {
                    "batch_size": size,
                    "epochs": seen[0].epochs,
                    "updates": seen[0].updates,
                    "train_s": _mean([each.train_s for each in seen]),
                    "train_loss": _mean([each.train_loss for each in seen]),
                    "validation_loss": _mean([each.validation_loss for each in seen]),
                    "metric": _mean([each.metric for each in seen]),
                    "seeds": len(seen),
                }
            )
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


CurveFigure = Literal["validation_loss", "metric", "train_loss"]


def curve_rows(found: Convergence, *, figure: CurveFigure) -> list[dict[str, object]]:
    """Every run's figure at each checkpoint: batch size, seed, epochs, updates, items, seconds of training so far."""
    rows: list[dict[str, object]] = []
    for run in found.runs:
        seconds = 0.0
        for each in run.checkpoints:
            seconds += each.train_s
            value = getattr(each, figure)
            if value is not None:
                rows.append(
                    {
                        "batch_size": run.batch_size,
                        "seed": run.seed,
                        "epochs": each.epochs,
                        "updates": each.updates,
                        "items": each.items,
                        "seconds": seconds,
                        figure: value,
                    }
                )
    return rows
