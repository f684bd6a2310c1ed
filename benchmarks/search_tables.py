"""Tables of what was measured of model search: blocks and parts, scores, where the time goes, a search and a loop."""

import json
from collections.abc import Callable
from typing import Any

import polars as pl
from common import RESULTS, quartiles

from stoker.analysis import published
from stoker.analysis.breakdown import STAGES, base_case, beside, breakdown, dominant
from stoker.records.part import PARTS, parse_part

_STUDY = "search-bottlenecks"


def rows(name: str) -> Any:
    return json.loads((RESULTS / "two-cores" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def table(head: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))


# ---------------------------------------------------------------- blocks and parts


def parts() -> str:
    """What running a model as blocks costs, how near a part is to what was asked for, and what its last quarter
    takes."""
    found = rows("parts")
    head = [
        "model",
        "blocks",
        "composed / model",
        "least",
        "model / model",
        "furthest cut",
        "last:25% begins with",
        "last:25% / full",
    ]
    lines = []
    for row in found:
        begin = row["begins"]["blocks"]
        composed, again, quarter = (_ratio(row, way) for way in ("composed", "again", "part"))
        lines.append(
            [
                row["model"],
                str(len(row["blocks"])),
                composed,
                f"{_least(row, 'composed'):.3f}",
                again,
                f"{_furthest(row):.2g} blocks",
                row["blocks"][begin] if row["whole_reason"] is None else "it runs whole",
                quarter,
            ]
        )
    worst = max(_middle(row, "composed") for row in found)
    noise = max(abs(_middle(row, "again") - 1) for row in found)
    cuts = max(_furthest(row) for row in found)
    said = (
        f"Composed, the models take at most {worst - 1:+.1%} of CPU time (medians; a model against itself: up to "
        f"{noise:.1%}). No part of a model is further than {cuts:.2g} blocks from what was asked for."
    )
    return f"{table(head, lines)}\n\n{said}"


def _ratios(row: dict[str, Any], way: str) -> list[float]:
    return [each[f"{way}_cpu_s"] / each["model_cpu_s"] for each in row["rounds"]]


def _middle(row: dict[str, Any], way: str) -> float:
    return quartiles(_ratios(row, way))[1]


def _ratio(row: dict[str, Any], way: str) -> str:
    low, middle, high = quartiles(_ratios(row, way))
    return f"{middle:.3f} ({low:.3f} – {high:.3f})"


def _least(row: dict[str, Any], way: str) -> float:
    """The shortest run against the model's shortest."""
    shortest = {name: min(each[f"{name}_cpu_s"] for each in row["rounds"]) for name in (way, "model")}
    return float(shortest[way] / shortest["model"])


def _furthest(row: dict[str, Any]) -> float:
    """Over the usual parts: how many blocks a cut is from what was asked for. A model that runs whole has one block."""
    count = len(row["blocks"])
    apart = []
    for text in PARTS:
        part = parse_part(text)
        wanted = count * part.percent / 100 if part.percent is not None else min(part.count or 0, count)
        apart.append(abs(count - row["cuts"][text] - wanted))
    return float(max(apart))


# ---------------------------------------------------------------- scores


def scores() -> str:
    """What each score costs."""
    head = ["score", "items × features", "time", "CPU time", "memory beside the features"]
    lines = [
        [
            row["score"],
            f"{row['items']:,} × {row['width']:,}",
            f"{row['wall_s']:.1f} s",
            f"{row['processor_s']:.1f} s",
            f"{row['extra_bytes'] / 1e6:,.0f} MB",
        ]
        for row in rows("scores")
    ]
    return table(head, lines)


def quality() -> str:
    """How well each score and each static order chooses among snapshots that were trained here."""
    found = sorted(rows("quality")["summary"], key=lambda row: -float(row["tau"]))
    head = ["order", "weighted tau (90 %)", "top-1 regret, points (90 %)"]
    return table(head, [[row["order"], _interval(row, "tau", 2), _interval(row, "regret", 1)] for row in found])


def _interval(row: dict[str, Any], name: str, digits: int) -> str:
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def transfer() -> str:
    """The same on published accuracies and scores of 19 models."""
    found = rows("transfer")
    head = ["order", *(f"{what}, {kind}" for kind in ("fine-tuned", "frozen") for what in ("tau", "regret"))]
    by_order: dict[str, list[str]] = {}
    for row in found:
        tau, regret = row["tau"], row["regret"]
        texts = [
            f"{each['mean']:.{digits}f} ({each['interval'][0]:.{digits}f} – {each['interval'][1]:.{digits}f})"
            for each, digits in ((tau, 2), (regret, 2))
        ]
        by_order.setdefault(row["order"], []).extend(texts)
    return table(head, [[name, *texts] for name, texts in by_order.items()])


# ---------------------------------------------------------------- where the time goes


def _study() -> pl.DataFrame:
    path = RESULTS / "two-cores" / "studies" / f"{_STUDY}.csv"
    return pl.read_csv(path.read_bytes(), infer_schema_length=None)


def bottlenecks() -> str:
    """The stages of the small preset, the published ones beside, and which stage dominates."""
    ours, theirs = _study(), published.stage_trials()
    both = beside(ours, theirs)
    head = ["model, part, items, data", *(f"{name}: here (published)" for name in STAGES.values() if name != "copying")]
    lines: dict[str, list[str]] = {}
    for row in both.to_dicts():
        cell = f"{row['workload']}, {row['part']}, {row['items']:,}, {row['data']}"
        lines.setdefault(cell, []).append(f"{row['ours_s']:.2f} s ({row['theirs_s']:.2f} s)")
    said = [f"Here, {each.sentence}." for each in dominant(ours)] + [
        f"There, {each.sentence}." for each in dominant(theirs)
    ]
    return f"{table(head, [[cell, *texts] for cell, texts in lines.items()])}\n\n{' '.join(said)}"


def stages() -> str:
    """Every cell of the small preset's base case: the stages in seconds, and the shares."""
    found = breakdown(base_case(_study()))
    head = ["model, part, items, data", *(name for name in STAGES.values() if name != "copying")]
    lines: dict[str, list[str]] = {}
    for row in found.sort("workload", "items", "data", maintain_order=True).to_dicts():
        if row["stage"] == "copy":
            continue
        cell = f"{row['workload']}, {row['part']}, {row['items']:,}, {row['data']}"
        spread = "" if row["repeats"] < 2 else f" ({row['low_s']:.2f} – {row['high_s']:.2f})"
        lines.setdefault(cell, []).append(f"{row['stage_s']:.2f} s{spread}, {row['share']:.0%}")
    return table(head, [[cell, *texts] for cell, texts in lines.items()])


# ---------------------------------------------------------------- a search and a plain loop


def search() -> str:
    """How long a search takes, as a share of the plain loop's time."""
    head = ["files when a run begins", "rounds", "search", "plain loop", "search / loop", "loop / loop"]
    lines = []
    for name, files in (("search", "cached"), ("search-cold", "on the disk")):
        if name != "search" and not (RESULTS / "two-cores" / f"{name}.json").is_file():
            continue
        found = rows(name)
        walls = {way: quartiles([row[way]["wall_s"] for row in found])[1] for way in ("search", "loop")}
        ratios = {
            way: quartiles([row[way]["wall_s"] / row["loop"]["wall_s"] for row in found]) for way in ("search", "again")
        }
        texts = [f"{middle:.3f} ({low:.3f} – {high:.3f})" for low, middle, high in ratios.values()]
        lines.append([files, str(len(found)), f"{walls['search']:.1f} s", f"{walls['loop']:.1f} s", *texts])
    return table(head, lines)


_MADE = (parts, scores, quality, transfer, bottlenecks, stages, search)
TABLES: dict[str, Callable[[], str]] = {each.__name__: each for each in _MADE}
"""By the name of the block in the docs."""
