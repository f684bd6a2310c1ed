"""Weighted tau and top-1 regret."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from stoker.errors import InputError
from stoker.ranking.agreement import ranks, top1_regret, weighted_tau
from tests.ranking import reference

columns = st.integers(2, 12).flatmap(
    lambda count: st.tuples(*[st.lists(st.integers(0, 6), min_size=count, max_size=count)] * 2)
)


@given(columns)
@settings(max_examples=200, deadline=None)
def test_weighted_tau_is_that_of_scipy(values: tuple[list[int], list[int]]) -> None:
    one, other = (np.array(each, dtype=float) for each in values)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert weighted_tau(one, other) == 0
    else:
        assert weighted_tau(one, other) == pytest.approx(reference.weighted_tau(one, other))


@given(columns)
@settings(max_examples=100, deadline=None)
def test_ranks_are_those_of_scipy(values: tuple[list[int], list[int]]) -> None:
    np.testing.assert_allclose(ranks(values[0]), rankdata([-each for each in values[0]]))


def test_the_top_counts_most() -> None:
    accuracies = [5, 4, 3, 2, 1]
    assert weighted_tau(accuracies, accuracies) == pytest.approx(1)
    assert weighted_tau(accuracies[::-1], accuracies) == pytest.approx(-1)
    assert weighted_tau([4, 5, 3, 2, 1], accuracies) < weighted_tau([5, 4, 3, 1, 2], accuracies)


PUBLISHED = {
    "CIFAR-10": {
        "accuracy": [96.2, 97.5, 96.8, 97.7, 97.9, 97.2, 97.4, 97.4, 95.7, 96.8],
        "h_score": [5.911, 6.363, 6.567, 6.901, 6.945, 6.21, 6.547, 6.706, 5.928, 6.018],
        "leep": [-1.385, -1.259, -1.01, -0.829, -0.838, -1.035, -0.934, -0.888, -1.1, -1.066],
        "nce": [-1.139, -1.06, -1.007, -0.838, -0.851, -1.006, -0.946, -0.866, -1.089, -1.086],
    },
    "SUN397": {
        "accuracy": [62.0, 65.7, 64.7, 64.8, 66.0, 62.3, 63.0, 64.7, 60.5, 60.7],
        "h_score": [71.35, 114.21, 110.39, 113.63, 116.51, 72.16, 95.8, 103.09, 75.9, 80.91],
        "leep": [-3.744, -3.372, -3.198, -3.103, -3.056, -3.311, -3.165, -3.205, -3.338, -3.234],
        "nce": [-3.055, -2.844, -2.894, -2.837, -2.822, -2.945, -2.903, -2.896, -2.968, -2.933],
    },
}
"""Scores and accuracies of ten ImageNet models, as the Transfer-Learning-Library of thuml prints them."""


@pytest.mark.parametrize(
    ("target", "score", "printed"),
    [
        ("CIFAR-10", "h_score", 0.800),
        ("CIFAR-10", "leep", 0.638),
        ("CIFAR-10", "nce", 0.714),
        ("SUN397", "h_score", 0.918),
        ("SUN397", "leep", 0.581),
        ("SUN397", "nce", 0.873),
    ],
)
def test_weighted_tau_is_what_was_published_for_these_scores(target: str, score: str, printed: float) -> None:
    values = PUBLISHED[target]
    assert weighted_tau(values[score], values["accuracy"]) == pytest.approx(printed, abs=6e-4)


def test_regret_is_what_the_chosen_model_lacks() -> None:
    assert top1_regret([1, 3, 2], [0.9, 0.7, 0.8]) == pytest.approx(0.2)
    assert top1_regret([3, 1, 2], [0.9, 0.7, 0.8]) == 0
    assert top1_regret([3, 3, 2], [0.9, 0.7, 0.8]) == pytest.approx(0.1)


@pytest.mark.parametrize(("one", "other"), [([1, 2], [1, 2, 3]), ([], []), ([1, float("nan")], [1, 2])])
def test_bad_input_is_refused(one: list[float], other: list[float]) -> None:
    with pytest.raises(InputError):
        weighted_tau(one, other)
    with pytest.raises(InputError):
        top1_regret(one, other)
