"""How near does the largest batch, told without a GPU, come to maxima that were measured on one?

python benchmarks/limit_trace.py --truth FILE

FILE has rows of model, optimizer, precision, mode, gib, first_failed and last_ran, every try in a fresh process.
"""

import json
from pathlib import Path
from typing import Any

from common import arguments, say, write

import stoker


def compare(row: dict[str, Any]) -> dict[str, Any]:
    found = stoker.limit(
        stoker.Named(spec=row["model"], data="device"),
        gpu_memory=row["gib"] * 2**30,
        mode=row["mode"],
        precision=row["precision"],
        optimizer=row["optimizer"],
    )
    low, high = sorted((row["first_failed"] - 1, row["last_ran"]))
    nearer = min(max(found.max_batch, low), high)
    return {
        **{name: row[name] for name in ("model", "mode", "precision", "optimizer", "gib", "first_failed", "last_ran")},
        "max_batch": found.max_batch,
        "interval": found.interval,
        "error": found.max_batch / nearer - 1,
        "covered": found.interval[0] <= high and found.interval[1] >= low,
        "seconds": found.seconds,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--truth", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    say("model          measured     told   error    interval        seconds")
    stoker.limit(
        stoker.Named(spec="alexnet", data="device"), gpu_memory="16GiB"
    )  # torch is imported before time counts
    for truth in json.loads(options.truth.read_text(encoding="utf-8"))["rows"]:
        rows.append(row := compare(truth))
        edges = f"{row['last_ran']}/{row['first_failed']}"
        span = f"{row['interval'][0]} – {row['interval'][1]}"
        told = f"{row['max_batch']:8d} {row['error']:+7.1%}"
        say(f"{row['model']:12s} {edges:>10s} {told}   {span:14s} {row['seconds']:6.1f}")
    write(options.output, "limit-trace", rows)


if __name__ == "__main__":
    main()
