"""Student's t: how far a mean of few values may lie from the truth."""

import math


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
