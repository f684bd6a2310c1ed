"""Shared by the commands: the app, common options, and the output of an answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from stoker.errors import InputError
from stoker.records.task import StartMethod

if TYPE_CHECKING:
    from stoker.studies.ray import RayExecutor

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
ModeOption = Annotated[
    Literal["train", "infer"] | None, typer.Option(help="train if the workload has a loss.", show_default=False)
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1; sleep:20ms stands in for a model.")]
ItemsOption = Annotated[int | None, typer.Option(help="Use only this many items.", min=1, show_default=False)]
PrecisionOption = Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="bf16 and fp16 use autocast.")]
InOrderOption = Annotated[
    bool, typer.Option("--in-order/--out-of-order", help="Yield batches in order, or as they become ready.")
]
StartMethodOption = Annotated[
    Literal["fork", "forkserver", "spawn"] | None,
    typer.Option("--start-method", help="How workers are started.", show_default="as Python does"),
]
WorkerThreadsOption = Annotated[
    int | None, typer.Option("--worker-threads", help="torch's threads in each worker.", min=1, show_default="1")
]
StartMethodsOption = Annotated[
    str | None, typer.Option("--start-methods", help="Ways to start workers: fork,spawn.", show_default=False)
]
ThreadCountsOption = Annotated[
    str | None, typer.Option("--worker-threads", help="Threads in each worker: 1,2.", show_default=False)
]
RanksOption = Annotated[
    int, typer.Option("--ranks", help="Processes that train together, each with its own loader.", min=1)
]
ParallelOption = Annotated[
    Literal["ddp", "dp"],
    typer.Option("--parallel", help="ddp: a process for each rank; dp: DataParallel, one loader for all GPUs."),
]
WeightsOption = Annotated[Path | None, typer.Option(help="Safetensors or a state dict to load.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write charts to this HTML file.", show_default=False)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
RayOption = Annotated[bool, typer.Option("--ray", help="Run on the nodes of a Ray cluster.")]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address", help="The cluster, 10.0.0.1:6379 or auto.", show_default="RAY_ADDRESS, or a local one"
    ),
]
PerOption = Annotated[
    Literal["node", "gpu"] | None, typer.Option("--per", help="What a run takes of the cluster.", show_default="node")
]
SaveOption = Annotated[Path | None, typer.Option(help="Also write the JSON document to this file.", show_default=False)]


def start_methods(text: str | None) -> tuple[StartMethod, ...]:
    """`fork,spawn`. Raises InputError for anything else."""
    names = [part.strip() for part in text.split(",")] if text else []
    unknown = [name for name in names if name not in get_args(StartMethod)]
    if unknown:
        raise InputError(f"no such start method: {unknown[0]!r}; choose from {', '.join(get_args(StartMethod))}")
    return cast(tuple[StartMethod, ...], tuple(names))


def numbers(text: str | None, what: str, example: str) -> list[int]:
    """`8,32,128`. Raises InputError for anything else."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"{text!r} is not a list of {what}; write it like {example}")
    return [int(part) for part in parts]


def writable(save: Path | None, option: str = "--save") -> None:
    """Raise InputError before the run if its result could not be saved."""
    if save is not None and str(save).startswith("-"):
        raise InputError(f"{option} needs a file to write to, got {save}")
    if save is not None and save.is_dir():
        raise InputError(f"{option} needs a file to write to, and {save} is a folder")
    if save is not None:
        from stoker.atomic import check_target

        check_target(save)


@contextmanager
def ray_executor(
    ray: bool, address: str | None, per: Literal["node", "gpu"] | None, *, quiet: bool
) -> Iterator["RayExecutor | None"]:
    """The executor that these options ask for, connected and in the end closed; None where they ask for none."""
    if not ray and address is None:
        if per is not None:
            raise InputError("--per goes with --ray: it says what a run takes of the cluster")
        yield None
        return
    from stoker.studies.ray import RayExecutor

    def note(sentence: str) -> None:
        if not quiet:
            typer.echo(sentence, err=True)

    with RayExecutor(address, per=per or "node", on_note=note) as executor:
        yield executor


def report_to(path: Path | None, page: Callable[[], Any]) -> None:
    """Write the charts of an answer to an HTML file if asked. `page` is called only then: charts load much."""
    if path is None:
        return
    from stoker.report.files import write_page

    write_page(page(), path)
    typer.echo(f"charts in {path}", err=True)


def deliver(document: Any, view: Any, *, json: bool, save: Path | None) -> None:
    """Save the document if `save` is given, then print it as JSON, or print the table."""
    from stoker.report import console, documents

    if json:
        print_json(document)
    else:
        console.show(view)
    if save is not None:
        documents.save(document, save)


def print_json(document: Any) -> None:
    from stoker.report.documents import to_json

    typer.echo(to_json(document))
