"""The command line: parse, call, show; nothing else."""

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
from stoker.cli import doctor, profile, limit, probe, predict, tune, prepare, study, report  # noqa: E402, F401, I001


def _interrupted(number: int, _frame: Any) -> NoReturn:
    for each in (signal.SIGINT, signal.SIGTERM):  # once is enough: what follows ends all that was started
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted("interrupted", status=128 + number)


def main() -> NoReturn:
    """Run a command; an error of ours is one sentence on stderr, and anything that was started has been ended."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    for name in ("stdout", "stderr"):  # closed by whoever started us
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
    """What the machine refused, where no command knew better: a full disk behind stdout, a reader that went away."""
    with contextlib.suppress(OSError):  # what could not be written would be tried again at the end
        sys.stdout.close()
    if isinstance(error, BrokenPipeError):
        return 1
    remedy = "; allow more with: ulimit -n 4096" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    sys.stderr.write(f"stoker: {error.strerror or error}{f': {error.filename}' if error.filename else ''}{remedy}\n")
    return 1
