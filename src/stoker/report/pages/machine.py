"""The page of a machine: its facts, how fast it reads, and what breaks runs on it."""

from functools import partial

from stoker.records import Machine
from stoker.report import charts
from stoker.report.html import Card, Page, Section, Table
from stoker.report.pages.parts import capital, counted, figure, machine_facts, percent
from stoker.units import format_bytes


def machine_page(machine: Machine) -> Page:
    """What a machine really has."""
    cpu, host = machine.cpu, machine.host
    cards = [
        Card(about="CPUs", answer=f"{cpu.usable:g} usable", detail=f"of {cpu.logical} logical: {cpu.model}"),
        Card(
            about="memory",
            answer=format_bytes(host.limit_bytes),
            detail=f"{format_bytes(host.available_bytes)} available",
        ),
    ]
    cards += [
        Card(
            about=f"GPU {gpu.index}",
            answer=gpu.name,
            detail=f"{format_bytes(gpu.memory_free_bytes)} of {format_bytes(gpu.memory_total_bytes)} free",
        )
        for gpu in machine.gpus
    ]
    sections = []
    rows = []
    if machine.disk is not None:
        names = {
            "sequential_cold": "large reads, cold",
            "sequential_cached": "large reads, cached",
            "small_cold": "small files, cold",
            "small_cached": "small files, cached",
        }
        speeds = {text: getattr(machine.disk, name) for name, text in names.items()}
        rows = [
            {"reads": text, "bytes_per_s": speed.bytes_per_s} for text, speed in speeds.items() if speed is not None
        ]
    if rows:
        best = max(rows, key=lambda row: row["bytes_per_s"])
        title = f"{capital(best['reads'])}: {format_bytes(best['bytes_per_s'])}/s"
        draw = partial(charts.bars, label="reads", value="bytes_per_s", title="bytes per second", unit="B")
        evicted = percent(machine.disk.evicted) if machine.disk else ""
        sections.append(
            Section(
                "Reading",
                [figure(title, rows, draw, note=f"{evicted} of the pages had left the cache.", alt="Read speeds")],
            )
        )
    if machine.hints:
        cells = [[hint.what, hint.remedy] for hint in machine.hints]
        sections.append(Section("What may break runs", tables=[Table("", ["what", "remedy"], cells)]))
    gpus = counted(len(machine.gpus), "GPU")
    return Page("machine", cpu.model, f"{cpu.usable:g} CPUs, {gpus}", cards, sections, machine_facts(machine))
