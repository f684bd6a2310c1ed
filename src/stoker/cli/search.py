"""The command `search`."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import (
    ItemsOption,
    JsonOption,
    PerOption,
    QuietOption,
    RayAddressOption,
    RayOption,
    ReportOption,
    SaveOption,
    app,
    deliver,
    ray_executor,
    report_to,
    writable,
)
from stoker.errors import InputError


@app.command()
def search(
    models: Annotated[
        str | None,
        typer.Option(
            help="Candidates: resnet18,timm/resnet10t,'resnet18@snapshots/*.safetensors'.", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder of class folders or FILE.py:workload; jpeg, tensors, text for times alone.",
            show_default=False,
        ),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="Scores to compute and combine.", show_default="nleep,logme")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="full, last:25%, last:3, last:50%:time, joint:2:last:3.", show_default="full")
    ] = None,
    items: ItemsOption = None,
    classes: Annotated[int | None, typer.Option(help="Use the first classes, or so many random ones.", min=2)] = None,
    budget: Annotated[str | None, typer.Option(help="Begin no candidate that would end after this: 10m.")] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(help="For items kept between candidates: 8GiB.", show_default="a quarter of what is free"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    db: Annotated[Path, typer.Option("--db", help="The store of finished candidates, one SQLite file.")] = Path(
        "stoker.db"
    ),
    blocks: Annotated[
        str | None, typer.Option("--blocks", help="Show the blocks of this model, and stop.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and how long it should take.")
    ] = False,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    per: PerOption = None,
    json: JsonOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    quiet: QuietOption = False,
) -> None:
    """Rank pretrained models on labelled data."""
    from stoker.measure.session import trial_server
    from stoker.units import parse_bytes, parse_seconds

    budget_s = parse_seconds(budget) if budget is not None else None
    host_memory_bytes = parse_bytes(host_memory) if host_memory is not None else None
    writable(save)
    writable(report, "--report")
    trial_server()  # it imports torch beside what is imported here
    if blocks is not None:
        _show_blocks(blocks, part, device, json=json, save=save)
        return
    if models is None:
        raise InputError("name the candidates: --models resnet18,mobilenet_v3_small")
    from stoker.integrations.reports import page_of
    from stoker.ranking.request import search_request
    from stoker.report.documents import ranking_document
    from stoker.report.progress import Show
    from stoker.report.views.search import forecast_view, ranking_view
    from stoker.studies.search import forecast
    from stoker.studies.search import search as run

    with ray_executor(ray, ray_address, per, quiet=quiet) as executor, Show(quiet=quiet) as progress:
        if dry_run:
            request = search_request(
                models, data=data, score=score, part=part or "full", items=items, classes=classes, device=device
            )
            planned = forecast(request, db=db, executor=executor, on_event=progress.event)
        else:
            found = run(
                models,
                data=data,
                score=score,
                part=part or "full",
                items=items,
                classes=classes,
                device=device,
                budget_s=budget_s,
                host_memory_bytes=host_memory_bytes,
                db=db,
                executor=executor,
                on_event=progress.event,
            )
    if dry_run:
        import msgspec

        document = msgspec.to_builtins(planned)
        deliver(document, forecast_view(document), json=json, save=save)
        return
    deliver(ranking_document(found), ranking_view(found), json=json, save=save)
    report_to(report, lambda: page_of(found))
    if found.ranked is None and not (found.labels == "random" and len(found.failed) < len(found.candidates)):
        raise typer.Exit(1)


def _show_blocks(model: str, part: str | None, device: str, *, json: bool, save: Path | None) -> None:
    import msgspec

    from stoker.ranking.blocktable import block_table
    from stoker.report.views.search import blocks_view
    from stoker.workload.blocks.part import PARTS

    table = block_table(model, parts=(part,) if part is not None else PARTS, device=device)
    document = msgspec.to_builtins(table)
    for row, cost in zip(document["blocks"], table.blocks, strict=True):
        row["time_s_per_item"] = cost.time_s_per_item
    deliver(document, blocks_view(document), json=json, save=save)
