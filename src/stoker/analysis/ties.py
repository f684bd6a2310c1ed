"""Which settings cannot be distinguished from the best, given how much repeats of the same cell differ.

The spread is that of the logarithms of times, pooled over all cells of a part of the table that have several repeats:
noise in run times is about proportional to the time. With one run a cell there is no spread, and every answer but the
best is "unknown".

A setting is tied with the best unless a one-sided t test says that it is slower. The level is divided by the number of
comparisons (Bonferroni), which makes the tied settings a set that contains the true best with at least the stated
confidence: the best of many was also the luckiest of many, and a plain test of each pair forgets that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stoker.analysis.frames import Roles, cells, current
from stoker.analysis.regret import with_regret
from stoker.analysis.student import student_quantile

BEST, TIED, SLOWER, UNKNOWN = "best", "tied", "slower", "unknown"


@dataclass(frozen=True)
class TieRules:
    """The numbers of the comparison."""

    confidence: float = 0.95
    """That the true best is among the tied settings. The usual level; with 45 settings one comparison has 0.1 %."""


RULES = TieRules()


def spread(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """How much repeats differ, for each part of the table: `spread` is one standard deviation as a share of the time.

    `freedom` is the degrees of freedom it comes from, 0 and a null spread where no cell has two repeats that are done.
    """
    trials, roles = current(frame, by)
    log_s = pl.col("seconds").log()
    within = (
        trials.filter(pl.col("seconds").is_not_null())
        .group_by(roles.cell)
        .agg(
            (pl.len().cast(pl.Int64) - 1).alias("freedom"),
            ((log_s - log_s.mean()) ** 2).sum().alias("squares"),
        )
        .sort(roles.cell, nulls_last=True)
    )
    pooled = within.group_by(roles.split).agg(
        (pl.col("freedom") > 0).sum().cast(pl.Int64).alias("cells"),
        pl.col("freedom").sum(),
        pl.when(pl.col("freedom").sum() > 0)
        .then((pl.col("squares").sum() / pl.col("freedom").sum()).sqrt())
        .alias("spread"),
    )
    return pooled.sort(roles.split, nulls_last=True)


def ties(frame: pl.DataFrame, *, by: Sequence[str] = (), rules: TieRules = RULES) -> pl.DataFrame:
    """A row for each cell with a time, each workload's fastest first: its `regret` and how it compares with the best.

    `tie` is best, tied, slower or unknown; `threshold` is the regret up to which a setting with as many repeats counts
    as tied, null where that is unknown.
    """
    table = cells(frame, by=by)
    rows = with_regret(table).filter(pl.col("seconds").is_not_null())
    rows = rows.sort([*table.roles.subject, "seconds", *table.roles.setting], nulls_last=True, maintain_order=True)
    rows = rows.with_columns(_variance(pl.col("repeats")).alias("_variance"))
    judged = _judged(rows, spread(frame, by=by), table.roles, table.roles.subject, rules)
    return judged.select(*table.roles.cell, "seconds", "repeats", "regret", "threshold", "tie")


def ties_for_all(frame: pl.DataFrame, *, by: Sequence[str] = (), rules: TieRules = RULES) -> pl.DataFrame:
    """As `ties`, for one setting over all workloads: the settings with a time for each of them, compared with the best.

    What is compared is the average of log times, so `excess` is the geometric mean of the ratios to the setting with
    the least one, less 1. It may order close settings unlike `regret_mean`, which compares with each workload's best.
    """
    table = cells(frame, by=by)
    whole = pl.col("seconds").null_count().over(table.roles.choice) == 0
    rows = (
        table.rows.filter(whole)
        .group_by(table.roles.choice, maintain_order=True)
        .agg(
            pl.col("seconds").log().mean().alias("_log"),
            (_variance(pl.col("repeats")).sum() / pl.len() ** 2).alias("_variance"),
            pl.len().cast(pl.Int64).alias("models"),
        )
        .with_columns((pl.col("_log") - pl.col("_log").min().over(table.roles.split)).exp().alias("_ratio"))
        .with_columns((pl.col("_ratio") - 1).alias("regret"))
        .sort([*table.roles.split, "regret", *table.roles.setting], nulls_last=True, maintain_order=True)
    )
    judged = _judged(rows, spread(frame, by=by), table.roles, list(table.roles.split), rules)
    return judged.rename({"regret": "excess"}).select(*table.roles.choice, "excess", "models", "threshold", "tie")


def _variance(repeats: pl.Expr) -> pl.Expr:
    """Of the median of so many values, in units of one value's variance: exact for one, and for many of a normal."""
    return math.pi / (2 * repeats + math.pi - 2)


def _judged(rows: pl.DataFrame, spreads: pl.DataFrame, roles: Roles, group: list[str], rules: TieRules) -> pl.DataFrame:
    """Rows sorted by regret within `group`, each with `threshold` and `tie`."""
    known = {tuple(row[name] for name in roles.split): row for row in spreads.iter_rows(named=True)}
    judged = []
    for _, part in rows.group_by(group, maintain_order=True):
        first = part.row(0, named=True)
        found = known.get(tuple(first[name] for name in roles.split))
        scale = None
        if found and found["spread"] is not None:
            level = (1 - rules.confidence) / max(1, part.height - 1)
            scale = student_quantile(1 - level, found["freedom"]) * found["spread"]
        judged.append(_compared(part, first["_variance"], scale))
    if not judged:
        return rows.with_columns(
            pl.lit(None, dtype=pl.Float64).alias("threshold"), pl.lit(None, dtype=pl.String).alias("tie")
        )
    return pl.concat(judged)


def _compared(part: pl.DataFrame, best_variance: float, scale: float | None) -> pl.DataFrame:
    first = pl.int_range(pl.len()) == 0
    if scale is None:
        return part.with_columns(
            pl.lit(None, dtype=pl.Float64).alias("threshold"),
            pl.when(first).then(pl.lit(BEST)).otherwise(pl.lit(UNKNOWN)).alias("tie"),
        )
    part = part.with_columns((scale * (pl.col("_variance") + best_variance).sqrt()).exp().alias("_limit"))
    within = pl.col("regret") <= pl.col("_limit") - 1
    tie = pl.when(first).then(pl.lit(BEST)).when(within).then(pl.lit(TIED)).otherwise(pl.lit(SLOWER))
    return part.with_columns((pl.col("_limit") - 1).alias("threshold"), tie.alias("tie")).drop("_limit")
