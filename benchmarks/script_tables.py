"""Tables of what was measured of `stoker compare` and `stoker run`."""

import json
from collections.abc import Callable
from typing import Any

from common import RESULTS


def rows(name: str) -> Any:
    return json.loads((RESULTS / "two-cores" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def table(head: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))


def compare() -> str:
    """How often a comparison with so many runs a side was right."""
    found = rows("compare")
    head = ["runs a side", "false alarms", "wrong sign", "found", "half the interval, median", "mean change"]
    lines = []
    for count in sorted({int(name.split()[1]) for name in found[0]["found"]}):
        same, slow = ([row["found"][f"{name} {count}"] for row in found] for name in ("same", "slow"))
        widths = sorted((each["interval"][1] - each["interval"][0]) / 2 for each in (*same, *slow))
        change = sum(each["ratio"] for each in slow) / len(slow) - 1
        lines.append(
            [
                str(count),
                f"{sum(each['answer'] != 'cannot_tell' for each in same)} of {len(same)}",
                f"{sum(each['answer'] == 'faster' for each in slow)} of {len(slow)}",
                f"{sum(each['answer'] == 'slower' for each in slow)} of {len(slow)}",
                f"{widths[len(widths) // 2]:.1%}",
                f"{change:+.1%}",
            ]
        )
    return table(head, lines)


TABLES: dict[str, Callable[[], str]] = {"compare": compare}
"""By the name of the block in the docs."""
