"""What does measuring cost? The traced loop against the same loop untraced, in turns, a fresh process each.

python benchmarks/overhead.py [--pairs 15] [--gpu]
"""

from time import perf_counter
from typing import Any

import torch
from common import arguments, quartiles, say, write

import stoker
from stoker.measure import isolate
from stoker.measure.clock import Nap, clock_for, parse_device
from stoker.measure.feed import make_feed
from stoker.measure.steps import make_step
from stoker.workload import passes

Case = dict[str, Any]
CPU_CASES: list[Case] = [
    {"name": "resnet18", "data": "jpeg", "workers": 2, "batch": 32, "batches": 12, "device": "sleep:1ms"},
    {"name": "resnet18", "data": "tensors", "workers": 1, "batch": 32, "batches": 100, "device": "sleep:1ms"},
    {"name": "resnet18", "data": "jpeg", "workers": 0, "batch": 16, "batches": 6, "device": "cpu"},
]
GPU_CASES: list[Case] = [
    {"name": "resnet18", "data": "jpeg", "workers": 8, "batch": 128, "batches": 32, "device": "cuda"},
    {"name": "resnet18", "data": "tensors", "workers": 8, "batch": 128, "batches": 80, "device": "cuda"},
    {"name": "vit_b_16", "data": "tensors", "workers": 8, "batch": 128, "batches": 40, "device": "cuda"},
    {"name": "resnet18", "data": "device", "workers": 0, "batch": 128, "batches": 200, "device": "cuda"},
]


def bare(case: Case, setting: stoker.Setting, extent: stoker.Extent, emit: isolate.Emit) -> float:
    """The loop as a person would write it: no wrappers, no marks, no gauges."""
    device = parse_device(case["device"])
    pinned = isinstance(device, torch.device) and device.type == "cuda"
    workload = stoker.load(case["name"], data=case["data"], mode="infer", items=_items(case))
    dataset = passes.make(workload.dataset)
    step = make_step(workload, "infer", setting, device, pinned=pinned)
    feed: Any = make_feed(workload, dataset, "infer", setting, extent, pinned=pinned, traced=False, seed=0)
    if case["data"] == "device":
        batch = step.move(next(iter(feed)))  # type: ignore[union-attr]
        feed = [batch] * case["batches"]
    clock = clock_for(torch.device("cpu") if isinstance(device, Nap) else device)
    began = perf_counter()
    for batch in feed:
        step(batch, lambda name: None)
    del feed
    clock.settle()
    return perf_counter() - began


def _items(case: Case) -> int:
    return int(case["batch"] * case["batches"])


def pair(case: Case, traced_first: bool) -> dict[str, float]:
    setting = stoker.Setting(batch_size=case["batch"], num_workers=case["workers"])
    extent = stoker.Extent(batches=case["batches"], warmup=0)
    named = stoker.Named(spec=case["name"], data=case["data"], items=_items(case))
    seconds: dict[str, float] = {}
    for which in ("traced", "bare") if traced_first else ("bare", "traced"):
        if which == "traced":
            trial = stoker.profile(named, setting, extent, mode="infer", device=case["device"])
            assert trial.outcome == "done", trial.problem
            seconds["traced"] = trial.total_s
        else:
            seconds["bare"] = isolate.value(isolate.run(bare, (case, setting, extent), kind=float))
    return seconds


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    rows = []
    say("workload                          traced / bare: median [quartiles]   seconds")
    for case in GPU_CASES if options.gpu else CPU_CASES:
        pair(case, traced_first=True)  # data sets are built and files cached before anything counts
        pairs = [pair(case, traced_first=bool(number % 2)) for number in range(options.pairs)]
        low, middle, high = quartiles([row["traced"] / row["bare"] for row in pairs])
        rows.append({"case": case, "pairs": pairs, "ratio": {"low": low, "median": middle, "high": high}})
        label = f"{case['name']} {case['data']} w={case['workers']} b={case['batch']} {case['device']}"
        say(f"{label:40s} {middle:.4f} [{low:.4f}, {high:.4f}]   {quartiles([row['bare'] for row in pairs])[1]:.2f}")
        write(options.output, "overhead", rows)


if __name__ == "__main__":
    main()
