"""Commands as people give them: in a process of their own, or in this one, where torch has been imported already."""

import io
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from stoker.cli.main import main

Done = subprocess.CompletedProcess[str]


def apart(*arguments: str, cwd: Path | None = None) -> Done:
    """As from a shell."""
    command = [sys.executable, "-m", "stoker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=240)


def here(*arguments: str) -> Done:
    """The same code from the same door, several seconds sooner."""
    out, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before, sys.argv = sys.argv, ["stoker", *arguments]
    status: object = None
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())
