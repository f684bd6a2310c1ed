"""Which setting to choose: regret, top-n counts, the best for each workload, one for all, the largest batch for all.

Regret is what a setting costs beyond the best setting of the same workload: `(t - t_best) / t_best`. A cell that failed
or that no trial has is without a time: it never counts as zero, and `missing` says how many there are.
"""

from collections.abc import Sequence

import polars as pl

from stoker.analysis.frames import Cells, cells, current

_DIGITS = 12
"""Averages that agree to so many digits are equal: they differ by how a sum was rounded."""


def with_regret(table: Cells) -> pl.DataFrame:
    """The cells with the column `regret`; null where the cell has no time."""
    best_s = pl.col("seconds").min().over(table.roles.subject)
    return table.rows.with_columns(((pl.col("seconds") - best_s) / best_s).alias("regret"))


def regret(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """A row for each setting: its average and worst regret over the workloads, the best first.

    `models` are those with a time for this setting; `missing` have none. A setting that some workload lacks comes after
    all that are complete, because an average over fewer workloads is no better for that.
    """
    table = cells(frame, by=by)
    rows = with_regret(table).group_by(table.roles.choice, maintain_order=True).agg(*_averages())
    return _ranked(rows, table)


def _averages() -> list[pl.Expr]:
    value = pl.col("regret")
    return [
        value.mean().alias("regret_mean"),
        value.max().alias("regret_worst"),
        value.count().cast(pl.Int64).alias("models"),
        value.null_count().cast(pl.Int64).alias("missing"),
    ]


def _ranked(rows: pl.DataFrame, table: Cells) -> pl.DataFrame:
    order = [*table.roles.split, "missing", pl.col("regret_mean").round(_DIGITS), *table.roles.setting]
    return rows.sort(order, nulls_last=True, maintain_order=True)


def top_counts(frame: pl.DataFrame, n: int = 3, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """How many workloads have a setting among their `n` fastest; equal times share a place. Largest count first."""
    table = cells(frame, by=by)
    place = pl.col("seconds").rank("min").over(table.roles.subject)
    rows = table.rows.filter(place <= n).group_by(table.roles.choice).agg(pl.len().cast(pl.Int64).alias("count"))
    descending = [name == "count" for name in (*table.roles.split, "count", *table.roles.setting)]
    return rows.sort([*table.roles.split, "count", *table.roles.setting], descending=descending, nulls_last=True)


def best(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """The fastest setting of each workload, and by how much: `lead` is what the second fastest takes longer.

    `settings` have a time, `missing` have none. A workload without any time has no row. Of settings with exactly equal
    times the first in order is named; its `lead` is 0.
    """
    table = cells(frame, by=by)
    subject, setting = table.roles.subject, table.roles.setting
    fastest = table.rows.sort([*subject, "seconds", *setting], nulls_last=True, maintain_order=True)
    second_s = pl.col("seconds").slice(1, 1).first()
    return (
        fastest.group_by(subject, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in (*setting, "seconds", "repeats")),
            (second_s / pl.col("seconds").first() - 1).alias("lead"),
            pl.col("seconds").count().cast(pl.Int64).alias("settings"),
            pl.col("seconds").null_count().cast(pl.Int64).alias("missing"),
        )
        .filter(pl.col("seconds").is_not_null())
    )


def one_for_all(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """The setting with the least average regret over all workloads, and the workload that it suits worst.

    Where no setting has a time for every workload, it is the best of those with the fewest missing.
    """
    table = cells(frame, by=by)
    subject = table.roles.workload
    rows = with_regret(table)
    worst = pl.col(subject).sort_by("regret", descending=True, nulls_last=True, maintain_order=True).first()
    grouped = rows.group_by(table.roles.choice, maintain_order=True).agg(*_averages(), worst.alias("worst_model"))
    chosen = _ranked(grouped, table).group_by(table.roles.split, maintain_order=True).first()
    return chosen.filter(pl.col("models") > 0)


def leave_one_out(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """For each workload the setting that is best for all others, and its regret on this one: what a new model may cost.

    `regret` is null where the chosen setting has no time for the workload; `outcome` says why. A workload that is alone
    in its part of the table has no row.
    """
    table = cells(frame, by=by)
    split, setting, choice = list(table.roles.split), list(table.roles.setting), table.roles.choice
    rows = with_regret(table)
    missing = pl.col("regret").is_null()
    known = pl.col("regret").is_not_null()
    others_sum = pl.col("regret").sum().over(choice) - pl.col("regret").fill_null(0.0)
    others = known.sum().over(choice) - known.cast(pl.Int64)
    rows = rows.with_columns(
        pl.when(others > 0).then(others_sum / others).round(_DIGITS).alias("others_mean"),
        (missing.sum().over(choice) - missing.cast(pl.Int64)).alias("others_missing"),
        pl.col(table.roles.workload).n_unique().over(split).alias("_workloads"),
    ).filter((pl.col("_workloads") > 1) & pl.col("others_mean").is_not_null())
    order = [*table.roles.subject, "others_missing", "others_mean", *setting]
    chosen = rows.sort(order, nulls_last=True, maintain_order=True)
    chosen = chosen.group_by(table.roles.subject, maintain_order=True).first()
    return chosen.select(*table.roles.subject, *setting, "others_mean", "others_missing", "regret", "outcome")


def batch_limits(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """The largest batch that works for each workload, and the smallest above it that was tried and does not.

    Trials that searched for the largest batch (`max_batch`) say it themselves, the least of their repeats. Of other
    trials it is the largest batch size at which some setting is done in every repeat; larger ones that were not tried
    may work. Null where nothing works.
    """
    trials, roles = current(frame, by)
    if "max_batch" in trials.columns and trials["max_batch"].count():
        found = pl.when(pl.col("outcome") == "done").then(pl.col("max_batch"))
        rows = trials.group_by(roles.subject).agg(found.min().cast(pl.Int64).alias("largest"))
        rows = rows.with_columns(pl.lit(None, dtype=pl.Int64).alias("first_failed"))
    else:
        rows = _tried_limits(cells(frame, by=by))
    return rows.sort(roles.subject, nulls_last=True)


def _tried_limits(table: Cells) -> pl.DataFrame:
    if "batch_size" not in table.roles.setting:
        return (
            table.rows.select(table.roles.subject)
            .unique()
            .with_columns(
                pl.lit(None, dtype=pl.Int64).alias("largest"), pl.lit(None, dtype=pl.Int64).alias("first_failed")
            )
        )
    subject = table.roles.subject
    done, failed = pl.col("outcome") == "done", (pl.col("repeats") > 0) & (pl.col("outcome") != "done")
    sizes = table.rows.group_by([*subject, "batch_size"]).agg(done.any().alias("works"), failed.any().alias("failed"))
    largest = pl.col("batch_size").filter(pl.col("works")).max()
    beyond = pl.col("failed") & ~pl.col("works") & (pl.col("batch_size") > largest.fill_null(0))
    return sizes.group_by(subject).agg(
        largest.alias("largest"), pl.col("batch_size").filter(beyond).min().alias("first_failed")
    )


def largest_batch(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """The largest batch that works for all workloads, and for more than half of them.

    `limited_by` names the workload with the smallest limit. Of `models` the limit is known; of `missing` it is not, and
    they count in neither figure.
    """
    rows = batch_limits(frame, by=by)
    _, roles = current(frame, by)
    known = rows.sort([*roles.split, "largest", roles.workload], nulls_last=True, maintain_order=True)
    largest = pl.col("largest").drop_nulls()
    return known.group_by(roles.split, maintain_order=True).agg(
        largest.min().alias("all_models"),
        largest.sort(descending=True).slice(largest.len() // 2, 1).first().alias("most_models"),
        pl.col(roles.workload).filter(pl.col("largest").is_not_null()).first().alias("limited_by"),
        largest.len().cast(pl.Int64).alias("models"),
        pl.col("largest").null_count().cast(pl.Int64).alias("missing"),
    )
