"""What does `stoker run` cost? The same script bare and observed, in turns, by its own clock.

python benchmarks/run_cost.py [--rounds 20] [--only step,items]

`step`: CPU time of a step in the loop's thread, where the step does next to nothing and loading is in the same thread.
`queue`: the same with a worker. `items`: CPU time of a worker for an item, all that comes between two items included,
with JPEGs that are decoded and augmented. `start`: seconds from the command to the first line of the script, to its
first batch, and from its last line to the end of the command, which has the report.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import arguments, quartiles, say, write

SCRIPT = Path(__file__).parent / "scripts" / "cost.py"
SIZES = {"step": 3000, "queue": 2000, "items": 120, "start": 4}
"""Batches of a run: about two seconds."""
RESULT = "run-cost"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="step, queue, items, start; separated by commas")
    asked = parser.parse_args()
    path = asked.output / f"{RESULT}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = {row["kind"]: row for row in kept}
    for kind in asked.only.split(",") if asked.only else SIZES:
        rows[kind] = {"kind": kind, "batches": SIZES[kind], "rounds": measure(kind, asked.rounds)}
        write(asked.output, RESULT, [rows[each] for each in SIZES if each in rows])
        for name, (low, middle, high) in added(rows[kind]).items():
            say(f"{kind}, {name}: {middle:+.3g} ({low:+.3g} to {high:+.3g})")


def measure(kind: str, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Seconds of each run, by way. `again` is `bare` once more: what two equal runs differ by."""
    found = []
    for number in range(rounds):
        ways = ["bare", "observed", "again"]
        turned = ways[number % 3 :] + ways[: number % 3]
        found.append({way: run(kind, observed=way == "observed") for way in turned})
    return found


def run(kind: str, *, observed: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "own.json"
        words = [sys.executable, str(SCRIPT), kind, str(SIZES[kind]), str(output)]
        if observed:
            words = [sys.executable, "-m", "stoker", "run", "--batches", "100000", "--", *words]
        began = time.time()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ended = time.time()
        own: dict[str, float] = json.loads(output.read_text(encoding="utf-8"))
    if kind != "start":
        return {name: own[name] for name in ("step_s", "item_s") if name in own}
    return {
        "first_line_s": own["began_at"] - began,
        "first_batch_s": own["first_batch_at"] - began,
        "end_s": ended - own["ended_at"],
    }


def added(row: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Quartiles of what observing adds to each figure: the share of an item's time, otherwise seconds; and of what
    differs between bare runs."""
    found = {}
    for name in row["rounds"][0]["bare"]:
        for way, label in (("observed", name), ("again", f"{name}, bare and bare")):
            pairs = [(each["bare"][name], each[way][name]) for each in row["rounds"]]
            share = name == "item_s"
            found[label] = quartiles([after / before - 1 if share else after - before for before, after in pairs])
    return found


if __name__ == "__main__":
    main()
