"""The tables of `stoker predict` and `stoker probe`: one setting, all settings, or the probes."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import Prediction, Probes
from stoker.report.console import mode_text
from stoker.units import format_seconds, format_workers


def prediction_view(found: Prediction, probes: Probes | None = None) -> RenderableType:
    """One setting: its time with the interval, its first batch, its rate, and what limits it.

    `probes` adds the name of the workload and the notes.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    passes = f" in each of {found.epochs} epochs" if found.epochs > 1 else ""
    rows = {
        "whole run": f"{_span(found.total_s, found.interval_s)} for {found.items:,} items{passes}",
        "first batch after": _span(found.first_batch_s, found.first_batch_interval_s),
        "steady": f"{found.steady_items_per_s:,.1f} items/s",
        "the device waits": f"{found.wait_share:.0%} of the time",
        "limited by": found.limited_by,
    }
    for label, value in rows.items():
        table.add_row(label, value)
    notes = [Text(f"note: {note}", style="yellow") for note in (probes.notes if probes else ())]
    return Group(_heading(found, probes), Text(), table, *notes)


def _span(seconds: float, interval: tuple[float, float]) -> str:
    return f"{format_seconds(seconds)} ({format_seconds(interval[0])} – {format_seconds(interval[1])})"


def _heading(found: Prediction, probes: Probes | None) -> Text:
    what = f"batch {found.setting.batch_size}, {format_workers(found.setting.num_workers)}: predicted"
    if probes is None:
        return Text(what)
    subject = probes.subject
    mode = mode_text(subject.mode, subject.mode_reason)
    return Text.assemble((subject.name, "bold"), f" · {subject.data} · {mode} on {subject.device} · {what}")


def grid_view(found: Sequence[Prediction], probes: Probes) -> RenderableType:
    """Predicted seconds, worker counts down and batch sizes across, the best in bold."""
    sizes = sorted({each.setting.batch_size for each in found})
    counts = sorted({each.setting.num_workers for each in found})
    cells = {(each.setting.batch_size, each.setting.num_workers): each for each in found}
    best = min(found, key=lambda each: each.total_s)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("workers", justify="right", no_wrap=True)
    for size in sizes:
        table.add_column(f"batch {size}" if size == sizes[0] else str(size), justify="right", no_wrap=True)
    for count in counts:
        texts = [_cell(cells.get((size, count)), best) for size in sizes]
        table.add_row(str(count), *texts)
    items = f"{best.items:,} items" + (f", {best.epochs} epochs" if best.epochs > 1 else "")
    summary = (
        f"Best: batch {best.setting.batch_size}, {format_workers(best.setting.num_workers)}, "
        f"{_span(best.total_s, best.interval_s)}, limited by {best.limited_by}."
    )
    subject = probes.subject
    heading = Text.assemble((subject.name, "bold"), f" · {subject.data} · predicted seconds for {items}")
    return Group(heading, table, Text(summary, style="bold"))


def _cell(found: Prediction | None, best: Prediction) -> Text:
    if found is None:
        return Text("–")
    digits = 2 if found.total_s < 10 else 1 if found.total_s < 100 else 0
    return Text(f"{found.total_s:.{digits}f}", style="bold green" if found is best else "")


def probes_view(probes: Probes, path: str | None) -> RenderableType:
    """The probes, and the file that they were written to."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("run", "batch", "workers", "batches", "seconds"):
        table.add_column(title, justify="left" if title == "run" else "right")
    for run in probes.runs:
        cells = (run.batch_size, run.num_workers, len(run.items), f"{run.total_s:.2f}")
        table.add_row(run.kind, *map(str, cells))
    saved = f", saved to {path}" if path else ""
    subject = probes.subject
    heading = Text.assemble(
        (subject.name, "bold"), f" · {subject.data} · probed in {format_seconds(probes.seconds)}{saved}"
    )
    return Group(heading, table, *(Text(f"note: {note}", style="yellow") for note in probes.notes))
