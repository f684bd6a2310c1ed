"""Student's t distribution, and intervals of a mean that follow from it. Exact, and without scipy."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from stoker.records import Record

CONFIDENCE = 0.95
"""The usual level of an interval."""


class Estimate(Record, frozen=True):
    """The mean of a few values, and how far the true mean may lie from it on either side. None for a single value."""

    mean: float
    margin: float | None
    values: tuple[float, ...]

    @property
    def is_zero(self) -> bool:
        """Whether the true mean may be zero, as far as these values tell."""
        return self.margin is None or abs(self.mean) <= self.margin


def estimate(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """The mean with its t interval. `values` must not be empty."""
    if len(values) < 2:
        return Estimate(mean=fmean(values), margin=None, values=tuple(values))
    quantile = student_quantile((1 + confidence) / 2, len(values) - 1)
    return Estimate(mean=fmean(values), margin=quantile * stdev(values) / math.sqrt(len(values)), values=tuple(values))


def student_quantile(probability: float, freedom: int) -> float:
    """The value below which Student's t lies with this probability, at least one half; by bisection of its exact
    distribution function."""
    low, high = 0.0, 1.0
    while student_probability(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_probability(middle, freedom) < probability else (low, middle)
    return high


def student_probability(value: float, freedom: int) -> float:
    """How likely Student's t is at most `value`, for a whole number of degrees of freedom: the finite series of
    Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(value, math.sqrt(freedom))
    cosine2 = freedom / (freedom + value * value)
    odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = 0.0
    for step in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine2 * (step - 1) / step
    central = (2 / math.pi) * (angle + total) if odd else total
    return 0.5 + central / 2
