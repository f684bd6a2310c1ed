"""Scores of a pretrained model on a labelled set: how well should it do there after fine-tuning?

Each function takes one candidate's features (items × features) and the labels, and returns one figure; higher is better
for all of them. `leep` and `nce` take what the candidate's source head answers instead. Figures of one score compare
candidates on the same items; figures of different scores do not compare.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from stoker.ranking.density import gbc, nleep
from stoker.ranking.heads import leep, nce
from stoker.ranking.linear import h_score, h_score_regularised, linear, logme, ridge, transrate
from stoker.ranking.neighbours import knn, parc

__all__ = [
    "SCORES",
    "Needs",
    "Score",
    "gbc",
    "h_score",
    "h_score_regularised",
    "knn",
    "leep",
    "linear",
    "logme",
    "nce",
    "nleep",
    "parc",
    "ridge",
    "transrate",
]

Needs = Literal["features", "source probabilities", "source labels"]


class Score(NamedTuple):
    """`function(x, labels)` with x as `needs` says. `squared`: time grows with the square of the items."""

    function: Callable[..., float]
    needs: Needs = "features"
    squared: bool = False


SCORES: dict[str, Score] = {
    "logme": Score(logme),
    "nleep": Score(nleep),
    "h_score": Score(h_score),
    "h_score_regularised": Score(h_score_regularised),
    "transrate": Score(transrate),
    "gbc": Score(gbc),
    "ridge": Score(ridge),
    "linear": Score(linear),
    "knn": Score(knn, squared=True),
    "parc": Score(parc, squared=True),
    "leep": Score(leep, "source probabilities"),
    "nce": Score(nce, "source labels"),
}
