"""The `stoker` command and `python -m stoker`: ready for Ctrl-C before the rest is imported."""

import os
import signal
from typing import Any, NoReturn


def main() -> NoReturn:
    """Run a command, as `stoker.cli.main` does. Ctrl-C while that is being imported ends the process with status
    130."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from stoker.cli.main import main as run

    run()


def _leave(number: int, _frame: Any) -> NoReturn:
    """Nothing has been started yet, so nothing has to be ended. An exception would show a traceback of the import."""
    os.write(2, b"stoker: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
