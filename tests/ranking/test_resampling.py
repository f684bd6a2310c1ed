"""Subsets of items, and the intervals that they give."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.errors import InputError
from stoker.ranking.items import number_labels
from stoker.ranking.resampling import ResampleRules, ScoreSample, Subsets, score_model
from stoker.ranking.scores import SCORES

Floats = NDArray[np.float64]


def population(seed: int, items: int, width: int) -> tuple[Floats, NDArray[np.int64]]:
    """Items of one fixed world: the same classes and the same features whatever the seed."""
    world, random = np.random.default_rng(99), np.random.default_rng(seed)
    centres, mixing = world.standard_normal((4, 8)), world.standard_normal((8, width))
    labels = random.integers(4, size=items)
    latent = centres[labels] + random.standard_normal((items, 8))
    return np.maximum(latent @ mixing + random.standard_normal((items, width)), 0), labels


def test_subsets_hold_half_of_each_class_without_repeats() -> None:
    labels = np.repeat([0, 1, 2], [100, 41, 1])
    subsets = Subsets(number_labels(labels, "labels"))
    found = list(subsets)
    assert len(found) == ResampleRules().resamples
    assert subsets.scale == pytest.approx(1)
    for rows in found:
        assert len(np.unique(rows)) == len(rows)
        sizes = np.bincount(labels[rows])
        assert sizes[0] == 50
        assert sizes[1] in (20, 21)
        assert sizes[2] == 1
    assert {int(np.bincount(labels[rows])[1]) for rows in found} == {20, 21}
    again = list(Subsets(number_labels(labels, "labels")))
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


def test_subsets_of_many_items_are_small_and_scaled() -> None:
    subsets = Subsets(number_labels(np.arange(10_000) % 5, "labels"))
    assert {len(rows) for rows in subsets} == {500}
    assert subsets.scale == pytest.approx(np.sqrt(500 / 9500))
    assert {len(rows) for rows in Subsets(number_labels(np.arange(16_000) % 160, "labels"))} == {800}


def test_few_items_have_no_subsets() -> None:
    assert list(Subsets(number_labels([0, 1] * 5, "labels"))) == []
    assert list(Subsets(number_labels(list(range(15)) * 2, "labels"))) != []
    assert list(Subsets(number_labels([*range(20), 0, 1], "labels"))) == []


@pytest.mark.parametrize(("score", "width"), [("logme", 20), ("logme", 250), ("knn", 20), ("nleep", 20)])
def test_deviations_are_as_large_as_those_between_independent_sets(score: str, width: int) -> None:
    items, function = 150, SCORES[score].function
    truth = np.std([function(*population(seed, items, width)) for seed in range(40)], ddof=1)
    spreads = []
    for seed in range(100, 103):
        features, labels = population(seed, items, width)
        (sample,) = score_model(labels, features=features, scores=[score])
        spreads.append(sample.deviations(sorted(sample.defined())).std(ddof=1))
    # A standard deviation of 40 values is known to a tenth; between sets of items it varies as much.
    assert 0.6 < np.mean(spreads) / truth < 1.9


def test_scores_are_those_of_all_items_and_resampled_pairwise() -> None:
    features, labels = population(0, 80, 12)
    samples = score_model(labels, features=features, scores=["logme", "knn"])
    assert [each.score for each in samples] == ["logme", "knn"]
    assert samples[0].value == SCORES["logme"].function(features, labels)
    rows = next(iter(Subsets(number_labels(labels, "labels"))))
    assert samples[0].resampled[0] == SCORES["logme"].function(features[rows], labels[rows])
    assert samples[1].resampled[0] == SCORES["knn"].function(features[rows], labels[rows])
    (alone,) = score_model(labels, features=features, scores=["logme"])
    assert (alone.value, alone.resampled, alone.scale) == (samples[0].value, samples[0].resampled, samples[0].scale)


def test_time_limit_ends_resampling() -> None:
    features, labels = population(0, 80, 12)
    (sample,) = score_model(labels, features=features, scores=["logme"], rules=ResampleRules(time_limit_s=0))
    assert sample.resampled == ()
    assert np.isfinite(sample.value)


def test_a_score_that_a_subset_does_not_have_is_none_there() -> None:
    random = np.random.default_rng(0)
    labels = np.concatenate([np.arange(12), np.arange(12)])
    (sample,) = score_model(labels, features=random.standard_normal((24, 5)), scores=["parc"])
    assert None in sample.resampled
    assert len(sample.defined()) < len(sample.resampled)


def test_scores_of_a_source_head_take_its_answers() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(3, size=60)
    probabilities = random.dirichlet(np.ones(5), size=60)
    samples = score_model(
        labels,
        source_probabilities=probabilities,
        source_labels=probabilities.argmax(axis=1),
        scores=["leep", "nce"],
    )
    assert [each.value for each in samples] == [
        SCORES["leep"].function(probabilities, labels),
        SCORES["nce"].function(probabilities.argmax(axis=1), labels),
    ]


def test_unknown_scores_and_missing_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="there is no score 'leap'; choose from logme, nleep"):
        score_model([0, 1], features=[[1.0], [2.0]], scores=["leap"])
    with pytest.raises(InputError, match="the score leep needs source probabilities, which this candidate does not"):
        score_model([0, 1], features=[[1.0], [2.0]], scores=["leep"])
    with pytest.raises(InputError, match="there must be one label an item"):
        score_model([0, 1, 1], features=[[1.0], [2.0]], scores=["logme"])


def test_deviations_have_no_bias_and_the_scale_of_the_whole() -> None:
    sample = ScoreSample(score="logme", value=5.0, resampled=(1.0, None, 3.0), scale=0.5)
    assert sample.defined() == {0, 2}
    np.testing.assert_allclose(sample.deviations([0, 2]), [-0.5, 0.5])
    assert len(sample.deviations([])) == 0
