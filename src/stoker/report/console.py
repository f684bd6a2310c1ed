"""Prints a view to stdout."""

from rich.console import Console, RenderableType


def show(view: RenderableType) -> None:
    """Print to stdout, with colour on a terminal. Elsewhere the text is plain and at most 100 columns wide."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=min(100, console.width))
    console.print(view)
