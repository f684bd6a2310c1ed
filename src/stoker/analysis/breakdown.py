"""Where the time of trying a candidate goes: the stages of a search's runs, and which of them takes most."""

from collections.abc import Sequence

import polars as pl

from stoker.analysis.frames import current, stage_columns
from stoker.analysis.series import Rows
from stoker.errors import InputError
from stoker.records import CandidateTrial, Record

STAGES = {
    "prepare_model": "preparing the model",
    "prepare_data": "loading data",
    "copy": "copying",
    "forward": "inference",
    "score": "scoring",
}
"""The stages of one candidate, in the order in which they run, and what a sentence calls them."""
_ON = ("workload", "data", "part", "items")
"""What two runs must have in common to be compared, where both of their tables have it."""
VARIED = ("batch_size", "num_workers", "classes", "scores", "labels", "device", "weights_cache", "precision", "batches")
"""What a study varies one at a time, away from its base case."""


class Dominance(Record, frozen=True):
    """Which stage takes most at so many items. It does in `models` of `of` models; `share` is the median over all of
    them of what it takes of their time."""

    items: int
    stage: str
    models: int
    of: int
    share: float

    @property
    def name(self) -> str:
        """What a sentence calls the stage."""
        return STAGES.get(self.stage, self.stage)

    @property
    def sentence(self) -> str:
        where = "the only model" if self.of == 1 else f"{self.models} of {self.of} models"
        return f"at {self.items:,} items {self.name} takes the most time in {where}, {self.share:.0%} at the median"


def breakdown(frame: pl.DataFrame, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """A row for each stage of each cell: `stage_s`, the median of its repeats that are done, with `low_s` and `high_s`,
    the least and the most of them; `share` is the median's part of the sum of the cell's medians."""
    trials, roles = current(frame, by)
    columns = _columns(trials)
    if not columns:
        raise InputError("the breakdown of a search needs columns of its stages, such as prepare_model_s")
    done = trials.filter(pl.col("outcome") == "done")
    order = pl.DataFrame({"stage": list(STAGES), "_place": range(len(STAGES))})
    found = (
        done.unpivot(columns, index=roles.cell, variable_name="_column", value_name="_s")
        .filter(pl.col("_s").is_not_null())
        .with_columns(pl.col("_column").str.strip_suffix("_s").alias("stage"))
        .group_by(*roles.cell, "stage")
        .agg(
            pl.col("_s").median().alias("stage_s"),
            pl.col("_s").min().alias("low_s"),
            pl.col("_s").max().alias("high_s"),
            pl.len().cast(pl.Int64).alias("repeats"),
        )
        .join(order, on="stage")
    )
    whole = pl.col("stage_s").sum().over(roles.cell, mapping_strategy="group_to_rows")
    share = pl.when(whole > 0).then(pl.col("stage_s") / whole).alias("share")
    names = [*roles.cell, "stage", "stage_s", "low_s", "high_s", "share", "repeats"]
    return found.with_columns(share).sort([*roles.cell, "_place"], nulls_last=True).select(names)


def has_stages(frame: pl.DataFrame) -> bool:
    """Whether any run of a search was measured."""
    return bool(_columns(frame))


def _columns(frame: pl.DataFrame) -> list[str]:
    return [f"{name}_s" for name in STAGES if f"{name}_s" in stage_columns(frame)]


def base_case(frame: pl.DataFrame, *, but: Sequence[str] = ()) -> pl.DataFrame:
    """The trials in which what is varied one at a time, `but` for these columns, has its most frequent value."""
    for name in VARIED:
        if name in frame.columns and frame.height and name not in but:
            usual = frame[name].value_counts().sort(["count", name], descending=[True, False], nulls_last=True)[name][0]
            frame = frame.filter(pl.col(name).eq_missing(pl.lit(usual, dtype=frame.schema[name])))
    return frame


def dominant(frame: pl.DataFrame, *, part: str = "full") -> list[Dominance]:
    """For each number of items of the base case: the stage that takes most in most models, of runs of this part of
    them. The shares of a model are the means over its kinds of data."""
    if not has_stages(frame):
        return []
    stages = breakdown(base_case(frame))
    if "items" not in stages.columns or not stages.height:
        return []
    if "part" in stages.columns:
        stages = stages.filter(pl.col("part") == part)
    shares = stages.group_by("items", "workload", "stage").agg(pl.col("share").mean())
    found = []
    for items in sorted(shares["items"].drop_nulls().unique().to_list()):
        rows = shares.filter(pl.col("items") == items)
        most = rows.sort("share", "stage", descending=[True, False]).group_by("workload", maintain_order=True).first()
        counts = most.group_by("stage").agg(pl.len().alias("models"), pl.col("share").sum())
        stage, models, _ = counts.sort("models", "share", descending=True).row(0)
        share = rows.filter(pl.col("stage") == stage)["share"].median()
        found.append(Dominance(items=items, stage=stage, models=models, of=most.height, share=float(share or 0.0)))  # type: ignore[arg-type]
    return found


def beside(ours: pl.DataFrame, theirs: pl.DataFrame) -> pl.DataFrame:
    """The stages of runs that the base cases of two tables have in common: the same model, data, part and items.
    `ours_s` and `theirs_s`, and both shares."""
    if not (has_stages(ours) and has_stages(theirs)):
        return pl.DataFrame()
    left, right = _by_run(ours), _by_run(theirs)
    on = [name for name in (*_ON, "stage") if name in left.columns and name in right.columns]
    if "items" not in on:
        return pl.DataFrame()
    both = left.join(right, on=on, suffix="_theirs", how="inner").rename(
        {"stage_s": "ours_s", "stage_s_theirs": "theirs_s", "share": "share_ours"}
    )
    order = pl.DataFrame({"stage": list(STAGES), "_place": range(len(STAGES))})
    names = [*on, "ours_s", "theirs_s", "share_ours", "share_theirs"]
    return both.join(order, on="stage").sort([*(name for name in on if name != "stage"), "_place"]).select(names)


def _by_run(frame: pl.DataFrame) -> pl.DataFrame:
    stages = breakdown(base_case(frame))
    by = [name for name in (*_ON, "stage") if name in stages.columns]
    return stages.group_by(by).agg(pl.col("stage_s").median(), pl.col("share").median())


def candidate_rows(candidates: Sequence[CandidateTrial]) -> Rows:
    """What each candidate of a search spent, a row for each group of stages: model, stage, seconds, share. What belongs
    to no stage is `other`. Candidates that failed are left out."""
    rows: Rows = []
    for trial in candidates:
        if trial.outcome == "done":
            spent = {**trial.stages.groups_s, "other": trial.other_s}
            whole = sum(spent.values()) or 1.0
            rows += [
                {"model": trial.model, "stage": stage, "seconds": seconds, "share": seconds / whole}
                for stage, seconds in spent.items()
                if seconds > 0 or stage != "other"
            ]
    return rows


def most_spent(candidates: Sequence[CandidateTrial]) -> tuple[str, float] | None:
    """The group of stages on which a search spent most, and its share; None where no candidate is done."""
    totals: dict[str, float] = {}
    for row in candidate_rows(candidates):
        totals[row["stage"]] = totals.get(row["stage"], 0.0) + row["seconds"]
    whole = sum(totals.values())
    if not whole:
        return None
    stage = max(totals, key=totals.__getitem__)
    return stage, totals[stage] / whole
