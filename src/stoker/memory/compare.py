"""Every method for the largest batch on one workload, compared with `search`, which tries sizes until they fail."""

from collections.abc import Callable

from stoker.errors import StokerError
from stoker.events import OnEvent
from stoker.memory.limit import LimitRequest, limit
from stoker.records import METHODS, Limit, Method, MethodComparison, MethodRow, WorkloadSpec
from stoker.workload.workload import Workload


def compare(
    source: Workload | WorkloadSpec | str,
    request: LimitRequest,
    *,
    on_event: OnEvent | None = None,
    title: Callable[[str], None] | None = None,
) -> MethodComparison:
    """Run each method on the same request. A method that fails is a row with a `problem`; if all fail,
    the first error is raised. `title` is called with a heading before each method."""
    found: dict[Method, Limit | StokerError] = {}
    for method in METHODS:
        if title:
            title(f"{method}: ")
        try:
            found[method] = limit(source, request=request, method=method, on_event=on_event)
        except StokerError as error:
            found[method] = error
    if not any(isinstance(answer, Limit) for answer in found.values()):
        raise next(answer for answer in found.values() if isinstance(answer, StokerError))
    truth = found["search"]
    rows = tuple(_row(method, answer, truth if isinstance(truth, Limit) else None) for method, answer in found.items())
    name = next(answer.workload for answer in found.values() if isinstance(answer, Limit))
    return MethodComparison(workload=name, rows=rows)


def _row(method: Method, answer: Limit | StokerError, truth: Limit | None) -> MethodRow:
    if isinstance(answer, StokerError):
        return MethodRow(method=method, limit=None, error=None, problem=str(answer))
    error = None if truth is None else error_from_band(answer.max_batch, *truth.interval)
    return MethodRow(method=method, limit=answer, error=error)


def error_from_band(estimate: int, low: int, high: int) -> float:
    """How far an estimate lies outside a band, as a share of the nearer edge; 0 inside the band."""
    if low <= estimate <= high:
        return 0.0
    edge = low if estimate < low else high
    return (estimate - edge) / edge
