"""The 1,080 published cells of batch-and-workers, predicted from the authors' own small measurements.

python benchmarks/published_grid.py --data FOLDER

FOLDER holds their loader runs without a model, a JSON list of {workers, batch_size, measurements} each: of JPEGs in
a5000_loader_runs.json, of tensors in a5000_loader_runs_tensors.json. Six of each are used: five with one worker, and
one in which 32 workers contend. The grid itself, inference seconds an item, and what a batch takes to receive and to
copy (medians of one run of resnet152) are data of the package. Nothing of the grid is given to the predictor.
"""

import gzip
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import a5000
import polars as pl
from common import RESULTS, arguments, say, write
from published_tables import grid_table

from stoker.analysis import published
from stoker.forecast.costs import Costs, StepCosts, Table
from stoker.forecast.loader import Amount
from stoker.forecast.simulate import simulate
from stoker.records import Setting

LOADER_RUNS = {"jpeg": "a5000_loader_runs.json", "tensors": "a5000_loader_runs_tensors.json"}
NAME = "published-grid"
RECEIVED = "resnet152"


class Variant(NamedTuple):
    """What a prediction assumes: `receive` and copy count, the loop runs `ahead`; it is the middle of `seeds` runs."""

    receive: bool = True
    ahead: bool = False
    seeds: int = 3


VARIANTS = {
    "predicted_s": Variant(),
    "predicted_bare_s": Variant(receive=False),
    "predicted_ahead_s": Variant(ahead=True),
    "predicted_seeds_s": Variant(seeds=15),
}
"""Column of the results → variant. The tables report the first; the others show what it owes to its assumptions."""


def calibrated(folder: Path) -> dict[str, Costs]:
    """For each kind of data, what loading costs, by the calibration of a5000.py."""
    found = {}
    for data, name in LOADER_RUNS.items():
        runs = a5000.read(folder / name)
        single = [run for run in runs if run.workers == 1]
        contended = next(run for run in runs if (run.workers, run.batch) == a5000.CONTENDED)
        found[data] = a5000.calibrated(single, contended)
    return found


def receiving() -> tuple[Table, Table]:
    """What a batch takes to receive while the loader is ahead, and to copy to the device."""
    rows = published.batch_medians().filter(pl.col("model") == RECEIVED).sort("batch_size")
    sizes = tuple(map(float, rows["batch_size"]))
    return Table(sizes, tuple(rows["wait_s"])), Table(sizes, tuple(rows["copy_s"]))


def computing() -> dict[str, dict[int, float]]:
    """For each model, seconds of inference on a batch of each size."""
    found: dict[str, dict[int, float]] = {}
    for row in published.inference_times().sort("batch_size").iter_rows(named=True):
        found.setdefault(row["model"], {})[row["batch_size"]] = row["item_s"] * row["batch_size"]
    return found


def costs_of(loading: Costs, batch_s: dict[int, float], variant: Variant) -> Costs:
    """Of the whole loop. The authors time every stage of every batch, so their loop waits for the device each time:
    the stages of their raw runs add up to the run within a second. `ahead` is a loop that does not wait."""
    receive_s, copy_s = receiving()
    sizes = tuple(map(float, batch_s))
    step_s = Table(sizes, tuple(batch_s[size] + variant.receive * copy_s.at(size) for size in batch_s))
    step = StepCosts(device_s=step_s, asynchronous=True) if variant.ahead else StepCosts(host_s=step_s)
    return replace(loading, step=step, receive_s=receive_s if variant.receive else loading.receive_s)


def predicted_s(costs: Costs, batch: int, workers: int, seeds: int) -> float:
    setting = Setting(batch_size=batch, num_workers=workers)
    load = Amount(items=published.ITEMS)
    return median(simulate(costs, setting, load, seed=seed).total_s for seed in range(seeds))


def predictions(folder: Path) -> pl.DataFrame:
    """The published grid with a column of predictions for each variant."""
    loading, batch_s = calibrated(folder), computing()
    cells = published.grid().select("data", "workload", "batch_size", "num_workers", "seconds")
    columns: dict[str, pl.Series] = {}
    for name, variant in VARIANTS.items():
        costs = {
            (data, model): costs_of(loading[data], batch_s[model], variant) for data in loading for model in batch_s
        }
        values = [
            predicted_s(costs[data, model], batch, workers, variant.seeds)
            for data, model, batch, workers, _ in cells.iter_rows()
        ]
        columns[name] = pl.Series(values, dtype=pl.Float64).round(6)
    return cells.with_columns(**columns)


def write_compressed(folder: Path, rows: list[dict[str, Any]]) -> None:
    write(folder, NAME, rows)
    plain = folder / f"{NAME}.json"
    plain.with_suffix(".json.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(output=RESULTS / "a5000-published")
    parser.add_argument("--data", type=Path, help="folder with the authors' loader runs")
    options = parser.parse_args()
    names = list(LOADER_RUNS.values())
    if options.data is None:
        sys.exit(f"--data must name a folder with {' and '.join(names)}: raw files of others, no part of this project")
    if missing := [name for name in names if not (options.data / name).is_file()]:
        sys.exit(f"{options.data} has no {' and no '.join(missing)}")
    write_compressed(options.output, predictions(options.data).to_dicts())
    say(grid_table(options.output))


if __name__ == "__main__":
    main()
