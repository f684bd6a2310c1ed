"""The command `converge`."""

from typing import Annotated, Literal

import typer

from stoker.cli.options import (
    DataOption,
    ItemsOption,
    JsonOption,
    PrecisionOption,
    QuietOption,
    ReportOption,
    SaveOption,
    WeightsOption,
    WorkloadArg,
    app,
    deliver,
    report_to,
    writable,
)


@app.command()
def converge(
    workload: WorkloadArg,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="The batch size that is known to learn.")],
    against: Annotated[int, typer.Option(help="The batch size in question.")],
    epochs: Annotated[int | None, typer.Option(help="Passes over the set, in each training.", show_default="5")] = None,
    updates: Annotated[
        int | None, typer.Option(help="End each training after so many updates instead.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings with each batch size.")] = 3,
    scale_lr: Annotated[
        Literal["none", "linear", "sqrt"],
        typer.Option("--scale-lr", help="How the learning rate of the other size follows the batch size."),
    ] = "none",
    workers: Annotated[int, typer.Option("--workers", "-w", help="Loader worker processes.")] = 0,
    data: DataOption = None,
    items: ItemsOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    precision: PrecisionOption = "fp32",
    weights: WeightsOption = None,
    timeout: Annotated[str | None, typer.Option(help="End each training after this time: 90s, 5min.")] = None,
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train with two batch sizes: does the other one still learn?"""
    from stoker.integrations.reports import page_of
    from stoker.records import Setting, WorkloadSpec
    from stoker.report.documents import convergence_document
    from stoker.report.progress import Show
    from stoker.report.views.convergence import convergence_view
    from stoker.studies.converge import converge as run
    from stoker.units import parse_seconds

    source = WorkloadSpec(spec=workload, data=data, items=items, weights=str(weights) if weights else None)
    writable(save)
    writable(report, "--report")
    with Show(quiet=quiet) as progress:
        found = run(
            source,
            batch_size=batch_size,
            against=against,
            epochs=epochs,
            updates=updates,
            seeds=seeds,
            scale_lr=scale_lr,
            setting=Setting(batch_size=max(1, batch_size), num_workers=workers, precision=precision),
            device=device,
            timeout_s=parse_seconds(timeout) if timeout else None,
            on_event=progress.event,
        )
    deliver(convergence_document(found), convergence_view(found), json=json, save=save)
    report_to(report, lambda: page_of(found))
    failed = next((run for run in found.runs if run.outcome != "done"), None)
    if failed is not None:
        if json and failed.problem is not None:
            typer.echo(f"stoker: {failed.outcome}: {failed.problem.sentence}", err=True)
        raise typer.Exit(1)
