"""`stoker study`: run, presets, list, status, show, export, import."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stoker.cli.options import (
    JsonOption,
    PerOption,
    QuietOption,
    RayAddressOption,
    RayOption,
    ReportOption,
    app,
    deliver,
    ray_executor,
    writable,
)
from stoker.errors import InputError

study_app = typer.Typer(
    help="Many runs: grids and presets that resume, and what they show.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(study_app, name="study")

PROMISE = (
    "Killed at any moment, `stoker study run` goes on: no recorded trial is lost or run again, what was in flight is "
    "run again, each task and repeat has exactly one current row per machine, several processes may share the file, "
    "and a changed grid is reported, not guessed."
)

DbOption = Annotated[Path, typer.Option("--db", help="The store, one SQLite file.")]
DEFAULT_DB = Path("stoker.db")
NameArg = Annotated[str, typer.Argument(help="A study's name.")]
TableName = Literal[
    "item-times",
    "first-batches",
    "stages",
    "breakdown",
    "utilisation",
    "accuracy",
    "largest-batch",
    "batch-limits",
    "one-for-all",
    "leave-one-out",
    "summary",
    "convergence",
    "published",
]
ByOption = Annotated[
    str | None, typer.Option(help="Split the table by these columns too: precision.", show_default=False)
]


@study_app.command("run", epilog=PROMISE)
def run_study(
    grid: Annotated[str, typer.Argument(help="A grid file (GRID.toml), a preset, or a study of the store.")],
    db: DbOption = DEFAULT_DB,
    scale: Annotated[Literal["small", "full"], typer.Option(help="The size of a preset.")] = "full",
    only: Annotated[list[str] | None, typer.Option(help="Run only these: num_workers=8. May be repeated.")] = None,
    repeats: Annotated[int | None, typer.Option(help="In place of the grid's.", show_default=False)] = None,
    budget: Annotated[str | None, typer.Option(help="Start no trial that would end after this: 2h.")] = None,
    jobs: Annotated[int, typer.Option(help="Trials at once on this machine. They disturb each other.")] = 1,
    retry: Annotated[list[str] | None, typer.Option(help="Run again what ended so: failed, oom, crashed, ….")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and how long it should take.")
    ] = False,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    per: PerOption = None,
    report: ReportOption = None,
    events: Annotated[bool, typer.Option("--events", help="Print one JSON line a trial.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a grid or a preset, or go on with it."""
    import msgspec

    from stoker.integrations.reports import LiveReport
    from stoker.report.progress import Show
    from stoker.report.views.study import forecast_view, run_view
    from stoker.studies.study import study
    from stoker.units import parse_seconds

    if events and json:
        raise InputError("--events streams lines and --json prints one document; choose one")
    budget_s = parse_seconds(budget) if budget else None
    found = study(grid, db=db, scale=scale)
    if jobs != 1 and (ray or ray_address is not None):
        raise InputError(
            "--jobs is for this machine; with --ray as many trials run at once as the cluster has room for"
        )
    if dry_run:
        with ray_executor(ray, ray_address, per, quiet=quiet) as executor:
            forecast = found.forecast(executor=executor, only=only or (), repeats=repeats)
        document = msgspec.to_builtins(forecast)
        deliver(document, forecast_view(document, forecast.change.sentence), json=json, save=None)
        return
    writable(report, "--report")
    live = LiveReport(found, report) if report else None
    with ray_executor(ray, ray_address, per, quiet=quiet) as executor, Show(quiet=quiet) as progress:
        reporter = _Reporter(found, progress, prints_lines=events, quiet=quiet)

        def on_progress(at: Any) -> None:
            if live is not None:
                live.update(at)
            reporter.progress(at)

        try:
            summary = found.run(
                executor=executor,
                only=only or (),
                repeats=repeats,
                budget_s=budget_s,
                jobs=jobs,
                retry=retry or (),
                on_trial=reporter.trial,
                on_progress=on_progress,
                on_change=reporter.change,
            )
        finally:
            if live is not None:
                live.finish()
    change = reporter.changed
    document = {
        "study": found.name,
        "db": str(db),
        **msgspec.to_builtins(summary),
        "change": msgspec.to_builtins(change),
    }
    if not events:
        flag = "" if db == DEFAULT_DB else f" --db {db}"
        view = run_view(document, f"next: stoker study show {found.name}{flag}")
        deliver(document, view, json=json, save=None)
    if summary.unfinished:
        raise typer.Exit(1)


class _Reporter:
    """Passes on what a driver reports: lines on stdout for programs, progress on stderr for people."""

    def __init__(self, study: Any, show: Any, *, prints_lines: bool, quiet: bool) -> None:
        self._study = study
        self._cells: dict[str, dict[str, Any]] = {key: asked.values for key, asked in study.tasks.items()}
        self._axes, self._show = tuple(study.grid.axis_names), show
        self._prints_lines, self._quiet = prints_lines, quiet
        self.changed: Any = None

    def _cell(self, key: str) -> dict[str, Any]:
        """The values of a task. A generator's are known as soon as they run."""
        if key not in self._cells:
            self._cells = {each: asked.values for each, asked in self._study.tasks.items()}
        return self._cells.get(key, {})

    def change(self, change: Any) -> None:
        self.changed = change
        if change.sentence and not self._quiet:
            typer.echo(change.sentence, err=True)

    def trial(self, slot: Any, row: Any) -> None:
        if not self._prints_lines:
            return
        import msgspec

        known = {"key": slot.key, "repeat": slot.repeat, "attempt": row.attempt, "outcome": row.outcome}
        cell = self._cell(slot.key)
        names = [name for name in ("seconds", "first_batch_s", "max_batch") if name not in cell]
        line = {**known, **cell, **{name: row.figures.get(name) for name in names}, "problem": row.problem}
        typer.echo(msgspec.json.encode(line).decode())

    def progress(self, at: Any) -> None:
        from stoker.units import format_seconds

        left = f", {format_seconds(at.left_s)} left" if at.left_s and at.done < at.of else ""
        if at.waits_for:
            other = at.waits_for[0]
            place = "" if other.owner.is_visible else " in another container"
            what = f"waiting for process {other.owner.pid}{place}"
        else:
            cells = [self._cell(key) for key in at.running[:_MOST_RUNNING]]
            names = dict.fromkeys((*self._axes, "batch_size", "num_workers"))
            texts = [", ".join(f"{name}={cell[name]}" for name in names if name in cell) for cell in cells]
            more = f"; and {len(at.running) - _MOST_RUNNING:,} more" if len(at.running) > _MOST_RUNNING else ""
            what = "; ".join(texts) + more
        self._show.progress(f"{what or 'finishing'}{left}", at.done, at.of)


_MOST_RUNNING = 3
"""Of the runs under way, so many are named."""


@study_app.command()
def presets(json: JsonOption = False) -> None:
    """The experiments of the seed documents, ready to run."""
    from stoker.report.views.study import presets_view
    from stoker.studies.presets import describe

    rows = describe()
    deliver(rows, presets_view(rows), json=json, save=None)


@study_app.command("list")
def list_studies(db: DbOption = DEFAULT_DB, json: JsonOption = False) -> None:
    """The studies of a store."""
    from stoker.report.views.study import list_view
    from stoker.studies.study import listing

    rows = listing(db)
    deliver(rows, list_view(rows, str(db)), json=json, save=None)


@study_app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A study's name.", show_default="all")] = None,
    db: DbOption = DEFAULT_DB,
    json: JsonOption = False,
) -> None:
    """How far a study is, by machine."""
    import msgspec
    from rich.console import Group

    from stoker.report.views.study import status_view
    from stoker.studies.study import listing, stored_study

    names = [name] if name is not None else [row["name"] for row in listing(db)]
    documents = [msgspec.to_builtins(stored_study(each, db).status()) for each in names]
    view = Group(*(status_view(document) for document in documents))
    deliver(documents[0] if name is not None else documents, view, json=json, save=None)


@study_app.command()
def show(
    name: NameArg,
    top: Annotated[
        int | None, typer.Option(help="How many workloads have a setting among their N fastest.", show_default=False)
    ] = None,
    regret: Annotated[bool, typer.Option("--regret", help="Average and worst regret of each setting.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The fastest setting of each workload.")] = False,
    effects: Annotated[bool, typer.Option("--effects", help="What each axis does, all else equal.")] = False,
    ties: Annotated[bool, typer.Option("--ties", help="What cannot be distinguished from the best.")] = False,
    table: Annotated[
        TableName | None,
        typer.Option(help="Another table.", show_default=False),
    ] = None,
    by: ByOption = None,
    db: DbOption = DEFAULT_DB,
    json: JsonOption = False,
) -> None:
    """What a study shows. Without an option: regret; of limit studies the largest batches, of tune studies the best, of
    search studies the stages."""
    from rich.console import Group

    from stoker.report.views.study import breakdown_view, stages_view, table_of
    from stoker.studies.study import stored_study
    from stoker.studies.tables import rows_of, usual_table

    options = {"regret": regret, "best": best, "effects": effects, "ties": ties, "top": top is not None}
    asked = [option for option, is_asked in options.items() if is_asked] + ([table] if table else [])
    if len(asked) > 1:
        raise InputError("choose one of --top, --regret, --best, --effects, --ties and --table")
    if top is not None and top < 1:
        raise InputError(f"--top must be at least 1, got {top}")
    found = stored_study(name, db)
    split = tuple(each.strip() for each in by.split(",") if each.strip()) if by else ()
    more = {"n": top} if top is not None else {}
    trials = found.trials()
    which = asked[0] if asked else usual_table(found.grid.kind, trials)
    labels = found.machines()
    rows = rows_of(found.table(which, by=split, trials=trials, **more), labels)
    if json:
        deliver(rows, None, json=True, save=None)
        return
    if which == "published":
        deliver(rows, Group(*_published(found.name, trials, rows)), json=False, save=None)
        return
    view = {"stages": stages_view, "breakdown": breakdown_view}.get(which, table_of)(rows, limit=_MOST_ROWS)
    more_views = () if asked else _published(found.name, trials)
    deliver(rows, Group(_finding(found, trials, labels, split), view, *more_views), json=False, save=None)


_MOST_ROWS = 40
"""So many rows are shown; --json and export have all."""


def _published(name: str, trials: Any, rows: Any = None) -> tuple[Any, ...]:
    """The thesis' figures beside ours for its presets; of others the rows that are given."""
    from stoker.analysis import thesis
    from stoker.report.views.study import beside_view, table_of

    if thesis.preset_of(name) is None or not trials.height:
        return () if rows is None else (table_of(rows, limit=_MOST_ROWS),)
    return (beside_view(thesis.beside(name, trials)),)


def _finding(found: Any, trials: Any, labels: dict[str, str], by: tuple[str, ...]) -> Any:
    """What the study says in a sentence, above whatever table."""
    from stoker.analysis.breakdown import dominant
    from stoker.analysis.frames import comparable, of_one_kind
    from stoker.report.views.study import (
        convergence_finding_view,
        finding_view,
        limit_finding_view,
        search_finding_view,
    )
    from stoker.studies.tables import kind_shown, rows_of

    if found.grid.kind == "converge":
        return convergence_finding_view(trials.to_dicts())
    if found.grid.kind == "search":
        counts = rows_of(found.table("summary", by=by, trials=trials), labels)
        # Such a study varies one thing at a time: that a model lacks a value which another has is no gap.
        counts = [{**row, "cells": row["cells"] - row["missing"], "missing": 0} for row in counts]
        sentences = [each.sentence for each in dominant(trials)] if trials.height else []
        return search_finding_view(sentences, counts, sum(each.missing for each in found.status().machines))
    is_limit = kind_shown(found.grid.kind, trials) == "limit"
    trials = of_one_kind(trials)
    best = rows_of(found.table("largest-batch" if is_limit else "one-for-all", by=by, trials=trials), labels)
    counts = rows_of(found.table("summary", by=by, trials=trials), labels)
    not_run = found.status().missing
    if is_limit:
        return limit_finding_view(best, counts, not_run)
    return finding_view(best, counts, not_run, by_item=comparable(trials, by=by)[1])


@study_app.command()
def export(
    name: NameArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.csv, FILE.parquet or FILE.json.")],
    samples: Annotated[bool, typer.Option("--samples", help="With raw samples (JSON only).")] = False,
    db: DbOption = DEFAULT_DB,
    json: JsonOption = False,
) -> None:
    """Write a study's trials to a file."""
    from rich.text import Text

    from stoker.studies.study import stored_study
    from stoker.units import format_count

    count = stored_study(name, db).export(output, samples=samples)
    document = {"file": str(output), "trials": count}
    deliver(document, Text(f"{format_count(count, 'trial')} in {output}"), json=json, save=None)


@study_app.command("import")
def import_study(
    files: Annotated[list[Path] | None, typer.Argument(help="FILE.csv, or trials that Stoker saved.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The study's name.", show_default="the preset's, with published-")
    ] = None,
    map: Annotated[
        str | None, typer.Option("--map", help="Our columns by theirs: seconds=end_to_end,workload=net.")
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(help="Published figures: batch-and-workers, batch-impact, batch-medians, data-loading, …"),
    ] = None,
    db: DbOption = DEFAULT_DB,
    json: JsonOption = False,
) -> None:
    """Make a study of a table, of saved trials, or of published figures."""
    from rich.text import Text

    from stoker.studies.transfer import import_files, import_published, parse_map
    from stoker.units import format_count

    if published is not None:
        if files or map:
            raise InputError("--published imports figures that Stoker ships; leave out files and --map")
        study_name = name or f"published-{published}"
        total, new = import_published(published, db=db, name=study_name)
    else:
        if not files:
            raise InputError("name a file to import, or --published batch-and-workers")
        if name is None:
            raise InputError("name the study: --name NAME")
        study_name = name
        total, new = import_files(files, name=name, db=db, columns=parse_map(map))
    document = {"study": study_name, "trials": total, "new": new}
    deliver(document, Text(f"{format_count(total, 'trial')}, {new:,} new, in study {study_name}"), json=json, save=None)
