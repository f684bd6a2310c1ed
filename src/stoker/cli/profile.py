"""`stoker profile`."""

from typing import Annotated, Literal

import typer

from stoker.cli.options import (
    DataOption,
    DeviceOption,
    InOrderOption,
    ItemsOption,
    JsonOption,
    ModeOption,
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
def profile(
    workload: WorkloadArg,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b")] = 32,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Loader worker processes.")] = 0,
    prefetch: Annotated[int, typer.Option(help="Batches each worker loads ahead.")] = 2,
    batches: Annotated[
        int | None, typer.Option(help="Batches to measure.", show_default="50; all with --epochs")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Batches before those.", show_default="workers, at least 3")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the set.", show_default=False)] = None,
    data: DataOption = None,
    items: ItemsOption = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    precision: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option()] = "fp32",
    pin_memory: Annotated[bool | None, typer.Option("--pin-memory/--no-pin-memory", show_default="on a GPU")] = None,
    persistent_workers: Annotated[bool, typer.Option("--persistent-workers")] = False,
    in_order: InOrderOption = True,
    accumulate: Annotated[int, typer.Option(help="Batches to one update, in training.", min=1)] = 1,
    channels_last: Annotated[bool, typer.Option("--channels-last")] = False,
    compile: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    cudnn_benchmark: Annotated[bool, typer.Option("--cudnn-benchmark")] = False,
    weights: WeightsOption = None,
    validate: Annotated[bool, typer.Option("--validate", help="Score the validation set each epoch.")] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Evict the data from the page cache first.")] = False,
    stalls: Annotated[bool, typer.Option("--stalls", help="Compare data in memory, cached, cold.")] = False,
    timeout: Annotated[str | None, typer.Option(help="End the run after so long: 90s, 5min.")] = None,
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """Where the time goes: in the loader's workers, on the way to the device, on the device."""
    from stoker.analysis.verdict import verdict
    from stoker.integrations.reports import page_of
    from stoker.measure import stalls as three_runs
    from stoker.measure.profile import profile as run
    from stoker.records import Extent, Setting, Stalls, Trial, WorkloadSpec
    from stoker.report.documents import stalls_document, trial_document
    from stoker.report.progress import Show
    from stoker.report.views.profile import profile_view, stalls_view
    from stoker.tuning.remedies import advise
    from stoker.units import parse_seconds

    setting = Setting(
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        in_order=in_order,
        accumulate=accumulate,
        precision=precision,
        channels_last=channels_last,
        compile=compile,
        cudnn_benchmark=cudnn_benchmark,
    )
    extent = Extent(
        batches=batches if batches is not None else (None if epochs else 50),
        warmup=warmup,
        epochs=1 if epochs is None else epochs,
        source="cold" if cold else "files",
        validate=validate,
    )
    source = WorkloadSpec(spec=workload, data=data, items=items, weights=str(weights) if weights else None)
    timeout_s = parse_seconds(timeout) if timeout else None
    writable(save)
    writable(report, "--report")
    with Show(quiet=quiet) as progress:

        def one(chosen: Extent) -> Trial:
            if stalls:
                progress.title(f"{chosen.source}: ")
            return run(
                source,
                setting,
                chosen,
                mode=mode,
                device=device,
                timeout_s=timeout_s,
                on_event=progress.event,
            )

        result = three_runs.compare(one, extent) if stalls else one(extent)
    if isinstance(result, Stalls):
        trials = {"memory": result.memory, "cached": result.cached, "cold": result.cold}
        document = stalls_document(result, {name: advise(trial) for name, trial in trials.items()})
        view = stalls_view(result)
    else:
        trials, remedies = {"": result}, advise(result)
        document = trial_document(result, remedies)
        view = profile_view(result, verdict(result), remedies)
    deliver(document, view, json=json, save=save)
    report_to(report, lambda: page_of(result))
    failed = next((trial for trial in trials.values() if trial.outcome != "done"), None)
    if failed is not None and failed.problem is not None:
        if json:
            typer.echo(f"stoker: {failed.outcome}: {failed.problem.sentence}", err=True)
        raise typer.Exit(1)
