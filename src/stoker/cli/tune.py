"""`stoker tune`."""

from typing import Annotated, Literal

import typer

from stoker.cli.options import (
    DataOption,
    DeviceOption,
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
from stoker.errors import Interrupted, StokerError


@app.command()
def tune(
    workload: WorkloadArg,
    items: Annotated[int | None, typer.Option(help="Least time for so many items.", min=1, show_default=False)] = None,
    epochs: Annotated[int, typer.Option(help="Least time for so many passes over the set.", min=1)] = 1,
    throughput: Annotated[bool, typer.Option("--throughput", help="Highest steady rate; start-up left out.")] = False,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-b", help="Fixed: only the workers are chosen.", show_default=False)
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(help="No batch above this.", show_default="512, or more where it pays in inference")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Keep this effective batch: batch × accumulation × GPUs.", show_default=False)
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs that share the CPUs.")] = 1,
    current: Annotated[str | None, typer.Option(help="What you have now: batch=64,workers=4.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="What tensors may take on the GPU: 11GiB.")] = None,
    host_memory: Annotated[str | None, typer.Option(help="What batches may take in host memory: 32GiB.")] = None,
    data: DataOption = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    precision: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option()] = "fp32",
    budget: Annotated[str, typer.Option(help="How long tuning may take, about.")] = "60s",
    planner: Annotated[Literal["simulate", "thesis", "grid"], typer.Option(help="How to choose.")] = "simulate",
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """What to set: the batch size and the workers that finish soonest, predicted and then measured."""
    from stoker.events import AnyEvent, ProbeDone, ProbesReady, RunEnded
    from stoker.integrations.reports import plan_page
    from stoker.machine import inspect
    from stoker.records import InterruptedTune, Probes, Run, Trial, WorkloadSpec
    from stoker.report import documents
    from stoker.report.progress import Show
    from stoker.report.views.plan import plan_view
    from stoker.tuning.tune import tune as choose
    from stoker.units import parse_bytes, parse_seconds

    writable(save)
    writable(report, "--report")
    runs: list[Run] = []
    trials: list[Trial] = []
    probes: Probes | None = None
    with Show(quiet=quiet) as progress:

        def follow(event: AnyEvent) -> None:
            nonlocal probes
            match event:
                case RunEnded(trial=trial):
                    trials.append(trial)
                case ProbeDone(run=run):
                    runs.append(run)
                case ProbesReady():
                    probes = event.probes
            progress.event(event)

        try:
            plan = choose(
                WorkloadSpec(spec=workload, data=data, items=None if ":" in workload else items),
                items=items,
                epochs=epochs,
                throughput=throughput,
                batch_size=batch_size,
                max_batch=max_batch,
                global_batch=global_batch,
                gpus=gpus,
                current=current,
                gpu_memory=gpu_memory,
                host_memory_bytes=parse_bytes(host_memory) if host_memory else None,
                mode=mode,
                device=device,
                precision=precision,
                budget_s=parse_seconds(budget),
                planner=planner,
                on_event=follow,
            )
        except (StokerError, Interrupted) as error:
            if save is not None and (runs or trials):
                interrupted = isinstance(error, Interrupted)
                rescued = InterruptedTune(
                    interrupted=interrupted, runs=tuple(runs), probes=probes, trials=tuple(trials)
                )
                documents.save(documents.document_of(rescued), save)
            raise
    deliver(documents.plan_document(plan), plan_view(plan), json=json, save=save)
    report_to(report, lambda: plan_page(plan, probes, inspect()))
