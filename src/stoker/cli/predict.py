"""`stoker predict`."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import (
    InOrderOption,
    JsonOption,
    ReportOption,
    StartMethodOption,
    WorkerThreadsOption,
    app,
    print_json,
    report_to,
    writable,
)
from stoker.errors import InputError


@app.command()
def predict(
    probes: Annotated[Path, typer.Option(help="The file that `stoker probe` wrote.")],
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", show_default=False)] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", show_default=False)] = None,
    prefetch: Annotated[int, typer.Option(help="Batches each worker loads ahead.")] = 2,
    items: Annotated[int | None, typer.Option(help="Items of an epoch.", min=1, show_default="the whole set")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the set.", min=1)] = 1,
    pin_memory: Annotated[bool | None, typer.Option("--pin-memory/--no-pin-memory", show_default="as probed")] = None,
    persistent_workers: Annotated[bool, typer.Option("--persistent-workers")] = False,
    in_order: InOrderOption = True,
    start_method: StartMethodOption = None,
    worker_threads: WorkerThreadsOption = None,
    grid: Annotated[bool, typer.Option("--grid", help="Predict every batch size and worker count.")] = False,
    cores: Annotated[float | None, typer.Option(help="Predict for this number of CPUs.", show_default=False)] = None,
    faster: Annotated[
        list[str] | None, typer.Option(help="Predict with a faster stage: decode=2x. Repeatable.", show_default=False)
    ] = None,
    json: JsonOption = False,
    report: ReportOption = None,
) -> None:
    """Predict what a setting would cost. Uses probes alone: no model, no data, no run."""
    from stoker.forecast.predictor import Predictor, items_of, landscape, parse_faster, with_pinning
    from stoker.forecast.probes import read
    from stoker.records import Setting
    from stoker.report.console import show
    from stoker.report.documents import document_of
    from stoker.report.pages import prediction_page
    from stoker.report.views import prediction

    writable(report, "--report")
    found = read(_bytes_of(probes))
    predictor = Predictor(found, cores=cores, faster_stages=parse_faster(faster or []))
    count = items_of(found) if items is None else items
    if grid:
        cells = landscape(predictor, count, epochs=epochs)
        print_json(cells) if json else show(prediction.grid_view(cells, found))
        report_to(report, lambda: prediction_page(found, cells))
        return
    if batch_size is None or workers is None:
        raise InputError("name a setting, such as --batch-size 128 --workers 8, or use --grid for all")
    setting = Setting(
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        in_order=in_order,
        multiprocessing_context=start_method,
        worker_threads=worker_threads,
    )
    answer = predictor.predict(with_pinning(setting, found), count, epochs=epochs)
    if json:
        print_json(document_of(answer))
    else:
        show(prediction.prediction_view(answer, found))
    report_to(report, lambda: prediction_page(found, landscape(predictor, count, epochs=epochs), answer))


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
