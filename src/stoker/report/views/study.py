"""Tables of studies: presets, the list, the status, and every analysis."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.units import format_seconds

_LONGEST = 40


def table_of(rows: Sequence[Mapping[str, Any]], *, limit: int | None = None) -> RenderableType:
    """Rows as a table: percentages for shares and regrets, seconds for times.

    What is the same in every row stands above the table. `limit` cuts long tables and says so.
    """
    if not rows:
        return Text("nothing to show yet: no trial has finished")
    same = [
        name for name in rows[0] if len(rows) > 1 and name in _AXES and len({str(row.get(name)) for row in rows}) == 1
    ]
    names = [name for name in rows[0] if name not in same]
    shown = rows if limit is None else rows[:limit]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(_HEADS.get(name, name.replace("_", " ")), justify="right" if numeric else "left")
    for row in shown:
        table.add_row(*(Text(_written(name, row.get(name))) for name in names))
    parts: list[RenderableType] = []
    if same:
        parts.append(Text(" · ".join(f"{name} {_written(name, rows[0][name])}" for name in same), style="dim"))
    parts.append(table)
    if len(shown) < len(rows):
        parts.append(Text(f"{len(rows) - len(shown)} more rows; --json or export gives all", style="dim"))
    return Group(*parts)


_AXES = (
    "machine",
    "data",
    "mode",
    "device",
    "source",
    "items",
    "batches",
    "epochs",
    "precision",
    "method",
    "gpu_memory",
)
"""Columns that describe what a table is about, and so need no column where they never change."""
_HEADS = {
    "batch_size": "batch",
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "regret_mean": "mean regret",
    "regret_worst": "worst regret",
    "settings": "of",
}


def _written(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name.startswith(("regret", "lead")) or name.endswith(("share", "_error", "error", "utilisation")):
            return f"{value:.1%}"
        if name.endswith("_s") or name == "seconds":
            return format_seconds(value)
        return f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def presets_view(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """What each preset is, in both sizes."""
    parts: list[RenderableType] = []
    for row in rows:
        parts.append(Text.assemble((row["name"], "bold"), f" — {row['title']}"))
        parts.append(Text(f"  reproduces {row['reproduces']}"))
        parts.append(Text(f"  full: {row['full_tasks']:,} runs on {row['devices']}; {row['full_estimate']}"))
        parts.append(Text(f"  small: {row['small_tasks']:,} runs; {row['small_estimate']}"))
        parts.append(Text())
    return Group(*parts[:-1])


def list_view(rows: Sequence[Mapping[str, Any]], path: str) -> RenderableType:
    """The studies of a store."""
    if not rows:
        return Text(f"{path} has no studies")
    return table_of(rows)


def status_view(status: Mapping[str, Any]) -> RenderableType:
    """How far a study is, by machine."""
    running = f", {status['running']} running now" if status["running"] else ""
    head = Text.assemble(
        (status["name"], "bold"), f" · {status['tasks']:,} tasks × {status['repeats']} repeats{running}"
    )
    parts: list[RenderableType] = [head]
    if status["no_longer_asked"]:
        parts.append(
            Text(f"{status['no_longer_asked']:,} tasks are no longer asked for; their trials stay", style="yellow")
        )
    if not status["machines"]:
        parts.append(Text("no trial has finished yet"))
    for machine in status["machines"]:
        outcomes = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in machine["outcomes"].items())
        missing = f", {machine['missing']:,} missing" if machine["missing"] else ""
        retried = machine["attempts"] - sum(machine["outcomes"].values())
        earlier = f" ({retried:,} earlier attempts kept)" if retried else ""
        parts.append(Text(f"{machine['label']}: {outcomes}{missing}{earlier}"))
    return Group(*parts)


def run_view(summary: Mapping[str, Any], next_step: str) -> RenderableType:
    """What a drive did."""
    outcomes = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in summary["outcomes"].items())
    ran = f"ran {summary['ran']:,} of {summary['slots']:,} in {format_seconds(summary['seconds'])}"
    lines = [Text(f"{ran}: {outcomes}" if outcomes else "nothing was left to run")]
    if summary["stopped"]:
        lines.append(Text(f"stopped: {summary['stopped']}", style="yellow"))
    if summary["unfinished"]:
        lines.append(
            Text(f"{summary['unfinished']:,} are without an outcome; run the same command to go on", style="yellow")
        )
    lines.append(Text(next_step))
    return Group(*lines)


def forecast_view(forecast: Mapping[str, Any], sentence: str | None) -> RenderableType:
    """What a run would do."""
    left = forecast["slots"] - forecast["done"]
    time = (
        "unknown, as nothing has finished yet"
        if forecast["left_s"] is None
        else f"about {format_seconds(forecast['left_s'])}"
    )
    lines = [
        Text(f"{forecast['tasks']:,} tasks, {forecast['slots']:,} runs: {forecast['done']:,} done, {left:,} to run")
    ]
    if sentence:
        lines.append(Text(sentence, style="yellow"))
    lines.append(Text(f"time left: {time if left else 'none'}"))
    return Group(*lines)
