"""What does measuring cost? The traced loop against the same loop untraced, in turns, in one process.

`bare` is the loop as a person would write it; `traced` has the spy in the workers, the clock around every stage and,
from another process, the gauges, as a trial has them. Each loop starts its own workers. Where two busy cores make wall
times noisy, the CPU time of all processes (the gauges' own included) tells what was added. Loops are short, so that a
fixed cost shows and so that a round is over before the machine has changed; rounds are many. A row with `rounds` of its
own has next to nothing to load: what a run costs to start, with gauges beside it and (`ungauged`) without.

python benchmarks/overhead.py [--rounds 40] [--gpu]
"""

import gc
import random
import resource
import statistics
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import torch
from common import arguments, quartiles, say, write

import stoker
from stoker.events import AnyEvent, OnEvent, Phase
from stoker.measure import spy
from stoker.measure.device import clock_for, parse_device
from stoker.measure.feed import load_into_memory, make_feed
from stoker.measure.gauges import Gauges
from stoker.measure.log import LoopLog
from stoker.measure.loop import Loop
from stoker.measure.session import trial_server
from stoker.measure.steps import make_step
from stoker.process import child
from stoker.workload import calls

Case = dict[str, Any]
CPU_CASES: list[Case] = [
    {"name": "resnet18", "data": "jpeg", "workers": 2, "batch": 32, "batches": 9, "device": "sleep:1ms"},
    {"name": "resnet18", "data": "jpeg", "workers": 1, "batch": 32, "batches": 5, "device": "sleep:1ms"},
    {"name": "resnet18", "data": "tensors", "workers": 1, "batch": 32, "batches": 22, "device": "sleep:1ms"},
    {"name": "resnet18", "data": "jpeg", "workers": 0, "batch": 16, "batches": 2, "device": "cpu"},
]
GPU_CASES: list[Case] = [
    {"name": "resnet18", "data": "tensors", "workers": 2, "batch": 4, "batches": 4, "device": "cuda", "rounds": 80},
    {"name": "resnet18", "data": "jpeg", "workers": 2, "batch": 32, "batches": 4, "device": "cuda"},
    {"name": "resnet18", "data": "tensors", "workers": 2, "batch": 64, "batches": 10, "device": "cuda"},
    {"name": "vit_b_16", "data": "tensors", "workers": 2, "batch": 128, "batches": 3, "device": "cuda"},
    {"name": "resnet18", "data": "device", "workers": 0, "batch": 128, "batches": 30, "device": "cuda"},
]


def measure(case: Case, rounds: int, emit: OnEvent) -> list[dict[str, float]]:
    """Seconds of each loop, in turns of random order. `again` is `bare` once more."""
    device = parse_device(case["device"])
    pinned = isinstance(device, torch.device) and device.type == "cuda"
    setting = stoker.Setting(batch_size=case["batch"], num_workers=case["workers"])
    extent = stoker.Extent(batches=case["batches"], warmup=0)
    workload = stoker.load(case["name"], data=case["data"], mode="infer", items=case["batch"] * case["batches"])
    step = make_step(workload, "infer", setting, device, pinned=pinned)
    clock = clock_for(device)

    cpu_began = [0.0]

    def feed(dataset: Any, watched: spy.Watched | None = None) -> Any:
        made = make_feed(workload, dataset, "infer", setting, extent, pinned=pinned, watched=watched)
        if case["data"] == "device":
            made = load_into_memory(made, case["batches"])
            batch = next(iter(made))
            batch = step.move(batch.batch if watched else batch)  # type: ignore[union-attr]
            made.source = [batch] * case["batches"]
        return made

    def bare() -> float:
        source = feed(calls.make_dataset(workload))
        cpu_began[0] = cpu_s()
        began = perf_counter()
        for batch in source:
            step(batch, lambda name: None)
        clock.settle()
        return perf_counter() - began

    def traced(*, gauges: bool = True) -> float:
        dataset = calls.make_dataset(workload)
        with spy.installed(dataset) as watched:
            log = LoopLog(clock)
            loop = Loop(feed(dataset, watched), step, log, emit)
            if gauges:
                emit(Phase(name="running"))
            cpu_began[0] = cpu_s()
            log.run_began()
            loop.epoch()
            log.run_ended()
        seconds = log.ended_s - log.began_s
        if gauges:
            emit(Phase(name="over"))
        return seconds

    bare(), traced()
    gc.collect()
    gc.freeze()
    rows = []
    for number in range(case.get("rounds", rounds)):
        row: dict[str, float] = {}
        turns: list[tuple[str, Callable[[], float]]] = [("bare", bare), ("traced", traced), ("again", bare)]
        if "rounds" in case:
            turns.append(("ungauged", lambda: traced(gauges=False)))
        random.Random(number).shuffle(turns)
        for name, run in turns:
            row[name] = run()
            row[f"{name}_cpu"] = cpu_s() - cpu_began[0]
        rows.append(row)
    return rows


def cpu_s() -> float:
    """CPU time of this process and of its workers that have ended."""
    gc.collect()
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class Beside:
    """Reads gauges in this process while the child runs a traced loop, as a trial does."""

    def __init__(self) -> None:
        self._pid = 0
        self._gauges = Gauges()
        self._cpu_began = 0.0
        self.cpu_s: list[float] = []

    def started(self, pid: int) -> None:
        self._pid = pid

    def event(self, event: AnyEvent) -> None:
        if event == Phase(name="running"):
            self._gauges = Gauges()
            self._cpu_began = process_time()
            self._gauges.start(self._pid)
        elif event == Phase(name="over"):
            self._gauges.stop()
            self.cpu_s.append(process_time() - self._cpu_began)


def ratios(pairs: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Traced to untraced, by the wall and by CPU time; and untraced to untraced, which is the noise."""
    found = {
        "ratio": [2 * row["traced"] / (row["bare"] + row["again"]) for row in pairs],
        "cpu_ratio": [
            2 * (row["traced_cpu"] + row["gauges_cpu"]) / (row["bare_cpu"] + row["again_cpu"]) for row in pairs
        ],
        "noise": [row["again"] / row["bare"] for row in pairs],
        "added_s": [row["traced"] - (row["bare"] + row["again"]) / 2 for row in pairs],
    }
    names = ("low", "median", "high")
    return {
        name: {**dict(zip(names, quartiles(values), strict=True)), "confidence": confidence(values)}
        for name, values in found.items()
    }


def confidence(values: list[float]) -> list[float]:
    """Where the median lies nineteen times in twenty, by drawing again from what was seen."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return [medians[50], medians[-51]]


def written(ratio: dict[str, Any]) -> str:
    low, high = ratio["confidence"]
    return f"{ratio['median']:.4f} [{low:.4f}, {high:.4f}]"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="the row to begin with")
    parser.add_argument("--last", type=int, default=100, help="and the one to end before")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    say("median [confidence of 95%]           traced/bare, wall        traced/bare, CPU         bare/bare, wall    s")
    for case in (GPU_CASES if options.gpu else CPU_CASES)[options.first : options.last]:
        beside = Beside()
        ended = child.run(
            measure,
            (case, options.rounds),
            kind=list[dict[str, float]],
            server=trial_server(),
            on_start=beside.started,
            on_event=beside.event,
        )
        pairs = child.value(ended)
        for row, gauges_s in zip(pairs, beside.cpu_s[1:], strict=True):
            row["gauges_cpu"] = gauges_s
        rows.append({"case": case, "pairs": pairs, **ratios(pairs)})
        label = f"{case['name']} {case['data']} w={case['workers']} b={case['batch']} {case['device']}"
        wall, cpu, noise = (written(rows[-1][name]) for name in ("ratio", "cpu_ratio", "noise"))
        say(f"{label:36s} {wall}  {cpu}  {noise}  {quartiles([row['bare'] for row in pairs])[1]:.2f}")
        say(f"{'':36s} added {written(rows[-1]['added_s'])} s")
        write(options.output, "overhead", rows)


if __name__ == "__main__":
    main()
