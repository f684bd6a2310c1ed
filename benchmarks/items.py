"""What does the spy cost an item? Each is loaded traced and untraced, one right after the other, in changing order.

Whole loops on two busy cores differ by several per cent from run to run; pairs this close see the same machine.

python benchmarks/items.py [--items 1000]
"""

import copy
from time import perf_counter
from typing import Any

import torch
from common import arguments, say, write
from overhead import confidence
from torch.utils.data import default_collate

import stoker
from stoker import marks
from stoker.events import OnEvent
from stoker.measure import spy
from stoker.measure.session import trial_server
from stoker.measure.spy.wrappers import ledger
from stoker.process import child
from stoker.workload import calls

GROUP = 32


def measure(data: str, items: int, emit: OnEvent) -> list[dict[str, float]]:
    """Seconds of groups of items, collating included, with and without the spy."""
    torch.set_num_threads(1)  # as in a worker
    workload = stoker.load("resnet18", data=data, mode="infer", items=items)
    plain = calls.make_dataset(workload)
    with spy.installed(copy.deepcopy(plain)) as watched:
        return _groups(plain, watched.dataset, watched.collate_fn(None), items)


def _groups(plain: Any, spied: Any, collate: Any, items: int) -> list[dict[str, float]]:
    for index in range(GROUP):  # files cached, code warm
        plain[index], spied[index]
    ledger().close_batch()
    rows = []
    for first in range(0, items - GROUP + 1, GROUP):
        row = {"traced": 0.0, "bare": 0.0}
        kept: dict[str, list[Any]] = {"traced": [], "bare": []}
        for index in range(first, first + GROUP):
            for name in ("traced", "bare") if index % 2 else ("bare", "traced"):
                _switch(name)
                began = perf_counter()
                kept[name].append(spied[index] if name == "traced" else plain[index])
                row[name] += perf_counter() - began
        for name in ("traced", "bare") if first // GROUP % 2 else ("bare", "traced"):
            _switch(name)
            began = perf_counter()
            collate(kept[name]) if name == "traced" else default_collate(kept[name])
            row[name] += perf_counter() - began
        rows.append(row)
    return rows


def _switch(name: str) -> None:
    marks.record_into(ledger().recorder if name == "traced" else None)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--items", type=int, default=1600)
    options = parser.parse_args()
    rows = []
    say("data      an item, bare   traced / bare: median [confidence of 95%]   groups")
    for data in ("jpeg", "tensors"):
        groups = child.value(
            child.run(measure, (data, options.items), server=trial_server(), kind=list[dict[str, float]])
        )
        ratios = [group["traced"] / group["bare"] for group in groups]
        low, high = confidence(ratios)
        middle = sorted(ratios)[len(ratios) // 2]
        bare_ms = 1e3 * sum(group["bare"] for group in groups) / (len(groups) * GROUP)
        rows.append({"data": data, "bare_ms": bare_ms, "median": middle, "confidence": [low, high], "groups": groups})
        say(f"{data:9s} {bare_ms:10.3f} ms   {middle:.4f} [{low:.4f}, {high:.4f}]   {len(groups)}")
    write(options.output, "items", rows)


if __name__ == "__main__":
    main()
