"""The command `limit`."""

from typing import Annotated, Any

import typer

from stoker.cli.options import (
    DataOption,
    JsonOption,
    ModeOption,
    PrecisionOption,
    QuietOption,
    RanksOption,
    ReportOption,
    SaveOption,
    WorkloadArg,
    app,
    deliver,
    report_to,
    writable,
)
from stoker.records import Method, OptimizerName


@app.command()
def limit(
    workload: WorkloadArg,
    gpu_memory: Annotated[
        str | None,
        typer.Option(help="GPU memory for tensors: 16GiB, 24GB.", show_default="what is free"),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(help="auto traces, then runs; trace needs no GPU."),
    ] = "auto",
    mode: ModeOption = None,
    precision: PrecisionOption = "fp32",
    optimizer: Annotated[
        OptimizerName | None,
        typer.Option(help="Instead of the workload's own optimizer."),
    ] = None,
    accumulate: Annotated[
        int, typer.Option(help="Batches to one update; above 1, gradients are kept between them.", min=1)
    ] = 1,
    reserve: Annotated[str, typer.Option(help="Memory to leave unused: 1.5GiB.")] = "0",
    gpu: Annotated[str | None, typer.Option(help="The GPU to trace for: h200, a100, 8.6.", show_default=False)] = None,
    gpus: Annotated[int, typer.Option(help="For two-point: multiply the estimate by this number.", min=1)] = 1,
    ranks: RanksOption = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    validate: Annotated[bool, typer.Option("--validate", help="Include a pass over the validation set.")] = False,
    cudnn_benchmark: Annotated[bool, typer.Option("--cudnn-benchmark")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Show every method side by side.")] = False,
    advise: Annotated[bool, typer.Option("--advise", help="Try changes that may allow a larger batch.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the largest batch that fits, by running it or by tracing."""
    from stoker.integrations.reports import page_of
    from stoker.memory.compare import compare as side_by_side
    from stoker.memory.limit import LimitRequest
    from stoker.memory.limit import limit as find
    from stoker.records import WorkloadSpec
    from stoker.report.documents import document_of
    from stoker.report.progress import Show
    from stoker.report.views.limit import comparison_view, limit_view

    source = WorkloadSpec(spec=workload, data=data)
    if not source.from_function and data is None:
        source = WorkloadSpec(spec=workload, data="device")
    request = LimitRequest(
        method=method,
        gpu_memory=gpu_memory,
        reserve=reserve,
        mode=mode,
        precision=precision,
        optimizer=optimizer,
        accumulate=accumulate,
        device=device,
        gpu=gpu,
        gpus=gpus,
        ranks=ranks,
        validate=validate,
        cudnn_benchmark=cudnn_benchmark,
        advise=advise and not compare,
    )
    writable(save)
    writable(report, "--report")
    with Show(quiet=quiet) as progress:
        if compare:
            found: Any = side_by_side(source, request, on_event=progress.event, title=progress.title)
        else:
            found = find(source, request=request, on_event=progress.event)
    view = comparison_view(found) if compare else limit_view(found)
    deliver(document_of(found), view, json=json, save=save)
    report_to(report, lambda: page_of(found))
