"""How complete a table is: the cells of each part, by what became of them."""

from collections.abc import Sequence

import polars as pl

from stoker.analysis.frames import MISSING, OUTCOMES, cells


def summary(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """A row for each part of the table: how many `workloads` and `cells` it has, and how many of these ended how.

    A cell counts as done if all its repeats are. `missing` cells have no trial, although another workload has a trial
    of that setting.
    """
    table = cells(frame, by=by)
    outcome = pl.col("outcome")
    counts = [(outcome == name).sum().cast(pl.Int64).alias(name) for name in (*OUTCOMES, MISSING)]
    return (
        table.rows.group_by(table.roles.split)
        .agg(
            pl.col(table.roles.workload).n_unique().cast(pl.Int64).alias("workloads"),
            pl.len().cast(pl.Int64).alias("cells"),
            *counts,
        )
        .sort(table.roles.split, nulls_last=True)
    )
