"""The trials of a study as a polars frame."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from stoker.studies.store import TrialRow

_LAST = ("began", "wall_s", "problem", "torch", "stoker")


def trials_frame(
    study: str,
    kind: str,
    cells: Mapping[str, Mapping[str, Any]],
    rows: Sequence[TrialRow],
    machines: Mapping[str, str],
) -> pl.DataFrame:
    """One row for each task, repeat and machine: its last attempt, with `attempts`, how many there were.

    `machines` has labels by fingerprint. A device that sleeps stands in for a model, so it is the row's workload.
    """
    cells = _with_models(cells)
    last: dict[tuple[str, int, str], TrialRow] = {}
    attempts: dict[tuple[str, int, str], int] = {}
    for row in rows:
        place = (row.key, row.repeat, row.machine)
        attempts[place] = attempts.get(place, 0) + 1
        if place not in last or row.attempt > last[place].attempt:
            last[place] = row
    if not last:
        names = ("study", "task_key", "machine", "workload", "outcome")
        return pl.DataFrame(schema={**dict.fromkeys(names, pl.String), "seconds": pl.Float64})
    records = [
        {
            "study": study,
            "kind": kind,
            "task_key": row.key,
            "repeat": row.repeat,
            "attempt": row.attempt,
            "attempts": attempts[place],
            "machine": row.machine,
            "machine_label": machines.get(row.machine),
            "outcome": row.outcome,
            # The grid's value is the axis: what the run made of it (pinning without a GPU) does not replace it.
            **row.figures,
            **cells[row.key],
            "began": row.began.isoformat() if row.began else None,
            "wall_s": row.wall_s,
            "problem": row.problem,
            "torch": row.versions.get("torch"),
            "stoker": row.versions.get("stoker"),
        }
        for place, row in last.items()
    ]
    columns = _columns(records, cells)
    data = {name: _series(name, [record.get(name) for record in records]) for name in columns}
    data.setdefault("seconds", pl.Series("seconds", [None] * len(records), dtype=pl.Float64))  # if nothing was done
    return pl.DataFrame(data).sort("machine", "task_key", "repeat")


def _with_models(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The cells; where the device sleeps its name is the workload, behind the workload's own name if there are
    several. `stands_for` has that name."""
    asleep = {cell["workload"] for cell in cells.values() if _sleeps(cell)}
    found: dict[str, Mapping[str, Any]] = {}
    for key, cell in cells.items():
        if _sleeps(cell):
            name = f"{cell['workload']} {cell['device']}" if len(asleep) > 1 else cell["device"]
            cell = {**cell, "workload": name, "device": "sleep", "stands_for": cell["workload"]}
        found[key] = cell
    return found


def _sleeps(cell: Mapping[str, Any]) -> bool:
    return str(cell.get("device", "")).startswith("sleep:")


def _columns(records: Sequence[Mapping[str, Any]], cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Who and what first, then the axes, then figures, then circumstances."""
    axes = dict.fromkeys(name for cell in cells.values() for name in cell)
    names = dict.fromkeys(name for record in records for name in record)
    head = list(names)[: list(names).index("outcome") + 1]
    figures = [name for name in names if name not in axes and name not in head and name not in _LAST]
    return [*head, *axes, *figures, *_LAST]


def _series(name: str, values: list[Any]) -> pl.Series:
    """A column whose values have one type: numbers as they are, a mixture (16 and "24GiB") as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds <= {int, float}:
        return pl.Series(name, values, strict=False)
    return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
