"""Every table that a study can show, by name: functions of `analysis` over the frame of its trials."""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from stoker.analysis import published, thesis
from stoker.analysis.accuracy import prediction_accuracy
from stoker.analysis.breakdown import breakdown, has_stages
from stoker.analysis.effects import effects
from stoker.analysis.frames import comparable, normalised, of_one_kind, roles_of, stage_columns
from stoker.analysis.overview import compared_rows
from stoker.analysis.regret import batch_limits, best, largest_batch, leave_one_out, one_for_all, regret, top_counts
from stoker.analysis.summary import summary
from stoker.analysis.ties import ties
from stoker.analysis.times import first_batches, item_times, stage_shares, utilisation
from stoker.errors import InputError
from stoker.studies.axes import nearest


def convergence(trials: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """What trainings with two batch sizes learned: a row for each size, with the means over its seeds."""
    if "against" not in trials.columns:
        raise InputError("the study compares no batch sizes: that is a study of kind converge")
    rows = []
    for trial in trials.to_dicts():
        named = {name: trial[name] for name in _CONVERGENCE_AXES if trial.get(name) is not None}
        named["workload"] = str(trial["workload"]).rpartition("/")[2]  # without the folder of a user's file
        for prefix, size in (("", trial["batch_size"]), ("against_", trial["against"])):
            figures = {name: trial.get(f"{prefix}{name}") for name in _CONVERGENCE_FIGURES}
            rows.append({**named, "batch_size": size, "outcome": trial["outcome"], **figures})
    names = dict.fromkeys(name for row in rows for name in row)
    table = pl.DataFrame({name: [row.get(name) for row in rows] for name in names}, strict=False)
    if table["repeat"].n_unique() < 2:
        table = table.drop("repeat")
    return table.select("machine", *(name for name in by if name != "machine"), pl.exclude("machine", *by))


_CONVERGENCE_AXES = ("machine", "workload", "data", "precision", "scale_lr", "epochs", "updates", "repeat")
_CONVERGENCE_FIGURES = ("metric_before", "metric", "validation_loss", "train_s", "learned")


def beside_published(trials: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """A preset's study beside the figures that its authors published. Raises InputError for any other study."""
    name = str(trials["study"][0]) if trials.height else ""
    if thesis.preset_of(name):
        return pl.DataFrame(thesis.beside(name, trials).rows, schema=dict.fromkeys(_BESIDE, pl.String))
    preset = name.removesuffix("-small")
    if preset not in published.BY_PRESET:
        known = ", ".join((*published.BY_PRESET, *thesis.PRESETS))
        raise InputError(f"nothing was published for study {name!r}; presets with published figures: {known}")
    rows = compared_rows(trials, published.BY_PRESET[preset]())
    if not rows:
        raise InputError("the study and the published figures have no setting of a workload in common")
    return pl.DataFrame(rows)


_BESIDE = ("figure", "what", "thesis", "here")

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
    "convergence": convergence,
    "published": beside_published,
}


def made(name: str, trials: pl.DataFrame, *, by: Sequence[str] = (), **more: Any) -> pl.DataFrame:
    """A table of trials. Settings whose runs have unequal numbers of items are compared by seconds an item: the column
    is `item_s` then, in place of `seconds`."""
    if name not in TABLES:
        raise InputError(f"no such table: {name!r}{nearest(name, TABLES)}; choose {', '.join(TABLES)}")
    if name != "published":  # which sets the two kinds of such a study beside each other
        trials = of_one_kind(trials)
    if name not in COMPARISONS:
        return TABLES[name](trials, by=by, **more)
    trials, is_by_item = comparable(trials, by=by)
    table = COMPARISONS[name](trials, by=by, **more)
    return table.rename({"seconds": "item_s"}) if is_by_item and "seconds" in table.columns else table


def kind_shown(kind: str, trials: pl.DataFrame) -> str:
    """The kind of study that tables are about: of a study whose later runs follow from its first ones, those runs."""
    return "profile" if "kind" in trials.columns and trials["kind"].n_unique() > 1 else kind


def usual_table(kind: str, trials: pl.DataFrame) -> str:
    """The table that answers what a study of this kind asks, given what its trials have."""
    if kind == "search":
        return "breakdown" if has_stages(trials) else "summary"
    kind = kind_shown(kind, trials)
    if kind != "profile":
        return {"limit": "largest-batch", "tune": "best", "converge": "convergence"}[kind]
    if not trials.height:
        return "regret"
    found = normalised(of_one_kind(trials))
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
