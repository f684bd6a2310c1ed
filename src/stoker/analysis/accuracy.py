"""Predicted against measured: how far off predictions are, and what it costs to choose by them."""

from collections.abc import Sequence

import polars as pl

from stoker.analysis.frames import Cells, cells
from stoker.analysis.regret import with_regret
from stoker.errors import InputError


def prediction_errors(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """A row for each cell that has a prediction: `error` is `predicted_s / seconds - 1`, null where nothing was
    measured."""
    table = _predicted(frame, by)
    rows = table.rows.filter(pl.col("predicted_s").is_not_null())
    error = pl.col("predicted_s") / pl.col("seconds") - 1
    return rows.with_columns(error.alias("error")).select(
        *table.roles.cell, "outcome", "seconds", "predicted_s", "error"
    )


def prediction_accuracy(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """How far off predictions are, for each part of the table.

    `error_median`, `error_p90` and `error_worst` are of absolute errors, `bias` is the median with its sign. `cells`
    have both times; `unmeasured` have a prediction alone, `unpredicted` a measurement alone.
    """
    table = _predicted(frame, by)
    size = pl.col("_error").abs()
    measured, predicted = pl.col("seconds").is_not_null(), pl.col("predicted_s").is_not_null()
    return (
        table.rows.with_columns((pl.col("predicted_s") / pl.col("seconds") - 1).alias("_error"))
        .group_by(table.roles.split)
        .agg(
            (measured & predicted).sum().cast(pl.Int64).alias("cells"),
            (predicted & ~measured).sum().cast(pl.Int64).alias("unmeasured"),
            (measured & ~predicted).sum().cast(pl.Int64).alias("unpredicted"),
            size.median().alias("error_median"),
            size.quantile(0.9, "linear").alias("error_p90"),
            size.max().alias("error_worst"),
            pl.col("_error").median().alias("bias"),
        )
        .sort(table.roles.split, nulls_last=True)
    )


def predicted_choice(frame: pl.DataFrame, n: int = 3, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """What it costs to run only the `n` settings that are predicted to be fastest, and use the best of them.

    For each part of the table: average and worst regret over the workloads, against each one's best measured setting.
    A workload none of whose `n` settings has a time counts as missing.
    """
    if n < 1:
        raise InputError(f"the number of settings to run must be at least 1, got {n}")
    table = _predicted(frame, by)
    subject, setting = table.roles.subject, table.roles.setting
    rows = with_regret(table).filter(pl.col("predicted_s").is_not_null())
    ordered = rows.sort([*subject, "predicted_s", *setting], nulls_last=True, maintain_order=True)
    chosen = ordered.group_by(subject, maintain_order=True).head(n)
    each = chosen.group_by(subject, maintain_order=True).agg(pl.col("regret").min())
    return (
        each.group_by(table.roles.split, maintain_order=True)
        .agg(
            pl.col("regret").mean().alias("regret_mean"),
            pl.col("regret").max().alias("regret_worst"),
            pl.col("regret").count().cast(pl.Int64).alias("models"),
            pl.col("regret").null_count().cast(pl.Int64).alias("missing"),
        )
        .sort(table.roles.split, nulls_last=True)
        .with_columns(pl.lit(n, dtype=pl.Int64).alias("run"))
    )


def _predicted(frame: pl.DataFrame, by: Sequence[str]) -> Cells:
    if isinstance(frame, pl.DataFrame) and "predicted_s" not in frame.columns:
        raise InputError("the trials have no column predicted_s: no prediction was made for them")
    return cells(frame, by=by, measures=["predicted_s"])
