"""`stoker study`: run, presets, list, status, show, export, import."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stoker.cli.options import JsonOption, QuietOption, ReportOption, app, deliver, writable
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
ByOption = Annotated[
    str | None, typer.Option(help="Split the table by these axes only: data,device.", show_default="all but workload")
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
        bool, typer.Option("--dry-run", help="Say what would run, and how long it should take.")
    ] = False,
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
    from stoker.units import format_seconds, parse_seconds

    if events and json:
        raise InputError("--events streams lines and --json prints one document; choose one")
    found = study(grid, db=db, scale=scale)
    if dry_run:
        forecast = found.forecast(only=only or (), repeats=repeats)
        document = msgspec.to_builtins(forecast)
        deliver(document, forecast_view(document, forecast.change.sentence), json=json, save=None)
        return
    writable(report, "--report")
    live = LiveReport(found, report) if report else None
    labels = {key: asked.values for key, asked in found.grid.tasks().items()}
    with Show(quiet=quiet) as progress:

        def on_trial(slot: Any, row: Any) -> None:
            if events:
                figures = {name: row.figures.get(name) for name in ("seconds", "first_batch_s", "max_batch")}
                line = {
                    "key": slot.key,
                    "repeat": slot.repeat,
                    "outcome": row.outcome,
                    **labels.get(slot.key, {}),
                    **figures,
                }
                typer.echo(msgspec.json.encode({**line, "problem": row.problem}).decode())

        def on_progress(at: Any) -> None:
            if live is not None:
                live.update(at)
            left = f", {format_seconds(at.left_s)} left" if at.left_s else ""
            what = ", ".join(
                f"{name}={value}" for name, value in labels.get(at.running, {}).items() if name in found.grid.axes
            )
            progress.progress(f"{what or 'done'}{left}", at.done, at.of)

        def on_change(change: Any) -> None:
            if change.sentence and not quiet:
                typer.echo(change.sentence, err=True)

        try:
            summary = found.run(
                only=only or (),
                repeats=repeats,
                budget_s=parse_seconds(budget) if budget else None,
                jobs=jobs,
                retry=retry or (),
                on_trial=on_trial,
                on_progress=on_progress,
                on_change=on_change,
            )
        finally:
            if live is not None:
                live.finish()
    document = {"study": found.name, "db": str(db), **msgspec.to_builtins(summary)}
    if not events:
        flag = "" if db == DEFAULT_DB else f" --db {db}"
        deliver(
            document, run_view(document, f"next: stoker study show {found.name} --regret{flag}"), json=json, save=None
        )
    if summary.unfinished:
        raise typer.Exit(1)


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
    top: Annotated[int | None, typer.Option(help="How many workloads have a setting among their N fastest.")] = None,
    regret: Annotated[bool, typer.Option("--regret", help="Average and worst regret of each setting.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The fastest setting of each workload.")] = False,
    effects: Annotated[bool, typer.Option("--effects", help="What each axis does, all else equal.")] = False,
    ties: Annotated[bool, typer.Option("--ties", help="What cannot be told apart from the best.")] = False,
    by: ByOption = None,
    db: DbOption = DEFAULT_DB,
    json: JsonOption = False,
) -> None:
    """What a study shows. Without an option: regret, or for a limit study the largest batches."""
    from stoker.report.views.study import table_of
    from stoker.studies.study import stored_study

    asked = [top is not None, regret, best, effects, ties]
    if sum(asked) > 1:
        raise InputError("choose one of --top, --regret, --best, --effects and --ties")
    if top is not None and top < 1:
        raise InputError(f"--top must be at least 1, got {top}")
    found = stored_study(name, db)
    split = tuple(each.strip() for each in by.split(",") if each.strip()) if by else ()
    if top is not None:
        frame = found.top(top, by=split)
    elif best:
        frame = found.best(by=split)
    elif effects:
        frame = found.effects(by=split)
    elif ties:
        frame = found.ties(by=split)
    elif found.grid.kind == "limit" and not regret:
        frame = found.largest_batch(by=split)
    else:
        frame = found.regret(by=split)
    rows = found.labelled(frame)
    deliver(rows, table_of(rows, limit=None if json else 40), json=json, save=None)


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

    found = stored_study(name, db)
    path = found.export(output, samples=samples)
    rows = len(found.trials())
    deliver({"file": str(path), "trials": rows}, Text(f"{rows:,} trials in {path}"), json=json, save=None)


@study_app.command("import")
def import_study(
    files: Annotated[list[Path] | None, typer.Argument(help="FILE.csv, or trials that Stoker saved.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The study's name.", show_default="the preset's, with published-")
    ] = None,
    map: Annotated[
        str | None, typer.Option("--map", help="Our columns by theirs: seconds=end_to_end,workload=net.")
    ] = None,
    published: Annotated[str | None, typer.Option(help="The figures of a seed: batch-and-workers.")] = None,
    db: DbOption = DEFAULT_DB,
    json: JsonOption = False,
) -> None:
    """Make a study of a table, of saved trials, or of published figures."""
    from rich.text import Text

    from stoker.studies.transfer import import_files, import_published, parse_map

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
    document = {"study": study_name, "rows": total, "new": new}
    deliver(document, Text(f"{new:,} of {total:,} rows are new in study {study_name}"), json=json, save=None)
