"""The page of two batch sizes compared by what they learn: the answer, and the curves of every run."""

from functools import partial

from stoker.analysis.convergence import CurveFigure, curve_rows, difference, sentences
from stoker.analysis.student import Estimate
from stoker.records import Convergence, TrainingRun
from stoker.report import charts
from stoker.report.html import Card, Figure, Page, Section, Table
from stoker.report.pages.parts import capital, counted, figure, machine_facts, moment, short_names
from stoker.units import format_count, format_seconds


def convergence_page(found: Convergence) -> Page:
    """Curves over items and over seconds, and a row for every run."""
    said = sentences(found)
    cards = [Card(about="does it still learn?", answer=capital(said[0]) + ".")]
    cards += [Card(about="and", answer=capital(each) + ".") for each in said[1:]]
    length = format_count(found.epochs, "epoch") if found.epochs else format_count(found.updates or 0, "update")
    about = f"batch {found.batch_size:,} against {found.against:,}, {length}, {format_count(len(found.seeds), 'seed')}"
    sections = [Section("Curves", _figures(found)), Section("Runs", tables=_tables(found))]
    facts = {
        **machine_facts(found.machine),
        "date": moment(found.when),
        "learning rate": "the workload's own for both" if found.scale_lr == "none" else f"scaled: {found.scale_lr}",
        "interval": "Student's t, 95 %, over the differences of the seeds",
    }
    name = short_names([found.workload.name])[found.workload.name]
    drawn = [section for section in sections if section.figures or section.tables]
    return Page("convergence", name, about, cards, drawn, facts, found.notes)


def _figures(found: Convergence) -> list[Figure]:
    wanted: tuple[tuple[CurveFigure, str, str, str], ...] = (
        ("validation_loss", "Validation loss", "items", "items seen"),
        ("validation_loss", "Validation loss", "seconds", "seconds of training"),
        ("metric", "Metric", "items", "items seen"),
        ("train_loss", "Training loss", "items", "items seen"),
    )
    figures = []
    for name, title, x, x_title in wanted:
        rows = curve_rows(found, figure=name)
        if len(rows) > 2:
            draw = partial(charts.curves, x=x, y=name, x_title=x_title, y_title=title.lower())
            note = f"A line for each of {counted(len(found.seeds), 'seed')}, a colour for each batch size."
            figures.append(figure(f"{title} over {x_title}", rows, draw, note=note, alt=title, half=True))
    return figures


def _tables(found: Convergence) -> list[Table]:
    seen = difference(found)
    unit = " points" if seen.metric_scale == 100 else ""
    differences = [
        ["metric" + unit, *_estimate(seen.metric)] if seen.metric else [],
        ["validation loss", *_estimate(seen.loss)] if seen.loss else [],
    ]
    title = f"At the end: batch {found.against:,} less batch {found.batch_size:,}"
    columns = ["figure", "mean", "±", "by seed"]
    runs = Table("", ["batch", "seed", "outcome", "validation loss", "metric", "training"], list(map(_run, found.runs)))
    return [Table(title, columns, [row for row in differences if row]), runs]


def _estimate(value: Estimate) -> list[str]:
    margin = "–" if value.margin is None else f"{value.margin:.4g}"
    return [f"{value.mean:.4g}", margin, ", ".join(f"{each:.4g}" for each in value.values)]


def _run(run: TrainingRun) -> list[str]:
    last = run.last
    outcome = "diverged" if run.diverged else run.outcome.replace("_", " ")
    if run.problem is not None:
        outcome += f": {run.problem.sentence}"
    loss = last.validation_loss if last else None
    metric = last.metric if last else None
    return [
        f"{run.batch_size:,}",
        str(run.seed),
        outcome,
        "–" if loss is None else f"{loss:.4f}",
        "–" if metric is None else f"{metric:.4f}",
        format_seconds(run.train_s) if run.checkpoints else "–",
    ]
