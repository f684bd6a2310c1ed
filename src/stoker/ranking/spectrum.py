"""Eigenvalues of the features, and the labels in that basis: what the linear scores are computed from.

With features F (items × features) = U √Λ Vᵀ and one column of 0 and 1 a class in Y, the scores need the eigenvalues Λ,
the projections UᵀY and at times the coordinates F V. They come from the smaller of the two Gram matrices, FᵀF or FFᵀ,
summed over blocks in float64: the memory is that of one Gram matrix beside the caller's features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stoker.errors import InputError
from stoker.ranking.items import Floats, Indices, Items

LARGEST_SIDE = 20_000
"""The smaller of items and features: a Gram matrix of this size takes 3.2 GB, and its eigenvalues over ten minutes."""


@dataclass(frozen=True)
class Spectrum:
    """`values`: positive eigenvalues, largest first; `projected`: UᵀY, shape (rank, classes); `mean`: what was
    subtracted from each row (zeros if nothing was); `fourth`: Σ ‖row‖⁴; `vectors`: V, or U when there are fewer items
    than features."""

    values: Floats
    projected: Floats
    mean: Floats
    fourth: float
    vectors: Floats

    @property
    def rank(self) -> int:
        return len(self.values)


def spectrum(items: Items, *, centred: bool) -> Spectrum:
    """The spectrum of the features as they are, or with their mean subtracted.

    Raises `InputError` when both items and features are too many, or when the features differ by rounding alone.
    """
    if min(items.count, items.width) > LARGEST_SIDE:
        raise InputError(
            f"{items.count} items with {items.width} features each are too many to score: "
            f"one of the two must be at most {LARGEST_SIDE}; take fewer items or pool the features"
        )
    mean = items.mean() if centred else np.zeros(items.width)
    if items.width > items.count:
        gram = gram_of_items(items, mean)
        values, vectors = _eigen(gram, items)
        fourth = float(np.sum(np.diagonal(gram) ** 2))
        return Spectrum(values, items.classes.sums(vectors, 0).T, mean, fourth, vectors)
    gram = np.zeros((items.width, items.width))
    sums = np.zeros((items.classes.count, items.width))
    fourth = 0.0
    for start, block in items.blocks():
        block -= mean
        gram += block.T @ block
        sums += items.classes.sums(block, start)
        fourth += float(np.sum(np.einsum("if,if->i", block, block) ** 2))
    values, vectors = _eigen(gram, items)
    return Spectrum(values, (sums @ vectors).T / np.sqrt(values)[:, None], mean, fourth, vectors)


def gram_of_items(items: Items, mean: Floats, rows: Indices | None = None) -> Floats:
    """Inner products between items minus `mean`, or between some `rows` of them."""
    count = items.count if rows is None else len(rows)
    gram = np.zeros((count, count))
    done = 0
    for block in items.column_blocks(rows):
        block -= mean[done : done + block.shape[1]]
        gram += block @ block.T
        done += block.shape[1]
    return gram


def coordinates(items: Items, values: Spectrum, count: int | None = None) -> Iterator[tuple[int, Floats]]:
    """The first item of each block, and the block's coordinates along the first `count` directions, all by default."""
    wanted = values.vectors[:, :count]
    if items.width > items.count:
        rows = max(1, 2**22 // wanted.shape[1])
        for start in range(0, items.count, rows):
            yield start, wanted[start : start + rows] * np.sqrt(values.values[:count])
        return
    for start, block in items.blocks():
        block -= values.mean
        yield start, block @ wanted


def _eigen(gram: Floats, items: Items) -> tuple[Floats, Floats]:
    """Eigenvalues above rounding, largest first, and their vectors as columns."""
    values, vectors = np.linalg.eigh(gram)
    epsilon = float(np.finfo(np.float64).eps)
    rounding = items.count * items.width * (epsilon * items.largest) ** 2
    above = np.flatnonzero(values > max(values[-1] * epsilon * len(values), rounding))[::-1]
    if not above.size:
        raise InputError("the features differ by no more than rounding: the model gives the same output for every item")
    return values[above], np.ascontiguousarray(vectors[:, above])
