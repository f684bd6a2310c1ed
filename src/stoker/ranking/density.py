"""Scores that describe the features by normal distributions: GBC one a class, NLEEP a mixture without labels."""

import numpy as np
from numpy.typing import ArrayLike

from stoker.ranking.heads import Counts, leep_of
from stoker.ranking.items import Classes, Floats, Indices, Items, check
from stoker.ranking.spectrum import coordinates, spectrum
from stoker.records import Record


class GbcRules(Record, frozen=True):
    """`dimensions`: principal components, as in the authors' published evaluation. `variance_floor`: least variance of
    a class as a share of the mean variance; a class of one item, or of equal items, would have none."""

    dimensions: int = 64
    variance_floor: float = 1e-4


class MixtureRules(Record, frozen=True):
    """How `nleep` fits its mixture.

    `energy`: share of the variance in the principal components, as in the paper. `most_dimensions`: bounds memory; deep
    features reach that share earlier. `components_per_class`: the paper's. `items_per_component`: with fewer items a
    component is one item, and the score says nothing. `fitted_items`, `fitted_per_component`: the mixture is fitted to
    at most this many items, drawn evenly, whichever is more; all items are scored. `rounds`: k-means++ picks the first
    centres in this many rounds. `refinements`: k-means steps before EM. `iterations`, `tolerance`: EM ends when an
    item's mean log-likelihood grows by less. `variance_floor`: as a share of the mean variance.
    """

    energy: float = 0.8
    most_dimensions: int = 256
    components_per_class: int = 5
    items_per_component: int = 5
    fitted_items: int = 20_000
    fitted_per_component: int = 20
    rounds: int = 64
    refinements: int = 5
    iterations: int = 50
    tolerance: float = 1e-3
    variance_floor: float = 1e-6
    seed: int = 0


GBC, MIXTURE = GbcRules(), MixtureRules()


def gbc(features: ArrayLike, labels: ArrayLike) -> float:
    """Gaussian Bhattacharyya coefficient: how little the classes overlap. Higher is better.

    In the first d = 64 principal components (fewer if there are fewer), class i has mean μ_i and variance s_i²::

        GBC = −Σ_{i≠j} exp(−B_ij),   B_ij = ‖μ_i − μ_j‖² / (8 s̄²) + d/2 · log( s̄² / (s_i s_j) ),   s̄² = (s_i² + s_j²)/2

    From −C(C − 1), when the C classes are alike, to 0, when they are apart. The value does not change when the features
    are rotated, shifted or scaled.

    Pándy et al., "Transferability Estimation using Bhattacharyya Class Separability", CVPR 2022.
    """
    items = check(features, labels)
    values = spectrum(items, centred=True)
    used = min(GBC.dimensions, values.rank)
    classes = items.classes
    sums, squares = np.zeros((classes.count, used)), np.zeros(classes.count)
    for start, block in coordinates(items, values, used):
        sums += classes.sums(block, start)
    means = sums / classes.sizes[:, None]
    for start, block in coordinates(items, values, used):
        apart = np.square(block - means[classes.of[start : start + len(block)]]).sum(axis=1, keepdims=True)
        squares += classes.sums(apart, start)[:, 0]
    usual = float(values.values[:used].sum()) / (items.count * used)
    variances = np.maximum(squares / (classes.sizes * used), GBC.variance_floor * usual)
    total = 0.0
    for one in range(classes.count - 1):
        others = slice(one + 1, None)
        middle = (variances[one] + variances[others]) / 2
        distance = np.square(means[others] - means[one]).sum(axis=1) / (8 * middle)
        distance += used / 4 * (2 * np.log(middle) - np.log(variances[one]) - np.log(variances[others]))
        total += float(np.exp(-distance).sum())
    return -2 * total


def nleep(features: ArrayLike, labels: ArrayLike) -> float:
    """NLEEP: LEEP with the components of a Gaussian mixture in place of source classes. At most 0, higher is better.

    The features are projected onto the principal components with 80 % of the variance; a mixture with 5 components a
    class (fewer if items are few) is fitted without labels; with z its components::

        NLEEP = 1/n Σ_i log Σ_z P(y_i | z) p(z | x_i),   P(y | z) = Σ_{i: y_i = y} p(z | x_i) / Σ_i p(z | x_i)

    The covariances are diagonal in the principal components, where the paper's are full: with a few items a component,
    full covariances are singular, and their cost grows with the square of the dimensions. The mixture starts from
    k-means++ with a fixed seed, so that equal input gives an equal score. The value does not change when the features
    are rotated, shifted or scaled; another order of the items may change it a little.

    Li et al., "Ranking Neural Checkpoints", CVPR 2021.
    """
    items = check(features, labels)
    points = _principal(items)
    random = np.random.default_rng(MIXTURE.seed)
    wanted = min(MIXTURE.components_per_class * items.classes.count, items.count // MIXTURE.items_per_component)
    mixture = fit_mixture(_sample(points, wanted, random), max(1, wanted), random)
    return _score(mixture, points, items.classes)


def _principal(items: Items) -> Floats:
    """Coordinates along the principal components that hold the wanted share of the variance."""
    values = spectrum(items, centred=True)
    shares = np.cumsum(values.values) / values.values.sum()
    used = min(int(np.searchsorted(shares, MIXTURE.energy)) + 1, MIXTURE.most_dimensions, values.rank)
    points = np.empty((items.count, used))
    for start, block in coordinates(items, values, used):
        points[start : start + len(block)] = block
    return points


def _sample(points: Floats, components: int, random: np.random.Generator) -> Floats:
    most = max(MIXTURE.fitted_items, MIXTURE.fitted_per_component * components)
    return points if len(points) <= most else points[np.sort(random.choice(len(points), most, replace=False))]


class Mixture:
    """Normal distributions with diagonal covariances: `weights`, and `means` and `variances` by component."""

    def __init__(self, weights: Floats, means: Floats, variances: Floats) -> None:
        self.weights, self.means, self.variances = weights, means, variances
        inverse = 1 / variances
        self._square, self._line = (-0.5 * inverse).T, (means * inverse).T
        self._constant = np.log(weights) - 0.5 * (
            np.log(2 * np.pi * variances).sum(axis=1) + (np.square(means) * inverse).sum(axis=1)
        )

    def posterior(self, points: Floats) -> tuple[Floats, float]:
        """p(z | x) of each point, and the sum of the points' log-likelihoods."""
        joint = np.square(points) @ self._square + points @ self._line + self._constant
        most = joint.max(axis=1, keepdims=True)
        joint -= most
        np.exp(joint, out=joint)
        total = joint.sum(axis=1, keepdims=True)
        joint /= total
        return joint, float(np.sum(np.log(total) + most))


def fit_mixture(points: Floats, components: int, random: np.random.Generator) -> Mixture:
    """A mixture fitted by expectation maximisation from a k-means start."""
    floor = MIXTURE.variance_floor * float(points.var(axis=0).mean())
    mixture = _first_mixture(points, components, floor, random)
    before = -np.inf
    for _ in range(MIXTURE.iterations):
        mixture, likelihood = step(mixture, points, floor)
        if likelihood - before < MIXTURE.tolerance:
            break
        before = likelihood
    return mixture


def step(mixture: Mixture, points: Floats, floor: float) -> tuple[Mixture, float]:
    """One step of expectation maximisation, and the mean log-likelihood before it."""
    shape = mixture.means.shape
    counts, sums, squares, likelihood = np.zeros(shape[0]), np.zeros(shape), np.zeros(shape), 0.0
    for block in _chunks(points, shape[0]):
        shares, found = mixture.posterior(block)
        counts += shares.sum(axis=0)
        sums += shares.T @ block
        squares += shares.T @ np.square(block)
        likelihood += found
    counts += 10 * np.finfo(np.float64).eps
    means = sums / counts[:, None]
    variances = np.maximum(squares / counts[:, None] - np.square(means), 0.0) + floor
    return Mixture(counts / counts.sum(), means, variances), likelihood / len(points)


def _first_mixture(points: Floats, components: int, floor: float, random: np.random.Generator) -> Mixture:
    centres = _spread_centres(points, components, random)
    for _ in range(MIXTURE.refinements):
        nearest, _ = _nearest(points, centres)
        centres = _moments(points, nearest, centres)[1]
    nearest, _ = _nearest(points, centres)
    sizes, means, squares = _moments(points, nearest, centres)
    variances = np.maximum(squares - np.square(means), 0.0) + floor
    return Mixture(sizes / sizes.sum(), means, variances)


def _moments(points: Floats, nearest: Indices, centres: Floats) -> tuple[Floats, Floats, Floats]:
    """Number, mean and mean square of each centre's points. A centre without points stays where it is."""
    groups = Classes(of=nearest, sizes=np.bincount(nearest, minlength=len(centres)))
    sizes = np.maximum(groups.sizes, 1e-10)
    sums, squares = np.zeros_like(centres), np.zeros_like(centres)
    start = 0
    for block in _chunks(points, points.shape[1]):
        sums += groups.sums(block, start)
        squares += groups.sums(np.square(block), start)
        start += len(block)
    empty = groups.sizes == 0
    means = np.where(empty[:, None], centres, sums / sizes[:, None])
    return sizes, means, np.where(empty[:, None], np.square(centres), squares / sizes[:, None])


def _spread_centres(points: Floats, count: int, random: np.random.Generator) -> Floats:
    """Centres as k-means++ picks them, several a round when they are many."""
    chosen = [int(random.integers(len(points)))]
    distance = np.square(points - points[chosen[0]]).sum(axis=1)
    for left in _parts(count - 1, MIXTURE.rounds):
        total = float(distance.sum())
        chances = distance / total if total > 0 else np.full(len(points), 1 / len(points))
        few = min(left, int(np.count_nonzero(chances)))
        chosen += [int(each) for each in random.choice(len(points), few, replace=False, p=chances)]
        distance = np.minimum(distance, _nearest(points, points[chosen[-few:]])[1])
    return points[chosen]


def _parts(count: int, rounds: int) -> list[int]:
    return [len(part) for part in np.array_split(np.arange(count), rounds) if len(part)]


def _nearest(points: Floats, centres: Floats) -> tuple[Indices, Floats]:
    """Number of the nearest centre of each point, and the squared distance to it."""
    nearest, distance = np.empty(len(points), dtype=np.intp), np.empty(len(points))
    norms = np.square(centres).sum(axis=1)
    start = 0
    for block in _chunks(points, len(centres)):
        apart = norms - 2 * (block @ centres.T)
        end = start + len(block)
        nearest[start:end] = apart.argmin(axis=1)
        distance[start:end] = np.maximum(apart.min(axis=1) + np.square(block).sum(axis=1), 0.0)
        start = end
    return nearest, distance


def _chunks(points: Floats, width: int) -> list[Floats]:
    """Points in groups whose arrays of `width` columns stay within a few MB."""
    rows = max(1, 2**21 // max(1, width))
    return [points[start : start + rows] for start in range(0, len(points), rows)]


def _score(mixture: Mixture, points: Floats, classes: Classes) -> float:
    counts = Counts(classes, len(mixture.weights))
    chunks = _chunks(points, len(mixture.weights))
    for block in chunks:
        counts.add(mixture.posterior(block)[0])
    return leep_of(counts, (mixture.posterior(block)[0] for block in chunks))
