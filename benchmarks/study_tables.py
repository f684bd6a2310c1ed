"""Tables of studies: the small presets beside the published figures, kills, and many trials."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from common import RESULTS

from stoker.analysis import published
from stoker.analysis.regret import best, one_for_all, regret, top_counts

FOLDER = RESULTS / "two-cores"
KINDS = {"jpeg": "JPEG", "tensors": "tensors"}
LOADER_BATCH = 32
"""The batch size that the published runs of the loader and the small ones have in common."""


def rows(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def table(head: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))


def trials(preset: str, folder: Path = FOLDER) -> pl.DataFrame:
    """The trials of a small preset, as `study_presets.py` wrote them."""
    return pl.read_csv(folder / "studies" / f"{preset}.csv", infer_schema_length=None)


def batch_and_workers() -> str:
    """What both sizes of the preset say of choosing a setting."""
    columns: list[list[str]] = []
    for frame in (published.grid(), trials("batch-and-workers")):
        columns += [_choice(frame.filter(pl.col("data") == kind)) for kind in KINDS]
    head = ["", *(f"{size}: {kind}" for size in ("published", "small") for kind in KINDS.values())]
    labels = ["cells", "one setting for all", "its regret, mean (worst)"]
    labels += ["most often among the three fastest", "best settings", "regret of the worst setting for all"]
    lines = [[label, *(column[place] for column in columns)] for place, label in enumerate(labels)]
    minutes = rows("studies/batch-and-workers")[0]["wall_s"] / 60
    hours = sum(published.grid()["seconds"].to_list()) / 3600
    return f"{table(head, lines)}\n\nThe published runs took {hours:.1f} hours, the small preset {minutes:.0f} minutes."


def _choice(cells: pl.DataFrame) -> list[str]:
    one = one_for_all(cells).to_dicts()[0]
    top = top_counts(cells, 3).to_dicts()[0]
    winners = best(cells)
    worst = max(regret(cells)["regret_mean"].drop_nulls().to_list())
    count = cells["workload"].n_unique()
    return [
        str(cells.select("workload", "batch_size", "num_workers").n_unique()),
        _setting(one),
        f"{one['regret_mean']:.1%} ({one['regret_worst']:.1%})",
        f"{_setting(top)}: {top['count']} of {count}",
        f"{winners.select('batch_size', 'num_workers').n_unique()} for {count}",
        f"{worst:.0%}",
    ]


def _setting(row: dict[str, Any]) -> str:
    return f"batch {row['batch_size']}, workers {row['num_workers']}"


def data_loading() -> str:
    """11 batches of 32 without a consumer: the published waits, and the small preset's runs."""
    ours = trials("data-loading").filter((pl.col("workload") == "sleep:0s") & (pl.col("batches") == 11))
    head = ["workers"]
    head += [f"{size}: {kind}, first batch" for size in ("published", "small") for kind in KINDS.values()]
    lines = []
    for workers in sorted(ours["num_workers"].unique().to_list()):
        cells = [
            _loading(frame, kind, workers, started)
            for frame, started in ((published.loader_runs(), False), (ours, True))
            for kind in KINDS
        ]
        lines.append([str(workers), *cells])
    return table(head, lines)


def inference_times() -> str:
    """Computing alone on an H200 beside the published A5000: the best batch size of each model, and what 32 costs."""
    head = [
        "model",
        "A5000, published: an item at best",
        "at batch",
        "H200: an item at best",
        "at batch",
        "speed-up",
        "32 costs",
    ]
    here, there = trials("inference-times", RESULTS / "h200"), published.inference_times().rename({"model": "workload"})
    lines, ratios = [], []
    for (model,), ours in here.sort("family", "workload").group_by("workload", maintain_order=True):
        best_here = ours.sort("steady_item_s").to_dicts()[0]
        best_there = there.filter(pl.col("workload") == model).sort("item_s").to_dicts()[0]
        small = ours.filter(pl.col("batch_size") == 32).to_dicts()[0]["steady_item_s"] / best_here["steady_item_s"] - 1
        ratios.append(best_there["item_s"] / best_here["steady_item_s"])
        lines.append(
            [
                str(model),
                f"{1e6 * best_there['item_s']:,.0f} µs",
                f"{best_there['batch_size']:,}",
                f"{1e6 * best_here['steady_item_s']:,.0f} µs",
                f"{best_here['batch_size']:,}",
                f"{ratios[-1]:.1f}×",
                f"+{small:.0%}",
            ]
        )
    done = here.filter(pl.col("steady_item_s").is_not_null()).height
    return f"{table(head, lines)}\n\n{done} of {here.height} runs have a steady time. Each was run once."


def _loading(frame: pl.DataFrame, kind: str, workers: int, started: bool) -> str:
    """Seconds of a run and until its first batch, the start of the workers included in both; medians of repeats."""
    chosen = frame.filter(
        (pl.col("data") == kind) & (pl.col("num_workers") == workers) & (pl.col("batch_size") == LOADER_BATCH)
    )
    latency = pl.col("first_batch_s") + pl.col("start_s") if started else pl.col("first_batch_s")
    row = chosen.select(pl.col("seconds").median(), latency.median().alias("first")).to_dicts()[0]
    return f"{row['seconds']:.2f} s, {row['first']:.2f} s"


def kills() -> str:
    """What was lost, doubled or left behind by drivers that were killed."""
    found = rows("study-kills")
    names = {
        "kills": "kills",
        "with_claim": "of them in a trial",
        "runs": "runs asked for",
        "recorded": "recorded",
        "lost": "lost",
        "missing": "missing",
        "doubled": "doubled",
        "changed": "changed",
        "orphans": "orphan processes",
        "leftovers": "leftovers",
    }
    sums = {name: sum(row[name] for row in found) for name in names}
    calls = f"{len(found)} {'study' if len(found) == 1 else 'studies'}, two drivers at once."
    return f"{table(list(names.values()), [[f'{value:,}' for value in sums.values()]])}\n\n{calls}"


def scale() -> str:
    """What so many trials cost."""
    row = rows("study-scale")[0]
    book, commands = row["bookkeeping_ms"], row["commands"]
    lines = [
        ["bookkeeping of a trial, median", f"{book['median']:.1f} ms"],
        ["99th percentile", f"{book['p99']:.1f} ms"],
        ["first tenth of the trials, last tenth", f"{book['first_tenth']:.1f} ms, {book['last_tenth']:.1f} ms"],
        ["file", f"{row['file_bytes'] / 1e6:,.0f} MB: {row['file_bytes'] / row['trials'] / 1e3:.1f} KB a trial"],
        *[[f"`study {name}`", _command(each)] for name, each in commands.items()],
    ]
    return table([f"{row['trials']:,} trials of {row['tasks']:,} tasks", ""], lines)


def _command(each: dict[str, Any]) -> str:
    return f"{each['seconds']:.1f} s, {each['peak_bytes'] / 1e6:,.0f} MB"


def ray_overhead() -> str:
    row = rows("ray-overhead")[0]
    low, high = row["added_quartiles_s"]
    added = f"{1e3 * row['added_s']:.1f} ms (quartiles {1e3 * low:.1f} to {1e3 * high:.1f}, {row['trials']} pairs)"
    lines = [["Ray adds to a trial", added], ["start of a local cluster", f"{row['cluster_start_s']:.1f} s"]]
    lines += [
        [
            f"trials a second, {rate['nodes']:,} simulated {'node' if rate['nodes'] == 1 else 'nodes'}",
            f"{rate['rows_per_s']:.0f}",
        ]
        for rate in row["rates"]
    ]
    return table(["", ""], lines)


TABLES: dict[str, Callable[[], str]] = {
    "small-batch-and-workers": batch_and_workers,
    "small-data-loading": data_loading,
    "h200-inference-times": inference_times,
    "study-kills": kills,
    "study-scale": scale,
    "ray-overhead": ray_overhead,
}
"""For `tables.py`: the name of each block and what fills it."""
