"""What commands share: the app, the options that several of them have, and how an answer leaves."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stoker.errors import InputError

app = typer.Typer(
    help="Finds what starves a deep-learning pipeline, and feeds it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

WorkloadArg = Annotated[
    str, typer.Argument(help="A model (resnet50, timm/convnext_tiny, hf/bert-base-uncased) or train.py:workload.")
]
DataOption = Annotated[
    str | None,
    typer.Option(help="jpeg, tensors, packed, text, video, device, or a folder of class folders.", show_default=False),
]
ModeOption = Annotated[Literal["train", "infer"] | None, typer.Option(show_default=False)]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1; sleep:20ms stands in for a model.")]
ItemsOption = Annotated[int | None, typer.Option(help="Use only so many items of the set.", min=1, show_default=False)]
InOrderOption = Annotated[
    bool, typer.Option("--in-order/--out-of-order", help="Batches in their order, or as they are ready.")
]
WeightsOption = Annotated[Path | None, typer.Option(help="Safetensors or a state dict to load.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write charts to this HTML file.", show_default=False)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
SaveOption = Annotated[Path | None, typer.Option(help="Write the JSON document to this file too.", show_default=False)]


def writable(save: Path | None, option: str = "--save") -> None:
    """Find out before the run, not after it, that its result cannot be kept."""
    if save is not None and str(save).startswith("-"):
        raise InputError(f"{option} needs a file to write to, got {save}")
    if save is not None and save.is_dir():
        raise InputError(f"{option} needs a file to write to, and {save} is a folder")
    if save is not None and not (save.parent.is_dir() and os.access(save.parent, os.W_OK)):
        raise InputError(f"cannot write {save}: {save.parent} is not a folder that can be written to")


def report_to(path: Path | None, page: Callable[[], Any]) -> None:
    """Write the charts of an answer to an HTML file if asked. `page` is called only then: charts load much."""
    if path is None:
        return
    from stoker.report.files import write_page

    write_page(page(), path)
    typer.echo(f"charts in {path}", err=True)


def deliver(document: Any, view: Any, *, json: bool, save: Path | None) -> None:
    """Save the answer if asked, then print it: as one JSON document, or as a table for people."""
    from stoker.report import console, documents

    if save is not None:
        documents.save(document, save)
    if json:
        print_json(document)
    else:
        console.show(view)


def print_json(document: Any) -> None:
    from stoker.report.documents import to_json

    typer.echo(to_json(document))
