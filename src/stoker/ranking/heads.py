"""Scores of a candidate that still has its source head: from what it answers in its own classes."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from stoker.ranking.items import Classes, Floats, check_labels, check_probabilities, number_labels


class Counts:
    """How often each label meets each source class, with shares of items as weights."""

    def __init__(self, classes: Classes, width: int) -> None:
        self.classes = classes
        self.table = np.zeros((classes.count, width))
        self._done = 0

    def add(self, shares: Floats) -> None:
        """Adds the next items, one row each."""
        self.table += self.classes.sums(shares, self._done)
        self._done += len(shares)


def leep_of(counts: Counts, blocks: Iterable[Floats]) -> float:
    """LEEP of items whose shares were counted before and come again in `blocks`, in the same order."""
    given = counts.table / np.maximum(counts.table.sum(axis=0), np.finfo(np.float64).tiny)
    total, done = 0.0, 0
    for shares in blocks:
        of = counts.classes.of[done : done + len(shares)]
        total += float(np.log(np.einsum("iz,iz->i", shares, given[of])).sum())
        done += len(shares)
    return min(0.0, total / done)


def leep(source_probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Log expected empirical prediction of the labels from source-class probabilities. At most 0, higher is better.

    With θ_i(z) the probability of source class z for item i::

        LEEP = 1/n Σ_i log Σ_z P(y_i | z) θ_i(z),   P(y | z) = Σ_{i: y_i = y} θ_i(z) / Σ_i θ_i(z)

    The value does not change when the source classes are numbered in another way.

    Raises `InputError` when a row is not a distribution; logits must go through softmax first.

    Nguyen et al., "LEEP: A New Measure to Evaluate Transferability of Learned Representations", ICML 2020.
    """
    shares = check_probabilities(source_probabilities)
    counts = Counts(check_labels(labels, len(shares.values)), shares.values.shape[1])
    for block in shares.blocks():
        counts.add(block)
    return leep_of(counts, shares.blocks())


def nce(source_labels: ArrayLike, labels: ArrayLike) -> float:
    """Negative conditional entropy of the labels given the source class of each item. At most 0, higher is better.

    ::

        NCE = −H(Y | Z) = Σ_{y,z} P(y, z) log P(y | z)

    `source_labels` are the source classes that the candidate's head answers. The value does not change when either kind
    of class is numbered in another way.

    Tran, Nguyen and Hassner, "Transferability and Hardness of Supervised Classification Tasks", ICCV 2019.
    """
    source = number_labels(source_labels, "source labels")
    classes = check_labels(labels, len(source.of))
    pairs, counts = np.unique(np.stack([classes.of, source.of]), axis=1, return_counts=True)
    return float(np.sum(counts * np.log(counts / source.sizes[pairs[1]])) / len(classes.of))
