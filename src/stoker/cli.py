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
