"""The command `prepare`."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import (
    JsonOption,
    QuietOption,
    app,
    print_json,
)


@app.command()
def prepare(
    source: Annotated[Path, typer.Argument(help="A folder of images with one folder a class.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to create.")],
    packed: Annotated[bool, typer.Option("--packed", help="Write one file for all items instead of one each.")] = False,
    image_size: Annotated[int, typer.Option(help="Side of the images after preprocessing.", min=8)] = 224,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Turn a folder of images into tensors that need no decoding."""
    from stoker.report.progress import Show
    from stoker.units import format_bytes
    from stoker.workload.data.prepare import prepare as make

    with Show(quiet=quiet) as progress:
        made = make(source, output, packed=packed, image_size=image_size, progress=progress.progress)
    if json:
        print_json(made)
    else:
        typer.echo(f"{sum(made.items.values())} items, {format_bytes(made.stored_bytes)}, in {made.path}")
