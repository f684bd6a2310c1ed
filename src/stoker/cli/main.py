"""The entry point of the command line: registers the commands, and turns errors into one sentence and a status."""

import contextlib
import errno
import os
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
from stoker.cli import doctor, profile, limit, probe, predict, tune, prepare  # noqa: E402, F401, I001


def _interrupted(number: int, _frame: Any) -> NoReturn:
    for each in (signal.SIGINT, signal.SIGTERM):  # a second signal must not interrupt the clean-up
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted("interrupted", status=128 + number)


def main() -> NoReturn:
    """Run a command. Our errors become one sentence on stderr; all processes that were started have ended by then."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    for name in ("stdout", "stderr"):  # the parent process may have closed it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    status = 0
    try:
        try:
            app()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
    except (StokerError, Interrupted) as error:
        sys.stderr.write(f"stoker: {error}\n")
        status = error.status
    except OSError as error:
        status = _failed(error)
    sys.exit(status)


def _failed(error: OSError) -> int:
    """Report an error of the system that no command handled, such as a full disk behind stdout or a closed pipe."""
    with contextlib.suppress(OSError):  # otherwise Python tries to write the rest again at exit
        sys.stdout.close()
    if isinstance(error, BrokenPipeError):
        return 1
    remedy = "; allow more with: ulimit -n 4096" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    sys.stderr.write(f"stoker: {error.strerror or error}{f': {error.filename}' if error.filename else ''}{remedy}\n")
    return 1
