"""Makes the package's tables of published figures from the authors' own files.

python benchmarks/published_data.py --data FOLDER [--check]

FOLDER holds published_lab.json (bar heights read from the authors' vector charts), published_batch_impact_raw.json
(their raw run), lab_results.json (what their notes print), a5000_loader_runs.json and a5000_loader_runs_tensors.json
(their raw runs of the loader alone).
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from common import say

TABLES = Path(__file__).parents[1] / "src" / "stoker" / "data" / "published"
REPOSITORY = "github.com/hpides/alsatian, commit a5749c9"
MACHINE = "RTX A5000 24 GB, Threadripper PRO 3995WX, 32 logical CPUs in a container"
FILES = (
    "published_lab.json",
    "published_batch_impact_raw.json",
    "lab_results.json",
    "a5000_loader_runs.json",
    "a5000_loader_runs_tensors.json",
)
SET_ITEMS = 9469
"""Items of the set that the loader alone ran over: eleven batches of 1,024 would be more."""
DATA = {
    "imagenette": "jpeg",
    "preprocessed_ssd": "tensors",
    "imagenette_preprocessed_ssd": "tensors",
    "tensors": "tensors",
}
MODELS = {"eff_net_v2_s": "efficientnet_v2_s", "eff_net_v2_l": "efficientnet_v2_l"}
PARTS = {"None": "full", "25": "last:75%", "50": "last:50%", "75": "last:25%", "-3": "last:3", "-1": "last:1"}
STAGES = {"load_data": "wait", "data_to_device": "copy", "inference": "forward"}
NEVER_TRIED = ("resnet34", "resnet101", "eff_net_v2_s", "vit_b_32")
"""Models at which the loop stopped early: it removes entries from the list that it runs over."""

Rows = list[dict[str, Any]]


def tables(folder: Path) -> Iterator[tuple[str, str, Rows]]:
    """Each table's name, what it has, and its rows."""
    lab, impact, printed, *runs = (json.loads((folder / name).read_text(encoding="utf-8")) for name in FILES)
    yield "batch-and-workers", "Seconds end to end, inference over 9,216 items. Read from the charts.", grid(lab)
    yield "average-regrets", "Average regrets over 12 models, as printed.", regrets(printed)
    yield "inference-times", "Seconds an item, data on the device. Read from the charts.", inference(lab)
    yield "stage-times", "Seconds of stages of feature extraction. Read from the charts.", stages(lab)
    yield "batch-impact", "JPEG, 9,469 items, 8 workers: medians and sums over batches of the raw run.", batches(impact)
    yield "max-batch", "Largest power of two, inference, as printed.", largest(printed)
    yield "data-loading", "The loader alone, 11 batches or the whole set: waits of the raw runs.", loading(runs)


def named(model: str) -> str:
    return MODELS.get(model, model)


def grid(lab: Any) -> Rows:
    return [{**row, "data": DATA[row["data"]], "model": named(row["model"])} for row in lab["end_to_end_s"]]


def regrets(printed: Any) -> Rows:
    return [
        {
            "data": DATA[data],
            "batch_size": row["batch_size"],
            "num_workers": row["num_workers"],
            "regret_mean": row["average_regret"],
        }
        for data in ("imagenette", "tensors")
        for row in printed[data]["regret"]
    ]


def inference(lab: Any) -> Rows:
    return [
        {
            "model": named(row["model"]),
            "family": "transformer" if row["model"].startswith("vit") else "cnn",
            "batch_size": row["batch_size"],
            "item_s": row["seconds_per_item"],
        }
        for row in lab["inference_s_per_item"]
    ]


def stages(lab: Any) -> Rows:
    return [
        {
            "data": DATA[row["data"]],
            "model": named(row["model"]),
            "part": PARTS[row["split"]],
            "items": row["items"],
            "stage": row["stage"].replace(" ", "_"),
            "seconds": row["seconds"],
            "total_s": row["total"],
        }
        for row in lab["bottleneck_s"]
    ]


def batches(impact: Any) -> Rows:
    rows = []
    for model, sizes in impact["measurements"].items():
        for size, run in sizes.items():
            samples = {ours: run[theirs] for theirs, ours in STAGES.items()}
            rows.append(
                {
                    "model": named(model),
                    "batch_size": int(size),
                    "batches": len(run["load_data"]),
                    **{f"{name}_median_s": median(values) for name, values in samples.items()},
                    **{f"{name}_sum_s": sum(values) for name, values in samples.items()},
                    "seconds": run["end_to_end"],
                }
            )
    return rows


def largest(printed: Any) -> Rows:
    found = next(value for name, value in printed.items() if name.startswith("max_batch"))
    return [
        {"model": named(model), "max_batch": size, "next_tried": str(model not in NEVER_TRIED).lower()}
        for model, size in found.items()
    ]


def loading(runs: Sequence[Any]) -> Rows:
    return [
        {
            "data": DATA[run["data"]],
            "batch_size": run["batch_size"],
            "num_workers": run["workers"],
            "run_items": min(run["batch_size"] * len(waits), SET_ITEMS),
            "first_batch_s": waits[0],
            "seconds": sum(waits),
        }
        for each in runs
        for run in each
        for waits in [run["measurements"]["load_data"]]
    ]


def text(about: str, rows: Iterable[dict[str, Any]]) -> str:
    rows = list(rows)
    out = io.StringIO()
    out.write(f"# {about}\n# Source: {REPOSITORY}. Machine: {MACHINE}. Each run once.\n")
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {', '.join(FILES)}")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a table differs")
    options = parser.parse_args()
    missing = [name for name in FILES if not (options.data / name).is_file()]
    if missing:
        sys.exit(f"{options.data} has no {', '.join(missing)}")
    stale = False
    for name, about, rows in tables(options.data):
        path, new = TABLES / f"{name}.csv", text(about, rows)
        same = path.is_file() and path.read_text(encoding="utf-8") == new
        stale |= not same
        say(f"{name}: {len(rows)} rows{'' if same else ', differs' if options.check else ', written'}")
        if not same and not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
    sys.exit(1 if options.check and stale else 0)


if __name__ == "__main__":
    main()
