"""Where a trial's time goes: per item, until the first batch, by stage, and how busy the accelerator is."""

from collections.abc import Sequence

import polars as pl

from stoker.analysis.frames import COMPUTE_STAGES, LOOP_STAGES, Cells, cells, normalised, stage_columns
from stoker.errors import InputError


def item_times(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Seconds an item of each cell: `item_s` of the whole run, `<stage>_item_s` of each loop stage that was measured.

    The frame needs `run_items`, or where every item of the set is run once `items`. `steady_item_s`, after the warm-up,
    is there where it was measured. Cells that are not done have null.
    """
    table = _timed(frame, by)
    count = next((name for name in ("run_items", "items") if name in table.rows.columns), None)
    steady = ["steady_item_s"] if "steady_item_s" in table.rows.columns else []
    if count is None and not steady:
        raise InputError("per-item times need the column run_items or items: how many items each run had")
    rows, figures = table.rows, {}
    if count is not None:
        figures = {f"{name.removesuffix('_s')}_item_s": name for name in _loop_columns(rows)}
        figures = {name: stage for name, stage in {"item_s": "seconds", **figures}.items() if rows[stage].count()}
        rows = rows.with_columns(**{figure: pl.col(name) / pl.col(count) for figure, name in figures.items()})
    return rows.select(*table.roles.cell, "outcome", *steady, *figures)


def first_batches(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """How long each cell's first batch takes: `start_s` to start the workers, `first_batch_s` from then on.

    `latency_s` is both together, and `share` what it is of the whole run. Where `start_s` was not measured it is null,
    and the latency is `first_batch_s` alone.
    """
    table = _timed(frame, by)
    if "first_batch_s" not in table.rows.columns:
        raise InputError("first-batch latency needs the column first_batch_s")
    rows = table.rows
    if "start_s" not in rows.columns:
        rows = rows.with_columns(pl.lit(None, dtype=pl.Float64).alias("start_s"))
    latency_s = pl.col("first_batch_s") + pl.col("start_s").fill_null(0.0)
    return rows.with_columns(latency_s.alias("latency_s"), (latency_s / pl.col("seconds")).alias("share")).select(
        *table.roles.cell, "outcome", "start_s", "first_batch_s", "latency_s", "share"
    )


def stage_shares(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """A row for each measured stage of each cell that is done: its seconds, its clock, and its share.

    The share of a loop stage is of the run, that of a worker stage of the workers' time, named parts of a stage
    (`transform.Resize`) left out of that sum. Where the loop's stages do not add up to the run, the rest is `other`.
    """
    table = _timed(frame, by)
    columns = stage_columns(table.rows)
    if not columns:
        raise InputError("stage shares need columns named for stages, such as wait_s or decode_s")
    loop = [name for name in columns if name in _loop_columns(table.rows)]
    parts = [name for name in columns if name not in loop and "." not in name]
    rows = table.rows.filter(pl.col("outcome") == "done")
    if loop and "other_s" not in loop:
        rest = pl.col("seconds") - pl.sum_horizontal(loop)
        rows = rows.with_columns(rest.clip(lower_bound=0.0).alias("other_s"))
        columns, loop = [*loop, "other_s", *(name for name in columns if name not in loop)], [*loop, "other_s"]
    rows = rows.with_columns(pl.sum_horizontal(parts).alias("_workers") if parts else pl.lit(None).alias("_workers"))
    order = pl.DataFrame({"_column": columns, "_place": range(len(columns))})
    on_loop = pl.col("_column").is_in(loop)
    whole = pl.when(on_loop).then(pl.col("seconds")).otherwise(pl.col("_workers"))
    return (
        rows.unpivot(
            columns, index=[*table.roles.cell, "seconds", "_workers"], variable_name="_column", value_name="stage_s"
        )
        .filter(pl.col("stage_s").is_not_null())
        .join(order, on="_column")
        .sort([*table.roles.cell, "_place"], nulls_last=True)
        .with_columns(
            pl.col("_column").str.strip_suffix("_s").alias("stage"),
            pl.when(on_loop).then(pl.lit("loop")).otherwise(pl.lit("worker")).alias("clock"),
            pl.when(whole > 0).then(pl.col("stage_s") / whole).alias("share"),
        )
        .select(*table.roles.cell, "stage", "clock", "stage_s", "share")
    )


def utilisation(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """The accelerator utilisation of each cell, computing seconds over all seconds, as MLPerf Storage defines it.

    Computing is forward, backward, update, and steps of the user's own. Null where none of them was measured.
    """
    table = _timed(frame, by)
    stages = [f"{name}_s" for name in COMPUTE_STAGES if f"{name}_s" in table.rows.columns]
    if not stages:
        raise InputError("utilisation needs a column of computing seconds, such as forward_s")
    measured = pl.any_horizontal(pl.col(name).is_not_null() for name in stages)
    compute_s = pl.when(measured).then(pl.sum_horizontal(stages))
    return table.rows.with_columns(
        compute_s.alias("compute_s"), (compute_s / pl.col("seconds")).alias("utilisation")
    ).select(*table.roles.cell, "outcome", "seconds", "compute_s", "utilisation")


def _timed(frame: pl.DataFrame, by: Sequence[str]) -> Cells:
    """Cells with the medians of every measured time; null where the cell is not done, as its seconds are."""
    trials = normalised(frame)
    others = ("first_batch_s", "steady_item_s", "run_items")
    measures = [*stage_columns(trials), *(name for name in others if name in trials.columns)]
    table = cells(trials, by=by, measures=measures)
    done = pl.col("outcome") == "done"
    return Cells(table.rows.with_columns(pl.when(done).then(pl.col(measures)).name.keep()), table.roles)


def _loop_columns(rows: pl.DataFrame) -> list[str]:
    loop = {f"{name}_s" for name in LOOP_STAGES}
    return [name for name in stage_columns(rows) if name in loop]
