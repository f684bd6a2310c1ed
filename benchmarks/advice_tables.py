"""Tables of the limits of language models and of how well tunings agree, for docs.

python benchmarks/advice_tables.py
"""

import json
from collections import Counter
from collections.abc import Callable
from statistics import fmean
from typing import Any

from common import RESULTS, say

FOLDER = RESULTS / "two-cores"


def table(head: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))


def llm_limits() -> str:
    """Seconds and host memory of limits of language models without a GPU."""
    document = json.loads((FOLDER / "llm-limit.json").read_text(encoding="utf-8"))
    head = ["model", "GPU memory", "largest batch", "fixed", "seconds", "of which imports", "peak host memory"]
    lines = [
        [
            row["model"],
            row["gpu_memory"],
            str(row["max_batch"]),
            f"{row['fixed_gib']:.1f} GiB",
            f"{row['seconds']:.1f}",
            f"{row['import_s']:.1f}",
            f"{row['peak_host_gib']:.2f} GiB",
        ]
        for row in document["rows"]
    ]
    return f"{table(head, lines)}\n\n{document['tokens']:,} tokens an item."


def agreement_of_plans() -> str:
    """What the choices of several tunings of one workload cost, and how often they are the same."""
    document = json.loads((FOLDER / "agreement_of_plans.json").read_text(encoding="utf-8"))
    head = ["workload", "tunings", "chosen (batch, workers): times", "regret, mean", "worst", "tuned in"]
    return table(head, [_plans(row) for row in document["rows"]])


def _plans(row: dict[str, Any]) -> list[str]:
    case = row["case"]
    chosen = Counter((each["batch_size"], each["num_workers"]) for each in row["chosen"])
    return [
        f"{case['name']}, {case['mode']}, {case['data']}, {case['device']}",
        str(len(row["chosen"])),
        ", ".join(f"({batch}, {workers}): {count}" for (batch, workers), count in chosen.most_common()),
        f"{fmean(row['regrets']):.1%}",
        f"{max(row['regrets']):.1%}",
        f"{fmean(row['tune_s']):.0f} s",
    ]


TABLES: dict[str, Callable[[], str]] = {"llm-limits": llm_limits, "agreement-of-plans": agreement_of_plans}


if __name__ == "__main__":
    for name, make in TABLES.items():
        say(f"{name}\n{make()}\n")
