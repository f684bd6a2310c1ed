"""What each axis does: cells that differ in one axis alone, compared with each other."""

from collections.abc import Sequence

import polars as pl

from stoker.analysis.frames import Cells, cells

_FIGURES: dict[str, pl.DataType] = {
    "axis": pl.String(),
    "value": pl.String(),
    "reference": pl.String(),
    "ratio": pl.Float64(),
    "ratio_low": pl.Float64(),
    "ratio_high": pl.Float64(),
    "fastest": pl.Float64(),
    "pairs": pl.Int64(),
    "missing": pl.Int64(),
}


def effects(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """For each axis that varies and each of its values: times relative to the axis' first value, all else equal.

    `ratio` is the geometric mean of time over time at `reference`, over `pairs` of cells that agree in workload and in
    every other axis; `ratio_low` and `ratio_high` are the quartiles. `fastest` is the share of the compared groups in
    which the value has the least time. `missing` counts pairs without a ratio: a cell failed, or no trial has it. An
    axis that splits the table is null in its own rows, because both sides of its pairs have other values there. Cells
    of unlike machines are never paired.
    """
    table = cells(frame, by=by)
    roles = table.roles
    axes = [*roles.setting, *(name for name in roles.split if name not in ("machine", *by))]
    kinds = table.rows.schema
    nothing = pl.DataFrame(schema={**{name: kinds[name] for name in roles.split}, **_FIGURES})
    return pl.concat([nothing, *(_effect(table, axis) for axis in axes)])


def _effect(table: Cells, axis: str) -> pl.DataFrame:
    roles = table.roles
    part = [name for name in roles.split if name != axis]
    block = [name for name in roles.cell if name != axis]
    reference_s = pl.col("seconds").filter(pl.col(axis) == pl.col("reference")).first().over(block)
    rows = (
        table.rows.filter(pl.col(axis).is_not_null())
        .filter(pl.col(axis).n_unique().over(part) > 1)
        .with_columns(pl.col(axis).min().over(part).alias("reference"))
        .with_columns(
            (pl.col("seconds") / reference_s).log().alias("_log"),
            (pl.col("seconds") == pl.col("seconds").min().over(block)).alias("_fastest"),
        )
    )
    ratio = pl.col("_log")
    grouped = (
        rows.group_by([*part, axis])
        .agg(
            pl.col("reference").first().cast(pl.String),
            ratio.mean().exp().alias("ratio"),
            ratio.quantile(0.25, "linear").exp().alias("ratio_low"),
            ratio.quantile(0.75, "linear").exp().alias("ratio_high"),
            pl.col("_fastest").mean().alias("fastest"),
            ratio.count().cast(pl.Int64).alias("pairs"),
            ratio.null_count().cast(pl.Int64).alias("missing"),
        )
        .sort([*part, axis], nulls_last=True)
        .with_columns(pl.lit(axis).alias("axis"), pl.col(axis).cast(pl.String).alias("value"))
    )
    if axis in roles.split:
        grouped = grouped.with_columns(pl.lit(None, dtype=table.rows.schema[axis]).alias(axis))
    return grouped.select(*roles.split, *_FIGURES)
