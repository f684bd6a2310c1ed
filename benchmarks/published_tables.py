"""Tables of the published grid for README and docs, derived from `results/a5000-published` and the package's data.

python benchmarks/published_tables.py
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
from common import RESULTS, say

from stoker.analysis import published
from stoker.analysis.accuracy import predicted_choice, prediction_accuracy
from stoker.analysis.regret import best, leave_one_out, one_for_all

FOLDER = RESULTS / "a5000-published"
KINDS = {"jpeg": "JPEG", "tensors": "tensors"}
VARIANTS = {
    "predicted_s": "receive and copy from one run, 3 simulated runs a cell",
    "predicted_bare_s": "without receive and copy",
    "predicted_ahead_s": "a loop that runs ahead of the device",
    "predicted_seeds_s": "15 simulated runs a cell, as `stoker predict`",
}
"""Column of the results → what its predictions assume."""


def rows(folder: Path = FOLDER) -> pl.DataFrame:
    """The cells, measured and predicted, as a trials frame."""
    document = json.loads(gzip.decompress((folder / "published-grid.json.gz").read_bytes()))
    return pl.DataFrame(document["rows"])


def grid_table(folder: Path = FOLDER) -> str:
    """Predictions and what choosing by them costs, beside the authors' one setting for all."""
    cells = rows(folder)
    errors = _each(prediction_accuracy(cells), "error_median", "error_p90", 1)
    three = [f"**{cell}**" for cell in _regrets(predicted_choice(cells, 3))]
    lines = [
        ["error of the predicted time, median (p90)", *errors],
        ["regret of the setting predicted best, mean (worst model)", *_regrets(predicted_choice(cells, 1))],
        ["regret after running the 3 predicted best, mean (worst model)", *three],
        ["the authors' one setting for all, after the whole grid", *_regrets(one_for_all(cells))],
    ]
    counts = [f"{KINDS[data]}, {count} cells" for data, count in cells.group_by("data").len().sort("data").iter_rows()]
    return _table(["", *counts], lines)


def variants_table(folder: Path = FOLDER) -> str:
    """What the predictions owe to each of the assumptions."""
    lines = []
    for name, label in VARIANTS.items():
        cells = rows(folder).with_columns(pl.col(name).alias("predicted_s"))
        errors = _each(prediction_accuracy(cells), "error_median", "error_p90", 1)
        regrets = _regrets(predicted_choice(cells, 3))
        lines.append([label, errors[0], regrets[0], errors[1], regrets[1]])
    head = ["", *(f"{kind}: {what}" for kind in KINDS.values() for what in ("error", "regret, 3 run"))]
    return _table(head, lines)


def choices_table() -> str:
    """What the published grid says of choosing a setting."""
    cells = published.grid()
    lines = []
    for row, left in zip(one_for_all(cells).to_dicts(), _left_out(cells).to_dicts(), strict=True):
        winners = best(cells).filter(pl.col("data") == row["data"])
        settings = winners.select("batch_size", "num_workers").n_unique()
        lines.append(
            [
                KINDS[row["data"]],
                f"batch {row['batch_size']}, {row['num_workers']} workers",
                _pair(row["regret_mean"], row["regret_worst"], 2),
                row["worst_model"],
                _pair(left["regret_mean"], left["regret_worst"], 2),
                f"{settings} for {winners.height} models",
            ]
        )
    head = ["data", "one setting for all", "regret, mean (worst)", "worst for", "for a model left out", "best settings"]
    return _table(head, lines)


def _left_out(cells: pl.DataFrame) -> pl.DataFrame:
    return (
        leave_one_out(cells)
        .group_by("data")
        .agg(pl.col("regret").mean().alias("regret_mean"), pl.col("regret").max().alias("regret_worst"))
        .sort("data")
    )


def _regrets(found: pl.DataFrame) -> list[str]:
    return _each(found, "regret_mean", "regret_worst", 2)


def _each(found: pl.DataFrame, first: str, second: str, digits: int) -> list[str]:
    return [_pair(row[first], row[second], digits) for row in found.sort("data").to_dicts()]


def _pair(first: float, second: float, digits: int) -> str:
    return f"{first:.{digits}%} ({second:.{digits}%})"


def _table(head: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))


TABLES: dict[str, Callable[[], str]] = {
    "published-grid": grid_table,
    "published-grid-variants": variants_table,
    "published-choices": choices_table,
}
"""For `tables.py`: the name of each block and what fills it."""


if __name__ == "__main__":
    for name, table in TABLES.items():
        say(f"{name}\n\n{table()}\n")
