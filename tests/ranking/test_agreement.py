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
