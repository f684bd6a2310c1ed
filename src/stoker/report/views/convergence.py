"""The table of `stoker converge`."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.analysis.convergence import difference, epoch_means, number, sentences
from stoker.records import Convergence, TrainingRun
from stoker.units import format_count, format_seconds


def convergence_view(found: Convergence) -> RenderableType:
    seen = difference(found)
    length = format_count(found.epochs, "epoch") if found.epochs else format_count(found.updates or 0, "update")
    seeds = format_count(len(found.seeds), "seed")
    about = f" · train · batch {found.batch_size:,} against {found.against:,}, {length}, {seeds}{_rates(found)}"
    lines: list[RenderableType] = [Text.assemble((found.workload.name, "bold"), about), Text()]
    lines += [Text(f"{sentence[:1].upper()}{sentence[1:]}.", style="bold") for sentence in sentences(found, seen)]
    lines += [Text(), _means(found)]
    failed = [run for run in found.runs if run.outcome != "done"]
    lines += [Text(_failure(run), style="red") for run in failed]
    lines += [Text(f"note: {note}", style="dim") for note in found.notes]
    return Group(*lines)


def _rates(found: Convergence) -> str:
    if found.scale_lr == "none":
        return ""
    runs = [next(iter(found.of(size)), None) for size in (found.batch_size, found.against)]
    first = [f"{run.learning_rates[0]:g}" for run in runs if run is not None and run.learning_rates]
    return f", learning rate {' against '.join(first)}" if len(first) == 2 else f", learning rate {found.scale_lr}"


def _means(found: Convergence) -> Table:
    rows = epoch_means(found)
    has_metric = any(row["metric"] is not None for row in rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("batch", justify="right")
    for title in ("epoch", "updates", "train loss", "validation loss", *(["metric"] if has_metric else []), "training"):
        table.add_column(title, justify="right")
    before = None
    for row in rows:
        size = row["batch_size"]
        cells = [
            f"{size:,}" if size != before else "",
            f"{row['epochs']:g}" if (row["epochs"] or 0) % 1 == 0 else f"{row['epochs']:.2f}",
            f"{row['updates']:,}",
            _figure(row["train_loss"]),
            _figure(row["validation_loss"]),
            *([_figure(row["metric"])] if has_metric else []),
            format_seconds(float(row["train_s"] or 0)) if row["updates"] else "–",
        ]
        if before is not None and size != before:
            table.add_section()
        table.add_row(*cells)
        before = size
    return table


def _figure(value: float | int | None) -> str:
    return "–" if value is None else (f"{value:.4f}" if abs(value) < 1000 else number(float(value)))


def _failure(run: TrainingRun) -> str:
    said = run.problem.sentence if run.problem else "no reason is known"
    where = f", at {run.problem.where}" if run.problem and run.problem.where else ""
    return f"batch {run.batch_size:,}, seed {run.seed}: {run.outcome.replace('_', ' ')}: {said}{where}"
