"""Commands that look and measure: `doctor`, `profile`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stoker.cli.options import (
    DataOption,
    DeviceOption,
    InOrderOption,
    ItemsOption,
    JsonOption,
    ModeOption,
    QuietOption,
    SaveOption,
    WeightsOption,
    WorkloadArg,
    app,
    print_json,
    writable,
)


@app.command()
def doctor(
    disk: Annotated[Path | None, typer.Option(help="Measure how fast files below this folder are read.")] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """What this machine really has for a pipeline, and what will break one."""
    from stoker.events import Progress
    from stoker.machine import inspect
    from stoker.report.documents import machine_document
    from stoker.report.progress import Show

    with Show(quiet=quiet) as progress:
        machine = inspect(disk=disk, check_torch=True, progress=lambda what: progress.event(Progress(what=what)))
    if json:
        print_json(machine_document(machine))
    else:
        from stoker.report.console import show
        from stoker.report.views.machine import machine_view

        show(machine_view(machine))


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
    quiet: QuietOption = False,
) -> None:
    """Where the time goes: in the loader's workers, on the way to the device, on the device."""
    from stoker.measure import stalls as three_runs
    from stoker.measure.profile import profile as run
    from stoker.records import Extent, Setting, Stalls, Trial, WorkloadSpec
    from stoker.report.documents import stalls_document, trial_document
    from stoker.report.progress import Show
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
    document = stalls_document(result) if isinstance(result, Stalls) else trial_document(result)
    _deliver(result, document, json=json, save=save)


def _deliver(result: Any, document: dict[str, Any], *, json: bool, save: Path | None) -> None:
    """Save, print, and leave with status 1 where a trial did not finish."""
    from stoker.records import Stalls
    from stoker.report import console, documents

    if save is not None:
        documents.save(document, save)
    if json:
        typer.echo(documents.to_json(document))
    else:
        console.show(console.stalls_view(result) if isinstance(result, Stalls) else console.profile_view(result))
    trials = (result.memory, result.cached, result.cold) if isinstance(result, Stalls) else (result,)
    failed = next((trial for trial in trials if trial.outcome != "done"), None)
    if failed is not None and failed.problem is not None:
        if json:
            typer.echo(f"stoker: {failed.outcome}: {failed.problem.sentence}", err=True)
        raise typer.Exit(1)
