"""Copies measured figures into README and docs, between <!-- begin NAME --> and <!-- end NAME -->.

python benchmarks/tables.py [--check]
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import advice_tables
import published_tables
import script_tables
import search_tables
import study_tables
import thesis_tables
from common import RESULTS, at, say, tried_sizes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rows(machine: str, name: str) -> Any:
    return json.loads((RESULTS / machine / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def table(head: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))


def truth() -> str:
    head = ["workers", "read, 4 ms", "transform, 6 ms", "step, 30 ms", "accounted for"]
    lines = [
        [str(row["workers"])]
        + [f"{row['error'][name]:+.2%}" for name in ("read", "transform", "step")]
        + [f"{row['accounted']:.2%}"]
        for row in rows("two-cores", "truth")
    ]
    return table(head, lines)


def overhead() -> str:
    head = ["loop", "machine", "traced/bare, wall", "traced/bare, CPU", "bare/bare, wall", "rounds"]
    lines = []
    for machine in ("two-cores", "h200"):
        for row in rows(machine, "overhead"):
            case = row["case"]
            what = f"{case['name']}, {case['data']}, {case['workers']} workers, batch {case['batch']}, {case['device']}"
            cells = [what, machine]
            for name in ("ratio", "cpu_ratio", "noise"):
                found = row.get(name)
                cells.append(_ratio(found) if found else "–")
            lines.append([*cells, str(len(row["pairs"]))])
    left = " ".join(_dropped_ratio(f"overhead-{machine}", machine) for machine in ("two-cores", "h200"))
    return f"{table(head, lines)}\n\n{left}"


def _dropped(name: str) -> dict[str, Any]:
    """The worst figures of runs of a table that are no longer stored."""
    found: dict[str, Any] = json.loads((RESULTS / "dropped.json").read_text(encoding="utf-8"))["tables"][name]
    return found


def _dropped_ratio(name: str, machine: str) -> str:
    found = _dropped(name)
    return (
        f"Of {found['runs']} earlier rows on {machine}, which are no longer stored, the worst had a wall ratio of "
        f"{found['ratio']:.3f}."
    )


def items() -> str:
    head = ["data", "an item, untraced", "traced to untraced", "groups of 32"]
    lines = [
        [row["data"], f"{row['bare_ms']:.2f} ms", _ratio(row), str(len(row["groups"]))]
        for row in rows("two-cores", "items")
    ]
    return table(head, lines)


def _ratio(found: dict[str, Any]) -> str:
    """The median, and where it lies nineteen times in twenty; the quartiles where that was not computed."""
    low, high = found["confidence"] if "confidence" in found else (found["low"], found["high"])
    return f"{found['median']:.3f} ({low:.3f} – {high:.3f})"


def profiles() -> str:
    head = ["model, mode", "data", "workers", "items/s", "steady", "waits", "busy", "first batch", "bottleneck"]
    lines = [
        [
            f"{row['model']}, {row['mode']}",
            row["data"],
            str(row["workers"]),
            f"{row['items_per_s']:,.0f}",
            f"{row['steady_items_per_s']:,.0f}",
            f"{row['loop_share'].get('wait', 0):.0%}",
            f"{row['device_busy']:.0%}",
            f"{row['start_s'] + row['first_batch_s']:.2f} s",
            row["bottleneck"],
        ]
        for row in rows("h200", "profiles")
    ]
    return table(head, lines)


def profiles_readme() -> str:
    """The loader-bound profile of the README, with one worker and with eight."""
    head = ["loader workers", "items/s", "the device waits", "the device works", "bottleneck"]
    lines = [
        [
            str(row["workers"]),
            f"{row['items_per_s']:,.0f}",
            f"{row['loop_share'].get('wait', 0):.0%}",
            f"{row['device_busy']:.0%}",
            row["bottleneck"],
        ]
        for row in rows("h200", "profiles")
        if (row["model"], row["mode"], row["data"]) == ("resnet18", "infer", "jpeg")
    ]
    return table(head, lines)


def agreement() -> str:
    head = ["model, mode", "stage", "Stoker", "torch.profiler", "ratio"]
    lines = []
    for row in rows("h200", "agreement"):
        for stage, seconds in row["torch"].items():
            ours = row["ours"][stage]
            cells = [f"{ours:.3f} s", f"{seconds:.3f} s", f"{ours / seconds:.3f}"]
            lines.append([f"{row['model']}, {row['mode']}", stage, *cells])
    return table(head, lines)


def limit_trace(told: str, ran: str) -> Callable[[], str]:
    return lambda: _limit_trace(told, ran)


def _limit_trace(told: str, ran: str) -> str:
    """What a trace predicts without a GPU and what `auto` found on one, against sizes that ran."""
    head = [
        "question",
        "largest that ran / smallest that failed",
        "traced without a GPU",
        "error",
        "interval",
        "seconds",
    ]
    head += ["auto, which ran", "under the edge", "run again"]
    found = {row["key"]: row for row in rows("h200", ran)}
    lines = []
    for row in rows("two-cores", told):
        on_gpu = found[_key(row)]
        auto, truth = on_gpu["auto"]["max_batch"], on_gpu["truth"]
        again = truth["again"]
        lines.append(
            [
                _question(row),
                f"{row['last_ran']} / {row['first_failed']}",
                str(row["max_batch"]),
                f"{row['error']:+.1%}",
                f"{row['interval'][0]} – {row['interval'][1]}",
                f"{row['seconds']:.1f}",
                str(auto),
                f"{max(0.0, 1 - auto / truth['edge']):.1%}",
                f"{again.count('done')} of {len(again)}",
            ]
        )
    return f"{table(head, lines)}\n\n{_versions(found.values())}"


def _key(row: dict[str, Any]) -> str:
    return f"{row['model']} {row['mode']} {row['precision']} {row['optimizer']} {row['gib']}"


def _question(row: dict[str, Any]) -> str:
    """The model, and what differs from training in fp32 with momentum at 16 GiB."""
    parts = [
        "inference" if row["mode"] == "infer" else "",
        row["precision"] if row["precision"] != "fp32" else "",
        row["optimizer"] if row["optimizer"] not in (None, "momentum") else "",
        f"{row['gib']} GiB" if row["gib"] != 16 else "",
    ]
    return ", ".join([row["model"], *(part for part in parts if part)])


def limit_published() -> str:
    head = ["model", "published", "traced", "power of two below it"]
    lines = [
        [row["model"], str(row["published"]), str(row["max_batch"]), str(row["power_of_two"])]
        for row in rows("two-cores", "limit-published")
    ]
    return table(head, lines)


PLANNERS = {
    "tune": "tune",
    "grid, run once": "grid, run once",
    "thesis": "algebra",
    "fixed 128, 8": "fixed 128, 8",
    "128, no workers": "128, no workers",
}
"""Planners as the result files name them, and as the tables do."""


def limits() -> str:
    """The methods two-point and doubling on the same card, against sizes that ran."""
    head = ["question", "largest that ran / smallest that failed", "auto", "two-point", "doubling"]
    lines = []
    sizes = tried_sizes("limit")
    for row in rows("h200", "limit"):
        if "two-point" not in row:
            continue
        truth = sizes[row["key"]]
        cells = [
            f"{_beside(found['max_batch'], truth)}, {found['seconds']:.0f} s"
            if "max_batch" in found
            else "does not fit"
            for found in (row["auto"], row["two-point"], row["doubling"])
        ]
        lines.append([_question(row), f"{truth['last_ran']} / {truth['first_failed']}", *cells])
    left = sum("two-point" not in row for row in rows("h200", "limit"))
    rest = f"{left} more questions were not asked of them. " if left else ""
    return f"{table(head, lines)}\n\n{rest}{_versions(rows('h200', 'limit'))}"


def _beside(size: int, truth: dict[str, Any]) -> str:
    """A size, and how far it is from the nearer edge of what ran and what failed."""
    low, high = sorted((truth["first_failed"] - 1, truth["last_ran"]))
    return f"{size} ({size / min(max(size, low), high) - 1:+.1%})"


def _versions(found: Iterable[dict[str, Any]]) -> str:
    seen = sorted({(row["torch"], row["cudnn"]) for row in found})
    return "; ".join(
        f"torch {torch}, cuDNN {cudnn // 10_000}.{cudnn // 100 % 100}.{cudnn % 100}" for torch, cudnn in seen
    )


def limits_beside_peers(name: str) -> Callable[[], str]:
    return lambda: _beside_peers(name)


def _beside_peers(name: str) -> str:
    head = ["model", "auto", "Lightning `binsearch`", "accelerate", "auto's seconds to Lightning's"]
    truths = tried_sizes("limit")
    lines, ratios = [], []
    asked = [row for row in rows("h200", name) if "lightning" in row]
    for row in asked:
        found = [row[name] for name in ("auto", "lightning", "accelerate")]
        cells = [_peer(each, truths[row["key"]]) for each in found]
        ratios.append(_to_lightning(row))
        lines.append([_question(row), *cells, f"{ratios[-1]:.2f}"])
    within = f"At most half of Lightning's seconds in {sum(each <= 0.5 for each in ratios)} of {len(ratios)}. "
    return f"{table(head, lines)}\n\n{within}{_earlier(name)}{_versions(asked)}"


def _to_lightning(row: dict[str, Any]) -> float:
    peer = row["lightning"]
    return float(row["auto"]["seconds"] / peer.get("seconds", peer.get("more_than_s", math.nan)))


def _earlier(name: str) -> str:
    """The worst row of runs that are no longer stored."""
    found = _dropped(name)
    return (
        f"Of {found['runs']} rows of earlier versions, which are no longer stored, {found['above_half']} were above "
        f"half; the worst was {found['case']} with {found['ratio']:.2f} ({found['auto_s']:.1f} to "
        f"{found['lightning_s']:.1f} s). "
    )


def losses() -> str:
    """What a trace predicts for losses that keep more memory than their shapes suggest."""
    head = ["loss", "traced then, interval", "ran / failed", "error", "searched", "traced now", "error"]
    lines = []
    now = {row["loss"]: row["max_batch"] for row in rows("two-cores", "limit-losses-told")}
    for row in rows("h200", "limit-losses"):
        auto = row["auto"]
        low, high = auto["predicted_interval"]
        failed = min(probe["batch_size"] for probe in auto["probes"] if not probe["ran"])
        ran = max(auto["max_batch"], row.get("search", auto)["max_batch"])
        cells = [f"{auto['predicted_batch']}, {low} to {high}", f"{ran} / {failed}"]
        searched = str(row["search"]["max_batch"]) if "search" in row else ""
        told = now[row["loss"]]
        cells += [f"{auto['predicted_batch'] / ran - 1:+.1%}", searched, str(told), f"{told / ran - 1:+.1%}"]
        lines.append([row["loss"], *cells])
    return table(head, lines)


def convolutions() -> str:
    """What single convolutions of many shapes took, and what a trace predicts for them."""
    found = rows("two-cores", "convolutions-told")
    off = sorted(abs(row["told"] / row["seen"] - 1) for row in found)
    near = sum(each <= 0.01 for each in off)
    low = sum(row["told"] / row["seen"] < 0.95 for row in found)
    high = f"the 90th percentile of errors is {off[len(off) * 9 // 10]:.0%}, the largest {off[-1]:.0%}"
    return (
        f"Of {len(found)} peaks {near} are predicted within 1 %; {high}, and {low} are predicted more than 5 % too low."
    )


def _peer(found: dict[str, Any], truth: dict[str, Any]) -> str:
    """An answer and its seconds, or why there is none."""
    return (
        f"{_beside(found['max_batch'], truth)}, {found['seconds']:.1f} s" if "max_batch" in found else found["problem"]
    )


def regret(machine: str, *, dropped: bool = False) -> Callable[[], str]:
    """What each planner's choice costs over the best that was judged."""

    def made() -> str:
        found = [row for row in rows(machine, "regret") if row["regret"]]
        head = ["workload", *PLANNERS.values()]
        lines = [[row["case"], *(_lost(row, name) for name in PLANNERS)] for row in found]
        for label, middle in (("mean", fmean), ("worst", max)):
            values = [[row["regret"][name] for row in found if name in row["regret"]] for name in PLANNERS]
            lines.append([f"**{label}**", *(_share(middle(each)) if each else "–" for each in values)])
        return f"{table(head, lines)}{_dropped_regret(machine) if dropped else ''}"

    return made


def _dropped_regret(name: str) -> str:
    found = _dropped(name)
    return (
        f"\n\nOf {found['runs']} other runs, which are no longer stored, the worst regret of `tune` was "
        f"{_share(found['regret'])} ({found['case']})."
    )


def _dropped_errors(name: str) -> str:
    found = _dropped(name)
    return (
        f" Of {found['runs']} other runs, which are no longer stored, the worst errors were {found['median']:.1%} in "
        f"the median and {found['p90']:.1%} at the 90th percentile."
    )


def _lost(row: dict[str, Any], name: str) -> str:
    """A regret, with its standard error where the choice was run in turns and lost any."""
    lost, error = row["regret"].get(name), row.get("unsure", {}).get(name)
    return _share(lost) + (f" ± {100 * error:.1f}" if lost and error else "")


def forecast(machine: str, *, dropped: bool = False) -> Callable[[], str]:
    """Predicted against measured times, beside the noise."""

    def made() -> str:
        head = ["workload", "cells", "error, median", "p90", "in the interval", "first batch", "noise, median", "p90"]
        head += ["tune", "grid"]
        found = rows(machine, "regret")
        names = ("errors", "covered", "first_errors", "noise")
        whole = {name: [value for row in found for value in row[name]] for name in names}
        sums = {name: sum(row[name] for row in found) for name in ("tune_s", "grid_s", "whole_grid_s")}
        lines = [_forecast_line(row) for row in [*found, {"case": "**all**", **whole, **sums}]]
        return (
            f"{table(head, lines)}\n\n{_yardstick(found)} {_anew(found)}{_dropped_errors(machine) if dropped else ''}"
        )

    return made


def _anew(found: list[dict[str, Any]]) -> str:
    """What the present version predicts from the probes of that run."""
    names = ("errors", "covered", "first_errors")
    whole = {name: [value for row in found for value in row["anew"][name]] for name in names}
    error = f"{at(whole['errors'], 0.5)} in the median and {at(whole['errors'], 0.9)} at the 90th percentile"
    rest = f"{fmean(whole['covered']):.0%} in the interval, first batches {at(whole['first_errors'], 0.5)}"
    return f"From the same probes, the present version is {error} off, {rest}."


def _yardstick(found: list[dict[str, Any]]) -> str:
    """How much a fixed job's time varied beside the runs, which is the machine's own variation."""
    speeds = sorted(value for row in found for value in row["yardstick_ms"])
    low, middle, high = (speeds[int(share * len(speeds))] for share in (0.1, 0.5, 0.9))
    spread = f"{low / middle - 1:+.0%} to {high / middle - 1:+.0%} of that in four cases of five"
    return f"A fixed job beside the runs took {middle:.1f} ms, {spread}."


def _forecast_line(row: dict[str, Any]) -> list[str]:
    cells = [row["case"], str(len(row["errors"])), at(row["errors"], 0.5), at(row["errors"], 0.9)]
    cells += [f"{fmean(row['covered']):.0%}" if row["covered"] else "–", at(row["first_errors"], 0.5)]
    ran, whole = round(row["grid_s"]), round(row.get("whole_grid_s", row["grid_s"]))
    grid = f"{ran} s" if ran == whole else f"{ran} of {whole} s"
    return [*cells, at(row["noise"], 0.5), at(row["noise"], 0.9), f"{row['tune_s']:.0f} s", grid]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


def a5000() -> str:
    head = ["workers", "runs", "error, median", "largest", "first batch, median"]
    found = rows("two-cores", "a5000")
    lines = []
    for label, kept in (
        ("2 – 8", [row for row in found if row["workers"] <= 8]),
        ("32", [row for row in found if row["workers"] == 32]),
        ("48, 64 (more than CPUs)", [row for row in found if row["workers"] > 32]),
        ("**all**", found),
    ):
        errors = [row["error"] for row in kept]
        firsts = [row["predicted_first_s"] / row["first_s"] - 1 for row in kept]
        cells = [f"{median(map(abs, errors)):.1%}", f"{max(map(abs, errors)):.1%}", f"{median(map(abs, firsts)):.1%}"]
        lines.append([label, str(len(kept)), *cells])
    return table(head, lines)


def uneven() -> str:
    """What loading ahead and out of order brings where a few items are slow, measured and predicted."""
    head = ["items", "setting", "measured", "to 2 ahead", "predicted", "to 2 ahead"]
    names = {"waits": "that wait", "computes": "that compute"}
    lines = []
    for row in rows("two-cores", "uneven"):
        low, middle, high = row["ratio"]
        what = f"{names[row['items']]}, {row['workers']} workers"
        spread = "1" if row["setting"] == "2 ahead" else f"{middle:.2f} ({low:.2f} – {high:.2f})"
        told = f"{row['predicted_s']:.1f} s ({row['interval_s'][0]:.1f} – {row['interval_s'][1]:.1f})"
        times = [f"{median(row['runs_s']):.1f} s", spread, told, f"{row['predicted_ratio']:.2f}"]
        lines.append([what, row["setting"], *times])
    return table(head, lines)


def threads() -> str:
    """A loop without workers with one thread, against torch's number of them."""
    found = rows("two-cores", "threads")
    sizes = sorted({row["batch"] for row in found})
    cases = dict.fromkeys((row["data"], row["device"]) for row in found)
    lines = []
    for data, device in cases:
        mine = {row["batch"]: row["ratio"] for row in found if (row["data"], row["device"]) == (data, device)}
        lines.append([f"{data}, {device}", *("{1:.2f} ({0:.2f} – {2:.2f})".format(*mine[size]) for size in sizes)])
    return table(["loop", *(f"batch {size}" for size in sizes)], lines)


def decode() -> str:
    found = json.loads((RESULTS / "two-cores" / "decode.json").read_text(encoding="utf-8"))
    head = ["images", "files", "mean size", "decode and transform, an image"]
    lines = [
        [
            kind,
            str(found["files"][kind]),
            f"{found['mean_bytes'][kind] / 1000:.1f} KB",
            f"{found['mean_ms'][kind]:.2f} ms",
        ]
        for kind in ("real", "synthetic")
    ]
    spread = found["ratio_of_rounds"]
    ratio = f"Synthetic to real: {found['ratio']:.3f} (rounds from {spread['least']:.3f} to {spread['most']:.3f})."
    return f"{table(head, lines)}\n\n{ratio}"


def output(name: str) -> Callable[[], str]:
    """What a command printed, as `benchmarks/outputs.py` kept it."""
    return lambda: f"```console\n{(RESULTS / 'outputs' / f'{name}.txt').read_text(encoding='utf-8').rstrip()}\n```"


def reports() -> str:
    head = ["study", "trials", "charts", "size", "time", "CPU time"]
    lines = [
        [
            row["name"],
            f"{row['trials']:,}",
            str(row["charts"]),
            f"{row['bytes'] / 1e6:.1f} MB",
            f"{row['wall_s']:.1f} s",
            f"{row['cpu_s']:.1f} s",
        ]
        for row in rows("two-cores", "reports")
    ]
    return table(head, lines)


def remedies() -> str:
    head = ["example", "bottleneck", "remedy", "predicted", "measured, with standard error"]
    found = rows("two-cores", "remedies")
    lines = []
    for row in found:
        cells = [row["example"], row.get("bottleneck", row["outcome"])]
        if row.get("measured") is None:
            lines.append([*cells, row.get("change") or "none is a setting", "–", row.get("problem") or "–"])
            continue
        measured = f"{row['measured']:.2f} ± {row['standard_error']:.2f}{' (slower)' if row['slower'] else ''}"
        lines.append([*cells, row["change"], f"{row['predicted']:.2f}", measured])
    ran = [row for row in found if row.get("measured") is not None]
    slower = sum(row["slower"] for row in ran)
    said = f"{slower} of {len(ran)} remedies were slower than the present setting by more than the standard error."
    return f"{table(head, lines)}\n\n{said}"


BLOCKS: dict[str, Callable[[], str]] = {
    "remedies": remedies,
    "truth": truth,
    "items": items,
    "overhead": overhead,
    "profiles": profiles,
    "agreement": agreement,
    "decode": decode,
    "a5000": a5000,
    "uneven": uneven,
    "threads": threads,
    "regret-two-cores": regret("two-cores", dropped=True),
    "forecast-two-cores": forecast("two-cores", dropped=True),
    "regret-cpu": regret("two-cores-cpu", dropped=True),
    "forecast-cpu": forecast("two-cores-cpu", dropped=True),
    "regret-h200": regret("h200"),
    "forecast-h200": forecast("h200"),
    "regret-h200-keeping": regret("h200-keeping", dropped=True),
    "forecast-h200-keeping": forecast("h200-keeping", dropped=True),
    "limit-trace": limit_trace("limit-trace", "limit"),
    "limit-trace-unseen": limit_trace("limit-trace-unseen", "limit-unseen"),
    "limit-published": limit_published,
    "limits": limits,
    "convolutions": convolutions,
    "limits-losses": losses,
    "limits-alone": limits_beside_peers("limit-alone"),
    "limits-more": limits_beside_peers("limit-more"),
    "profiles-readme": profiles_readme,
    "reports": reports,
    "output-profile": output("profile"),
    "output-profile-h200-1-worker": output("profile-h200-1-worker"),
    "output-tune": output("tune"),
    "output-doctor": output("doctor"),
    "output-limit": output("limit"),
    "output-run": output("run"),
}
for tables in (published_tables, advice_tables, script_tables, search_tables, study_tables, thesis_tables):
    BLOCKS |= tables.TABLES


def filled(text: str) -> str:
    """The page with its tables. A table whose results are not there yet stays as it is, and is named."""

    def block(match: re.Match[str]) -> str:
        try:
            return f"{match['begin']}\n{BLOCKS[match['name']]()}\n{match['end']}"
        except FileNotFoundError as error:  # the page keeps what it has
            say(f"{match['name']} was not measured: there is no {Path(error.filename).name}")
            kept = match["content"].strip()
            return f"{match['begin']}\n{kept or 'Not measured yet.'}\n{match['end']}"

    pattern = r"(?P<begin><!-- begin (?P<name>[\w-]+) -->)\n(?P<content>.*?)(?P<end><!-- end (?P=name) -->)"
    return re.sub(pattern, block, text, flags=re.DOTALL)


def stale() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            yield page, new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a page is out of date")
    options = parser.parse_args()
    found = list(stale())
    for page, text in found:
        say(f"{page.relative_to(ROOT)} {'is out of date' if options.check else 'brought up to date'}")
        if not options.check:
            page.write_text(text, encoding="utf-8")
    sys.exit(1 if options.check and found else 0)


if __name__ == "__main__":
    main()
