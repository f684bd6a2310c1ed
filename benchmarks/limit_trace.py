"""How near does the largest batch, told without a GPU, come to maxima that were measured on one?

python benchmarks/limit_trace.py [--truth FILE | --unseen]

FILE has rows of model, optimizer, precision, mode, gib, first_failed and last_ran, every try in a fresh process;
without one, what all runs of `benchmarks/limit.py` found on the H200, and with `--unseen` what it found for the
questions that no rule was made with in view. Beside it, the powers of two that a lab published for inference on a card
of 24 GiB, against the one below what is told for that card.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, arguments, say, tried_sizes, write

import stoker

PUBLISHED = {
    "resnet18": 2048,
    "resnet34": 1024,
    "resnet50": 1024,
    "resnet101": 1024,
    "resnet152": 1024,
    "mobilenet_v2": 1024,
    "efficientnet_v2_s": 1024,
    "efficientnet_v2_l": 2048,
    "vit_b_16": 2048,
    "vit_b_32": 2048,
    "vit_l_16": 2048,
    "vit_l_32": 4096,
}
_NAMES = ("model", "mode", "precision", "optimizer", "gib", "first_failed", "last_ran")


def compare(row: dict[str, Any], gpu: str) -> dict[str, Any]:
    found = stoker.limit(
        stoker.WorkloadSpec(spec=row["model"], data=None if ":" in row["model"] else "device"),
        gpu_memory=int(row["gib"] * 2**30),
        method="trace",
        mode=row["mode"],
        precision=row["precision"],
        optimizer=row["optimizer"],
        gpu=gpu,
    )
    low, high = sorted((row["first_failed"] - 1, row["last_ran"]))
    nearer = min(max(found.max_batch, low), high)
    return {
        **{name: row[name] for name in _NAMES},
        "max_batch": found.max_batch,
        "interval": found.interval,
        "error": found.max_batch / nearer - 1,
        "covered": found.interval[0] <= high and found.interval[1] >= low,
        "seconds": found.seconds,
    }


def show(row: dict[str, Any]) -> None:
    edges = f"{row['last_ran']}/{row['first_failed']}"
    span = f"{row['interval'][0]} – {row['interval'][1]}"
    what = f"{row['model']:24s} {row['mode']:5s} {row['precision']:4s} {row['optimizer'] or '':8s} {row['gib']:4g} GiB"
    say(f"{what} {edges:>10s} {row['max_batch']:8d} {row['error']:+7.1%}   {span:14s} {row['seconds']:6.1f}")


def sum_up(rows: Sequence[dict[str, Any]]) -> None:
    errors = [abs(row["error"]) for row in rows]
    near = sum(error <= 0.02 for error in errors)
    covered = sum(row["covered"] for row in rows)
    say(
        f"median error {statistics.median(errors):.2%}, {near} of {len(rows)} within 2 %, worst {max(errors):.1%}, "
        f"{covered} in the interval, slowest {max(row['seconds'] for row in rows):.1f} s"
    )


def published() -> list[dict[str, Any]]:
    rows = []
    for model, theirs in PUBLISHED.items():
        source = stoker.WorkloadSpec(spec=model, data="device")
        found = stoker.limit(source, gpu_memory="24GiB", method="trace", mode="infer", gpu="a5000")
        row = {"model": model, "published": theirs, "max_batch": found.max_batch, "interval": found.interval}
        rows.append({**row, "power_of_two": 2 ** (found.max_batch.bit_length() - 1)})
        say(f"{model:24s} published {theirs:5d}, told {found.max_batch:5d}, so {rows[-1]['power_of_two']}")
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--truth", type=Path, help="maxima measured elsewhere")
    parser.add_argument("--unseen", action="store_true", help="the questions that no rule was made with in view")
    parser.add_argument("--gpu", default="h200", help="the GPU that the maxima were measured on")
    options = parser.parse_args()
    name = "limit-unseen" if options.unseen else "limit"
    document = json.loads((options.truth or RESULTS / "h200" / f"{name}.json").read_text(encoding="utf-8"))
    sizes = {} if options.truth else tried_sizes(name)
    first = stoker.WorkloadSpec(spec="alexnet", data="device")
    stoker.limit(first, gpu_memory="16GiB", method="trace")  # torch is imported before time counts
    rows = []
    for truth in document["rows"] if isinstance(document, dict) else document:
        rows.append(row := compare({**truth, **sizes.get(truth.get("key"), {})}, options.gpu))
        show(row)
    sum_up(rows)
    write(options.output, "limit-trace-unseen" if options.unseen else "limit-trace", rows)
    if not options.unseen:
        write(options.output, "limit-published", published())


if __name__ == "__main__":
    main()
