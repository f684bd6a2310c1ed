"""Scores that compare every item with every other, a tile of pairs at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stoker.errors import InputError
from stoker.ranking.items import Floats, Indices, Items, check

TILE_ROWS = 2048
"""Items of a tile: a tile of pairs has 16 MB in float32, and the work of preparing its rows is small beside theirs."""
CORRELATION_BINS = 2**22
"""PARC ranks correlations in bins of 5e-7: those closer than that are ties, as float32 could not tell them apart."""


def knn(features: ArrayLike, labels: ArrayLike, *, k: int = 5) -> float:
    """Leave-one-out accuracy of the k nearest neighbours (Euclidean). From 0 to 1, higher is better.

    Each item is answered by the most frequent class among its k nearest others; of classes equally frequent, the one
    with the nearest item. With k items or fewer, all others are neighbours. The value does not change when the features
    are rotated, shifted or scaled. Distances are computed in float32 unless the features are float64.

    Raises `InputError` when k is below 1.

    Cover and Hart, "Nearest Neighbor Pattern Classification", 1967.
    """
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    items = check(features, labels)
    near = min(k, items.count - 1)
    weights = 1 + 0.5 ** np.arange(1, near + 1)
    right = 0
    for start, nearest in _neighbours(items, near):
        of = items.classes.of[nearest]
        votes = np.zeros((len(nearest), items.classes.count))
        for place in range(near):
            votes[np.arange(len(nearest)), of[:, place]] += weights[place]
        right += int(np.sum(votes.argmax(axis=1) == items.classes.of[start : start + len(nearest)]))
    return right / items.count


def _neighbours(items: Items, near: int) -> Iterator[tuple[int, Indices]]:
    """The first item of each tile, and the nearest other items of each of its items, nearest first."""
    points = _Points(items)
    for start in range(0, items.count, TILE_ROWS):
        rows = points.rows(start)
        distance = np.full((len(rows), near), np.inf, dtype=rows.dtype)
        nearest = np.zeros((len(rows), near), dtype=np.intp)
        for other in range(0, items.count, TILE_ROWS):
            columns = rows if other == start else points.rows(other)
            tile = rows @ columns.T
            tile *= -2
            tile += np.einsum("if,if->i", columns, columns)
            if other == start:
                np.fill_diagonal(tile, np.inf)
            found = np.argpartition(tile, min(near, tile.shape[1]) - 1, axis=1)[:, :near]
            both = np.concatenate([distance, np.take_along_axis(tile, found, axis=1)], axis=1)
            order = np.argsort(both, axis=1, kind="stable")[:, :near]
            distance = np.take_along_axis(both, order, axis=1)
            nearest = np.take_along_axis(np.concatenate([nearest, found + other], axis=1), order, axis=1)
        yield start, nearest


class _Points:
    """Centred rows, a tile at a time, so that the caller's features are not copied whole."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._type = np.float64 if items.features.dtype.itemsize > 4 else np.float32
        self._mean = items.mean()
        self._scale = items.largest

    def rows(self, start: int) -> NDArray[Any]:
        block = self._items.features[start : start + TILE_ROWS] - self._mean
        block /= self._scale
        return block.astype(self._type, copy=False)


def parc(features: ArrayLike, labels: ArrayLike) -> float:
    """PARC: do items that are alike in their features share their label? From −100 to 100, higher is better.

    ::

        PARC = 100 · Spearman( 1 − corr(f_i, f_j), 1 − corr(y_i, y_j) )   over all pairs i < j

    with features standardised over items, one-hot labels y, and Pearson's correlation between two items. The distance
    of one-hot labels has two values, so that only the mean rank of pairs with one label is needed. The value does not
    change when features are permuted, or each is shifted and scaled by itself.

    Raises `InputError` when no two items share a label, or when there is one feature: items have no profile then.

    Bolya, Mittapalli and Hoffman, "Scalable Diverse Model Selection for Accessible Transfer Learning", NeurIPS 2021.
    """
    items = check(features, labels)
    if items.classes.sizes.max() < 2:
        raise InputError("every class has one item: PARC compares pairs of one class with others; give more items")
    profiles = _Profiles(items)
    every = np.zeros(CORRELATION_BINS, dtype=np.int64)
    alike = np.zeros(CORRELATION_BINS, dtype=np.int64)
    for bins, same in _pairs(items, profiles):
        every += np.bincount(bins, minlength=CORRELATION_BINS)
        alike += np.bincount(bins[same], minlength=CORRELATION_BINS)
    present = np.flatnonzero(every)
    return 100 * _spearman(every[present].astype(np.float64), alike[present].astype(np.float64))


class _Profiles:
    """Standardised rows, centred and of length 1, a tile at a time: their products are correlations between items."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._mean = items.mean()
        squares = np.zeros(items.width)
        for _, block in items.blocks():
            squares += np.square(block - self._mean).sum(axis=0)
        spread = np.sqrt(squares / items.count)
        varies = spread > 4 * np.finfo(np.float64).eps * items.largest
        if varies.sum() < 2:
            raise InputError("PARC needs at least 2 features that vary; use another score")
        self._scale = np.where(varies, spread, np.inf)
        self._varies = varies

    def rows(self, start: int) -> NDArray[np.float32]:
        """A row without a profile (all standardised features equal) becomes zeros: it is correlated with none."""
        block = self._items.features[start : start + TILE_ROWS].astype(np.float64)
        block -= self._mean
        block /= self._scale
        block -= block.mean(axis=1, keepdims=True)
        length = np.sqrt(np.einsum("if,if->i", block, block))[:, None]
        return (block / np.where(length > 0, length, np.inf)).astype(np.float32)


def _pairs(items: Items, profiles: _Profiles) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Binned correlations of pairs i < j, and whether the two share their label."""
    of = items.classes.of
    for start in range(0, items.count, TILE_ROWS):
        rows = profiles.rows(start)
        for other in range(start, items.count, TILE_ROWS):
            columns = rows if other == start else profiles.rows(other)
            bins = _binned(rows @ columns.T)
            same = of[start : start + len(rows), None] == of[other : other + len(columns)]
            if other == start:
                upper = np.triu_indices(len(rows), 1)
                yield bins[upper], same[upper]
            else:
                yield bins.ravel(), same.ravel()


def _binned(correlations: NDArray[np.float32]) -> NDArray[np.int32]:
    correlations *= (CORRELATION_BINS - 1) / 2
    correlations += (CORRELATION_BINS - 1) / 2
    np.rint(correlations, out=correlations)
    return np.clip(correlations, 0, CORRELATION_BINS - 1, out=correlations).astype(np.int32)


def _spearman(every: Floats, alike: Floats) -> float:
    """Rank correlation between the correlation of a pair's features and whether it shares its label."""
    count, both = every.sum(), alike.sum()
    ranks = np.cumsum(every) - (every - 1) / 2 - (count + 1) / 2
    spread = float(np.sum(every * ranks**2) / count)
    share = both / count
    if not 0 < share < 1 or spread == 0:
        raise InputError("PARC needs pairs that differ: all items have the same profile or the same label")
    covariance = float(np.sum(alike * ranks) / count)
    return float(covariance / np.sqrt(spread * share * (1 - share)))
