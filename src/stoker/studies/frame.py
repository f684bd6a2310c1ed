"""The trials of a study as a polars frame."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from stoker.records import Task
from stoker.studies.store import TrialRow


def trials_frame(
    study: str, tasks: Mapping[str, tuple[Task, Mapping[str, Any], bool]], rows: Sequence[TrialRow], repeats: int
) -> pl.DataFrame:
    """One row for each task, repeat and machine: its last attempt. `attempts` counts those before it too."""
    last: dict[tuple[str, int, str], TrialRow] = {}
    for row in rows:
        if row.key in tasks:
            last[row.key, row.repeat, row.machine] = row
    records = [_record(study, tasks[row.key], row) for row in last.values()]
    columns = dict.fromkeys(name for record in records for name in record)
    if not records:
        return pl.DataFrame(schema={"study": pl.String, "task_key": pl.String, "outcome": pl.String})
    data = {name: [record.get(name) for record in records] for name in columns}
    return pl.DataFrame({name: _series(name, values) for name, values in data.items()}).sort(
        "machine", "task_key", "repeat"
    )


def _record(study: str, task: tuple[Task, Mapping[str, Any], bool], row: TrialRow) -> dict[str, Any]:
    cell = dict(task[1])
    # The grid's value is the axis: what the run made of it (pinning without a GPU) does not replace it.
    figures = {name: value for name, value in row.figures.items() if name not in cell}
    return {
        "study": study,
        "task_key": row.key,
        "repeat": row.repeat,
        "attempt": row.attempt,
        "machine": row.machine,
        "outcome": row.outcome,
        **cell,
        **figures,
        "began": row.began.isoformat() if row.began else None,
        "wall_s": row.wall_s,
        "problem": row.problem,
        "torch": row.versions.get("torch"),
        "stoker": row.versions.get("stoker"),
    }


def _series(name: str, values: list[Any]) -> pl.Series:
    """A column whose values have one type: numbers as they are, a mixture (16 and "24GiB") as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds <= {int, float}:
        return pl.Series(name, values, strict=False)
    return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
