"""Scores against published values, against straightforward implementations, and on hard input."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_iris

from stoker.errors import InputError
from stoker.ranking import density, linear, scores
from stoker.ranking.items import check
from stoker.ranking.scores import SCORES
from stoker.ranking.spectrum import coordinates, spectrum
from tests.ranking import reference

Array = NDArray[Any]
FEATURE_SCORES = [name for name, score in SCORES.items() if score.needs == "features"]


def iris() -> tuple[Array, Array]:
    features, labels = load_iris(return_X_y=True)
    return features, labels


def example(seed: int, items: int = 30, width: int = 5, classes: int = 3, apart: float = 1.0) -> tuple[Array, Array]:
    """Normal features whose mean depends on the class; every class has two items or more."""
    random = np.random.default_rng(seed)
    labels = np.concatenate([np.repeat(np.arange(classes), 2), random.integers(classes, size=items - 2 * classes)])
    centres = apart * random.standard_normal((classes, width))
    return centres[labels] + random.standard_normal((items, width)) * random.uniform(0.2, 3, width), labels


def drawn(most_width: int = 40) -> Any:
    """Seeds and sizes of examples, from fewer features than items to more."""
    return st.tuples(st.integers(0, 10**6), st.integers(12, 30), st.integers(2, most_width), st.integers(2, 4))


# ---------------------------------------------------------------- published values


def test_values_on_iris() -> None:
    features, labels = iris()
    assert scores.h_score(features, labels) == pytest.approx(1.1918988250, abs=1e-10)
    assert scores.h_score_regularised(features.astype(np.float32), labels) == pytest.approx(1.1778424804, abs=1e-10)
    assert scores.logme(features, labels) == pytest.approx(-0.1600602, abs=1e-7)
    assert [round(scores.knn(features, labels, k=k), 6) for k in (1, 3, 5, 13)] == [0.96, 0.96, 0.966667, 0.966667]


def test_bounds_of_leep_and_gbc() -> None:
    labels = np.repeat(np.arange(4), 25)
    assert scores.leep(np.eye(6)[labels], labels) == pytest.approx(0, abs=1e-12)
    assert scores.nce(labels + 3, labels) == 0
    random = np.random.default_rng(0)
    same = np.tile(random.standard_normal((25, 8)), (4, 1))
    assert scores.gbc(same, labels) == pytest.approx(-4 * 3)
    apart = random.standard_normal((100, 8)) + 1000 * labels[:, None]
    assert scores.gbc(apart, labels) == pytest.approx(0, abs=1e-12)


def test_nleep_is_0_for_separate_classes_and_minus_the_entropy_for_none() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 100)
    noise = random.standard_normal((400, 6))
    assert scores.nleep(100 * np.eye(6)[labels] + noise, labels) == pytest.approx(0, abs=1e-9)
    assert -np.log(4) - 1e-9 <= scores.nleep(noise, labels) < -np.log(4) + 0.15


# ---------------------------------------------------------------- straightforward implementations


@pytest.mark.parametrize("name", ["h_score", "h_score_regularised", "transrate", "gbc"])
@given(drawn())
@settings(max_examples=25, deadline=None)
def test_linear_scores_as_the_papers_define_them(name: str, drawn_example: tuple[int, int, int, int]) -> None:
    seed, items, width, classes = drawn_example
    features, labels = example(seed, items, width, classes)
    expected = getattr(reference, name)(features, labels)
    assert SCORES[name].function(features, labels) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("seed", "items", "width"), [(0, 20, 3), (1, 24, 8), (2, 14, 20)])
def test_logme_is_the_largest_marginal_likelihood(seed: int, items: int, width: int) -> None:
    features, labels = example(seed, items, width, 2)
    assert scores.logme(features, labels) == pytest.approx(reference.logme(features, labels), abs=1e-5)


@given(drawn())
@settings(max_examples=25, deadline=None)
def test_parc_is_a_rank_correlation_of_pairs(drawn_example: tuple[int, int, int, int]) -> None:
    seed, items, width, classes = drawn_example
    features, labels = example(seed, items, width + 1, classes)
    assert scores.parc(features, labels) == pytest.approx(reference.parc(features, labels), abs=1e-3)


@given(drawn(), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_knn_asks_the_nearest_others(drawn_example: tuple[int, int, int, int], k: int) -> None:
    features, labels = example(*drawn_example)
    assert scores.knn(features, labels, k=k) == pytest.approx(reference.knn(features, labels, k))


@given(drawn())
@settings(max_examples=15, deadline=None)
def test_ridge_is_the_accuracy_of_models_fitted_without_each_item(drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    items = check(features, labels)
    penalty = linear._penalty(spectrum(items, centred=True), items)
    assert scores.ridge(features, labels) == pytest.approx(reference.ridge(features, labels, penalty))
    variance = np.square(features - features.mean(axis=0)).sum() / min(features.shape)
    tried = variance * np.geomspace(linear.RIDGE.least, linear.RIDGE.most, linear.RIDGE.count)
    errors = [reference.generalised_cross_validation(features, labels, each) for each in tried]
    assert reference.generalised_cross_validation(features, labels, penalty) <= min(errors) * (1 + 1e-6)


def test_linear_is_as_accurate_as_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    features, labels = load_digits(return_X_y=True)
    trained, tested = linear._split(check(features, labels).classes)
    scaler = StandardScaler().fit(features[trained])
    model = LogisticRegression(C=1.0, max_iter=2000).fit(scaler.transform(features[trained]), labels[trained])
    expected = model.score(scaler.transform(features[tested]), labels[tested])
    assert scores.linear(features, labels) == pytest.approx(expected, abs=2.5 / len(tested))


@given(drawn(), st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_leep_and_nce_as_the_papers_define_them(drawn_example: tuple[int, int, int, int], width: int) -> None:
    _, labels = example(*drawn_example)
    random = np.random.default_rng(drawn_example[0])
    probabilities = random.dirichlet(np.full(width, 0.3), size=len(labels))
    assert scores.leep(probabilities, labels) == pytest.approx(reference.leep(probabilities, labels))
    source = probabilities.argmax(axis=1)
    assert scores.nce(source, labels) == pytest.approx(reference.nce(source, labels))


def test_nce_is_mutual_information_minus_entropy() -> None:
    from scipy.stats import entropy
    from sklearn.metrics import mutual_info_score

    random = np.random.default_rng(3)
    labels, source = random.integers(5, size=200), random.integers(7, size=200)
    expected = mutual_info_score(labels, source) - entropy(np.bincount(labels))
    assert scores.nce(source, labels) == pytest.approx(expected)


def test_one_step_of_the_mixture_is_that_of_scikit_learn() -> None:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    random = np.random.default_rng(0)
    points = random.standard_normal((300, 4)) * [3, 2, 1, 0.5] + 4 * random.integers(3, size=(300, 1))
    start = density.fit_mixture(points, 6, random)
    theirs = GaussianMixture(
        6,
        covariance_type="diag",
        reg_covar=1e-4,
        max_iter=1,
        weights_init=start.weights,
        means_init=start.means,
        precisions_init=1 / start.variances,
    )
    with pytest.warns(ConvergenceWarning):
        theirs.fit(points)
    ours, likelihood = density.step(start, points, 1e-4)
    assert likelihood == pytest.approx(theirs.lower_bound_)
    np.testing.assert_allclose(ours.weights, theirs.weights_, rtol=1e-9)
    np.testing.assert_allclose(ours.means, theirs.means_, rtol=1e-9)
    np.testing.assert_allclose(ours.variances, theirs.covariances_, rtol=1e-9)
    np.testing.assert_allclose(ours.posterior(points)[0], theirs.predict_proba(points), atol=1e-12)


def test_nleep_is_leep_of_the_mixture() -> None:
    features, labels = load_digits(return_X_y=True)
    from sklearn.decomposition import PCA
    from sklearn.mixture import GaussianMixture

    points = PCA(0.8, svd_solver="full").fit_transform(features)
    theirs = GaussianMixture(50, covariance_type="diag", reg_covar=1e-6, random_state=0).fit(points)
    expected = reference.leep(theirs.predict_proba(points), labels)
    # Both start from k-means with their own seeds: they reach optima of about the same quality.
    assert scores.nleep(features, labels) == pytest.approx(expected, abs=0.08)
    assert density._principal(check(features, labels)).shape == points.shape


def test_nleep_of_many_items_fits_the_mixture_to_some(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = load_digits(return_X_y=True)
    whole = scores.nleep(features, labels)
    monkeypatch.setattr(density, "MIXTURE", density.MixtureRules(fitted_items=600, fitted_per_component=2))
    fitted: list[int] = []
    fit = density.fit_mixture

    def observed(points: Array, *rest: Any) -> density.Mixture:
        fitted.append(len(points))
        return fit(points, *rest)

    monkeypatch.setattr(density, "fit_mixture", observed)
    assert scores.nleep(features, labels) == pytest.approx(whole, abs=0.1)
    assert fitted == [600]


# ---------------------------------------------------------------- laws

ROTATION = ("logme", "h_score", "h_score_regularised", "transrate", "gbc", "nleep", "knn", "ridge")
SCALE = tuple(name for name in FEATURE_SCORES if name not in ("transrate", "linear"))
SHIFT = tuple(name for name in FEATURE_SCORES if name not in ("logme", "linear"))
ORDER = tuple(name for name in FEATURE_SCORES if name not in ("nleep", "linear"))


def same(name: str, one: tuple[Array, Array], other: tuple[Array, Array]) -> None:
    tolerance = 1e-3 if name == "parc" else 1e-6
    function = SCORES[name].function
    assert function(*one) == pytest.approx(function(*other), rel=1e-5, abs=tolerance)


@pytest.mark.parametrize("name", ROTATION)
@given(drawn())
@settings(max_examples=12, deadline=None)
def test_rotation_changes_nothing(name: str, drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    random = np.random.default_rng(drawn_example[0])
    rotation = np.linalg.qr(random.standard_normal((features.shape[1], features.shape[1])))[0]
    same(name, (features, labels), (features @ rotation, labels))


@pytest.mark.parametrize("name", SCALE)
@given(drawn(), st.floats(1e-3, 1e4))
@settings(max_examples=12, deadline=None)
def test_scale_changes_nothing(name: str, drawn_example: tuple[int, int, int, int], factor: float) -> None:
    features, labels = example(*drawn_example)
    same(name, (features, labels), (features * factor, labels))


@pytest.mark.parametrize("name", SHIFT)
@given(drawn())
@settings(max_examples=12, deadline=None)
def test_shift_changes_nothing(name: str, drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    shift = np.random.default_rng(drawn_example[0]).uniform(-5, 5, features.shape[1])
    same(name, (features, labels), (features + shift, labels))


@pytest.mark.parametrize("name", ORDER)
@given(drawn())
@settings(max_examples=12, deadline=None)
def test_order_of_items_and_features_changes_nothing(name: str, drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    random = np.random.default_rng(drawn_example[0])
    items, columns = random.permutation(len(labels)), random.permutation(features.shape[1])
    same(name, (features, labels), (features[items][:, columns], labels[items]))


@pytest.mark.parametrize("name", FEATURE_SCORES)
@given(drawn())
@settings(max_examples=8, deadline=None)
def test_names_of_classes_change_nothing(name: str, drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    names = np.array(["ant", "bee", "cow", "dog"])  # the same order: the random split of `linear` goes class by class
    same(name, (features, labels), (features, names[labels]))


@given(drawn(10))
@settings(max_examples=20, deadline=None)
def test_h_score_is_invariant_under_any_invertible_map(drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    random = np.random.default_rng(drawn_example[0])
    width = features.shape[1]
    left, right = (np.linalg.qr(random.standard_normal((width, width)))[0] for _ in range(2))
    same("h_score", (features, labels), (features @ left @ np.diag(random.uniform(0.2, 5, width)) @ right, labels))


@given(drawn(), st.integers(2, 6))
@settings(max_examples=20, deadline=None)
def test_numbering_of_source_classes_changes_nothing(drawn_example: tuple[int, int, int, int], width: int) -> None:
    _, labels = example(*drawn_example)
    random = np.random.default_rng(drawn_example[0])
    probabilities, numbering = random.dirichlet(np.ones(width), size=len(labels)), random.permutation(width)
    assert scores.leep(probabilities, labels) == pytest.approx(scores.leep(probabilities[:, numbering], labels))
    source = probabilities.argmax(axis=1)
    assert scores.nce(source, labels) == pytest.approx(scores.nce(numbering[source], labels))
    assert scores.leep(np.eye(width)[source], labels) == pytest.approx(scores.nce(source, labels), abs=1e-12)


@given(drawn())
@settings(max_examples=15, deadline=None)
def test_scores_stay_within_their_bounds(drawn_example: tuple[int, int, int, int]) -> None:
    features, labels = example(*drawn_example)
    items, classes = len(labels), drawn_example[3]
    found = {name: SCORES[name].function(features, labels) for name in FEATURE_SCORES}
    assert all(np.isfinite(value) for value in found.values())
    assert 0 <= found["h_score"] <= min(classes - 1, features.shape[1]) * items / (items - 1) + 1e-6
    assert found["h_score_regularised"] >= 0
    assert -classes * (classes - 1) - 1e-9 <= found["gbc"] <= 0
    assert -np.log(classes) - 1e-6 <= found["nleep"] <= 0
    assert -100 - 1e-6 <= found["parc"] <= 100 + 1e-6
    assert all(0 <= found[name] <= 1 for name in ("knn", "ridge", "linear"))


@pytest.mark.parametrize("name", FEATURE_SCORES)
def test_more_separable_features_score_higher(name: str) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 60)
    noise = random.standard_normal((300, 16))
    centres = random.standard_normal((5, 16))
    found = [SCORES[name].function(apart * centres[labels] + noise, labels) for apart in (0.0, 0.4, 1.0)]
    assert found[0] < found[1] < found[2]


# ---------------------------------------------------------------- hard input


def refused(name: str, features: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        SCORES[name].function(features, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FEATURE_SCORES)
def test_bad_input_is_refused_in_a_sentence(name: str) -> None:
    features, labels = example(0)
    broken = features.copy()
    broken[7, 2] = np.nan
    refused(name, broken, labels, "features must be finite, got nan at item 7, feature 2")
    broken[7, 2] = -np.inf
    refused(name, broken, labels, "features must be finite, got -inf at item 7, feature 2")
    broken[7, 2] = 1e80
    refused(name, broken, labels, re.escape("features must be at most 1e+60 in size, got 1e+80"))
    refused(name, features, labels[:-1], "there must be one label an item, got 29 labels for 30 items")
    refused(name, features, np.zeros(30, dtype=int), "labels must name at least 2 classes, got 1")
    refused(name, features, labels + 0.5, "labels must be integers or strings, got float64")
    refused(name, features, labels[:, None], "labels must be a list with one entry an item, got shape")
    refused(name, features, [], "labels must be a list with one entry an item")
    refused(name, features[:, 0], labels, re.escape("features must be an array of items × features, got shape (30,)"))
    refused(name, features[:, :0], labels, "features must be an array of items × features")
    refused(name, [[1.0, 2.0], [3.0]], [0, 1], "features must be an array of numbers")
    refused(name, np.full((30, 3), "a"), labels, "features must be an array of numbers, got <U1")
    refused(name, torch.zeros(30, 3, requires_grad=True), labels, "features must be an array of numbers")
    refused(name, np.tile(features[0], (30, 1)), labels, "every feature is constant")


@pytest.mark.parametrize("name", FEATURE_SCORES)
def test_one_item_a_class_has_a_score_or_a_sentence(name: str) -> None:
    features, _ = example(0, items=8, width=4, classes=2)
    if name in ("linear", "parc"):
        refused(name, features, np.arange(8), "every class has one item")
    else:
        assert np.isfinite(SCORES[name].function(features, np.arange(8)))


@pytest.mark.parametrize("name", FEATURE_SCORES)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f, y: (f, np.where(np.arange(len(y)) == 0, 9, y)), id="one class of one item"),
        pytest.param(lambda f, y: (np.hstack([f, np.zeros((len(f), 3)), np.full((len(f), 2), 0.1)]), y), id="constant"),
        pytest.param(lambda f, y: (np.tile(f, 20), y), id="more features than items, and equal ones"),
        pytest.param(lambda f, y: (np.vstack([f, f, f]), np.tile(y, 3)), id="every item three times"),
        pytest.param(lambda f, y: (f[:4], [0, 0, 1, 1]), id="four items"),
        pytest.param(lambda f, y: (f * 1e58, y), id="huge"),
        pytest.param(lambda f, y: (f * 1e-58, y), id="tiny"),
        pytest.param(lambda f, y: (np.rint(f).astype(np.int8), y), id="int8"),
        pytest.param(lambda f, y: (f.astype(np.float16), y), id="float16"),
        pytest.param(lambda f, y: (torch.from_numpy(f).float(), torch.from_numpy(y)), id="torch"),
        pytest.param(lambda f, y: (np.asfortranarray(f)[::-1], y[::-1]), id="not contiguous"),
        pytest.param(lambda f, y: (1e6 + 1e-3 * f, y), id="small differences of large values"),
        pytest.param(lambda f, y: (np.eye(3)[y] + 0 * f[:, :1], y), id="labels themselves"),
        pytest.param(lambda f, y: (f, np.where(np.arange(len(y)) < 28, 0, 1)), id="28 of 30 in one class"),
    ],
)
def test_hard_input_has_a_finite_score(name: str, change: Callable[[Array, Array], tuple[Any, Any]]) -> None:
    features, labels = change(*example(5))
    assert np.isfinite(SCORES[name].function(features, labels))


@pytest.mark.parametrize("name", FEATURE_SCORES)
def test_two_items_have_a_score_or_a_sentence(name: str) -> None:
    features, labels = [[1.0, 2.0], [3.0, 1.0]], [0, 1]
    if name in ("linear", "parc"):
        refused(name, features, labels, "every class has one item")
    else:
        assert np.isfinite(SCORES[name].function(features, labels))


@pytest.mark.parametrize("name", ["h_score", "h_score_regularised", "transrate", "gbc", "nleep", "ridge"])
def test_features_that_differ_in_the_last_place_are_refused(name: str) -> None:
    random = np.random.default_rng(0)
    features = 1.0 + np.finfo(np.float64).eps * random.integers(2, size=(30, 4))
    refused(name, features, np.arange(30) % 3, "the features differ by no more than rounding")


def test_features_in_a_read_only_file_are_not_changed(tmp_path: Any) -> None:
    features, labels = example(0, items=60, width=8)
    np.save(tmp_path / "features.npy", features.astype(np.float32))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    before = np.array(mapped)
    for name in FEATURE_SCORES:
        assert SCORES[name].function(mapped, labels) == SCORES[name].function(before, labels)
    np.testing.assert_array_equal(mapped, before)


def test_probabilities_that_are_none_are_refused() -> None:
    good, labels = np.full((4, 2), 0.5), [0, 1, 0, 1]
    for values, sentence in [
        (good * 3, "must sum to 1 for each item, got 3 for item 0"),
        (np.array([[1.5, -0.5]] * 4), "must not be negative, got -0.5; apply softmax to logits"),
        (np.full((4, 2), np.nan), "must be finite"),
        (good[0], "must be an array of items × source classes"),
    ]:
        refused("leep", values, labels, sentence)
    refused("leep", good, [0, 1, 0], "one label an item, got 3 labels for 4 items")
    refused("leep", good, [1, 1, 1, 1], "at least 2 classes")
    refused("nce", [0.1, 0.2], [0, 1], "source labels must be integers or strings, got float64")
    refused("nce", [0, 1, 1], [0, 1], "one label an item, got 2 labels for 3 items")
    assert scores.nce([3, 3, 3, 3], labels) == pytest.approx(-np.log(2))


def test_wrong_parameters_are_refused() -> None:
    features, labels = example(0)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        scores.knn(features, labels, k=0)
    with pytest.raises(InputError, match="epsilon must be above 0, got -1"):
        scores.transrate(features, labels, epsilon=-1)
    assert scores.knn(features, labels, k=1000) == scores.knn(features, labels, k=29)


@pytest.mark.parametrize("name", ["logme", "h_score", "nleep", "gbc"])
def test_too_many_items_and_features_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = example(0, items=30, width=12)
    monkeypatch.setattr("stoker.ranking.spectrum.LARGEST_SIDE", 11)
    refused(name, features, labels, "one of the two must be at most 11; take fewer items or pool the features")


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("name", ["logme", "h_score", "transrate", "gbc", "ridge", "nleep", "linear", "knn", "parc"])
@pytest.mark.parametrize("width", [7, 90])
def test_scores_do_not_depend_on_the_size_of_blocks(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = example(1, items=70, width=width)
    whole = SCORES[name].function(features, labels)
    for module in ("items", "linear"):
        monkeypatch.setattr(f"stoker.ranking.{module}.BLOCK_BYTES", 2000)
    monkeypatch.setattr("stoker.ranking.neighbours.TILE_ROWS", 16)
    assert SCORES[name].function(features, labels) == pytest.approx(
        whole, rel=1e-6, abs=1e-3 if name == "parc" else 1e-9
    )


@pytest.mark.parametrize("width", [6, 50])
def test_coordinates_are_distances_kept(width: int) -> None:
    features, labels = example(2, items=40, width=width)
    items = check(features, labels)
    found = np.concatenate([block for _, block in coordinates(items, spectrum(items, centred=True))])
    centred = features - features.mean(axis=0)
    np.testing.assert_allclose(found @ found.T, centred @ centred.T, atol=1e-9)
    variances = found.var(axis=0)
    assert np.all(np.diff(variances) <= 1e-12)
