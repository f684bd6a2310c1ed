"""Do remedies help? Every example is profiled; the first two of its remedies that are settings then run beside the
present setting in five interleaved pairs. Predicted gain beside measured gain, the mean of the pairs' ratios and its
standard error. A remedy is flagged if it is slower by more than that.

python benchmarks/remedies.py --output benchmarks/results/two-cores [image_folder …]

With names, only these examples are run, and their rows replace those that are stored.
"""

import json
import sys
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import arguments, say, write

import stoker
from stoker.measure.profile import LOADER_FIELDS, profile
from stoker.records import Extent, Setting, VerifiedRemedy
from stoker.tuning.verification import verify

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZE, BATCHES, PAIRS = 8, 20, 5


def run_example(name: str) -> list[dict[str, Any]]:
    """A row for each remedy; one without a remedy if there is none."""
    source = f"{EXAMPLES / name}.py:workload"
    setting, extent = Setting(batch_size=SIZE), Extent(batches=BATCHES)
    trial = profile(source, setting, extent, from_loader=LOADER_FIELDS, device="cpu")
    found = stoker.verdict(trial)
    if found is None:
        say(f"{name:24} {trial.outcome}: {trial.problem.sentence if trial.problem else ''}")
        return [{"example": name, "outcome": trial.outcome, "problem": trial.problem and trial.problem.sentence}]
    facts = {"example": name, "outcome": "done", "bottleneck": found.bottleneck, "uncertain": found.uncertain}
    verified = verify(source, trial, stoker.advise(trial), device="cpu", pairs=PAIRS)
    rows = [{**facts, **figures(each)} for each in verified] or [facts | {"change": None}]
    for row in rows:
        say(line(row))
    return rows


def figures(each: VerifiedRemedy) -> dict[str, Any]:
    """What was predicted and what was measured."""
    ratios = [before / after for before, after in zip(each.before_s, each.after_s, strict=True)]
    gain = fmean(ratios) if ratios else None
    error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else None
    return {
        "change": each.remedy.change,
        "changes": each.remedy.changes,
        "predicted": each.predicted_gain,
        "measured": gain,
        "standard_error": error,
        "slower": gain is not None and error is not None and gain + error < 1,
        "before_s": each.before_s,
        "after_s": each.after_s,
        "problem": each.problem,
    }


def line(row: dict[str, Any]) -> str:
    head = f"{row['example']:24} {row['bottleneck']:10}"
    if row["change"] is None:
        return f"{head} no remedy is a setting"
    if row["problem"]:
        return f"{head} {row['change']}: {row['problem']}"
    measured = f"{row['measured']:.2f} ± {row['standard_error']:.2f} measured"
    return f"{head} {row['change']}: {row['predicted']:.2f} predicted, {measured}{' SLOWER' if row['slower'] else ''}"


def stored(folder: Path) -> list[dict[str, Any]]:
    path = folder / "remedies.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("examples", nargs="*", help="names of examples; all by default")
    options = parser.parse_args()
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    chosen = options.examples or names
    if unknown := set(chosen) - set(names):
        sys.exit(f"no such example: {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    for name in chosen:
        rows = [row for row in stored(options.output) if row["example"] != name and row["example"] in names]
        rows += run_example(name)
        write(options.output, "remedies", sorted(rows, key=lambda row: str(row["example"])))
    slower = [row for row in stored(options.output) if row.get("slower")]
    say(f"{len(slower)} slower than the present setting by more than the standard error")


if __name__ == "__main__":
    main()
