"""`stoker profile`."""

from typing import Annotated

import typer

from stoker.cli.options import (
    DataOption,
    DeviceOption,
    InOrderOption,
    ItemsOption,
    JsonOption,
    ModeOption,
    ParallelOption,
    PrecisionOption,
    QuietOption,
    RanksOption,
    ReportOption,
    SaveOption,
    StartMethodOption,
    WeightsOption,
    WorkerThreadsOption,
    WorkloadArg,
    app,
    deliver,
    report_to,
    writable,
)
from stoker.errors import InputError


@app.command()
def profile(
    workload: WorkloadArg,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", show_default="the loader's, or 32")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", help="Loader worker processes.", show_default="the loader's, or 0")
    ] = None,
    prefetch: Annotated[
        int | None, typer.Option(help="Batches each worker loads ahead.", show_default="the loader's, or 2")
    ] = None,
    batches: Annotated[
        int | None, typer.Option(help="Batches to measure.", show_default="50; all with --epochs")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Warm-up batches before them.", show_default="workers, at least 3")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the set.", show_default=False)] = None,
    data: DataOption = None,
    items: ItemsOption = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    pin_memory: Annotated[bool | None, typer.Option("--pin-memory/--no-pin-memory", show_default="on a GPU")] = None,
    persistent_workers: Annotated[bool, typer.Option("--persistent-workers")] = False,
    in_order: InOrderOption = True,
    start_method: StartMethodOption = None,
    worker_threads: WorkerThreadsOption = None,
    threads: Annotated[
        int | None, typer.Option(help="Torch's threads in the loop's process.", show_default="PyTorch's")
    ] = None,
    second_size: Annotated[
        int | None,
        typer.Option(help="Also measure this batch size, for a few seconds.", min=1, show_default=False),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Run the first two remedies, too.")] = False,
    accumulate: Annotated[int, typer.Option(help="Batches for one update, in training.", min=1)] = 1,
    channels_last: Annotated[bool, typer.Option("--channels-last")] = False,
    compile: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    cudnn_benchmark: Annotated[bool, typer.Option("--cudnn-benchmark")] = False,
    ranks: RanksOption = 1,
    parallel: ParallelOption = "ddp",
    weights: WeightsOption = None,
    validate: Annotated[bool, typer.Option("--validate", help="Score the validation set each epoch.")] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Evict the data from the page cache first.")] = False,
    stalls: Annotated[bool, typer.Option("--stalls", help="Compare data in memory, cached and cold.")] = False,
    limit_memory: Annotated[
        str | None,
        typer.Option("--limit-memory", help="Give the run only so much host memory: 20GiB.", show_default=False),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="End the run after this time: 90s, 5min.")] = None,
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show where the time goes. In the loader's workers, on the way to the device, on the device."""
    from stoker.analysis.interference import thread_change
    from stoker.analysis.verdict import verdict
    from stoker.integrations.reports import page_of
    from stoker.measure.profile import LOADER_FIELDS, compare_sources, second_task
    from stoker.measure.profile import profile as run
    from stoker.records import Extent, Setting, Stalls, Trial, VerifiedRemedy, WorkloadSpec
    from stoker.report.documents import stalls_document, trial_document
    from stoker.report.progress import Show
    from stoker.report.views.profile import profile_view, stalls_view
    from stoker.tuning.remedies import advise
    from stoker.tuning.verification import verify as run_remedies
    from stoker.units import parse_bytes, parse_seconds

    named = {"batch_size": batch_size, "num_workers": workers, "prefetch_factor": prefetch, "pin_memory": pin_memory}
    switched = {"persistent_workers": persistent_workers, "in_order": not in_order}
    given = {name for name, value in named.items() if value is not None} | {name for name, on in switched.items() if on}
    setting = Setting(
        batch_size=32 if batch_size is None else batch_size,
        num_workers=workers or 0,
        prefetch_factor=2 if prefetch is None else prefetch,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        in_order=in_order,
        multiprocessing_context=start_method,
        worker_threads=worker_threads,
        threads=threads,
        accumulate=accumulate,
        precision=precision,
        channels_last=channels_last,
        compile=compile,
        cudnn_benchmark=cudnn_benchmark,
        ranks=ranks,
        parallel=parallel,
    )
    extent = Extent(
        batches=batches if batches is not None else (None if epochs else 50),
        warmup=warmup,
        epochs=1 if epochs is None else epochs,
        source="cold" if cold else "files",
        validate=validate,
        memory_limit_bytes=parse_bytes(limit_memory) if limit_memory else None,
    )
    source = WorkloadSpec(spec=workload, data=data, items=items, weights=str(weights) if weights else None)
    timeout_s = parse_seconds(timeout) if timeout else None
    if stalls and (verify or second_size):
        raise InputError("--stalls compares three runs of one setting: leave out --verify and --second-size")
    if validate and setting.processes > 1:
        raise InputError("ranks do not score a validation set: leave out --validate")
    if second_size == setting.batch_size:
        raise InputError(f"--second-size must be another size than the batch size of {second_size}")
    writable(save)
    writable(report, "--report")
    second: Trial | None = None
    others: list[Trial] = []
    verified: list[VerifiedRemedy] = []
    with Show(quiet=quiet) as progress:

        def one(chosen: Extent) -> Trial:
            if stalls:
                progress.title(f"{chosen.source}: ")
            return run(
                source,
                setting,
                chosen,
                from_loader=[name for name in LOADER_FIELDS if name not in given],
                mode=mode,
                device=device,
                timeout_s=timeout_s,
                find_workers=True,
                on_event=progress.event,
            )

        result = compare_sources(one, extent) if stalls else one(extent)
        if isinstance(result, Trial) and result.outcome == "done":

            def short_run(**changes: int) -> Trial:
                other, short = second_task(result, **changes)
                return run(source, other, short, mode=mode, device=device, timeout_s=timeout_s, on_event=progress.event)

            if second_size is not None and not result.workload.batch_sampler:
                progress.title(f"batch {second_size}: ")
                others.append(second := short_run(batch_size=second_size))
            if verify:
                if fewer := thread_change(result):
                    progress.title("one thread: ")
                    others.append(short_run(**fewer))
                progress.title("verifying: ")
                found = advise(result, *others)
                verified = run_remedies(source, result, found, mode=mode, device=device, on_event=progress.event)
    if isinstance(result, Stalls):
        trials = {"memory": result.memory, "cached": result.cached, "cold": result.cold}
        document = stalls_document(result, {name: advise(trial) for name, trial in trials.items()})
        view = stalls_view(result)
    else:
        trials, remedies = {"": result}, advise(result, *others)
        document = trial_document(result, remedies, second=second, verified=verified)
        view = profile_view(result, verdict(result), remedies, verified)
    deliver(document, view, json=json, save=save)
    report_to(report, lambda: page_of(result))
    if second_size is not None and isinstance(result, Trial) and result.workload.batch_sampler:
        typer.echo(
            f"stoker: the workload sets its batches itself: there is no run with batches of {second_size}", err=True
        )
    if second is not None and second.outcome != "done" and second.problem is not None:
        typer.echo(f"stoker: the run with batches of {second_size} did not finish: {second.problem.sentence}", err=True)
    failed = next((trial for trial in trials.values() if trial.outcome != "done"), None)
    if failed is not None and failed.problem is not None:
        if json:
            typer.echo(f"stoker: {failed.outcome}: {failed.problem.sentence}", err=True)
        raise typer.Exit(1)
