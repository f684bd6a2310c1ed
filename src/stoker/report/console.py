"""Prints a view to stdout."""

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType

from stoker.records import Trial


def show(view: RenderableType, *, stderr: bool = False) -> None:
    """Print to stdout or stderr, with colour on a terminal. Elsewhere the text is plain and at most 100 columns
    wide."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console = Console(highlight=False, stderr=stderr, width=min(100, console.width))
    with console.capture() as capture:
        console.print(view, crop=False)
    stream = sys.stderr if stderr else sys.stdout
    stream.write("".join(f"{line}\n" for line in spaced(capture.get())))


def spaced(text: str) -> Iterator[str]:
    """The lines of a text without trailing blanks, and never two empty ones in a row."""
    before = ""
    for line in map(str.rstrip, text.splitlines()):
        if line or before:
            yield line
        before = line


def mode_text(mode: str, reason: str) -> str:
    """The mode and why it was chosen: `train (it has a loss)`."""
    return f"{mode} ({reason})" if reason else mode


def batch_text(trial: Trial) -> str:
    """The batch size; where the workload makes its batches itself, the sizes that they had."""
    subject, asked, items = trial.workload, trial.setting.batch_size, trial.timeline.items
    by = "by the dataset" if subject.batching == "dataset" else "by its batch_sampler"
    if subject.batch_sampler:
        return f"batches of {_sizes(items)} {by}" if items else f"batches {by}"
    if subject.batching == "function" and set(items) - {asked}:
        return f"batches of {_sizes(items)} {by} for {asked}"
    return f"batch {asked}"


def _sizes(items: Sequence[int]) -> str:
    least, most = min(items), max(items)
    return str(most) if least == most else f"{least} to {most} (mean {sum(items) / len(items):.3g})"
