"""The entry point of the command line: registers the commands, and turns errors into one sentence and a status."""

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import traceback
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
from stoker.cli import doctor, profile, run, limit, probe, predict, tune, prepare  # noqa: E402, F401, I001, RUF100
from stoker.cli import converge, search, study, report, compare  # noqa: E402, F401, I001, RUF100


class _Signals:
    """Turns signals into `Interrupted`, once, and makes sure that it arrives.

    The clean-up that follows must not be interrupted, so further signals are ignored. But an exception that is raised
    inside a destructor or an at-fork hook is dropped by Python. Then the signal is sent again a moment later.
    """

    def __init__(self) -> None:
        hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # nohup ignores it, and so do we then
        self._numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))

    def install(self) -> None:
        for number in self._numbers:
            signal.signal(number, self._interrupt)
        sys.unraisablehook = self._dropped

    def _interrupt(self, number: int, _frame: Any) -> NoReturn:
        for each in self._numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted("interrupted", status=128 + number)

    def _dropped(self, dropped: Any) -> None:
        if not isinstance(dropped.exc_value, Interrupted):
            sys.__unraisablehook__(dropped)
            return
        number = dropped.exc_value.status - 128
        self.install()
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


_AGAIN_S = 0.05


def main() -> NoReturn:
    """Run a command. Every error becomes one sentence on stderr; all processes that were started have ended by then."""
    _Signals().install()
    _open_streams()
    status = 0
    try:
        try:
            app()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
    except (StokerError, Interrupted) as error:
        _say(str(error))
        status = error.status
    except OSError as error:
        status = _failed(error)
    except Exception as error:
        status = _unexpected(error)
    sys.exit(status)


def _open_streams() -> None:
    """Make stdout and stderr safe: open, buffered, and able to write any text.

    Without a buffer (PYTHONUNBUFFERED) Python drops what a short write leaves, so a full disk would go unnoticed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the parent process may have closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
            continue
        raw = getattr(stream, "buffer", None)
        if name == "stdout" and isinstance(raw, io.FileIO):
            stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors="replace")
            sys.stdout = stream
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if name == "stdout" else "backslashreplace")


def _say(sentence: str) -> None:
    """One sentence on stderr: without control characters, and not longer than a screen."""
    text = "".join(each if each.isprintable() else " " for each in sentence)
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"stoker: {short}\n")


_LONGEST = 2000
"""Characters of an error that are shown: more than any sentence of ours, less than a message of megabytes."""


def _failed(error: OSError) -> int:
    """Report an error of the system that no command handled, such as a full disk behind stdout or a closed pipe."""
    with contextlib.suppress(OSError):  # otherwise Python tries to write the rest again at exit
        sys.stdout.close()
    if isinstance(error, BrokenPipeError):
        return 1
    remedy = "; allow more with: ulimit -n 4096" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    _say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}{remedy}")
    return 1


def _unexpected(error: Exception) -> int:
    """Report what nobody foresaw, in one sentence; the traceback only if it is asked for."""
    if os.environ.get("STOKER_DEBUG"):
        traceback.print_exc()
    else:
        text = str(error).partition("\n")[0]
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        _say(f"this should not have happened ({what}); STOKER_DEBUG=1 shows where")
    return 1
