"""The tables of `stoker limit`."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import Limit, MethodComparison
from stoker.report.console import mode_text
from stoker.units import format_bytes, format_seconds

_ALIVE_NAMED = 4
"""Operators of the peak that the table names; the report draws all."""


def limit_view(limit: Limit) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _rows(limit).items():
        table.add_row(label, value)
    what = ", ".join(
        [mode_text(limit.mode, limit.mode_reason), limit.precision, *([limit.optimizer] if limit.optimizer else [])]
    )
    lines: list[RenderableType] = [Text.assemble((limit.workload, "bold"), f" · {what}"), Text(), table]
    if limit.probes:
        lines += [Text(), _probes(limit)]
    lines += [Text(), Text(f"{_how(limit)} ({format_seconds(limit.seconds)})", style="dim")]
    lines += [Text(f"note: {note}", style="dim") for note in limit.notes]
    return Group(*lines)


def _rows(limit: Limit) -> dict[str, str]:
    rows = {"largest batch": f"{limit.max_batch}{_interval(limit)}"}
    if limit.comfortable_batch is not None:
        rows["without cache retries"] = str(limit.comfortable_batch)
    where = "of host memory" if limit.memory == "host" else "for tensors"
    rows["memory"] = f"{format_bytes(limit.gpu_memory_bytes)} {where}"
    if limit.peak_bytes_at_max:
        rows["needed"] = (
            f"{format_bytes(limit.peak_bytes_at_max)} at that batch: "
            f"{format_bytes(limit.fixed_bytes)} fixed, {format_bytes(limit.bytes_per_item)} an item"
        )
    if limit.alive:
        total = sum(each.bytes for each in limit.alive)
        rows["alive at the peak"] = ", ".join(
            f"{each.operator} {each.bytes / total:.0%}" for each in limit.alive[:_ALIVE_NAMED]
        )
    if limit.unseen:
        rows["not counted"] = ", ".join(limit.unseen)
    for remedy in limit.remedies:
        predicted = f", {remedy.predicted_batch} predicted" if remedy.predicted_batch else ""
        rows[remedy.what] = f"{remedy.max_batch} ran{predicted}: {remedy.how}"
    return rows


def _interval(limit: Limit) -> str:
    low, high = limit.interval
    if limit.ran:
        failed = [probe.batch_size for probe in limit.probes if probe.outcome != "done"]
        above = [size for size in failed if size > limit.max_batch]
        return f", which ran; {min(above)} did not" if above else ", which ran"
    return f", expected between {low} and {high}" if low != high else ""


def _how(limit: Limit) -> str:
    if limit.ran:
        return "Every size was tried in a process of its own." if limit.method != "auto" else "Predicted, then run."
    if limit.method == "trace":
        return (
            "Predicted, not run: one step was traced on a simulated GPU. The CUDA context and other processes need "
            "memory beside this. The lower end of the interval is the careful choice."
        )
    return "Estimated, not run."


def _probes(limit: Limit) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tried", "outcome", "peak", "reserved", "retries", "time"):
        table.add_column(name, justify="left" if name == "outcome" else "right")
    for probe in limit.probes:
        table.add_row(
            str(probe.batch_size),
            probe.outcome,
            format_bytes(probe.peak_bytes),
            format_bytes(probe.reserved_bytes),
            str(probe.retries),
            format_seconds(probe.seconds),
        )
    return table


def comparison_view(comparison: MethodComparison) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "largest batch", "error", "time", "tries"):
        table.add_column(name, justify="left" if name == "method" else "right")
    problems = []
    for row in comparison.rows:
        if row.limit is None:
            table.add_row(row.method, "-", "-", "-", "-")
            problems.append(Text(f"{row.method}: {row.problem}", style="dim"))
            continue
        error = "-" if row.error is None else f"{row.error:+.1%}"
        tries = str(len(row.limit.probes)) if row.limit.probes else "-"
        table.add_row(row.method, str(row.limit.max_batch), error, format_seconds(row.limit.seconds), tries)
    legend = Text("error: (estimate − truth) / truth; the truth is the largest batch that search ran.", style="dim")
    return Group(Text(comparison.workload, style="bold"), Text(), table, Text(), legend, *problems)
