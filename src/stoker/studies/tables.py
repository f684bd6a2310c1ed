"""Every table that a study can show, by name: functions of `analysis` over the frame of its trials."""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from stoker.analysis.accuracy import prediction_accuracy
from stoker.analysis.breakdown import breakdown, has_stages
from stoker.analysis.effects import effects
from stoker.analysis.frames import comparable, normalised, roles_of, stage_columns
from stoker.analysis.regret import batch_limits, best, largest_batch, leave_one_out, one_for_all, regret, top_counts
from stoker.analysis.summary import summary
from stoker.analysis.ties import ties
from stoker.analysis.times import first_batches, item_times, stage_shares, utilisation
from stoker.errors import InputError
from stoker.studies.axes import nearest

COMPARISONS: dict[str, Callable[..., pl.DataFrame]] = {
    "regret": regret,
    "top": top_counts,
    "best": best,
    "effects": effects,
    "ties": ties,
    "one-for-all": one_for_all,
    "leave-one-out": leave_one_out,
}
"""Tables that compare settings by the seconds of their runs."""

TABLES: dict[str, Callable[..., pl.DataFrame]] = {
    **COMPARISONS,
    "largest-batch": largest_batch,
    "batch-limits": batch_limits,
    "item-times": item_times,
    "first-batches": first_batches,
    "stages": stage_shares,
    "breakdown": breakdown,
    "utilisation": utilisation,
    "accuracy": prediction_accuracy,
    "summary": summary,
}


def made(name: str, trials: pl.DataFrame, *, by: Sequence[str] = (), **more: Any) -> pl.DataFrame:
    """A table of trials. Settings whose runs have unequal numbers of items are compared by seconds an item: the column
    is `item_s` then, in place of `seconds`."""
    if name not in TABLES:
        raise InputError(f"no such table: {name!r}{nearest(name, TABLES)}; choose {', '.join(TABLES)}")
    if name not in COMPARISONS:
        return TABLES[name](trials, by=by, **more)
    trials, is_by_item = comparable(trials, by=by)
    table = COMPARISONS[name](trials, by=by, **more)
    return table.rename({"seconds": "item_s"}) if is_by_item and "seconds" in table.columns else table


def usual_table(kind: str, trials: pl.DataFrame) -> str:
    """The table that answers what a study of this kind asks, given what its trials have."""
    if kind == "search":
        return "breakdown" if has_stages(trials) else "summary"
    if kind != "profile":
        return {"limit": "largest-batch", "tune": "best"}[kind]
    if not trials.height:
        return "regret"
    found = normalised(trials)
    if not found["seconds"].count() and "steady_item_s" in found.columns and found["steady_item_s"].count():
        return "item-times"
    if not roles_of(found).setting:
        return "stages" if stage_columns(found) else "best"
    return "regret"


def rows_of(table: pl.DataFrame, labels: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a table. The machine's column stays only where there are several, by its label."""
    rows = table.to_dicts()
    if "machine" not in table.columns:
        return rows
    if table["machine"].n_unique() <= 1:
        return table.drop("machine").to_dicts()
    return [{**row, "machine": labels.get(row["machine"], row["machine"])} for row in rows]
