"""The command line: parse, call, show; nothing else."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from stoker.errors import InputError, Interrupted, StokerError

app = typer.Typer(
    help="Finds what starves a deep-learning pipeline, and feeds it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

WorkloadArg = Annotated[
    str, typer.Argument(help="A model (resnet50, timm/convnext_tiny, hf/bert-base-uncased) or train.py:workload.")
]
DataOption = Annotated[
    str | None,
    typer.Option(help="jpeg, tensors, packed, text, video, device, or a folder of class folders.", show_default=False),
]
ModeOption = Annotated[Literal["train", "infer"] | None, typer.Option(show_default=False)]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1; sleep:20ms stands in for a model.")]
ItemsOption = Annotated[int | None, typer.Option(help="Use only so many items of the set.", min=1, show_default=False)]
WeightsOption = Annotated[Path | None, typer.Option(help="Safetensors or a state dict to load.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
SaveOption = Annotated[Path | None, typer.Option(help="Write the JSON document to this file too.", show_default=False)]


def _version(asked: bool) -> None:
    if asked:
        from stoker import __version__

        typer.echo(f"stoker {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Finds what starves a deep-learning pipeline, and feeds it."""


@app.command()
def doctor(
    disk: Annotated[Path | None, typer.Option(help="Measure how fast files below this folder are read.")] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """What this machine really has for a pipeline, and what will break one."""
    from stoker.machine import inspect
    from stoker.report.documents import machine_document
    from stoker.report.progress import Show

    with Show(quiet=quiet) as progress:
        machine = inspect(disk=disk, check_torch=True, progress=lambda what: progress.event("phase", what))
    if json:
        _print_json(machine_document(machine))
    else:
        from stoker.report.machines import machine_view
        from stoker.report.terminal import show

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
    from stoker.measure.trial import Named
    from stoker.measure.trial import profile as run
    from stoker.records import Extent, Setting, Trial
    from stoker.report.documents import stalls_document, trial_document
    from stoker.report.progress import Show
    from stoker.units import parse_seconds

    setting = Setting(
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
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
    source = Named(spec=workload, data=data, items=items, weights=str(weights) if weights else None)
    timeout_s = parse_seconds(timeout) if timeout else None
    _writable(save)
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
    document = stalls_document(result) if isinstance(result, three_runs.Stalls) else trial_document(result)
    _deliver(result, document, json=json, save=save)


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
    quiet: QuietOption = False,
) -> None:
    """The largest batch that fits: run where there is a GPU, told without one."""
    from stoker.measure.trial import Named
    from stoker.report import limits
    from stoker.report.documents import save as save_document
    from stoker.report.progress import Show
    from stoker.report.terminal import show
    from stoker.tune.compare import compare as side_by_side
    from stoker.tune.limit import limit as find

    source = Named(spec=workload, data=data or (None if ":" in workload else "device"))
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
    _writable(save)
    with Show(quiet=quiet) as progress:
        if compare:
            found: Any = side_by_side(source, options, on_event=progress.event, title=progress.title)
        else:
            found = find(source, method=method, advise=advise, on_event=progress.event, **options)
    if save is not None:
        save_document(found, save)
    if json:
        _print_json(found)
    else:
        show(limits.comparison_view(found) if compare else limits.limit_view(found))


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
    from stoker.measure.trial import Named
    from stoker.records import Setting
    from stoker.report import documents
    from stoker.report.progress import Show
    from stoker.tune.probe import probe as measure
    from stoker.units import parse_seconds

    _writable(output)
    with Show(quiet=quiet) as progress:
        found = measure(
            Named(spec=workload, data=data, items=items),
            setting=Setting(precision=precision),
            batch_sizes=_numbers(batch_sizes),
            mode=mode,
            device=device,
            budget_s=parse_seconds(budget),
            on_event=progress.event,
        )
    documents.save(found, output)
    if json:
        _print_json(found)
    else:
        from stoker.report.predictions import probes_view
        from stoker.report.terminal import show

        show(probes_view(found, str(output)))


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
    grid: Annotated[bool, typer.Option("--grid", help="Every batch size and worker count.")] = False,
    cores: Annotated[float | None, typer.Option(help="What if there were so many CPUs.", show_default=False)] = None,
    faster: Annotated[
        list[str] | None, typer.Option(help="What if: decode=2x, step=3x. May be repeated.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """What a setting would cost, from probes alone: no model, no data, no run."""
    from stoker.predict.forecast import Predictor, items_of, landscape, parse_faster, with_pinning
    from stoker.predict.probes import read
    from stoker.records import Setting
    from stoker.report import documents, predictions
    from stoker.report.terminal import show

    found = read(_bytes_of(probes))
    predictor = Predictor(found, cores=cores, faster_stages=parse_faster(faster or []))
    count = items or items_of(found)
    if grid:
        cells = landscape(predictor, found, count, epochs=epochs)
        _print_json(cells) if json else show(predictions.grid_view(cells, found))
        return
    if batch_size is None or workers is None:
        raise InputError("say which setting: --batch-size 128 --workers 8, or --grid for all")
    setting = Setting(
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
    )
    answer = predictor.predict(with_pinning(setting, found), count, epochs=epochs)
    if json:
        _print_json(documents.prediction_document(answer))
    else:
        show(predictions.prediction_view(answer, found))


@app.command()
def tune(
    workload: WorkloadArg,
    items: Annotated[int | None, typer.Option(help="Least time for so many items.", min=1, show_default=False)] = None,
    epochs: Annotated[int, typer.Option(help="Least time for so many passes over the set.", min=1)] = 1,
    throughput: Annotated[bool, typer.Option("--throughput", help="Highest steady rate; start-up left out.")] = False,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-b", help="Fixed: only the workers are chosen.", show_default=False)
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="No batch above this.", show_default="512")] = None,
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
    from stoker.measure.trial import Named
    from stoker.report import documents, plans, terminal
    from stoker.report.progress import Show
    from stoker.tune.candidates import parse_current
    from stoker.tune.plan import tune as choose
    from stoker.units import parse_bytes, parse_seconds

    _writable(save)
    seen: dict[str, Any] = {"interrupted": True, "probes": None, "trials": []}
    with Show(quiet=quiet) as progress:

        def event(name: str, data: Any) -> None:
            if name == "measured":
                seen["trials"].append(data)
            elif name == "probes":
                seen["probes"] = data
            progress.event(name, data)

        try:
            plan = choose(
                Named(spec=workload, data=data, items=None if ":" in workload else items),
                items=items,
                epochs=epochs,
                throughput=throughput,
                batch_size=batch_size,
                max_batch=max_batch,
                global_batch=global_batch,
                gpus=gpus,
                current=parse_current(current) if current else None,
                gpu_memory=gpu_memory,
                host_memory_bytes=parse_bytes(host_memory) if host_memory else None,
                mode=mode,
                device=device,
                precision=precision,
                budget_s=parse_seconds(budget),
                planner=planner,
                on_event=event,
            )
        except Interrupted:
            if save is not None and (seen["probes"] or seen["trials"]):
                documents.save(seen, save)
            raise
    document = documents.plan_document(plan)
    if save is not None:
        documents.save(document, save)
    _print_json(document) if json else terminal.show(plans.plan_view(plan))


@app.command()
def prepare(
    source: Annotated[Path, typer.Argument(help="A folder of class folders of images.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    packed: Annotated[bool, typer.Option("--packed", help="One file for all items instead of one for each.")] = False,
    image_size: Annotated[int, typer.Option(help="Side of the images after preprocessing.", min=8)] = 224,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Turn a set of images into tensors that need no decoding."""
    from stoker.report.progress import Show
    from stoker.units import format_bytes
    from stoker.workload.prepare import prepare as make

    with Show(quiet=quiet) as progress:
        made = make(source, output, packed=packed, image_size=image_size, progress=progress.progress)
    if json:
        _print_json(made)
    else:
        typer.echo(f"{sum(made.items.values())} items, {format_bytes(made.stored_bytes)}, in {made.path}")


def _deliver(result: Any, document: dict[str, Any], *, json: bool, save: Path | None) -> None:
    """Save, print, and leave with status 1 where a trial did not finish."""
    from stoker.measure.stalls import Stalls
    from stoker.report import documents, terminal

    if save is not None:
        documents.save(document, save)
    if json:
        typer.echo(documents.to_json(document))
    else:
        terminal.show(terminal.stalls_view(result) if isinstance(result, Stalls) else terminal.profile_view(result))
    trials = (result.memory, result.cached, result.cold) if isinstance(result, Stalls) else (result,)
    failed = next((trial for trial in trials if trial.outcome != "done"), None)
    if failed is not None and failed.problem is not None:
        if json:
            typer.echo(f"stoker: {failed.outcome}: {failed.problem.sentence}", err=True)
        raise typer.Exit(1)


def _writable(save: Path | None) -> None:
    """Find out before the run, not after it, that its result cannot be kept."""
    if save is not None and not (save.parent.is_dir() and os.access(save.parent, os.W_OK)):
        raise InputError(f"cannot write {save}: {save.parent} is not a folder that can be written to")


def _numbers(text: str) -> list[int]:
    """`8,32,128`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise InputError(f"{text!r} is no list of batch sizes; write it like 8,32,128")
    return [int(part) for part in parts]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _print_json(document: Any) -> None:
    from stoker.report.documents import to_json

    typer.echo(to_json(document))


def _interrupted(number: int, _frame: Any) -> NoReturn:
    raise Interrupted("interrupted", status=128 + number)


def main() -> NoReturn:
    """Run a command; an error of ours is one sentence on stderr, and anything that was started has been ended."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        app()
    except StokerError as error:
        sys.stderr.write(f"stoker: {error}\n")
        sys.exit(error.status)
    sys.exit(0)


if __name__ == "__main__":
    main()
