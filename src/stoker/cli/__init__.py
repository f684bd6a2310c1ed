"""The command line: parse, call, show; nothing else."""

import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from stoker.cli.options import app as app
from stoker.errors import Interrupted, StokerError


def _version(asked: bool) -> None:
    if asked:
        from stoker import __version__

        typer.echo(f"stoker {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Finds what starves a deep-learning pipeline, and feeds it."""


# Commands register themselves, in the order in which help lists them.
from stoker.cli import measuring, limits, tuning, preparing  # noqa: E402, F401, I001


def _interrupted(number: int, _frame: Any) -> NoReturn:
    raise Interrupted("interrupted", status=128 + number)


def main() -> NoReturn:
    """Run a command; an error of ours is one sentence on stderr, and anything that was started has been ended."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        app()
    except StokerError as error:
        sys.stderr.write(f"stoker: {error}\n")
        sys.exit(error.status)
    sys.exit(0)
