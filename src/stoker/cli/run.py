"""`stoker run`: the user's own command, observed."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stoker.cli.options import ReportOption, SaveOption, app, writable
from stoker.errors import StokerError


class _Command(TyperCommand):
    """From the first word of the user's command on, every argument is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`-m package` and `-c code` begin a command, too."""
        place = _first_word(self, ctx, args)
        return super().parse_args(ctx, [*args[:place], "--", *args[place:]] if place < len(args) else args)


def _first_word(command: Any, ctx: Any, args: list[str]) -> int:
    """Where the user's command begins. After `--` nothing is looked at."""
    valued = {
        option: not getattr(each, "is_flag", False)
        for each in command.get_params(ctx)
        for option in (*each.opts, *each.secondary_opts)
    }
    place = 0
    while place < len(args):
        word = args[place]
        if word == "--":
            return len(args)
        if not word.startswith("-") or (not word.startswith("--") and word not in valued):
            return place
        place += 2 if valued.get(word, False) else 1
    return len(args)


@app.command(cls=_Command, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="train.py ARGS, -m package ARGS, torchrun ARGS, any program."),
    ],
    batches: Annotated[int, typer.Option(help="Observe this many batches of the training loader.", min=1)] = 200,
    stop: Annotated[bool, typer.Option("--stop", help="End the script there, with status 0.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Run the script again with the best settings.")] = False,
    set_: Annotated[
        str | None,
        typer.Option("--set", help="Arguments for the training loader: workers=8,prefetch=4.", show_default=False),
    ] = None,
    headroom: Annotated[
        bool, typer.Option("--headroom", help="At the end, run some steps without loading. Trains no more.")
    ] = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no report.")] = False,
) -> None:
    """Run a training script unchanged. Afterwards say where its time went and what would make it faster."""
    from stoker.integrations.launch import overrides_from
    from stoker.integrations.script import ScriptRequest, run_script
    from stoker.records import ScriptAnswer

    request = ScriptRequest(
        command=tuple(command),
        batches=batches,
        stop=stop,
        verify=verify,
        headroom=headroom,
        overrides=overrides_from(set_) if set_ else {},
    )
    writable(save)
    writable(report, "--report")

    def say(sentence: str) -> None:
        typer.echo(f"stoker: {sentence}", err=True)

    def save_answer(answer: ScriptAnswer) -> None:
        if save is None or answer.training is None:
            return
        from stoker.report import documents  # the script has started: what takes time to import comes from here on

        try:
            documents.save(documents.script_document(answer), save)
        except (StokerError, OSError) as error:
            if answer.status is not None:  # otherwise it is tried again at the end
                typer.echo(f"stoker: {error}", err=True)

    answer = run_script(request, say=say, on_answer=save_answer)
    finish(answer, save=save, report=report, quiet=quiet)
    raise typer.Exit(answer.status or 0)


def finish(answer: Any, *, save: Path | None, report: Path | None, quiet: bool) -> None:
    """The report on stderr: whatever is wrong with it, the status is the script's."""
    from stoker.report import console
    from stoker.report.views.run import script_view

    try:
        if not quiet:
            console.show(script_view(answer), stderr=True)
        if answer.training is None:
            if save is not None or report is not None:
                typer.echo("stoker: there is nothing to save: no loader was observed", err=True)
            return
        if report is not None:
            from stoker.integrations.reports import script_page
            from stoker.report.files import write_page

            write_page(script_page(answer), report)
            typer.echo(f"charts in {report}", err=True)
    except (StokerError, OSError) as error:
        typer.echo(f"stoker: {error}", err=True)
