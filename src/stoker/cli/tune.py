"""`stoker tune`."""

from typing import Annotated

import typer

from stoker.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    ModeOption,
    PrecisionOption,
    QuietOption,
    RanksOption,
    ReportOption,
    SaveOption,
    StartMethodsOption,
    ThreadCountsOption,
    WorkloadArg,
    app,
    deliver,
    numbers,
    report_to,
    writable,
)
from stoker.cli.options import start_methods as methods_of
from stoker.errors import Interrupted, StokerError


def planner_name(name: str) -> str:
    """The planner's present name. Raises a usage error for an unknown one."""
    names = ("simulate", "algebra", "grid")
    name = "algebra" if name == "thesis" else name
    if name not in names:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, names))}.")
    return name


def batch_size_of(text: str | None) -> str | None:
    """A number or `free`. Raises a usage error for anything else."""
    if text is None or text == "free" or text.lstrip("-").isdecimal():
        return text
    raise typer.BadParameter(f"{text!r} is neither a number nor free.")


@app.command()
def tune(
    workload: WorkloadArg,
    items: Annotated[
        int | None, typer.Option(help="Least time for this many items.", min=1, show_default=False)
    ] = None,
    epochs: Annotated[int, typer.Option(help="Least time for this many passes over the set.", min=1)] = 1,
    throughput: Annotated[bool, typer.Option("--throughput", help="Highest steady rate; ignores start-up.")] = False,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            "-b",
            metavar="N|free",
            callback=batch_size_of,
            help="Keep this size and tune the loader; free searches it.",
            show_default="that of --current in training, else free",
        ),
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(help="The largest batch size to try.", show_default="512; more in inference if faster")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Keep batch × accumulation × GPUs (or ranks) equal to this.", show_default=False)
    ] = None,
    gpus: Annotated[int, typer.Option(help="Plan for GPUs that share the CPUs; they need not be here.")] = 1,
    ranks: RanksOption = 1,
    current: Annotated[str | None, typer.Option(help="Your present setting: batch=64,workers=4.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="GPU memory for tensors: 11GiB.")] = None,
    host_memory: Annotated[str | None, typer.Option(help="Host memory for batches: 32GiB.")] = None,
    data: DataOption = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    start_methods: StartMethodsOption = None,
    worker_threads: ThreadCountsOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Run the first two remedies, too.")] = False,
    budget: Annotated[str, typer.Option(help="About how long tuning may take.")] = "60s",
    planner: Annotated[
        str, typer.Option(metavar="[simulate|algebra|grid]", callback=planner_name, help="How to choose.")
    ] = "simulate",
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the batch size and worker count that finish soonest. Predicts all settings, then runs the best few."""
    from stoker.events import AnyEvent, ProbeDone, ProbesReady, RunEnded
    from stoker.integrations.reports import plan_page
    from stoker.machine import inspect
    from stoker.records import InterruptedTune, Probes, Run, Trial, WorkloadSpec
    from stoker.report import documents
    from stoker.report.progress import Show
    from stoker.report.views.plan import plan_view
    from stoker.tuning.request import TuneRequest
    from stoker.tuning.tune import tune as choose
    from stoker.units import parse_bytes, parse_seconds

    writable(save)
    writable(report, "--report")
    source = WorkloadSpec(spec=workload, data=data)
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
            request = TuneRequest.of(
                items=items,
                epochs=epochs,
                throughput=throughput,
                batch_size=batch_size if batch_size in (None, "free") else int(batch_size),
                max_batch=max_batch,
                global_batch=global_batch,
                gpus=gpus,
                ranks=ranks,
                current=current,
                gpu_memory=gpu_memory,
                host_memory_bytes=parse_bytes(host_memory) if host_memory else None,
                mode=mode,
                device=device,
                precision=precision,
                start_methods=methods_of(start_methods),
                worker_threads=tuple(numbers(worker_threads, "numbers of threads", "1,2")),
                verify=verify,
                budget_s=parse_seconds(budget),
                planner=planner,
            )
            bounded = source if source.from_function else WorkloadSpec(spec=workload, data=data, items=items)
            plan = choose(bounded, request, on_event=follow)
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
