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
    StartMethodsOption,
    ThreadCountsOption,
    WorkloadArg,
    app,
    deliver,
    numbers,
    writable,
)
from stoker.cli.options import start_methods as methods_of


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
    start_methods: StartMethodsOption = None,
    worker_threads: ThreadCountsOption = None,
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
            batch_sizes=numbers(batch_sizes, "batch sizes", "8,32,128"),
            start_methods=methods_of(start_methods),
            worker_threads=numbers(worker_threads, "numbers of threads", "1,2"),
            mode=mode,
            device=device,
            budget_s=parse_seconds(budget),
            on_event=progress.event,
        )
    deliver(document_of(found), probes_view(found, str(output)), json=json, save=output)
