"""Figures that other people measured and published, beside which ours are shown and tested.

All are of one laboratory and one machine (`MACHINE`), from 2024; `SOURCE` names where they come from. Each cell was run
once. Models and data have the names that Stoker gives them: `imagenette` is `jpeg`, `preprocessed_ssd` is `tensors`,
`eff_net_v2_s` is `efficientnet_v2_s`.
"""

from collections.abc import Callable
from importlib.resources import files

import polars as pl

from stoker.analysis.frames import normalised

SOURCE = "github.com/hpides/alsatian, commit a5749c9: charts, raw results and notes of its experiments, 2024"
MACHINE = "RTX A5000 24 GB, Threadripper PRO 3995WX, 32 logical CPUs (published)"
ITEMS = 9216
"""Items of each run of the grid."""
IMPACT_ITEMS = 9469
"""Items of each run of batch-impact: the whole training set, its last batch short."""
IMPACT_WORKERS = 8
LOADER_BATCHES = 11
"""Batches that each run of the loader alone asked for."""


def grid() -> pl.DataFrame:
    """1,080 trials: 12 models, JPEG and tensors, 5 batch sizes, 9 worker counts; end to end, inference."""
    return _trials("batch-and-workers", mode=pl.lit("infer"), items=pl.lit(ITEMS))


def average_regrets() -> pl.DataFrame:
    """The 90 average regrets that the authors print for that grid: data, batch_size, num_workers, regret_mean."""
    return table("average-regrets")


def batch_impact() -> pl.DataFrame:
    """48 trials: 12 models at 4 batch sizes, JPEG, 8 workers, with the sums of wait_s, copy_s and forward_s.

    The sums exceed the authors' end-to-end time by up to a second, whatever the model.
    """
    sums = {"wait_sum_s": "wait_s", "copy_sum_s": "copy_s", "forward_sum_s": "forward_s"}
    rows = table("batch-impact").select("model", "batch_size", "seconds", *sums).rename(sums)
    fixed = {"data": pl.lit("jpeg"), "mode": pl.lit("infer"), "items": pl.lit(IMPACT_ITEMS)}
    return _as_trials("batch-impact", rows.with_columns(num_workers=pl.lit(IMPACT_WORKERS), **fixed))


def batch_medians() -> pl.DataFrame:
    """Of the same runs the medians over batches: what one batch takes to load (`wait_s`), copy and compute."""
    medians = {f"{name}_median_s": f"{name}_s" for name in ("wait", "copy", "forward")}
    return table("batch-impact").select("model", "batch_size", "batches", *medians).rename(medians)


def inference_times() -> pl.DataFrame:
    """60 times of computing alone, data on the device: model, family (cnn, transformer), batch_size, item_s."""
    return table("inference-times")


def inference_trials() -> pl.DataFrame:
    """The same 60 as trials: `steady_item_s`, and no time of a whole run, which the authors do not give."""
    rows = inference_times().rename({"item_s": "steady_item_s"})
    fixed = {"data": pl.lit("device"), "mode": pl.lit("infer"), "num_workers": pl.lit(0)}
    return _as_trials("inference-times", rows.with_columns(**fixed))


def stage_times() -> pl.DataFrame:
    """336 stage times of extracting features: data, model, part, items, stage, seconds, and the run's total_s."""
    return table("stage-times")


def stage_trials() -> pl.DataFrame:
    """The same as 84 trials, one for each model, data, part and number of items. The four stages add up to `seconds`:
    preparing the model, preparing the data, computing (`forward_s`) and the score of the features (`score_s`)."""
    index = ["data", "model", "part", "items", "total_s"]
    names = {"inference_s": "forward_s", "proxy_score_s": "score_s", "total_s": "seconds"}
    rows = stage_times().with_columns(pl.col("stage") + "_s").pivot("stage", index=index, values="seconds")
    return _as_trials("stage-times", rows.rename(names).with_columns(mode=pl.lit("infer")))


def batch_trials() -> pl.DataFrame:
    """The same medians as 48 trials of one batch each, whose `seconds` are the sum of the three."""
    rows = batch_medians().drop("batches")
    fixed = {"data": pl.lit("jpeg"), "mode": pl.lit("infer"), "num_workers": pl.lit(IMPACT_WORKERS)}
    seconds = pl.col("wait_s") + pl.col("copy_s") + pl.col("forward_s")
    return _as_trials("batch-medians", rows.with_columns(seconds=seconds, run_items=pl.col("batch_size"), **fixed))


def loader_runs() -> pl.DataFrame:
    """70 trials of the loader alone: JPEG and tensors, 5 batch sizes, 7 worker counts, no work between batches.

    Of 11 batches were asked; at 1,024 items the set ends after 10. `seconds` are all waits, `first_batch_s` is the
    first one, the start of the workers included. The workload is the device that takes no time, as in the preset.
    """
    rows = table("data-loading").with_columns(
        model=pl.lit("sleep:0s"), mode=pl.lit("infer"), batches=pl.lit(LOADER_BATCHES), wait_s=pl.col("seconds")
    )
    return _as_trials("data-loading", rows).with_columns(device=pl.lit("sleep"))


def max_batches() -> pl.DataFrame:
    """12 searches of the largest batch by powers of two: `max_batch`, and `next_tried`, whether twice that was tried.

    Four were not: the authors' loop removes entries from the list that it runs over.
    """
    return _trials("max-batch", mode=pl.lit("infer"))


BY_PRESET: dict[str, Callable[[], pl.DataFrame]] = {
    "batch-and-workers": grid,
    "batch-impact": batch_impact,
    "data-loading": loader_runs,
    "inference-times": inference_trials,
    "max-batch": max_batches,
    "search-bottlenecks": stage_trials,
}
"""The figures of presets whose runs the authors published as trials."""


def table(name: str) -> pl.DataFrame:
    """The rows of one file of published figures as they are; its first lines name the source."""
    text = (files("stoker") / "data" / "published" / f"{name}.csv").read_text(encoding="utf-8")
    return pl.read_csv(text.encode(), comment_prefix="#")


def _trials(name: str, **fixed: pl.Expr) -> pl.DataFrame:
    return _as_trials(name, table(name).with_columns(**fixed))


def _as_trials(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    identity = {"study": pl.lit(name), "machine": pl.lit(MACHINE), "device": pl.lit("cuda")}
    return normalised(rows.with_columns(**identity))
