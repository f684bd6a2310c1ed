"""The exhaustive grid against `stoker tune`: what each choice costs, judged on runs that neither chose by.

python benchmarks/regret.py                     two CPU cores: sleep devices of three speeds, JPEG and tensors
python benchmarks/regret.py --cpu               two CPU cores: real models that compute on them
python benchmarks/regret.py --gpu --limit 500   a GPU: resnet18, vit_b_16, resnet50, JPEG and tensors

With `--keep-memory` all of it, the grid as well as tune, runs in an environment that tells C's malloc to keep what is
freed, as tune advises where that helps: without it a worker's memory is kept or given back by luck.

Every run is kept in regret-runs.jsonl as it ends, so that a benchmark that was cut goes on where it stopped. Runs wait
for a calm moment; one that other processes disturbed all the same is kept, said, and made again, twice at most.

On a GPU the grid has fewer batch sizes, and two of the slow cells stand for the others; what the whole grid would take
is reckoned with predictions for the cells that were not run, and called so. Cells without workers come last there, in
a process of their own: a batch that the loop's own process collates changes how its malloc serves the workers that are
forked from it later, and many loaders before it change how quick that is.

What the grid takes is what its runs take, with the making of the loader and the model that lies between two of them:
`tune` pays for that too.

Before each run a fixed job is timed, the decoding of one image: how much its time varies is what the machine itself
did, whoever planned.
"""

import gzip
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, sleep
from typing import Any, NamedTuple

import msgspec
import numpy as np
from common import arguments, at, say, write

from stoker.analysis.interference import disturbed
from stoker.errors import StokerError
from stoker.events import ProbesReady
from stoker.forecast.algebra import solve
from stoker.forecast.predictor import Predictor, with_pinning
from stoker.forecast.probes import read, run_of
from stoker.forecast.samples import item_bytes_of
from stoker.measure.interference import machine_cpu_s
from stoker.measure.malloc import ENVIRONMENT, can_keep_memory
from stoker.measure.session import REPEATED_ITEMS, Job, Script, run_script
from stoker.records import AlgebraTiming, Extent, Mode, Probes, Setting, Trial, WorkloadSpec
from stoker.report.documents import to_json
from stoker.tuning.planners import timing_of
from stoker.tuning.tune import Plan, tune

FIXED, DEFAULT = (128, 8), (128, 0)
TRIES = 3
CLOSE, SURE = 0.1, 0.015
"""Cells this near to the best are judged more often: until each is known to lie so much apart from it, give or take."""
MOST_TURNS = {"cpu": 12, "sleep": 20}
AGAIN = ("again", "again 2", "again 3")
RUNS = ("grid", *AGAIN, "judge")
Cell = tuple[int, ...]
"""Batch size and workers, and how far ahead these load where that is not 2."""


class Case(NamedTuple):
    """One workload on one device, and the grid it is searched on."""

    model: str
    data: str
    mode: Mode
    device: str
    items: int
    batches: tuple[int, ...]
    workers: tuple[int, ...]
    extra: tuple[Cell, ...] = ()
    budget_s: float = 12.0
    whole: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def name(self) -> str:
        return f"{self.model}, {self.mode}, {self.data}, {self.device}"

    @property
    def cells(self) -> list[Cell]:
        return [*((size, count) for size in self.batches for count in self.workers), *self.extra]

    @property
    def left_out(self) -> list[Cell]:
        """Cells of the whole grid that are not run."""
        sizes, counts = self.whole or ((), ())
        return [(size, count) for size in sizes for count in counts if (size, count) not in self.cells]


SMALL = ((8, 16, 32, 64, 128), (0, 1, 2, 3, 4))
TWO_CORES = [
    Case("resnet18", data, "infer", f"sleep:{speed}ms/item", items, *SMALL)
    for data, items, speeds in (("jpeg", 1024, (0.5, 1.5, 4)), ("tensors", 2048, (0.1, 0.4, 1.5)))
    for speed in speeds
]
ON_CPU = [
    Case("resnet18", "jpeg", "infer", "cpu", 512, (8, 16, 32, 64), (0, 1, 2), budget_s=60.0),
    Case("mobilenet_v3_small", "jpeg", "train", "cpu", 512, (8, 16, 32, 64), (0, 1, 2), budget_s=60.0),
]
GPU_WHOLE = ((32, 64, 128, 256, 512), (0, 1, 2, 4, 8, 16, 32))
GPU_BATCHES = (32, 128, 512)


def on_gpu(model: str, mode: Mode, data: str) -> Case:
    """With a JPEG taking 7 ms, a cell without workers takes 14 s: two slow ones stand for the rest, and it is said."""
    common: dict[str, Any] = {"items": 2048, "batches": GPU_BATCHES, "whole": GPU_WHOLE}
    if data == "jpeg":
        extra = ((128, 0), (128, 2))
        return Case(model, data, mode, "cuda", workers=(4, 8, 16, 32), extra=extra, budget_s=34.0, **common)
    return Case(model, data, mode, "cuda", workers=GPU_WHOLE[1], budget_s=22.0, **common)


GPU = [
    on_gpu("resnet18", "infer", "jpeg"),
    on_gpu("vit_b_16", "infer", "tensors"),
    on_gpu("resnet50", "train", "jpeg"),
    on_gpu("resnet18", "infer", "tensors"),
    on_gpu("vit_b_16", "infer", "jpeg"),
    on_gpu("resnet50", "train", "tensors"),
]


class Kept:
    """The runs so far, on disk as soon as they are known."""

    def __init__(self, path: Path, limit_s: float, *, timelines: bool = False) -> None:
        self._path, self._deadline, self.timelines = path, perf_counter() + limit_s, timelines
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def save(self, case: Case, probes: Probes) -> None:
        """The probes too, so that predictions can be made anew from what was seen."""
        path = self._file(case, "probes")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(msgspec.json.encode(probes)))

    def probes(self, case: Case) -> Probes | None:
        path = self._file(case, "probes")
        return read(gzip.decompress(path.read_bytes())) if path.exists() else None

    def _file(self, case: Case, folder: str, ending: str = "json.gz") -> Path:
        name = case.name.replace(", ", "-").replace("/", "-").replace(":", "-")
        return self._path.parent / folder / f"{name}.{ending}"

    def keep_timeline(self, case: Case, phase: str, trial: Trial) -> None:
        """When each batch was begun, sent, pinned and taken: what explains a prediction that was wrong."""
        if self.timelines and trial.outcome == "done":
            run = msgspec.structs.replace(run_of(trial, "load"), item_s=(), stages_s={})
            path = self._file(case, "timelines", "jsonl.gz")
            path.parent.mkdir(exist_ok=True)
            with gzip.open(path, "ab") as file:
                file.write(msgspec.json.encode({"phase": phase, "run": run}) + b"\n")

    def of(self, case: Case, *phases: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["case"] == case.name and row["phase"] in phases]

    @property
    def out_of_time(self) -> bool:
        return perf_counter() > self._deadline


# ---------------------------------------------------------------- running


def run_case(case: Case, kept: Kept, *, repeats: int, rounds: int) -> None:
    """The grid, then tune, then cells of the grid again and the judging: a machine that gets faster or slower does so
    for all of them."""
    source = WorkloadSpec(spec=case.model, data=case.data, items=case.items)
    order = random.Random(1).sample(case.cells, len(case.cells))
    again = order[:10]
    if case.device == "cuda":
        order.sort(key=lambda cell: cell[1] == 0)
        again = [cell for cell in order if cell not in case.extra]
    if left(case, kept, "grid", order):
        run_script(source, warmed(case, grid(case, kept, "grid", order)), mode=case.mode, device=case.device)
    if not kept.of(case, "tune") and not kept.out_of_time:
        wait_for_calm(case)
        tuned(case, source, kept)
    if kept.of(case, "tune") and not kept.out_of_time:
        talk = once_more(case, kept, again, AGAIN[:rounds], repeats)
        run_script(source, warmed(case, talk), mode=case.mode, device=case.device)


def warmed(case: Case, talk: Script[None]) -> Script[None]:
    yield from warm_up(case)
    yield from talk


def once_more(case: Case, kept: Kept, cells: list[Cell], rounds: tuple[str, ...], repeats: int) -> Script[None]:
    for name in rounds:
        if case.device == "cuda" and name != rounds[0] and left(case, kept, name, cells):
            yield from warm_up(case, fresh=True)
        yield from grid(case, kept, name, cells)
    yield from judge(case, kept, repeats)


def left(case: Case, kept: Kept, phase: str, cells: list[Cell]) -> list[Cell]:
    done = set(map(cell_of, kept.of(case, phase)))
    return [cell for cell in cells if cell not in done]


def cell_of(row: dict[str, Any]) -> Cell:
    ahead = row.get("prefetch", 2)
    return (row["batch"], row["workers"], ahead) if row["workers"] and ahead != 2 else (row["batch"], row["workers"])


def grid(case: Case, kept: Kept, phase: str, cells: list[Cell]) -> Script[None]:
    """Cells that have not been run in this phase, in their random order."""
    before = 1
    for cell in left(case, kept, phase, cells):
        if kept.out_of_time:
            return
        if case.device == "cuda" and before and not cell[1]:
            yield from warm_up(case, fresh=True)
        before = cell[1]
        yield from one(case, kept, phase, cell)


def judge(case: Case, kept: Kept, repeats: int) -> Script[None]:
    """The choices of all planners and the grid's best three, in turns; those near the best until it is known how near.

    When enough is known goes by how runs differ, not by who wins. How a process' memory lies favours some cells for as
    long as it lives: each turn has a process of its own. What took twice the best or more in the grid is not run again:
    its run there counts.
    """
    in_grid = {cell_of(row): row["total_s"] for row in kept.of(case, "grid") if row["total_s"]}
    chosen = {cell for cell in choices(case, kept).values() if cell} | set(best_cells(case, kept, 3))
    hopeless = {cell for cell in chosen & in_grid.keys() if in_grid[cell] > 2 * min(in_grid.values())}
    turns = sorted(chosen - hopeless)
    for repeat in range(MOST_TURNS.get(case.device.partition(":")[0], 2 * repeats)):
        due = due_in(turns, judged(case, kept), repeat, repeats)
        if not due or kept.out_of_time:
            continue
        yield from warm_up(case, fresh=True)
        for cell in due if repeat % 2 == 0 else reversed(due):
            if not kept.out_of_time:
                yield from one(case, kept, "judge", cell)


def due_in(cells: list[Cell], seen: dict[Cell, list[float]], turn: int, repeats: int) -> list[Cell]:
    """Who is run in this turn, by what was seen in those before it."""
    best = min(seen, key=lambda cell: median(seen[cell]), default=None)
    if best is None:
        return cells
    far = {cell: median(seen[cell]) / median(seen[best]) - 1 for cell in cells if cell in seen}
    if turn < 2 * repeats:
        due = [cell for cell in cells if far.get(cell, 0.0) < (1 if turn < repeats else CLOSE)]
    else:
        near = [cell for cell in cells if far.get(cell, 1.0) < CLOSE]
        due = near if any(unsure(seen[cell], seen[best]) > SURE for cell in near if cell != best) else []
    return [cell for cell in due if len(seen.get(cell, [])) <= turn]


def unsure(ours: list[float], theirs: list[float]) -> float:
    """The standard error of the middle of two cells' ratios."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=False)]
    apart = 1.4826 * median(abs(ratio - median(ratios)) for ratio in ratios)
    return float(1.2533 * apart / len(ratios) ** 0.5)


def judged(case: Case, kept: Kept) -> dict[Cell, list[float]]:
    """The seconds of the runs that neither side chose by."""
    seen: dict[Cell, list[float]] = {}
    for row in kept.of(case, "judge"):
        if row["outcome"] == "done":
            seen.setdefault(cell_of(row), []).append(row["total_s"])
    return seen


def warm_up(case: Case, *, fresh: bool = False) -> Script[None]:
    """The first run of a process reads files and fills caches, and a GPU's first steps of a size choose their kernels:
    nobody's to pay for. Later ones on a GPU find the files read."""
    on_gpu = case.device == "cuda"
    setting = Setting(batch_size=case.batches[0], num_workers=2)
    extent = Extent(batches=-(-case.items // case.batches[0]), warmup=0)
    if not (fresh and on_gpu):
        yield Job(setting=setting, extent=extent, sleep_s=0.0, fresh=fresh)
    for size in case.batches if on_gpu else ():
        yield Job(
            setting=Setting(batch_size=size, num_workers=0),
            extent=Extent(batches=3, warmup=0, source="memory"),
            repeats=REPEATED_ITEMS,
            fresh=fresh and size == case.batches[0],
        )


def one(case: Case, kept: Kept, phase: str, cell: Cell) -> Script[None]:
    """One run of one cell in a calm moment; once or twice more where others were in its way all the same."""
    size, count, *ahead = cell
    setting = Setting(batch_size=size, num_workers=count, prefetch_factor=ahead[0] if ahead else 2)
    job = Job(setting=setting, extent=Extent(batches=-(-case.items // size), warmup=0))
    for left in reversed(range(TRIES)):
        wait_for_calm(case)
        began = perf_counter()
        trial = yield job
        wall_s = perf_counter() - began
        again = left and disturbed(trial)
        name = f"{phase}, disturbed" if again else phase
        speed = {"yardstick_ms": 1000 * median(trial.reference_s)} if trial.reference_s else {}
        kept.add(**row_of(case, name, cell, trial), **speed, wall_s=wall_s)
        kept.keep_timeline(case, name, trial)
        if not again:
            break


def wait_for_calm(case: Case) -> None:
    """Until other processes leave the CPUs alone for a moment, half a minute at most; a GPU's time is too dear."""
    for _ in range(0 if case.device == "cuda" else 60):
        before, _ = machine_cpu_s()
        sleep(0.5)
        if machine_cpu_s()[0] - before < 0.1:
            return


def row_of(case: Case, phase: str, cell: Cell, trial: Trial) -> dict[str, Any]:
    timing = timing_of(trial) if cell[1] == 0 and trial.outcome == "done" else None
    return {
        "case": case.name,
        "phase": phase,
        "batch": cell[0],
        "workers": cell[1],
        **({"prefetch": cell[2]} if len(cell) > 2 else {}),
        "outcome": trial.outcome,
        "total_s": trial.total_s,
        "first_s": trial.timeline.got_s[0] if trial.timeline.got_s else None,
        "disturbed": disturbed(trial),
        "load_s": timing.load_s if timing else None,
        "compute_s": timing.compute_s if timing else None,
    }


def tuned(case: Case, source: WorkloadSpec, kept: Kept) -> None:
    """The plan, and what its probes predict for every cell of the grid."""
    seen: list[Probes] = []
    plan = tune(
        source,
        items=case.items,
        max_batch=case.batches[-1],
        mode=case.mode,
        device=case.device,
        budget_s=case.budget_s,
        on_event=lambda event: seen.append(event.probes) if isinstance(event, ProbesReady) else None,
    )
    probes = seen[-1]
    kept.save(case, probes)
    kept.add(
        case=case.name,
        phase="tune",
        batch=plan.batch_size,
        workers=plan.num_workers,
        prefetch=plan.prefetch_factor,
        seconds=plan.seconds,
        probe_s=plan.probe_s,
        predicted_s=plan.predicted.total_s if plan.predicted else None,
        measured_s=plan.measured.total_s if plan.measured else None,
        notes=list(plan.notes),
        item_bytes=item_bytes_of(probes),
        memory_bytes=probes.machine.available_bytes,
        cores=probes.machine.usable_cores,
        cells=predictions(case, probes, case.cells),
        left_out=predictions(case, probes, case.left_out),
        candidates=candidates(plan),
        keeps_memory=not can_keep_memory(),
    )


def candidates(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "batch": each.setting.batch_size,
            "workers": each.setting.num_workers,
            "prefetch": each.setting.prefetch_factor,
            "predicted_s": each.predicted_s,
            "samples_s": list(each.measured.samples_s) if each.measured else [],
        }
        for each in plan.candidates
    ]


def predictions(case: Case, probes: Probes, cells: list[Cell]) -> list[dict[str, Any]]:
    predictor = Predictor(probes)
    rows = []
    for size, count in cells:
        setting = with_pinning(Setting(batch_size=size, num_workers=count), probes)
        found = predictor.predict(setting, case.items)
        rows.append(
            {
                "batch": size,
                "workers": count,
                "total_s": found.total_s,
                "interval_s": list(found.interval_s),
                "first_s": found.first_batch_s,
                "first_interval_s": list(found.first_batch_interval_s),
            }
        )
    return rows


# ---------------------------------------------------------------- judging


def best_cells(case: Case, kept: Kept, count: int) -> list[Cell]:
    rows = [row for row in kept.of(case, "grid") if row["outcome"] == "done"]
    rows.sort(key=lambda row: row["total_s"])
    return [cell_of(row) for row in rows[:count]]


def choices(case: Case, kept: Kept) -> dict[str, Cell | None]:
    """What each planner would set."""
    plan = kept.of(case, "tune")[0]
    best = best_cells(case, kept, 1)
    return {
        "tune": cell_of(plan),
        "grid, run once": best[0] if best else None,
        "thesis": thesis_choice(case, kept, plan),
        "fixed 128, 8": FIXED,
        "128, no workers": DEFAULT,
    }


def thesis_choice(case: Case, kept: Kept, plan: dict[str, Any]) -> Cell | None:
    rows = [row for row in kept.of(case, "grid") if row["workers"] == 0 and row["load_s"]]
    timings = [
        AlgebraTiming(batch_size=row["batch"], load_s=row["load_s"], compute_s=row["compute_s"])
        for row in sorted(rows, key=lambda row: row["batch"])[:2]
    ]
    try:
        found = solve(
            timings,
            max_batch=case.batches[-1],
            item_bytes=max(1, round(plan["item_bytes"])),
            memory_bytes=plan["memory_bytes"],
        )
    except StokerError:
        return None
    return found.batch_size, found.num_workers


def regrets(case: Case, kept: Kept) -> dict[str, float]:
    """How much longer each choice takes than the best of all that were judged: than the one that it loses most to.

    Two cells are compared in the turns that both were run in, by the middle of their ratios: a process may become
    slower between turns, and then does so for both. One that was hopeless in the grid, and so not run again, by its run
    there.
    """
    return {name: share for name, (share, _) in losses(case, kept).items()}


def losses(case: Case, kept: Kept) -> dict[str, tuple[float, float | None]]:
    """The regrets, and how sure each is: the standard error of what it lost, where it was run in turns."""
    seen = judged(case, kept)
    if not seen:
        return {}
    best = min(median(values) for values in seen.values())
    in_grid = {cell_of(row): row["total_s"] for row in kept.of(case, "grid") if row["total_s"]}
    found: dict[str, tuple[float, float | None]] = {}
    for name, cell in choices(case, kept).items():
        if cell in seen:
            winner = max(seen, key=lambda each: _beside(seen[cell], seen[each]))
            found[name] = _beside(seen[cell], seen[winner]) - 1, unsure(seen[cell], seen[winner])
        elif cell in in_grid:
            found[name] = in_grid[cell] / best - 1, None
    return found


def _beside(ours: list[float], theirs: list[float]) -> float:
    return median(one / other for one, other in zip(ours, theirs, strict=False))


def errors(case: Case, kept: Kept, anew: Probes | None = None) -> Iterator[dict[str, Any]]:
    """Predicted against measured, for every cell of the grid: against the middle of its runs, and each run against the
    interval. As it was told then, or `anew`, as it is told now from the same probes."""
    for plan in kept.of(case, "tune"):
        cells = plan["cells"] if anew is None else predictions(case, anew, case.cells)
        told: dict[Cell, dict[str, Any]] = {cell_of(row): row for row in cells}
        runs: dict[Cell, list[dict[str, Any]]] = {}
        for row in kept.of(case, *RUNS):
            if row["outcome"] == "done":
                runs.setdefault(cell_of(row), []).append(row)
        for cell in runs.keys() & told.keys():
            found = told[cell]
            yield {
                "error": found["total_s"] / median(row["total_s"] for row in runs[cell]) - 1,
                "covered": [_within(row["total_s"], found["interval_s"]) for row in runs[cell]],
                "first_error": found["first_s"] / median(row["first_s"] for row in runs[cell]) - 1,
                "first_covered": [_within(row["first_s"], found["first_interval_s"]) for row in runs[cell]],
                "within_cores": cell[1] <= plan["cores"],
            }


def _within(seconds: float, interval: list[float]) -> float:
    return float(interval[0] <= seconds <= interval[1])


def noise(case: Case, kept: Kept) -> list[float]:
    """How far two runs of the same cell lie apart, relative."""
    before = {(row["batch"], row["workers"]): row["total_s"] for row in kept.of(case, "grid")}
    rows = [row for row in kept.of(case, *AGAIN) if (row["batch"], row["workers"]) in before]
    return [abs(row["total_s"] / before[row["batch"], row["workers"]] - 1) for row in rows]


def yardsticks(case: Case, kept: Kept) -> list[float]:
    rows = kept.of(case, *RUNS)
    return [row["yardstick_ms"] for row in rows if "yardstick_ms" in row]


def summary(cases: list[Case], kept: Kept) -> list[dict[str, Any]]:
    rows = []
    for case in cases:
        if not kept.of(case, "tune"):
            continue
        found = list(errors(case, kept))
        probes = kept.probes(case)
        anew = list(errors(case, kept, probes)) if probes else []
        plan = kept.of(case, "tune")[0]
        grid = kept.of(case, "grid")
        grid_s = sum(row.get("wall_s", row["total_s"]) for row in grid)
        between_s = grid_s / len(grid) - fmean(row["total_s"] for row in grid)
        rest_s = sum(row["total_s"] + between_s for row in plan.get("left_out", []))
        rows.append(
            {
                "case": case.name,
                "regret": regrets(case, kept),
                "unsure": {name: error for name, (_, error) in losses(case, kept).items()},
                "choices": {name: list(cell) if cell else None for name, cell in choices(case, kept).items()},
                "errors": [round(each["error"], 4) for each in found],
                "covered": [value for each in found for value in each["covered"]],
                "first_errors": [round(each["first_error"], 4) for each in found if each["within_cores"]],
                "first_covered": [value for each in found for value in each["first_covered"]],
                "anew": {
                    "errors": [round(each["error"], 4) for each in anew],
                    "covered": [value for each in anew for value in each["covered"]],
                    "first_errors": [round(each["first_error"], 4) for each in anew if each["within_cores"]],
                },
                "noise": [round(each, 4) for each in noise(case, kept)],
                "yardstick_ms": [round(each, 3) for each in yardsticks(case, kept)],
                "cells": len(kept.of(case, "grid")),
                "cells_of": len(case.cells),
                "grid_s": grid_s,
                "whole_grid_s": grid_s + rest_s,
                "judged": {", ".join(map(str, cell)): values for cell, values in judged(case, kept).items()},
                "tune_s": plan["seconds"],
                "keeps_memory": plan.get("keeps_memory", False),
            }
        )
    return rows


def show(rows: list[dict[str, Any]], kept: Kept) -> None:
    """A table for each case, and over all of them."""
    names = ("tune", "grid, run once", "thesis", "fixed 128, 8", "128, no workers")
    say(f"{'regret of':34s}" + "".join(f"{name:>17s}" for name in names))
    for row in rows:
        cells = [row["regret"].get(name) for name in names]
        say(f"{row['case'][:34]:34s}" + "".join(f"{'–' if c is None else f'{c:+.1%}':>17s}" for c in cells))
    for label, middle in (("mean", fmean), ("worst", max)):
        values = [[row["regret"][name] for row in rows if name in row["regret"]] for name in names]
        say(f"{label:34s}" + "".join(f"{f'{middle(each):+.1%}' if each else '–':>17s}" for each in values))
    say()
    say(f"{'predicted against measured':34s}{'median':>9s}{'p90':>9s}{'covered':>9s}{'first':>9s}{'covered':>9s}"
        f"{'noise':>9s}{'p90':>9s}{'tune':>8s}{'grid':>8s}{'whole':>8s}")  # fmt: skip
    for row in [*rows, together(rows)] if rows else []:
        say(line_of(row))
    speeds = [value for row in rows for value in row["yardstick_ms"]]
    if speeds:
        low, high = np.quantile(speeds, (0.1, 0.9)) / median(speeds) - 1
        spread = f"four times in five {low:+.0%} to {high:+.0%}"
        say(f"a fixed job beside the runs took {median(speeds):.1f} ms, {spread}")
    bad = sum("disturbed" in row["phase"] for row in kept.rows)
    say(f"{len(kept.rows)} runs kept, {bad} of them disturbed by other processes and repeated")


def together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    lists = ("errors", "covered", "first_errors", "first_covered", "noise")
    sums = {name: sum(row[name] for row in rows) for name in ("grid_s", "whole_grid_s", "tune_s", "cells", "cells_of")}
    return {"case": "all", **sums, **{name: [value for row in rows for value in row[name]] for name in lists}}


def line_of(row: dict[str, Any]) -> str:
    def mean(values: list[float]) -> str:
        return f"{fmean(values):.0%}" if values else "–"

    cells = (
        at(row["errors"], 0.5),
        at(row["errors"], 0.9),
        mean(row["covered"]),
        at(row["first_errors"], 0.5),
        mean(row["first_covered"]),
        at(row["noise"], 0.5),
        at(row["noise"], 0.9),
    )
    text = f"{row['case'][:34]:34s}" + "".join(f"{cell:>9s}" for cell in cells)
    return text + f"{row['tune_s']:7.0f}s{row['grid_s']:7.0f}s{row['whole_grid_s']:7.0f}s"


def rewrite(path: Path, rows: list[dict[str, Any]]) -> None:
    """Reckoned anew from kept runs: the machine is the one that they were made on."""
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(to_json({**document, "rows": rows}) + "\n", encoding="utf-8")


def start_again_keeping_memory() -> None:
    """In the same process, with the environment that malloc reads when it starts."""
    pairs = (pair.split("=") for pair in ENVIRONMENT.split())
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **dict(pairs)})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gpu", action="store_true", help="the part that needs a GPU")
    parser.add_argument("--whole", action="store_true", help="on a GPU: all five batch sizes, not three of them")
    parser.add_argument("--cpu", action="store_true", help="models that compute on the CPU, in place of sleep devices")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no new run is begun")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each choice that is judged")
    parser.add_argument("--rounds", type=int, choices=(1, 2, 3), default=1, help="how often cells are run again")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--table", action="store_true", help="run nothing: the table of what is kept")
    parser.add_argument("--timelines", action="store_true", help="keep when each batch of each run was where")
    parser.add_argument("--keep-memory", action="store_true", help="in an environment in which malloc keeps memory")
    options = parser.parse_args()
    if options.keep_memory and can_keep_memory():
        start_again_keeping_memory()
    known = GPU if options.gpu else ON_CPU if options.cpu else TWO_CORES
    if options.whole:
        known = [case._replace(batches=case.whole[0]) if case.whole else case for case in known]
    cases = [case for case in known if options.only in case.name]
    kept = Kept(options.output / "regret-runs.jsonl", options.limit, timelines=options.timelines)
    for case in cases:
        if options.table or kept.out_of_time:
            break
        say(f"{case.name} ...")
        run_case(case, kept, repeats=options.repeats, rounds=options.rounds)
    rows = summary(known, kept)
    if options.table:
        rewrite(options.output / "regret.json", rows)
    else:
        write(options.output, "regret", rows)
    show(rows, kept)
    sys.exit(0)


if __name__ == "__main__":
    main()
