"""`stoker report`."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import JsonOption, app, deliver, writable


@app.command()
def report(
    source: Annotated[str, typer.Argument(help="A study's name, or a file that Stoker saved (FILE.json).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    db: Annotated[Path, typer.Option("--db", help="The store, one SQLite file.")] = Path("stoker.db"),
    against: Annotated[
        str | None,
        typer.Option(
            help="Another study of the store, or published: the seeds' figures.",
            show_default="what the authors of a preset published",
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Each chart as PNG into this folder.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Each chart as SVG into this folder.")] = None,
    json: JsonOption = False,
) -> None:
    """Charts of a study or of any saved result, in one HTML file."""
    from rich.text import Text

    from stoker.integrations.reports import page_from
    from stoker.report.files import write_page, write_pictures

    writable(output, "--output")
    page = page_from(source, db=db, against=against)
    write_page(page, output)
    pictures = [
        str(path)
        for folder, kind in ((png, "png"), (svg, "svg"))
        if folder is not None
        for path in write_pictures(page, folder, kind)
    ]
    document = {"file": str(output), "charts": len(page.figures), "pictures": pictures}
    also = f", {len(pictures)} pictures" if pictures else ""
    deliver(document, Text(f"{len(page.figures)} charts in {output}{also}"), json=json, save=None)
