"""`stoker doctor`."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import (
    JsonOption,
    QuietOption,
    app,
    print_json,
)


@app.command()
def doctor(
    disk: Annotated[Path | None, typer.Option(help="Also measure how fast files in this folder are read.")] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what this machine has, and what would break a run."""
    from stoker.events import Progress
    from stoker.machine import inspect
    from stoker.report.documents import machine_document
    from stoker.report.progress import Show

    with Show(quiet=quiet) as progress:
        machine = inspect(
            disk=disk, check_torch=True, check_limits=True, progress=lambda what: progress.event(Progress(what=what))
        )
    if json:
        print_json(machine_document(machine))
    else:
        from stoker.report.console import show
        from stoker.report.views.machine import machine_view

        show(machine_view(machine))
