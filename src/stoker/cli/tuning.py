"""Commands that predict and choose: `probe`, `predict`, `tune`."""

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
    WorkloadArg,
    app,
    print_json,
    writable,
)
from stoker.errors import InputError, Interrupted, StokerError


@app.command()
def probe(
    workload: WorkloadArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    batch_sizes: Annotated[str, typer.Option(help="Least, middle and largest size to be predicted.")] = "8,32,128",
    data: DataOption = None,
    items: ItemsOption = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    precision: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option()] = "fp32",
    budget: Annotated[str, typer.Option(help="How long to probe at most, about.")] = "30s",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure what predictions need: a few short runs, kept in a small file."""
    from stoker.forecast.probe import probe as measure
    from stoker.records import Setting, WorkloadSpec
    from stoker.report import documents
    from stoker.report.progress import Show
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
    if json:
        print_json(found)
    else:
        from stoker.report.console import show
        from stoker.report.views.prediction import probes_view

        show(probes_view(found, str(output)))
    documents.save(found, output)


@app.command()
def predict(
    probes: Annotated[Path, typer.Option(help="What `stoker probe` wrote.")],
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", show_default=False)] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", show_default=False)] = None,
    prefetch: Annotated[int, typer.Option(help="Batches each worker loads ahead.")] = 2,
    items: Annotated[int | None, typer.Option(help="Items of an epoch.", min=1, show_default="the whole set")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the set.", min=1)] = 1,
    pin_memory: Annotated[bool | None, typer.Option("--pin-memory/--no-pin-memory", show_default="as probed")] = None,
    persistent_workers: Annotated[bool, typer.Option("--persistent-workers")] = False,
    in_order: InOrderOption = True,
    grid: Annotated[bool, typer.Option("--grid", help="Every batch size and worker count.")] = False,
    cores: Annotated[float | None, typer.Option(help="What if there were so many CPUs.", show_default=False)] = None,
    faster: Annotated[
        list[str] | None, typer.Option(help="What if: decode=2x, step=3x. May be repeated.", show_default=False)
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """What a setting would cost, from probes alone: no model, no data, no run."""
    from stoker.forecast.predictor import Predictor, items_of, landscape, parse_faster, with_pinning
    from stoker.forecast.probes import read
    from stoker.records import Setting
    from stoker.report import documents
    from stoker.report.console import show
    from stoker.report.views import prediction

    found = read(_bytes_of(probes))
    predictor = Predictor(found, cores=cores, faster_stages=parse_faster(faster or []))
    count = items_of(found) if items is None else items
    if grid:
        cells = landscape(predictor, found, count, epochs=epochs)
        print_json(cells) if json else show(prediction.grid_view(cells, found))
        return
    if batch_size is None or workers is None:
        raise InputError("say which setting: --batch-size 128 --workers 8, or --grid for all")
    setting = Setting(
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        in_order=in_order,
    )
    answer = predictor.predict(with_pinning(setting, found), count, epochs=epochs)
    if json:
        print_json(documents.prediction_document(answer))
    else:
        show(prediction.prediction_view(answer, found))


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
    quiet: QuietOption = False,
) -> None:
    """What to set: the batch size and the workers that finish soonest, predicted and then measured."""
    from stoker.events import AnyEvent, ProbeDone, ProbesReady, RunEnded
    from stoker.records import WorkloadSpec
    from stoker.report import console, documents
    from stoker.report.progress import Show
    from stoker.report.views.plan import plan_view
    from stoker.tuning.tune import tune as choose
    from stoker.units import parse_bytes, parse_seconds

    writable(save)
    seen: dict[str, Any] = {"interrupted": False, "runs": [], "probes": None, "trials": []}
    with Show(quiet=quiet) as progress:

        def event(event: AnyEvent) -> None:
            match event:
                case RunEnded(trial=trial):
                    seen["trials"].append(trial)
                case ProbeDone(run=run):
                    seen["runs"].append(run)
                case ProbesReady(probes=probes):
                    seen["probes"] = probes
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
                on_event=event,
            )
        except (StokerError, Interrupted) as error:
            seen["interrupted"] = isinstance(error, Interrupted)
            if save is not None and (seen["runs"] or seen["trials"]):
                documents.save(seen, save)
            raise
    document = documents.plan_document(plan)
    print_json(document) if json else console.show(plan_view(plan))
    if save is not None:
        documents.save(document, save)


def _numbers(text: str) -> list[int]:
    """`8,32,128`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"{text!r} is no list of batch sizes; write it like 8,32,128")
    return [int(part) for part in parts]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
