"""Does `stoker compare` see a planted slowdown of 10 %, and none where there is none?

python benchmarks/compare.py [--pairs 50] [--seconds 150]     goes on where it ended, until all pairs are measured
python benchmarks/compare.py --spread                         how much runs of one setting differ, from stored results

A pair has three sides of several short runs, each in a process of its own, in alternation: a base, the same again, and
one whose items and steps take 10 % longer. Half of the pairs sleep, half of them compute.
"""

import hashlib
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import torch
from common import RESULTS, arguments, say, write
from torch.utils.data import Dataset

import stoker
from stoker.report.documents import save, trial_document

RUNS = 4
"""Of each side."""
SETTING = stoker.Setting(batch_size=4)
EXTENT = stoker.Extent(batches=16, warmup=3)
PLANTED = {"base": 10, "same": 10, "slow": 11}
"""Units of work of an item; a step has four times as many. The third side has 10 % more."""
SLEEP_S = 0.0002
BLOCK = bytes(1 << 17)


def sleeping(units: int) -> None:
    time.sleep(units * SLEEP_S)


def computing(units: int) -> None:
    for _ in range(units):
        hashlib.blake2b(BLOCK).digest()


WORK: dict[str, Callable[[int], None]] = {"sleeping": sleeping, "computing": computing}


class Items(Dataset[Any]):
    def __init__(self, work: Callable[[int], None], units: int) -> None:
        self.work, self.units = work, units

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.work(self.units)
        return torch.zeros(4)


def workload(kind: str, units: int) -> stoker.Workload:
    work = WORK[kind]

    def step(model: Any, batch: Any) -> None:
        work(4 * units)

    return stoker.Workload(model=torch.nn.Identity(), dataset=Items(work, units), step=step, name=kind)


def measure(pair: int, folder: Path) -> dict[str, Any]:
    """One pair: its saved runs, compared as a user would, with 1 to all of the runs of each side."""
    kind = list(WORK)[pair % len(WORK)]
    files: dict[str, list[Path]] = {name: [] for name in PLANTED}
    times: dict[str, list[float]] = {name: [] for name in PLANTED}
    for number in range(RUNS):
        for name, units in PLANTED.items():
            trial = stoker.profile(workload(kind, units), SETTING, EXTENT, device="cpu", mode="infer")
            path = folder / f"{pair}-{name}-{number}.json"
            save(trial_document(trial, ()), path)
            files[name].append(path)
            times[name].append(trial.total_s)
    found = {}
    for name in ("same", "slow"):
        for count in range(1, RUNS + 1):
            answer = stoker.compare(files["base"][:count], files[name][:count])
            found[f"{name} {count}"] = {
                "answer": answer.answer,
                "ratio": answer.total.ratio,
                "interval": answer.total.interval,
                "spread": answer.spread,
                "drifted": answer.drifted,
                "disturbed": answer.a.disturbed + answer.b.disturbed,
            }
    return {"pair": pair, "kind": kind, "total_s": times, "found": found}


def spread(machine: str, figure: str = "total_s") -> tuple[float, int, int]:
    """The standard deviation of log times between undisturbed runs of one setting in stored results, its degrees of
    freedom, and how many settings it comes from."""
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for line in (RESULTS / machine / "regret-runs.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("outcome") == "done" and not row.get("disturbed"):
            groups[(row["case"], row["batch"], row["workers"])].append(math.log(row[figure]))
    several = [values for values in groups.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(variance(values) * (len(values) - 1) for values in several)
    return math.sqrt(squares / freedom), freedom, len(several)


def show_spread() -> None:
    for machine in ("two-cores", "two-cores-cpu", "h200", "h200-keeping"):
        for figure, words in (("total_s", "whole run"), ("first_s", "first batch")):
            found, freedom, settings = spread(machine, figure)
            say(f"{machine:14s} {words:12s} {found:.1%}, {freedom} degrees of freedom, {settings} settings")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no pair after this time")
    parser.add_argument("--spread", action="store_true")
    options = parser.parse_args()
    if options.spread:
        show_spread()
        return
    path = options.output / "compare.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    ends = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        while len(rows) < options.pairs and time.monotonic() < ends:
            rows.append(measure(len(rows), Path(folder)))
            write(options.output, "compare", rows)
    say(f"{len(rows)} pairs")
    for name in rows[0]["found"] if rows else ():
        answers = Counter(row["found"][name]["answer"] for row in rows)
        off = fmean(math.log(row["found"][name]["ratio"]) for row in rows)
        say(f"{name} runs a side: {dict(answers)}, mean change {math.expm1(off):+.1%}")


if __name__ == "__main__":
    main()
