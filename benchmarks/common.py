"""What the benchmarks share: the folder of the results, the machine they came from, and how spreads are written."""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.machine import inspect
from stoker.records import Machine
from stoker.report.documents import to_json

RESULTS = Path(__file__).parent / "results"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Every benchmark writes to a folder named for the machine; the default tells two-core machines from others."""
    parser = argparse.ArgumentParser(description=description)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    default = RESULTS / ("two-cores" if cores == 2 else f"{cores}-cores")
    parser.add_argument("--output", type=Path, default=default, help="folder for the raw JSON")
    return parser


def write(folder: Path, name: str, rows: Any) -> None:
    """Raw results, with the machine and the versions they came from."""
    machine = unplaced(inspect())
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"cpu": machine.cpu, "gpus": [gpu.name for gpu in machine.gpus], "software": machine.software}
    document = {
        "benchmark": name,
        "python": platform.python_version(),
        "machine": msgspec.to_builtins(facts),
        "rows": rows,
    }
    (folder / f"{name}.json").write_text(to_json(document) + "\n", encoding="utf-8")


def tried_sizes(name: str) -> dict[str, dict[str, Any]]:
    """For each question of the H200's `name`, the smallest size that failed and the largest that ran in any run.

    Every try was in a fresh process. Which sizes fit is not always monotonic, so all runs count.
    """
    sizes: dict[str, dict[bool, set[int]]] = {}
    for row in _rows("limit-tries"):
        found = {True: row["ran"], False: row["failed"]}
        sizes[row["key"]] = {ran: set() if size is None else {size} for ran, size in found.items()}
    stored = {each: _rows(each) for each in (name, "limit-alone", "limit-more")}
    for row in (row for rows in stored.values() for row in rows):
        seen = sizes.setdefault(row["key"], {True: set(), False: set()})
        tries = [(int(size), ran) for size, ran in row.get("truth", {}).get("tries", {}).items()]
        for size, ran in (*tries, *((probe["batch_size"], probe["ran"]) for probe in row["auto"]["probes"])):
            seen[ran].add(size)
    return {
        row["key"]: {"last_ran": max(sizes[row["key"]][True]), "first_failed": min(sizes[row["key"]][False])}
        for row in stored[name]
    }


def _rows(name: str) -> Any:
    return json.loads((RESULTS / "h200" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def unplaced(machine: Machine) -> Machine:
    """The machine without what names this one place: folders, and the build of its kernel."""
    software = msgspec.structs.replace(machine.software, system=platform.system())
    storage = machine.storage and msgspec.structs.replace(machine.storage, path="data", mount="/")
    return msgspec.structs.replace(machine, software=software, storage=storage)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def say(line: str = "") -> None:
    print(line)
    sys.stdout.flush()


def at(values: Sequence[float], share: float) -> str:
    """How large errors are at a quantile, the upper of two."""
    ordered = sorted(abs(value) for value in values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.1%}" if ordered else "–"
