"""Scores that ask how well a linear map of the features gives the labels."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stoker.errors import InputError
from stoker.ranking.items import BLOCK_BYTES, Classes, Floats, Indices, Items, check
from stoker.ranking.spectrum import Spectrum, coordinates, gram_of_items, spectrum
from stoker.records import Record


class EvidenceRules(Record, frozen=True):
    """How LogME finds the largest evidence. `steps_per_decade`: the evidence as a function of log t has one broad peak
    (rarely two), far wider than a quarter of a decade. `refinements`: each golden-section step keeps 0.618 of the
    bracket; 30 leave 1e-6 of a decade. `noise_floor`: the least variance of the noise, so that labels that the
    features give exactly have a finite evidence; labels are 0 or 1."""

    steps_per_decade: int = 4
    refinements: int = 30
    noise_floor: float = 1e-10


class RidgeRules(Record, frozen=True):
    """Penalties tried by `ridge`, as multiples of the mean eigenvalue: below 1e-6 rounding decides, above 1e3 all
    coefficients are near zero."""

    least: float = 1e-6
    most: float = 1e3
    count: int = 28


class TrainingRules(Record, frozen=True):
    """How `linear` trains. `held_out`: share of each class that is tested on. `iterations`: L-BFGS is within a point of
    its final accuracy by then. `history`: steps that it remembers."""

    held_out: float = 0.2
    iterations: int = 100
    history: int = 10
    seed: int = 0


CLASSES_AT_ONCE = 128
"""Classes whose evidence is searched together: with 2,048 features, arrays of 2 MB."""
EVIDENCE, RIDGE, TRAINING = EvidenceRules(), RidgeRules(), TrainingRules()


def logme(features: ArrayLike, labels: ArrayLike) -> float:
    """Logarithm of maximum evidence of a Bayesian linear model, a mean over classes and items. Higher is better.

    For each class y (1 for its items, 0 for others), with F of n items × D features::

        LogME_c = max over α, β of  1/n · log ∫ N(y; F w, β⁻¹ I) N(w; 0, α⁻¹ I) dw

    With t = α/β, eigenvalues λ of FᵀF and x = Uᵀy, the best β is n / R(t), R(t) = ‖y‖² − Σ x²λ/(λ+t), and what is left
    is a function of t alone::

        n · LogME_c = max over t of  −n/2 · log(2π e R(t)/n) − ½ Σ log(1 + λ/t)

    The authors iterate to a fixed point; here t is found by a grid and a golden section, to the same maximum. The value
    does not change when the features are rotated or scaled.

    You et al., "LogME: Practical Assessment of Pre-trained Models for Transfer Learning", ICML 2021.
    """
    items = check(features, labels)
    values = spectrum(items, centred=False)
    squares = np.square(values.projected.T)
    outside = np.maximum(items.classes.sizes - squares.sum(axis=1), 0.0)
    if values.rank == items.count:
        outside[:] = 0.0
    chunks = np.array_split(np.arange(items.classes.count), -(-items.classes.count // CLASSES_AT_ONCE))
    found = [_largest_evidence(values.values, squares[each], outside[each], items.count) for each in chunks]
    return float(np.mean(np.concatenate(found)))


def _largest_evidence(values: Floats, squares: Floats, outside: Floats, count: int) -> Floats:
    """Largest evidence an item of each class; `squares`: (UᵀY)² by class, `outside`: squared label outside of U."""

    def evidence(residual: Floats, t: Floats) -> Floats:
        noise = residual / count + EVIDENCE.noise_floor
        spread = 0.5 * np.log1p(values / t[:, None]).sum(axis=1) / count
        return np.asarray(-0.5 * np.log(2 * np.pi * np.e * noise) - spread)

    def by_class(log_t: Floats) -> Floats:
        t = np.exp(log_t)
        return evidence((squares * (t[:, None] / (t[:, None] + values))).sum(axis=1) + outside, t)

    decade = np.log(10)
    low, high = np.log(values[-1]) - 4 * decade, np.log(values[0]) + 8 * decade
    grid = np.linspace(low, high, 2 + int((high - low) / decade * EVIDENCE.steps_per_decade))
    t = np.exp(grid)
    best = np.argmax(evidence(squares @ (t[:, None] / (t[:, None] + values)).T + outside[:, None], t), axis=1)
    left, right = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, len(grid) - 1)]
    golden = (np.sqrt(5) - 1) / 2
    lower, upper = right - golden * (right - left), left + golden * (right - left)
    at_lower, at_upper = by_class(lower), by_class(upper)
    for _ in range(EVIDENCE.refinements):
        down = at_lower > at_upper
        left, right = np.where(down, left, lower), np.where(down, upper, right)
        probe = np.where(down, right - golden * (right - left), left + golden * (right - left))
        at_probe = by_class(probe)
        lower, upper = np.where(down, probe, upper), np.where(down, lower, probe)
        at_lower, at_upper = np.where(down, at_probe, at_upper), np.where(down, at_lower, at_probe)
    return np.maximum(at_lower, at_upper)


def h_score(features: ArrayLike, labels: ArrayLike) -> float:
    """H-score: variance of the class means in units of the features' variance. Higher is better, at most the rank.

    ::

        H = tr( cov(f)⁺ cov(E[f | y]) ) = Σ_c 1/n_c · ‖Uᵀ y_c‖²        (features centred)

    With more features than items it tends to its bound whatever the labels are; use `h_score_regularised` there. The
    value does not change under any invertible linear map of the features.

    Bao et al., "An Information-Theoretic Approach to Transferability in Task Transfer Learning", ICIP 2019.
    """
    items = check(features, labels)
    projected = spectrum(items, centred=True).projected
    return float(np.sum(np.square(projected) / items.classes.sizes))


def h_score_regularised(features: ArrayLike, labels: ArrayLike) -> float:
    """H-score with a covariance shrunk as by Ledoit and Wolf. Higher is better.

    ::

        H_α = (1 − α) tr( Σ_α⁻¹ cov(E[f | y]) ),   Σ_α = (1 − α) S + α tr(S)/D · I

    S is the covariance with divisor n, and α estimates the share that makes Σ_α closest to the true covariance. The
    value does not change when the features are rotated or scaled.

    Ibrahim, Ponomareva and Mazumder, "Newer is not always better: Rethinking transferability metrics, their
    peculiarities, stability and performance", ECML PKDD 2022; Ledoit and Wolf, "A well-conditioned estimator for
    large-dimensional covariance matrices", 2004.
    """
    items = check(features, labels)
    values = spectrum(items, centred=True)
    alpha = _shrinkage(values, items)
    variances = values.values / items.count
    shrunk = (1 - alpha) * variances + alpha * variances.sum() / items.width
    between = values.values @ (np.square(values.projected) / items.classes.sizes / shrunk[:, None])
    return float((1 - alpha) * between.sum() / (items.count - 1))


def _shrinkage(values: Spectrum, items: Items) -> float:
    """The share of the identity in the covariance, by Ledoit and Wolf's estimate."""
    variances = values.values / items.count
    squared = float(np.sum(variances**2))
    distance = squared - variances.sum() ** 2 / items.width
    error = (values.fourth / items.count - squared) / items.count
    return float(np.clip(error / distance, 0.0, 1.0)) if distance > 0 else 1.0


def transrate(features: ArrayLike, labels: ArrayLike, *, epsilon: float = 1e-4) -> float:
    """TransRate: how much shorter the code of the features is when the labels are known. Higher is better.

    ::

        R(Z) = ½ log det( I + 1/(n ε) ZᵀZ ),   TransRate = R(Z) − Σ_c n_c/n · R(Z_c)

    Z are the features minus their mean over all items, Z_c the rows of class c. The value does not change when the
    features are rotated or shifted. It does change when they are scaled.

    Huang et al., "Frustratingly Easy Transferability Estimation", ICML 2022.
    """
    if not epsilon > 0:
        raise InputError(f"epsilon must be above 0, got {epsilon:g}")
    items = check(features, labels)
    values = spectrum(items, centred=True)
    whole = 0.5 * float(np.log1p(values.values / (items.count * epsilon)).sum())
    order = np.argsort(items.classes.of, kind="stable")
    members = np.split(order, np.cumsum(items.classes.sizes)[:-1])
    inside = sum(len(rows) / items.count * _class_rate(items, rows, values.mean, epsilon) for rows in members)
    return whole - float(inside)


def _class_rate(items: Items, rows: Indices, mean: Floats, epsilon: float) -> float:
    if items.width > len(rows):
        gram = gram_of_items(items, mean, rows)
    else:
        gram = np.zeros((items.width, items.width))
        for few in _parts(rows, items.width):
            block = items.features[few].astype(np.float64) - mean
            gram += block.T @ block
    gram /= len(rows) * epsilon
    gram[np.diag_indices_from(gram)] += 1
    return 0.5 * float(np.linalg.slogdet(gram)[1])


def ridge(features: ArrayLike, labels: ArrayLike) -> float:
    """Leave-one-out accuracy of a ridge classifier, in closed form. From 0 to 1, higher is better.

    The one-hot labels are regressed on the centred features, the class with the largest output is the answer, and item
    i is answered by the model fitted without it::

        ŷ₋ᵢ = yᵢ − (yᵢ − ŷᵢ) / (1 − hᵢ),   hᵢ = 1/n + Σ_j u_ij² λ_j/(λ_j + t)

    The penalty t minimises generalised cross-validation, ‖y − ŷ‖² / (1 − tr(H)/n)². The value does not change when the
    features are rotated, shifted or scaled.

    Hoerl and Kennard, "Ridge Regression", 1970; Golub, Heath and Wahba, "Generalized Cross-Validation as a Method for
    Choosing a Good Ridge Parameter", 1979.
    """
    items = check(features, labels)
    values = spectrum(items, centred=True)
    penalty = _penalty(values, items)
    weights = np.sqrt(values.values)[:, None] / (values.values + penalty)[:, None] * values.projected
    shares = items.classes.sizes / items.count
    right = 0
    for start, rotated in coordinates(items, values):
        leverage = 1 / items.count + np.square(rotated) @ (1 / (values.values + penalty))
        of = items.classes.of[start : start + len(rotated)]
        truth = np.zeros((len(rotated), items.classes.count))
        truth[np.arange(len(rotated)), of] = 1.0
        error = (truth - shares - rotated @ weights) / np.maximum(1 - leverage, 1e-12)[:, None]
        right += int(np.sum(np.argmax(truth - error, axis=1) == of))
    return right / items.count


def _penalty(values: Spectrum, items: Items) -> float:
    scale = values.values.sum() / min(items.count, items.width)
    penalties = scale * np.geomspace(RIDGE.least, RIDGE.most, RIDGE.count)
    centred = items.classes.sizes * (1 - items.classes.sizes / items.count)
    squares = np.square(values.projected).sum(axis=1)
    unexplained = max(items.count - 1 - values.rank, 0)
    outside = max(float(centred.sum() - squares.sum()), 0.0) if unexplained else 0.0
    left = penalties[:, None] / (penalties[:, None] + values.values)
    residual = np.square(left) @ squares + outside
    # 1 − tr(H)/n, summed without the difference of large numbers: it is tiny when features are more than items.
    freedom = (unexplained + left.sum(axis=1)) / items.count
    return float(penalties[np.argmin(residual / np.square(freedom))])


def linear(features: ArrayLike, labels: ArrayLike, *, device: str = "cpu") -> float:
    """Held-out accuracy of one trained linear layer. From 0 to 1, higher is better.

    A fifth of each class (at least one item) is held out. The features are standardised by the other n items. On those,
    L-BFGS minimises from zero::

        1/n Σ_i cross_entropy(W x_i + b, y_i) + ‖W‖² / (2 n)

    A class with one item is trained on and never tested. The value does not change when each feature is shifted and
    scaled by itself, but for rounding in float32.

    Raises `InputError` when no class has two items.
    """
    import torch

    items = check(features, labels)
    trained, tested = _split(items.classes)
    mean, scale = _standard(items, trained)
    weight = torch.zeros((items.classes.count, items.width), device=device, requires_grad=True)
    bias = torch.zeros(items.classes.count, device=device, requires_grad=True)

    def outputs(rows: Indices) -> Any:
        block = (items.features[rows] - mean) / scale
        batch = torch.from_numpy(block.astype(np.float32, copy=False)).to(device)
        return torch.nn.functional.linear(batch, weight, bias)

    def loss() -> Any:
        optimiser.zero_grad()
        total = weight.square().sum() / (2 * len(trained))
        total.backward()
        for rows in _parts(trained, items.width):
            target = torch.from_numpy(items.classes.of[rows].astype(np.int64)).to(device)
            part = torch.nn.functional.cross_entropy(outputs(rows), target, reduction="sum") / len(trained)
            part.backward()
            total = total.detach() + part.detach()
        return total

    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=TRAINING.iterations,
        history_size=TRAINING.history,
        line_search_fn="strong_wolfe",
    )
    with torch.enable_grad():
        optimiser.step(loss)
    with torch.no_grad():
        answers = [outputs(rows).argmax(dim=1).cpu().numpy() for rows in _parts(tested, items.width)]
    return float(np.mean(np.concatenate(answers) == items.classes.of[tested]))


def _parts(rows: Indices, width: int) -> list[Indices]:
    return np.array_split(rows, -(-len(rows) * width * 8 // BLOCK_BYTES))


def _split(classes: Classes) -> tuple[Indices, Indices]:
    """Items to train on and items to test on, class by class."""
    random = np.random.default_rng(TRAINING.seed)
    order = random.permutation(len(classes.of))
    order = order[np.argsort(classes.of[order], kind="stable")]
    starts = np.cumsum(classes.sizes) - classes.sizes
    place = np.arange(len(order)) - np.repeat(starts, classes.sizes)
    wanted = np.where(classes.sizes > 1, np.maximum(1, np.rint(TRAINING.held_out * classes.sizes)), 0)
    held = place < np.repeat(wanted, classes.sizes)
    if not held.any():
        raise InputError("every class has one item: none is left to test a linear layer on; give two items of a class")
    return np.sort(order[~held]), np.sort(order[held])


def _standard(items: Items, rows: Indices) -> tuple[Any, Any]:
    """Mean and standard deviation of the features over some items, in their precision; 1 for a constant feature."""
    chosen = np.zeros(items.count, dtype=bool)
    chosen[rows] = True
    mean, count = np.zeros(items.width), len(rows)
    for start, block in items.blocks():
        mean += block[chosen[start : start + len(block)]].sum(axis=0) / count
    squares = np.zeros(items.width)
    for start, block in items.blocks():
        squares += np.square(block[chosen[start : start + len(block)]] - mean).sum(axis=0)
    scale = np.sqrt(squares / count)
    scale[scale <= 1e-7 * np.abs(mean)] = 1.0
    precision = np.float64 if items.features.dtype.itemsize > 4 else np.float32
    return mean.astype(precision), scale.astype(precision)
