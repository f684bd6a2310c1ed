"""A ranking of candidates from their scores and their static figures.

The order is that of the mean of ranks: of the static order, NLEEP and LogME by default. Where the static figure of a
candidate is unknown, or figures are of different data sets, the scores are ranked alone. What resampled items leave
open is a tie.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InputError
from stoker.ranking.agreement import ranks
from stoker.ranking.items import Floats
from stoker.ranking.resampling import RESAMPLING, ResampleRules
from stoker.records import RankedModel, RankedModels, Record, ScoreInterval, ScoreSample, StaticFigure

COMBINED = ("nleep", "logme")
"""Scores that are averaged with the static order. On published results no other choice is clearly better, and several
are as good within their intervals (benchmarks/transfer.py)."""
CERTAINTY = 0.95
"""A model is ahead of another when it is in at least this share of the resamples; intervals leave out the rest on each
side, so that they hold 90 %."""


class ModelScores(Record, frozen=True):
    """What is known of one candidate: its static figure and its scores on the same items as the others'."""

    model: str
    scores: tuple[ScoreSample, ...]
    static: StaticFigure = StaticFigure()

    def sample(self, score: str) -> ScoreSample:
        for each in self.scores:
            if each.score == score:
                return each
        raise InputError(f"{self.model} has no score {score}; rank models that have the same scores")


def rank(
    models: Sequence[ModelScores],
    *,
    combined: Sequence[str] = COMBINED,
    use_static: bool = True,
    rules: ResampleRules = RESAMPLING,
) -> RankedModels:
    """The candidates in order of their mean rank, with intervals and ties.

    `combined` names the scores to be averaged; every score that all candidates have is shown beside.

    Raises `InputError` when there is no candidate, when two have the same name, when one lacks a score or has one that
    is not finite.
    """
    _check(models, combined)
    missing = tuple(each.model for each in models if each.static.accuracy is None)
    mixed = len({each.static.dataset for each in models if each.static.accuracy is not None}) > 1
    static = None
    if use_static and not missing and not mixed:
        static = ranks([each.static.accuracy or 0.0 for each in models])
    samples = [[each.sample(name) for each in models] for name in combined]
    subsets = sorted(set.intersection(*(sample.defined() for row in samples for sample in row)))
    subsets = subsets if len(subsets) >= rules.least_resamples else []
    mean = _mean_ranks(np.array([[sample.value for sample in row] for row in samples]), static)
    draws = _resampled_ranks(samples, static, subsets)
    ahead = _ahead(mean, draws)
    return RankedModels(
        models=_lines(models, mean, draws, ahead, static, rules),
        combined=(*(("static",) if static is not None else ()), *combined),
        static_used=static is not None,
        static_missing=missing,
        static_mixed=mixed,
        scores_add_nothing=None if static is None else not bool(np.any(ahead & (static[:, None] >= static[None, :]))),
        resamples=len(subsets),
    )


def _check(models: Sequence[ModelScores], combined: Sequence[str]) -> None:
    if not models:
        raise InputError("there is no model to rank")
    if not combined:
        raise InputError("a ranking needs at least one score")
    names = [each.model for each in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"each model can be ranked once, got {', '.join(twice)} more than once")
    for model in models:
        for name in combined:
            sample = model.sample(name)
            if not np.isfinite([sample.value, *(each for each in sample.resampled if each is not None)]).all():
                raise InputError(f"{model.model} has a score {name} that is not finite and cannot be ranked")


def _mean_ranks(values: Floats, static: Floats | None) -> Floats:
    """Mean over scores (rows) and the static order of each model's rank."""
    rows = [ranks(row) for row in values] + ([] if static is None else [static])
    return np.asarray(np.mean(rows, axis=0))


def _resampled_ranks(samples: list[list[ScoreSample]], static: Floats | None, subsets: list[int]) -> Floats:
    """Mean ranks, shape (resamples, models), with each score moved by its deviation on that subset."""
    moved = np.array([[sample.value + sample.deviations(subsets) for sample in row] for row in samples])
    return np.array([_mean_ranks(moved[:, :, each], static) for each in range(len(subsets))])


def _ahead(mean: Floats, draws: Floats) -> NDArray[np.bool_]:
    """Whether the row's model is ahead of the column's, beyond what resampled items leave open."""
    ahead = mean[:, None] < mean[None, :]
    if len(draws):
        share = (draws[:, :, None] < draws[:, None, :]).mean(axis=0)
        ahead &= share >= CERTAINTY
    return ahead


def _lines(
    models: Sequence[ModelScores],
    mean: Floats,
    draws: Floats,
    ahead: NDArray[np.bool_],
    static: Floats | None,
    rules: ResampleRules,
) -> tuple[RankedModel, ...]:
    """The candidates in order; of equal mean ranks, by name."""
    order = sorted(range(len(models)), key=lambda each: (mean[each], models[each].model))
    places = _places(order, ahead)
    shown = _intervals(models, rules)
    tied = ~ahead & ~ahead.T
    return tuple(
        RankedModel(
            model=models[each].model,
            place=places[each],
            mean_rank=float(mean[each]),
            scores=shown[each],
            static=models[each].static,
            static_rank=None if static is None else float(static[each]),
            low=float(np.quantile(draws[:, each], 1 - CERTAINTY)) if len(draws) else None,
            high=float(np.quantile(draws[:, each], CERTAINTY)) if len(draws) else None,
            tied_with=tuple(models[other].model for other in order if other != each and tied[each, other]),
        )
        for each in order
    )


def _places(order: list[int], ahead: NDArray[np.bool_]) -> dict[int, int]:
    places: dict[int, int] = {}
    first = order[0]
    for position, each in enumerate(order):
        if ahead[first, each]:
            first = each
        places[each] = places.get(first, position + 1)
    return places


def _intervals(models: Sequence[ModelScores], rules: ResampleRules) -> list[tuple[ScoreInterval, ...]]:
    """Every score that all candidates have, with rank and interval, by candidate."""
    first = [sample.score for sample in models[0].scores]
    shared = [name for name in first if all(any(s.score == name for s in each.scores) for each in models)]
    places = {name: ranks([each.sample(name).value for each in models]) for name in shared}
    return [
        tuple(_interval(model.sample(name), float(places[name][number]), rules) for name in shared)
        for number, model in enumerate(models)
    ]


def _interval(sample: ScoreSample, place: float, rules: ResampleRules) -> ScoreInterval:
    low = high = None
    if len(sample.defined()) >= rules.least_resamples:
        deviations = sample.deviations(sorted(sample.defined()))
        low, high = (sample.value + float(np.quantile(deviations, edge)) for edge in (1 - CERTAINTY, CERTAINTY))
    return ScoreInterval(score=sample.score, value=sample.value, rank=place, low=low, high=high)
