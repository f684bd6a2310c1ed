"""Every way to find the largest batch, on one workload, held against the one that tries sizes until they fail."""

from collections.abc import Callable, Mapping
from typing import Any

from stoker.errors import StokerError
from stoker.measure.trial import Named, OnEvent
from stoker.records import Record
from stoker.tune.limit import METHODS, Limit, Method, limit
from stoker.workload.definition import Workload


class Row(Record, frozen=True):
    """One method's answer, or why it has none. `error` is (estimate − truth) / truth; the truth is what `search` ran.

    The thesis' own error (5.1) has the other sign.
    """

    method: Method
    limit: Limit | None
    error: float | None
    problem: str | None = None


class Comparison(Record, frozen=True):
    workload: str
    rows: tuple[Row, ...]


def compare(
    source: Workload | Named | str,
    options: Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    title: Callable[[str], None] | None = None,
) -> Comparison:
    """Run each method. What one cannot do is its row's problem; where none can, it is raised."""
    found: dict[Method, Limit | StokerError] = {}
    for method in METHODS:
        if title:
            title(f"{method}: ")
        try:
            found[method] = limit(source, method=method, on_event=on_event, **options)
        except StokerError as error:
            found[method] = error
    if not any(isinstance(answer, Limit) for answer in found.values()):
        raise next(answer for answer in found.values() if isinstance(answer, StokerError))
    truth = found["search"]
    rows = tuple(_row(method, answer, truth if isinstance(truth, Limit) else None) for method, answer in found.items())
    name = next(answer.workload for answer in found.values() if isinstance(answer, Limit))
    return Comparison(workload=name, rows=rows)


def _row(method: Method, answer: Limit | StokerError, truth: Limit | None) -> Row:
    if isinstance(answer, StokerError):
        return Row(method=method, limit=None, error=None, problem=str(answer))
    error = None if truth is None else error_from_band(answer.max_batch, *truth.interval)
    return Row(method=method, limit=answer, error=error)


def error_from_band(estimate: int, low: int, high: int) -> float:
    """How far an estimate lies outside a band, as a share of the nearer edge; 0 inside it."""
    if low <= estimate <= high:
        return 0.0
    edge = low if estimate < low else high
    return (estimate - edge) / edge
