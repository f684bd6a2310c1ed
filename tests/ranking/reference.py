"""The scores once more, written out as their papers define them: slow, and without the shortcuts of the package."""

from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, spearmanr

Array = NDArray[Any]


def logme(features: Array, labels: Array) -> float:
    """The marginal likelihood of each label column as one multivariate normal density, maximised by Nelder-Mead."""
    count = len(features)
    kernel = features @ features.T

    def best(target: Array) -> float:
        def loss(logs: Array) -> float:
            covariance = np.exp(logs[0]) * np.eye(count) + np.exp(logs[1]) * kernel
            return -float(multivariate_normal.logpdf(target, np.zeros(count), covariance, allow_singular=True))

        starts = [(noise, signal) for noise in (-4.0, -1.0) for signal in (-8.0, -4.0, 0.0)]
        scale = -np.log(np.trace(kernel) / count)
        options = {"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-10}
        found = [minimize(loss, (a, b + scale), method="Nelder-Mead", options=options).fun for a, b in starts]
        return -float(min(found)) / count

    return float(np.mean([best((labels == each).astype(float)) for each in np.unique(labels)]))


def between(features: Array, labels: Array) -> Array:
    """Covariance of the features with each item replaced by the mean of its class."""
    means = features.copy()
    for each in np.unique(labels):
        means[labels == each] = features[labels == each].mean(axis=0)
    return np.atleast_2d(np.cov(means, rowvar=False))


def h_score(features: Array, labels: Array) -> float:
    return float(np.trace(np.linalg.pinv(np.atleast_2d(np.cov(features, rowvar=False))) @ between(features, labels)))


def h_score_regularised(features: Array, labels: Array) -> float:
    from sklearn.covariance import ledoit_wolf

    covariance, alpha = ledoit_wolf(features)
    return float((1 - alpha) * np.trace(np.linalg.solve(covariance, between(features, labels))))


def transrate(features: Array, labels: Array, epsilon: float = 1e-4) -> float:
    centred = features - features.mean(axis=0)

    def rate(rows: Array) -> float:
        matrix = np.eye(rows.shape[1]) + rows.T @ rows / (len(rows) * epsilon)
        return float(0.5 * np.linalg.slogdet(matrix)[1])

    inside = [np.mean(labels == each) * rate(centred[labels == each]) for each in np.unique(labels)]
    return rate(centred) - float(sum(inside))


def parc(features: Array, labels: Array) -> float:
    scaled = features[:, features.std(axis=0) > 0]
    scaled = (scaled - scaled.mean(axis=0)) / scaled.std(axis=0)
    onehot = (labels[:, None] == np.unique(labels)[None, :]).astype(float)
    pairs = np.triu_indices(len(features), 1)
    # Rounded: in binary, correlations of equal label pairs differ in the last place, and would not be ties.
    distances = [np.round(1 - np.corrcoef(rows), 12)[pairs] for rows in (scaled, onehot)]
    return 100 * float(spearmanr(*distances)[0])


def gbc(features: Array, labels: Array) -> float:
    """With full covariance matrices, though these are multiples of the identity."""
    from sklearn.decomposition import PCA

    points = PCA(min(64, *features.shape), svd_solver="full").fit_transform(features)
    points = points[:, points.var(axis=0) > 1e-20 * points.var(axis=0).max()]
    usual = points.var(axis=0).mean()
    means, covariances = {}, {}
    for each in np.unique(labels):
        rows = points[labels == each]
        means[each] = rows.mean(axis=0)
        covariances[each] = max(rows.var(axis=0).mean(), 1e-4 * usual) * np.eye(points.shape[1])
    total = 0.0
    for one, other in permutations(np.unique(labels), 2):
        middle = (covariances[one] + covariances[other]) / 2
        apart = means[one] - means[other]
        distance = apart @ np.linalg.solve(middle, apart) / 8
        logs = [np.linalg.slogdet(each)[1] for each in (middle, covariances[one], covariances[other])]
        total -= np.exp(-distance - 0.5 * (logs[0] - (logs[1] + logs[2]) / 2))
    return float(total)


def leep(probabilities: Array, labels: Array) -> float:
    classes, width = np.unique(labels), probabilities.shape[1]
    joint = {(y, z): probabilities[labels == y, z].sum() for y in classes for z in range(width)}
    total = 0.0
    for row, label in zip(probabilities, labels, strict=True):
        found = 0.0
        for z in range(width):
            mass = sum(joint[y, z] for y in classes)
            if mass > 0:
                found += joint[label, z] / mass * row[z]
        total += np.log(found)
    return float(total / len(labels))


def nce(source: Array, labels: Array) -> float:
    total = 0.0
    for z in np.unique(source):
        inside = labels[source == z]
        for y in np.unique(inside):
            share = np.mean(inside == y)
            total += len(inside) / len(labels) * share * np.log(share)
    return float(total)


def knn(features: Array, labels: Array, k: int) -> float:
    right = 0
    for item in range(len(features)):
        distance = np.linalg.norm(features - features[item], axis=1)
        others = [each for each in np.argsort(distance, kind="stable") if each != item][:k]
        votes = [labels[each] for each in others]
        most = max(votes.count(vote) for vote in votes)
        right += int(next(vote for vote in votes if votes.count(vote) == most) == labels[item])
    return right / len(features)


def ridge(features: Array, labels: Array, penalty: float) -> float:
    """Accuracy of models that are each fitted without one item."""
    classes = np.unique(labels)
    right = 0
    for item in range(len(features)):
        rest = np.arange(len(features)) != item
        # The package centres features by the mean over all items, and leaves the intercept free of the penalty.
        inputs = np.column_stack([features - features.mean(axis=0), np.ones(len(features))])
        wanted = (labels[rest, None] == classes[None, :]).astype(float)
        diagonal = np.diag([penalty] * features.shape[1] + [0.0])
        weights = np.linalg.solve(inputs[rest].T @ inputs[rest] + diagonal, inputs[rest].T @ wanted)
        right += int(classes[np.argmax(inputs[item] @ weights)] == labels[item])
    return right / len(features)


def generalised_cross_validation(features: Array, labels: Array, penalty: float) -> float:
    centred = features - features.mean(axis=0)
    wanted = (labels[:, None] == np.unique(labels)[None, :]).astype(float)
    count = len(features)
    hat = centred @ np.linalg.solve(centred.T @ centred + penalty * np.eye(features.shape[1]), centred.T) + 1 / count
    return float(np.square(wanted - hat @ wanted).sum() / (1 - np.trace(hat) / count) ** 2)


def weighted_tau(scores: Array, accuracies: Array) -> float:
    from scipy.stats import weightedtau

    return float(weightedtau(scores, accuracies)[0])
