"""Pages and their charts as files."""

import re
from pathlib import Path

from stoker.atomic import write_whole
from stoker.errors import InputError, MachineError
from stoker.report.html import Figure, Page, png, render, svg


def write_page(page: Page, path: Path) -> None:
    """Write a page, whole or not at all. Raises MachineError where the machine refuses."""
    write_whole(path, render(page).encode())


def write_pictures(page: Page, folder: Path, kind: str) -> list[Path]:
    """Write each chart of a page as `01-title.svg` or `.png`; the folder is made. Raises MachineError where the machine
    refuses."""
    if kind not in ("svg", "png"):
        raise InputError(f"pictures are svg or png, got {kind}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"cannot make the folder {folder}: {error.strerror or error}") from None
    written = []
    for number, figure in enumerate(page.figures, start=1):
        path = folder / f"{number:02d}-{_slug(figure.title)}.{kind}"
        write_whole(path, png(figure) if kind == "png" else _picture(figure))
        written.append(path)
    return written


def _picture(figure: Figure) -> bytes:
    return f"{svg(figure, prefix='p')}\n".encode()


def _slug(title: str) -> str:
    """A title as part of a file's name: letters, digits and hyphens, at most 60 of them."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "chart"
