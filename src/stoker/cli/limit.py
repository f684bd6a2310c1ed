"""The command `limit`."""

from typing import Annotated, Any, Literal

import typer

from stoker.cli.options import (
    DataOption,
    JsonOption,
    ModeOption,
    QuietOption,
    ReportOption,
    SaveOption,
    WorkloadArg,
    app,
    deliver,
    report_to,
    writable,
)


@app.command()
def limit(
    workload: WorkloadArg,
    gpu_memory: Annotated[
        str | None,
        typer.Option(help="What tensors may take on the GPU: 16GiB, 24GB.", show_default="what is free"),
    ] = None,
    method: Annotated[
        Literal["auto", "trace", "two-point", "doubling", "search"],
        typer.Option(help="auto: trace, then run; trace needs no GPU."),
    ] = "auto",
    mode: ModeOption = None,
    precision: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option()] = "fp32",
    optimizer: Annotated[
        Literal["sgd", "momentum", "adam", "adamw"] | None, typer.Option(help="In place of the workload's own.")
    ] = None,
    reserve: Annotated[str, typer.Option(help="Leave so much free: 1.5GiB.")] = "0",
    gpu: Annotated[
        str | None, typer.Option(help="The GPU that a trace is for: h200, a100, 8.6.", show_default=False)
    ] = None,
    gpus: Annotated[int, typer.Option(help="For two-point: times so many GPUs.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    validate: Annotated[bool, typer.Option("--validate", help="Count a pass over the validation set too.")] = False,
    cudnn_benchmark: Annotated[bool, typer.Option("--cudnn-benchmark")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Every method side by side.")] = False,
    advise: Annotated[bool, typer.Option("--advise", help="What a change in the order of things would bring.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """The largest batch that fits: measured where there is a GPU, traced where there is none."""
    from stoker.integrations.reports import page_of
    from stoker.memory.compare import compare as side_by_side
    from stoker.memory.limit import limit as find
    from stoker.records import WorkloadSpec
    from stoker.report.documents import document_of
    from stoker.report.progress import Show
    from stoker.report.views.limit import comparison_view, limit_view

    source = WorkloadSpec(
        spec=workload, data=data or (None if ":" in workload or workload.endswith(".py") else "device")
    )
    options: dict[str, Any] = {
        "gpu_memory": gpu_memory,
        "mode": mode,
        "precision": precision,
        "optimizer": optimizer,
        "reserve": reserve,
        "gpu": gpu,
        "gpus": gpus,
        "device": device,
        "validate": validate,
        "cudnn_benchmark": cudnn_benchmark,
    }
    writable(save)
    writable(report, "--report")
    with Show(quiet=quiet) as progress:
        if compare:
            found: Any = side_by_side(source, options, on_event=progress.event, title=progress.title)
        else:
            found = find(source, method=method, advise=advise, on_event=progress.event, **options)
    view = comparison_view(found) if compare else limit_view(found)
    deliver(document_of(found), view, json=json, save=save)
    report_to(report, lambda: page_of(found))
