"""One candidate's scores, and how much they vary with the items that happened to be chosen.

The scores are computed again on subsets of half of the items (fewer when items are many), drawn without replacement.
Subsets of m of n items vary more than the whole, by the known factor √((n − m)/m): deviations are scaled back by it.
Drawing with replacement, as a bootstrap usually does, fails here. An item drawn twice is its own nearest neighbour, and
with more features than items LogME looks several times as uncertain as it is; benchmarks/intervals.py measures both.
By the same measurements GBC's intervals are too narrow either way, the more so with few items a class.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stoker.errors import InputError
from stoker.ranking.items import Classes, Indices, check_labels
from stoker.ranking.scores import SCORES, Needs
from stoker.records import Record
from stoker.records.ranking import ScoreSample as ScoreSample


class ResampleRules(Record, frozen=True):
    """How scores are resampled. `resamples`: 5 % of 60 are 3, enough to call an order certain or not. `share`: half of
    the items vary as much around the whole as the whole around the truth. `items`, `items_per_class`: subsets are no
    larger than the larger of the two, so that the cost does not grow with the items; their deviations are scaled.
    `least_items`: below, a subset says nothing and there are no intervals. `time_limit_s`: no new subset of a model is
    begun after this time. `least_resamples`: with fewer there are no intervals."""

    resamples: int = 60
    share: float = 0.5
    items: int = 500
    items_per_class: int = 5
    least_items: int = 10
    time_limit_s: float = 60.0
    least_resamples: int = 20
    seed: int = 0


RESAMPLING = ResampleRules()


def score_model(
    labels: ArrayLike,
    *,
    features: ArrayLike | None = None,
    source_probabilities: ArrayLike | None = None,
    source_labels: ArrayLike | None = None,
    scores: Sequence[str] = ("nleep", "logme"),
    rules: ResampleRules = RESAMPLING,
) -> tuple[ScoreSample, ...]:
    """The wanted scores of one candidate, with resamples.

    Subsets depend on the labels and the seed alone: candidates scored on the same items share them, so that their
    differences are compared subset by subset.

    Raises `InputError` when a score is unknown or lacks what it needs, or when the score refuses its input.
    """
    given: dict[Needs, ArrayLike | None] = {
        "features": features,
        "source probabilities": source_probabilities,
        "source labels": source_labels,
    }
    inputs = {name: _input(name, given) for name in scores}
    labelled = np.asarray(labels)
    values: dict[str, float] = {}
    seconds: dict[str, float] = {}
    resample_s = dict.fromkeys(scores, 0.0)
    for name in scores:
        began = time.perf_counter()
        values[name] = SCORES[name].function(inputs[name], labelled)
        seconds[name] = time.perf_counter() - began
    resampled: dict[str, list[float | None]] = {name: [] for name in scores}
    subsets = Subsets(check_labels(labelled, len(labelled)), rules)
    until = time.monotonic() + rules.time_limit_s
    for rows in subsets:
        if time.monotonic() > until:
            break
        for name in scores:
            began = time.perf_counter()
            resampled[name].append(_on(name, inputs[name][rows], labelled[rows]))
            resample_s[name] += time.perf_counter() - began
    return tuple(
        ScoreSample(
            score=name,
            value=values[name],
            resampled=tuple(resampled[name]),
            scale=subsets.scale,
            seconds=seconds[name],
            resample_s=resample_s[name],
        )
        for name in scores
    )


def _on(name: str, values: NDArray[np.generic], labels: NDArray[np.generic]) -> float | None:
    """The score on a subset; None where, say, no two items of a class are left or all features are constant."""
    try:
        return SCORES[name].function(values, labels)
    except InputError:
        return None


def _input(name: str, given: dict[Needs, ArrayLike | None]) -> NDArray[np.generic]:
    if name not in SCORES:
        raise InputError(f"there is no score {name!r}; choose from {', '.join(SCORES)}")
    needs = SCORES[name].needs
    if given[needs] is None:
        raise InputError(f"the score {name} needs {needs}, which this candidate does not have")
    return np.asarray(given[needs])


class Subsets:
    """Subsets of the items, each class in proportion and at least once."""

    def __init__(self, classes: Classes, rules: ResampleRules = RESAMPLING) -> None:
        count = len(classes.of)
        most = max(rules.items, rules.items_per_class * classes.count)
        self._share = min(rules.share, most / count)
        size = self._share * count
        self._resamples = rules.resamples if size >= max(rules.least_items, classes.count) else 0
        self._seed = rules.seed
        self._classes = classes
        self.scale = float(np.sqrt(self._share / (1 - self._share)))

    def __iter__(self) -> Iterator[Indices]:
        random = np.random.default_rng(self._seed)
        order = np.argsort(self._classes.of, kind="stable")
        members = np.split(order, np.cumsum(self._classes.sizes)[:-1])
        for _ in range(self._resamples):
            wanted = np.floor(self._share * self._classes.sizes + random.random(self._classes.count))
            sizes = np.clip(wanted, 1, self._classes.sizes).astype(int)
            chosen = [random.choice(rows, size, replace=False) for rows, size in zip(members, sizes, strict=True)]
            yield np.sort(np.concatenate(chosen))
