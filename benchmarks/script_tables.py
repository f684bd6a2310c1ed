"""Tables of what was measured of `stoker compare` and `stoker run`."""

import json
from collections.abc import Callable
from statistics import median
from typing import Any

import run_beside
import run_cost
from common import RESULTS

from stoker.units import format_workers


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


def proof() -> str:
    """What was proposed for scripts that wait for data, predicted and measured."""
    head = ["script", "now", "proposed", "predicted", "measured", "where"]
    lines = []
    for row in rows("run-proof"):
        for place, each in enumerate(row["proposals"]):
            changes = ", ".join(f"{name}={value}" for name, value in each["changes"].items())
            where = "; ".join(text.replace("|", "\\|") for text in each["where"])
            lines.append(
                [
                    f"`{row['script']}.py`" if not place else "",
                    f"{row['setting']['num_workers']} workers" if not place else "",
                    changes,
                    f"{each['predicted_gain']:.2f} ×",
                    f"{each['measured_gain']:.2f} ×" if each["measured_gain"] else "–",
                    where if not place else "",
                ]
            )
    return table(head, lines)


def public() -> str:
    """Public scripts as they are: what was answered, and whether they ran as without Stoker."""
    head = ["script", "of", "commit", "answer", "made at", "status", "losses"]
    lines = []
    found = rows("run-public")
    for row in found:
        answer = row.get("verdict") or ("there is no DataLoader" if row["said_no_loader"] else "none")
        place = f"`{row['file']}:{row['line']}`" if row.get("file") else "–"
        ranks = f", {row['ranks']} ranks" if row.get("ranks", 1) > 1 else ""
        status = "the same" if set(row["status"]) == set(row["observed_status"]) == {0} else "differs"
        losses = "equal" if row["losses_equal"] else "vary from run to run" if not row["losses_repeat"] else "differ"
        count = row["losses"][0]
        losses = f"{count}, {losses}" if count else "none printed"
        lines.append([row["name"], row["repository"], row["commit"][:8], answer + ranks, place, status, losses])
    answered = sum(row["answered"] for row in found)
    return f"{table(head, lines)}\n\n{answered} of {len(found)} scripts were answered."


def beside() -> str:
    """Planted delays: what each tool reports against the script's own clock, and what it costs."""
    head = ["script, workers", "by the script: wait / step", "tool", "wait off by", "step off by", "item off by"]
    head += ["CPU a step", "wall clock", "losses", "verdicts", "lines to add"]
    lines = []
    for row in rows("run-beside"):
        for name in [each for each in row["runs"] if each != "bare"]:
            runs = row["runs"][name]
            kinds = ("wait_s", "step_s", "item_s") if name == "stoker" else ("mean_wait_s", "mean_step_s", None)
            off = [_off(runs, kind) if kind else "not seen" for kind in kinds]
            first = name == "stoker"
            what = f"{row['framework']}, {row['setting']}" if first else ""
            tool = {"stoker": "`stoker run`", "traceml": "TraceML"}[name]
            costs = (_cost(row, name), _wall(row, name), _losses(row, name), _verdicts(runs))
            added = row["added_lines"] if name == "traceml" else 0
            lines.append([what, _own(row) if first else "", tool, *off, *costs, str(added)])
    return table(head, lines)


def _own(row: dict[str, Any]) -> str:
    own = [each["own"] for each in row["runs"]["bare"] if each["own"]]
    return " / ".join(f"{1000 * median(each[name] for each in own):.1f}" for name in ("wait_s", "step_s")) + " ms"


def _off(runs: list[dict[str, Any]], kind: str) -> str:
    """In milliseconds, and as a share where that says something."""
    error = run_beside.error(runs, kind)
    own = [each["own"][kind] for each in runs if each["own"]]
    if error is None or not own:
        return "–"
    share = f" ({error / median(own):+.1%})" if median(own) > _LEAST_S else ""
    return f"{1000 * error:+.2f} ms{share}"


_LEAST_S = 0.004
"""A share of a shorter time is that of next to nothing."""


def _cost(row: dict[str, Any], name: str) -> str:
    return f"{1e6 * run_beside.added_cpu_s(row, name):+.0f} µs"


def _wall(row: dict[str, Any], name: str) -> str:
    return f"{run_beside.added_wall_s(row, name):+.1f} s"


def _losses(row: dict[str, Any], name: str) -> str:
    return "equal" if run_beside.are_losses_equal(row, name) else "differ"


def _verdicts(runs: list[dict[str, Any]]) -> str:
    """Each verdict and how often it was given."""
    found = [str(each["reported"].get("verdict")).lower().replace("_", " ") for each in runs]
    return ", ".join(f"{each} ({found.count(each)} of {len(found)})" for each in dict.fromkeys(found))


def cost() -> str:
    """What observing adds."""
    names = {
        "step": "CPU of a step, without workers",
        "queue": "CPU of a step, one worker",
        "items": "CPU of an item, JPEG",
        "first_line_s": "until the script's first line",
        "first_batch_s": "until its first batch",
        "end_s": "after its last line, with the report",
    }
    lines = []
    for row in rows("run-cost"):
        found = run_cost.added(row)
        for name in row["rounds"][0]["bare"]:
            what = names.get(name) or names[row["kind"]]
            unit = (1e6, "µs", 1) if name == "step_s" else (100, "%", 2) if name == "item_s" else (1, "s", 2)
            shown = [_quartiles(found[each], *unit) for each in (name, f"{name}, bare and bare")]
            lines.append([what, *shown, str(len(row["rounds"]))])
    return table(["what", "added: median (quartiles)", "between bare runs", "rounds"], lines)


def _quartiles(values: tuple[float, float, float], times: float, unit: str, digits: int) -> str:
    low, middle, high = (f"{times * value:+.{digits}f}" for value in values)
    return f"{middle} {unit} ({low} to {high})"


def planted_ranks() -> str:
    """Delays planted in one of two ranks, by the script's clock and as reported."""
    head = ["in the slow rank", "workers", "stage", "by the script", "reported", "error", "rank named"]
    what = {"slow_items": "items wait", "slow_step": "the step waits", "own_updates": "waits between the updates"}
    lines = []
    for row in rows("ranks-planted"):
        times = [f"{row[name] * 1e3:.1f} ms" for name in ("planted_s", "reported_s")]
        named = "yes" if row["pace_rank"] == 1 else "no"
        lines.append([what[row["workload"]], str(row["workers"]), row["stage"], *times, f"{row['error']:+.1%}", named])
    return table(head, lines)


def rank_plans() -> str:
    """Plans of `tune --ranks 2`, judged by runs of the whole grid."""
    head = ["data, device", "plan", "best of the grid", "predicted", "the plan ran", "the best ran", "regret"]
    lines = []
    for row in rows("ranks-regret"):
        settings = [f"batch {batch}, {format_workers(workers)}" for batch, workers, _ in (row["plan"], row["best"])]
        times = [f"{row[name]:.2f} s" for name in ("predicted_s", "plan_s", "best_s")]
        lines.append([f"{row['data']}, {row['device']}", *settings, *times, f"{row['regret']:.1%}"])
    return table(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "compare": compare,
    "run-proof": proof,
    "run-public": public,
    "run-beside": beside,
    "ranks-planted": planted_ranks,
    "ranks-regret": rank_plans,
    "run-cost": cost,
}
"""By the name of the block in the docs."""
