"""The trials frame: one row a trial, and the roles that its columns play in every analysis.

| columns | type | meaning |
| --- | --- | --- |
| `study`, `task_key` | text | where the trial belongs; one cell of a table holds trials of one task |
| `machine` | text | fingerprint of the machine; trials of unlike machines never meet in one figure |
| `repeat`, `attempt` | whole number | the same task again; the same repeat tried again: the last attempt counts |
| `outcome` | text | done, oom, crashed, timed_out or failed |
| `workload`, `model` | text | what ran; one of the two is enough |
| fields of `Setting` | any | batch_size, num_workers, prefetch_factor, pin_memory, … |
| other axes | any | data, mode, device, source, items, … (`SPLIT`) |
| `seconds` | number | the whole run, worker start included; null where the trial is not done |
| `first_batch_s`, `items_per_s`, `predicted_s`, `max_batch` | number | null where unknown |
| `run_items`, `steady_item_s` | number | items of the run, seconds an item after its warm-up; null where unknown |
| `<stage>_s` | number | seconds of a stage, summed over the batches of the trial: wait_s, decode_s, forward_s, … |

`seconds` (or `max_batch`, or `steady_item_s`) and `workload` or `model` are required. Every other column
may be missing, and columns that are not named here are carried along and ignored.

Roles: a *setting* is the fields of `Setting` that vary, with batch size and workers always among them. Figures are
averaged over *workloads*. Every other axis *splits* the table, and so does the machine. Repeats count by their median.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import polars as pl

from stoker.errors import InputError
from stoker.records import Outcome, Setting

OUTCOMES: tuple[str, ...] = get_args(Outcome)
MISSING = "missing"
"""The outcome of a cell that no trial has: another workload has a trial of that setting, this one has none."""

SETTING: tuple[str, ...] = tuple(
    dict.fromkeys((*Setting.__struct_fields__, "multiprocessing_context", "pin_memory_device"))
)
SPLIT: tuple[str, ...] = (
    "data",
    "family",
    "mode",
    "device",
    "source",
    "items",
    "batches",
    "epochs",
    "sleep_s",
    "optimizer",
    "gpu_memory",
    "memory_limit",
    "method",
    "classes",
    "part",
    "scores",
    "labels",
    "weights_cache",
)
MEASURES: tuple[str, ...] = (
    "seconds",
    "first_batch_s",
    "items_per_s",
    "steady_item_s",
    "run_items",
    "predicted_s",
    "max_batch",
)
LOOP_STAGES: tuple[str, ...] = (
    "start",
    "wait",
    "copy",
    "forward",
    "backward",
    "exchange",
    "update",
    "step",
    "score",
    "prepare_model",
    "prepare_data",
    "stop",
    "other",
)
"""Stages on the clock of the loop, which add up to the whole run. Every other stage is on the clock of the workers."""
COMPUTE_STAGES: tuple[str, ...] = ("forward", "backward", "update", "step")

NOT_STAGES = (
    *("total_s", "reference_s", "timeout_s", "budget_s", "interference_s", "wall_s", "tuning_s"),
    *("weights_read_s", "divide_s", "stored_input_s", "candidate_s"),
    *("epoch_s", "first_epoch_s", "later_epoch_s", "shortest_epoch_s", "longest_epoch_s"),
    *("train_s", "against_train_s"),
)
"""Columns of a study's frame that end like a stage's and are none: of the whole child process, of a tune, of what comes
before the stages of a candidate, …."""

_ALWAYS = ("batch_size", "num_workers")
_WHOLE = (
    "repeat",
    "attempt",
    "items",
    "batches",
    "epochs",
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "accumulate",
)


@dataclass(frozen=True)
class Roles:
    """Which columns split the table, and which name a setting. `cell` names one cell: a setting of a workload."""

    split: tuple[str, ...]
    setting: tuple[str, ...]
    workload: str = "workload"

    @property
    def subject(self) -> list[str]:
        """The columns that name one workload in one part of the table."""
        return list(dict.fromkeys((*self.split, self.workload)))

    @property
    def choice(self) -> list[str]:
        """The columns that name one setting in one part of the table."""
        return [*self.split, *self.setting]

    @property
    def cell(self) -> list[str]:
        return [*self.subject, *self.setting]


@dataclass(frozen=True)
class Cells:
    """One row a cell, sorted: `seconds` is the median of its repeats, null unless every repeat is done.

    `repeats` counts trials, `failed` those that are not done. `outcome` is done, missing, or the most frequent failure.
    """

    rows: pl.DataFrame
    roles: Roles


def normalised(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every required column, checked; raises `InputError` for a frame that cannot be analysed.

    A frame without `outcome` has done trials where there is a result, failed ones elsewhere. Without `repeat`, equal
    rows are repeats of each other. A normalised frame passes unchanged.
    """
    if not isinstance(frame, pl.DataFrame):
        raise InputError(f"trials must be a polars DataFrame, got {type(frame).__name__}")
    frame = _named(frame)
    frame = _cast(frame)
    frame = _with_identity(frame)
    _check_outcomes(frame)
    _check_numbers(frame)
    done = pl.col("outcome") == "done"
    return frame.with_columns(pl.when(done).then(pl.col("seconds")).alias("seconds"))


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """With `seconds`, `workload` and `model`."""
    if "seconds" not in frame.columns:
        if not {"max_batch", "steady_item_s"} & set(frame.columns):
            raise InputError("the trials have no column seconds" + _nearest("seconds", frame.columns))
        frame = frame.with_columns(pl.lit(None, dtype=pl.Float64).alias("seconds"))
    names = [name for name in ("workload", "model") if name in frame.columns]
    if not names:
        raise InputError("the trials have neither a column workload nor a column model")
    texts = [pl.col(name).cast(pl.String) for name in names]
    frame = frame.with_columns(pl.coalesce(texts).alias("workload"), pl.coalesce(list(reversed(texts))).alias("model"))
    if frame["workload"].null_count():
        raise InputError(f"row {_first_row(frame['workload'].is_null())} of the trials names no workload")
    return frame


def _cast(frame: pl.DataFrame) -> pl.DataFrame:
    wanted: dict[str, pl.DataType] = {name: pl.Int64() for name in _WHOLE if name in frame.columns}
    wanted |= {name: pl.Float64() for name in (*MEASURES, *stage_columns(frame)) if name in frame.columns}
    wanted |= {name: pl.String() for name in ("study", "task_key", "machine", "outcome") if name in frame.columns}
    for name, kind in wanted.items():
        column = frame[name]
        cast = column.cast(kind, strict=False)
        lost = cast.is_null() & column.is_not_null()
        if kind == pl.Int64() and column.dtype.is_float():
            lost = lost | (cast.cast(pl.Float64) != column)
        if lost.any():
            row = _first_row(lost)
            what = "a whole number" if kind == pl.Int64() else "a number"
            raise InputError(f"{name} must be {what}, got {column[row - 1]!r} in row {row} of the trials")
        frame = frame.with_columns(cast.alias(name))
    return frame


def _with_identity(frame: pl.DataFrame) -> pl.DataFrame:
    """With `study`, `task_key`, `machine`, `attempt`, `outcome` and `repeat`."""
    defaults = {
        "study": pl.lit(None, dtype=pl.String),
        "task_key": pl.lit(None, dtype=pl.String),
        "machine": pl.lit(None, dtype=pl.String),
        "attempt": pl.lit(0, dtype=pl.Int64),
    }
    frame = frame.with_columns(**{name: value for name, value in defaults.items() if name not in frame.columns})
    frame = frame.with_columns(pl.col("machine").fill_null("unknown"), pl.col("attempt").fill_null(0))
    if "outcome" not in frame.columns:
        results = [
            pl.col(name).is_not_null() for name in ("seconds", "max_batch", "steady_item_s") if name in frame.columns
        ]
        frame = frame.with_columns(
            pl.when(pl.any_horizontal(results)).then(pl.lit("done")).otherwise(pl.lit("failed")).alias("outcome")
        )
    if "repeat" not in frame.columns:
        same = ["study", "task_key", "attempt", *_axes(frame)]
        frame = frame.with_columns(pl.int_range(pl.len()).over(same).alias("repeat"))
    return frame.with_columns(pl.col("repeat").fill_null(0))


def _check_outcomes(frame: pl.DataFrame) -> None:
    unknown = ~frame["outcome"].is_in(OUTCOMES).fill_null(value=False)
    if unknown.any():
        row = _first_row(unknown)
        value = frame["outcome"][row - 1]
        raise InputError(f"outcome must be one of {', '.join(OUTCOMES)}, got {value!r} in row {row} of the trials")


def _check_numbers(frame: pl.DataFrame) -> None:
    """Seconds are divided by and logarithms taken of them: they must be above zero."""
    for name in ("seconds", "predicted_s", "max_batch"):
        if name not in frame.columns:
            continue
        counts = pl.col("outcome") == "done" if name == "seconds" else pl.lit(value=True)
        wrong = frame.select(
            (pl.col(name).is_not_null() & counts & ~(pl.col(name).is_finite() & (pl.col(name) > 0))).alias(name)
        )[name]
        if wrong.any():
            row = _first_row(wrong)
            raise InputError(
                f"{name} must be a finite number above 0, got {frame[name][row - 1]:g} in row {row} of the trials"
            )


def latest(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The trials that count, of a normalised frame: of several attempts at one repeat, the last."""
    same = list(dict.fromkeys(("study", "task_key", "repeat", *_axes(frame), *by)))
    last = frame.filter(pl.col("attempt") == pl.col("attempt").max().over(same))
    twice = last.select(pl.struct(*same).is_duplicated().alias("twice"))["twice"]
    if twice.any():
        row = last.filter(twice).row(0, named=True)
        named = ", ".join(f"{name}={row[name]}" for name in ("workload", *_axes(frame)) if row[name] is not None)
        raise InputError(f"two trials have the same task, repeat {row['repeat']} and attempt {row['attempt']}: {named}")
    return last


def current(frame: pl.DataFrame, by: Sequence[str] = ()) -> tuple[pl.DataFrame, Roles]:
    """The trials that count, and the roles of their columns; what every analysis begins with."""
    trials = normalised(frame)
    _check_by(trials, by)
    trials = latest(trials, by)
    return trials, roles_of(trials, by)


def _check_by(trials: pl.DataFrame, by: Sequence[str]) -> None:
    for name in by:
        if name not in trials.columns:
            raise InputError(f"the trials have no column {name}" + _nearest(name, trials.columns))


def roles_of(frame: pl.DataFrame, by: Sequence[str] = ()) -> Roles:
    """The roles of a normalised frame's columns. Columns in `by` split the table besides those that always do."""
    split = ["machine", *(name for name in SPLIT if name in frame.columns and frame[name].null_count() < frame.height)]
    split = list(dict.fromkeys((*split, *by)))
    setting = tuple(
        name
        for name in SETTING
        if name in frame.columns
        and name not in split
        and (frame[name].n_unique() > 1 or (name in _ALWAYS and frame[name].null_count() < frame.height))
    )
    return Roles(split=tuple(split), setting=setting)


def comparable(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> tuple[pl.DataFrame, bool]:
    """The frame with `seconds` that settings can be compared by, and whether they are seconds an item now.

    Where some runs of a workload have more items than others (`run_items`), as runs of a fixed number of batches have,
    the whole run's seconds would favour small batches: all `seconds` are divided by the number of items then. Trials
    without that number have none.
    """
    trials = normalised(frame)
    _check_by(trials, by)
    if "run_items" not in trials.columns:
        return trials, False
    part = roles_of(trials, by).subject
    sizes = pl.col("run_items").filter(pl.col("outcome") == "done")
    if not trials.select((sizes.max().over(part) > sizes.min().over(part)).any()).item():
        return trials, False
    return trials.with_columns(pl.col("seconds") / pl.col("run_items")), True


def of_one_kind(frame: pl.DataFrame) -> pl.DataFrame:
    """The trials of one kind: of a study whose later runs follow from plans or limits, those runs. Columns that only
    the others have go."""
    if "kind" not in frame.columns or frame["kind"].n_unique() < 2:
        return frame
    found = frame.filter(pl.col("kind") == "profile")
    kept = [name for name in found.columns if found[name].null_count() < found.height or name == "seconds"]
    return found.select(kept)


def cells(frame: pl.DataFrame, *, by: Sequence[str] = (), measures: Sequence[str] = ()) -> Cells:
    """One row for each setting of each workload; where a workload lacks a setting that another has, it is missing.

    `measures` are further columns, each with the median of its repeats. A frame whose columns cannot tell two tasks
    apart is refused with `InputError`: unlike tasks are no repeats of each other.
    """
    trials, roles = current(frame, by)
    done = pl.col("outcome") == "done"
    grouped = trials.group_by(roles.cell).agg(
        pl.len().cast(pl.Int64).alias("repeats"),
        (~done).sum().cast(pl.Int64).alias("failed"),
        pl.col("outcome").filter(~done).mode().sort().first().fill_null("done").alias("outcome"),
        pl.col("seconds").median(),
        *(pl.col(name).median() for name in dict.fromkeys(measures) if name != "seconds"),
        pl.col("task_key").drop_nulls().n_unique().alias("_tasks"),
    )
    _check_tasks(grouped, roles)
    grouped = grouped.drop("_tasks").with_columns(
        pl.when(pl.col("failed") == 0).then(pl.col("seconds")).alias("seconds")
    )
    return Cells(_completed(grouped, roles).sort(roles.cell, nulls_last=True), roles)


def _check_tasks(grouped: pl.DataFrame, roles: Roles) -> None:
    mixed = grouped.filter(pl.col("_tasks") > 1)
    if mixed.height:
        row = mixed.sort(roles.cell, nulls_last=True).row(0, named=True)
        named = ", ".join(f"{name}={row[name]}" for name in roles.cell if row[name] is not None)
        raise InputError(
            f"{row['_tasks']} different tasks have the same cell ({named}): "
            "name the column in which they differ as one that splits the table"
        )


def _completed(grouped: pl.DataFrame, roles: Roles) -> pl.DataFrame:
    """With a row for each workload and each setting that occur in one part of the table."""
    if not roles.setting or not grouped.height:
        return grouped
    parts = {"_subject": [name for name in roles.subject if name not in roles.split], "_setting": list(roles.setting)}
    parts = {name: columns for name, columns in parts.items() if columns}
    whole = grouped.group_by(roles.split).agg(
        pl.struct(*columns).unique().alias(name) for name, columns in parts.items()
    )
    for name in parts:
        whole = whole.explode(name)
    whole = whole.unnest(*parts).with_columns(
        pl.lit(MISSING).alias("outcome"),
        pl.lit(0, dtype=pl.Int64).alias("repeats"),
        pl.lit(0, dtype=pl.Int64).alias("failed"),
    )
    return pl.concat([grouped, whole], how="diagonal").unique(roles.cell, keep="first", maintain_order=True)


def outcomes(frame: pl.DataFrame) -> pl.DataFrame:
    """How many trials ended how, on each machine; `superseded` are earlier attempts, which no other figure counts."""
    trials = normalised(frame)
    same = ["study", "task_key", "repeat", *_axes(trials)]
    counts = pl.col("attempt") == pl.col("attempt").max().over(same)
    return (
        trials.with_columns(counts.alias("counts"))
        .group_by("machine", "outcome")
        .agg(
            pl.col("counts").sum().cast(pl.Int64).alias("trials"),
            (~pl.col("counts")).sum().cast(pl.Int64).alias("superseded"),
        )
        .sort("machine", "outcome")
    )


def stage_columns(frame: pl.DataFrame) -> list[str]:
    """The columns that hold the seconds of a stage, loop stages first."""
    known = {*SPLIT, *MEASURES, *SETTING, *NOT_STAGES}
    found = [
        name for name in frame.columns if name.endswith("_s") and not name.endswith("_per_s") and name not in known
    ]
    numbers = [name for name in found if frame.schema[name].is_numeric() or frame.schema[name] == pl.Null]
    order = {f"{name}_s": place for place, name in enumerate(LOOP_STAGES)}
    return sorted(numbers, key=lambda name: (order.get(name, len(order)), name.removesuffix("_s")))


def _axes(frame: pl.DataFrame) -> list[str]:
    return [name for name in ("machine", "workload", *SPLIT, *SETTING) if name in frame.columns]


def _first_row(flags: pl.Series) -> int:
    """The number of the first row that is true, counted from 1."""
    found = flags.arg_true()
    return int(found[0]) + 1


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
