"""Labelled features, checked once: what every score works on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stoker.errors import InputError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

BLOCK_BYTES = 32 * 2**20
"""Size of one block of items in float64. Larger blocks are no faster: 2,048 rows of 2,048 features fill a matrix
product already. All temporary arrays of one pass stay within a few blocks."""
LARGEST_VALUE = 1e60
"""Sums of fourth powers of larger features overflow float64."""


@dataclass(frozen=True)
class Classes:
    """Labels as class numbers 0 … count - 1, in sorted order of the labels."""

    of: Indices
    sizes: Indices

    @property
    def count(self) -> int:
        return len(self.sizes)

    def sums(self, rows: Floats, start: int) -> Floats:
        """Sum of `rows` by class, shape (classes, columns); `rows` belong to the items from `start` on."""
        of = self.of[start : start + len(rows)]
        order = np.argsort(of, kind="stable")
        present, first = np.unique(of[order], return_index=True)
        sums = np.zeros((self.count, rows.shape[1]))
        sums[present] = np.add.reduceat(rows[order], first, axis=0)
        return sums


@dataclass(frozen=True)
class Items:
    """Features of labelled items. `features` is the caller's array; it is read in blocks and never copied whole."""

    features: NDArray[Any]
    classes: Classes
    largest: float

    @property
    def count(self) -> int:
        return int(self.features.shape[0])

    @property
    def width(self) -> int:
        return int(self.features.shape[1])

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """The first item of each block, and the block in float64."""
        rows = max(1, BLOCK_BYTES // (8 * self.width))
        for start in range(0, self.count, rows):
            yield start, self.features[start : start + rows].astype(np.float64)

    def column_blocks(self, rows: Indices | None = None) -> Iterator[Floats]:
        """A few features at a time of all items, or of some `rows`, in float64."""
        columns = max(1, BLOCK_BYTES // (8 * (self.count if rows is None else len(rows))))
        for start in range(0, self.width, columns):
            wanted = self.features[:, start : start + columns]
            yield (wanted if rows is None else wanted[rows]).astype(np.float64)

    def mean(self) -> Floats:
        total = np.zeros(self.width)
        for _, block in self.blocks():
            total += block.sum(axis=0)
        return np.asarray(total / self.count)


def check(features: ArrayLike, labels: ArrayLike) -> Items:
    """Checked features and labels.

    Raises `InputError` when the shapes do not match, when a value is not finite or too large, when
    every feature is constant, or when the labels are not integers or strings of at least two classes.
    """
    array = _numbers(features, "features")
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"features must be an array of items × features, got shape {array.shape}")
    classes = check_labels(labels, len(array))
    least, most = _extremes(array)
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        item, feature = _first_not_finite(array)
        value = array[item, feature]
        raise InputError(f"features must be finite, got {value} at item {item}, feature {feature}")
    largest = float(max(abs(least.min()), abs(most.max())))
    if largest > LARGEST_VALUE:
        raise InputError(f"features must be at most {LARGEST_VALUE:g} in size, got {largest:g}")
    if np.array_equal(least, most):
        raise InputError("every feature is constant: the model gives the same output for every item")
    return Items(features=array, classes=classes, largest=largest)


def check_labels(labels: ArrayLike, count: int) -> Classes:
    """Labels of `count` items as classes. Raises `InputError`, see `check`."""
    classes = number_labels(labels, "labels")
    if len(classes.of) != count:
        raise InputError(f"there must be one label an item, got {len(classes.of)} labels for {count} items")
    if classes.count < 2:
        raise InputError("labels must name at least 2 classes, got 1: nothing can be told apart")
    return classes


def number_labels(labels: ArrayLike, name: str) -> Classes:
    """Integers, booleans or strings as class numbers, one class or more. `name` appears in the error."""
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a list of integers or strings: {error}") from None
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{name} must be a list with one entry an item, got shape {array.shape}")
    if array.dtype.kind not in "iubUS":
        raise InputError(f"{name} must be integers or strings, got {array.dtype}")
    _, of, sizes = np.unique(array, return_inverse=True, return_counts=True)
    return Classes(of=of.astype(np.intp), sizes=sizes.astype(np.intp))


@dataclass(frozen=True)
class Probabilities:
    """Source-class probabilities of items, read in blocks like features."""

    values: NDArray[Any]

    def blocks(self) -> Iterator[Floats]:
        """Rows in float64 that sum to 1 exactly as far as float64 can tell; float16 and float32 do not."""
        rows = max(1, BLOCK_BYTES // (8 * self.values.shape[1]))
        for start in range(0, len(self.values), rows):
            block = self.values[start : start + rows].astype(np.float64)
            yield block / block.sum(axis=1, keepdims=True)


def check_probabilities(values: ArrayLike) -> Probabilities:
    """Checked rows of class probabilities. Raises `InputError` when a row is not a distribution."""
    array = _numbers(values, "source probabilities")
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"source probabilities must be an array of items × source classes, got shape {array.shape}")
    least, most = _extremes(array)
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        raise InputError("source probabilities must be finite: there is NaN or infinity among them")
    if least.min() < 0:
        raise InputError(f"source probabilities must not be negative, got {least.min():g}; apply softmax to logits")
    sums = array.sum(axis=1, dtype=np.float64)
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > 1e-2:
        raise InputError(f"source probabilities must sum to 1 for each item, got {sums[worst]:g} for item {worst}")
    return Probabilities(array)


def _numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from None
    if array.dtype.kind not in "iubf":
        raise InputError(f"{name} must be an array of numbers, got {array.dtype}")
    return array


def _extremes(array: NDArray[Any]) -> tuple[Floats, Floats]:
    """Least and greatest value of each feature; NaN where a value is NaN."""
    rows = max(1, BLOCK_BYTES // (array.itemsize * array.shape[1]))
    blocks = [array[start : start + rows] for start in range(0, len(array), rows)]
    with np.errstate(invalid="ignore"):
        least = np.min([block.min(axis=0) for block in blocks], axis=0)
        most = np.max([block.max(axis=0) for block in blocks], axis=0)
    return least.astype(np.float64), most.astype(np.float64)


def _first_not_finite(array: NDArray[Any]) -> tuple[int, int]:
    for item, row in enumerate(array):
        wrong = np.flatnonzero(~np.isfinite(row))
        if wrong.size:
            return item, int(wrong[0])
    raise AssertionError("the caller saw a value that is not finite")
