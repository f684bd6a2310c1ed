"""Prints a view to stdout."""

from rich.console import Console, RenderableType


def show(view: RenderableType) -> None:
    """Print to stdout: in colour on a terminal, plain and at most 100 wide elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=min(100, console.width))
    console.print(view)
