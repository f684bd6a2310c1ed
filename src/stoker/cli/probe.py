"""`stoker probe`."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import (
    DataOption,
    DeviceOption,
    ItemsOption,
    JsonOption,
    ModeOption,
    PrecisionOption,
    QuietOption,
    WorkloadArg,
    app,
    deliver,
    writable,
)
from stoker.errors import InputError


@app.command()
def probe(
    workload: WorkloadArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    batch_sizes: Annotated[str, typer.Option(help="Smallest, middle and largest batch size to predict.")] = "8,32,128",
    data: DataOption = None,
    items: ItemsOption = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    budget: Annotated[str, typer.Option(help="About how long to probe.")] = "30s",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure what predictions need. Makes a few short runs and saves them in a small file."""
    from stoker.forecast.probe import probe as measure
    from stoker.records import Setting, WorkloadSpec
    from stoker.report.documents import document_of
    from stoker.report.progress import Show
    from stoker.report.views.prediction import probes_view
    from stoker.units import parse_seconds

    writable(output, "--output")
    with Show(quiet=quiet) as progress:
        found = measure(
            WorkloadSpec(spec=workload, data=data, items=items),
            setting=Setting(precision=precision),
            batch_sizes=_numbers(batch_sizes),
            mode=mode,
            device=device,
            budget_s=parse_seconds(budget),
            on_event=progress.event,
        )
    deliver(document_of(found), probes_view(found, str(output)), json=json, save=output)


def _numbers(text: str) -> list[int]:
    """`8,32,128`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"{text!r} is not a list of batch sizes; write it like 8,32,128")
    return [int(part) for part in parts]
