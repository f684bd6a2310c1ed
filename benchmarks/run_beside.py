"""Planted delays under `stoker run` and under TraceML: what each reports against the script's own clock, and its cost.

python benchmarks/run_beside.py [--runs 5] [--only plain] [--settings 0,2] [--tools stoker]

`scripts/planted.py` waits a known time for each item and in each step, in a plain loop and under the Trainer of Hugging
Face, Lightning and accelerate. It runs bare, under `stoker run` and under `traceml run` in turns; under TraceML the
plain loop and the one of accelerate have the lines added that it asks for. Needs transformers, accelerate, lightning
and traceml-ai. A row is stored as soon as it is measured, and rows that are stored are not measured again.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common import arguments, say, write

import stoker
from stoker.records import Trial, read

SCRIPT = Path(__file__).parent / "scripts" / "planted.py"
TRACEML = Path(sys.executable).parent / "traceml"
FRAMEWORKS = ("plain", "huggingface", "lightning", "accelerate")
SETTINGS = ("0", "1", "2", "4")
METHODS = ("2:spawn", "2:forkserver")
"""Of the plain loop, beside fork."""
RESULT = "run-beside"
COLD = 3
"""So many first batches are left out of medians, by the script's clock and by ours."""
LIMIT_S = 180.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="frameworks, separated by commas")
    parser.add_argument("--settings", default="", help="workers, separated by commas")
    parser.add_argument("--tools", default="stoker,traceml")
    asked = parser.parse_args()
    path = asked.output / f"{RESULT}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for framework in asked.only.split(",") if asked.only else FRAMEWORKS:
        more = METHODS if framework == "plain" else ()
        for setting in asked.settings.split(",") if asked.settings else (*SETTINGS, *more):
            if any((row["framework"], row["setting"]) == (framework, setting) for row in rows):
                continue
            rows.append(measure(framework, setting, asked.runs, asked.tools.split(",")))
            write(asked.output, RESULT, rows)
            say(line(rows[-1]))


def measure(framework: str, setting: str, runs: int, tools: list[str]) -> dict[str, Any]:
    """Each run bare and under each tool, in an order that turns."""
    ways: dict[str, Callable[[list[str], Path], dict[str, Any]]] = {"bare": bare}
    ways |= {name: {"stoker": under_stoker, "traceml": under_traceml}[name] for name in tools}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for number in range(runs):
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            with tempfile.TemporaryDirectory() as folder:
                own = Path(folder) / "own.json"
                began = time.perf_counter()
                reported = ways[name]([framework, setting, str(own)], Path(folder))
                wall_s = time.perf_counter() - began
                clock = json.loads(own.read_text(encoding="utf-8")) if own.is_file() else None
                found[name].append({"wall_s": wall_s, "reported": reported, "own": clock and summed(clock)})
    return {"framework": framework, "setting": setting, "added_lines": added_lines(framework), "runs": found}


def summed(clock: dict[str, Any]) -> dict[str, Any]:
    """What the script's own clock says: medians without the first batches, and means of everything."""
    return {
        "wait_s": median(clock["waits"][COLD:]),
        "step_s": median(clock["steps"][COLD:]),
        "item_s": median(clock["items"]),
        "mean_wait_s": fmean(clock["waits"]),
        "mean_step_s": fmean(clock["steps"]),
        "cpu_s": median(clock["cpu"][COLD:]),
        "losses": clock["losses"],
    }


def added_lines(framework: str) -> int:
    """Lines of that loop that only TraceML needs, its import and its start among them."""
    text = SCRIPT.read_text(encoding="utf-8").partition(f"def {framework}(")[2].partition("\ndef ")[0]
    count = text.count("# traceml")
    return count + 1 if count else 0  # `import traceml_ai`, which the helper `traced` does


# ---------------------------------------------------------------- the ways to run it


def ran(command: list[str], variables: dict[str, str] | None = None, folder: Path | None = None) -> int:
    done = subprocess.run(
        command,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode


def bare(words: list[str], folder: Path) -> dict[str, Any]:
    return {"status": ran([sys.executable, str(SCRIPT), *words])}


def under_stoker(words: list[str], folder: Path) -> dict[str, Any]:
    saved = folder / "run.json"
    options = ["--batches", "10000", "--save", str(saved)]
    status = ran([sys.executable, "-m", "stoker", "run", *options, str(SCRIPT), *words])
    trial = read(saved) if saved.is_file() else None
    if not isinstance(trial, Trial):
        return {"status": status}
    timeline, judged = trial.timeline, stoker.verdict(trial)
    waits = [got - asked for asked, got in zip(timeline.asked_s, timeline.got_s, strict=True)]
    steps = [done - got for got, done in zip(timeline.got_s, timeline.done_s, strict=True)]
    return {
        "status": status,
        "wait_s": median(waits[COLD:]),
        "step_s": median(steps[COLD:]),
        "item_s": median(trial.workers.item_s) if trial.workers and trial.workers.item_s else None,
        "verdict": judged.bottleneck if judged else None,
        "waits": judged.share if judged else None,
    }


def under_traceml(words: list[str], folder: Path) -> dict[str, Any]:
    options = ["--logs-dir", str(folder), "--run-name", "run", "--no-save-training-output"]
    variables = {"PLANTED_TRACEML": "1"}
    status = ran([str(TRACEML), "run", *options, str(SCRIPT), "--args", *words], variables, folder)
    path = folder / "run" / "final_summary.json"
    if not path.is_file():
        return {"status": status}
    document = json.loads(path.read_text(encoding="utf-8"))
    means = document["step_time"]["global"]["average"]
    return {
        "status": status,
        "mean_wait_s": _seconds(means["input_wait_ms"]),
        "mean_step_s": _seconds(means["traced_step_time_ms"]),
        "forward_s": _seconds(means["forward_ms"]),
        "verdict": document["primary_diagnosis"]["kind"],
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


# ---------------------------------------------------------------- what follows


def error(runs: list[dict[str, Any]], name: str) -> float | None:
    """The median over the runs of the reported seconds less those of the script's clock in the same run."""
    pairs = [(each["reported"].get(name), each["own"]) for each in runs]
    found = [reported - own[name] for reported, own in pairs if reported is not None and own is not None]
    return median(found) if found else None


def line(row: dict[str, Any]) -> str:
    parts = [f"{row['framework']}, {row['setting']} workers:"]
    for name, runs in row["runs"].items():
        if name == "bare":
            continue
        kinds = ("wait_s", "step_s", "item_s") if name == "stoker" else ("mean_wait_s", "mean_step_s")
        errors = {kind: error(runs, kind) for kind in kinds}
        shown = ", ".join(f"{kind} {1000 * found:+.2f} ms" for kind, found in errors.items() if found is not None)
        verdicts = [each["reported"].get("verdict") for each in runs]
        parts.append(f"{name}: {shown}, {', '.join(map(str, dict.fromkeys(verdicts)))}, {extra(row, name)};")
    return " ".join(parts)


def extra(row: dict[str, Any], name: str) -> str:
    losses = "equal" if are_losses_equal(row, name) else "differ"
    return f"{1e6 * added_cpu_s(row, name):+.0f} µs a step, {added_wall_s(row, name):+.1f} s, losses {losses}"


def added_wall_s(row: dict[str, Any], name: str) -> float:
    """Seconds that the whole command takes longer."""
    after, before = (median(each["wall_s"] for each in row["runs"][way]) for way in (name, "bare"))
    return float(after - before)


def added_cpu_s(row: dict[str, Any], name: str) -> float:
    """CPU time that the loop's thread takes longer from one batch to the next."""
    return _cpu(row["runs"][name]) - _cpu(row["runs"]["bare"])


def are_losses_equal(row: dict[str, Any], name: str) -> bool:
    """Whether every run had the losses of the bare one, bit for bit."""
    runs = (*row["runs"]["bare"], *row["runs"][name])
    return len({tuple(each["own"]["losses"]) if each["own"] else () for each in runs}) == 1


def _cpu(runs: list[dict[str, Any]]) -> float:
    return float(median([each["own"]["cpu_s"] for each in runs if each["own"]] or [float("nan")]))


if __name__ == "__main__":
    main()
