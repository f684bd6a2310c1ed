"""Prints a view to stdout."""

import sys

from rich.console import Console, RenderableType


def show(view: RenderableType, *, stderr: bool = False) -> None:
    """Print to stdout or stderr, with colour on a terminal. Elsewhere the text is plain and at most 100 columns
    wide."""
    console = Console(highlight=False, stderr=stderr)
    if console.is_terminal:
        console.print(view, crop=False)
        return
    console = Console(highlight=False, width=min(100, console.width))
    with console.capture() as capture:
        console.print(view, crop=False)
    stream = sys.stderr if stderr else sys.stdout
    stream.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def mode_text(mode: str, reason: str) -> str:
    """The mode and why it was chosen: `train (it has a loss)`."""
    return f"{mode} ({reason})" if reason else mode
