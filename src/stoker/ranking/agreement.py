"""How well a score orders models, once their accuracy after fine-tuning is known."""

import numpy as np
from numpy.typing import ArrayLike

from stoker.errors import InputError
from stoker.ranking.items import Floats


def ranks(values: ArrayLike) -> Floats:
    """Rank of each value, 1 for the highest; equal values share the mean of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    above = (array[None, :] > array[:, None]).sum(axis=1)
    equal = (array[None, :] == array[:, None]).sum(axis=1)
    return np.asarray(above + (equal + 1) / 2, dtype=np.float64)


def weighted_tau(scores: ArrayLike, accuracies: ArrayLike) -> float:
    """Kendall's tau with weights 1/rank, added for the two of a pair, from −1 to 1: the top counts most.

    The mean of two values: ranks by score (equal ones by accuracy), and ranks by accuracy (equal ones by score). 0 when
    all scores or all accuracies are equal: they give no order.

    Vigna, "A Weighted Correlation Index for Rankings with Ties", WWW 2015.
    """
    one, other = _checked(scores, accuracies)
    signs_one, signs_other = _signs(one), _signs(other)
    found = []
    for order in (np.lexsort((other, one))[::-1], np.lexsort((one, other))[::-1]):
        weight = np.empty(len(one))
        weight[order] = 1 / np.arange(1, len(one) + 1)
        pair = weight[:, None] + weight[None, :]
        scale = np.sum(signs_one**2 * pair) * np.sum(signs_other**2 * pair)
        found.append(float(np.sum(signs_one * signs_other * pair) / np.sqrt(scale)) if scale > 0 else 0.0)
    return float(np.mean(found))


def top1_regret(scores: ArrayLike, accuracies: ArrayLike) -> float:
    """Accuracy lost by taking the model with the highest score: best accuracy minus its accuracy.

    Of models with equal highest scores, their mean accuracy counts.
    """
    one, other = _checked(scores, accuracies)
    return float(other.max() - other[one == one.max()].mean())


def _signs(values: Floats) -> Floats:
    return np.sign(values[:, None] - values[None, :])


def _checked(scores: ArrayLike, accuracies: ArrayLike) -> tuple[Floats, Floats]:
    one, other = np.asarray(scores, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 1 or not one.size:
        raise InputError(f"there must be one accuracy a score, got {one.size} scores and {other.size} accuracies")
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise InputError("scores and accuracies must be finite")
    return one, other
