"""Items of wildly varying cost: what loading further ahead, and taking batches as they are ready, really bring, beside
what is predicted from probes.

python benchmarks/uneven.py

One item in fifty takes sixty times as long as the others, waiting (as for a far disk; eight workers) or computing (two
workers). The step takes as long as the workers together take for a batch, so that each could hide the other. Rounds go
over all settings in turns; what is compared is each setting with two batches ahead in the same round.
"""

import random
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from common import arguments, quartiles, say, write
from torch.utils.data import Dataset

import stoker
from stoker.forecast.predictor import Predictor
from stoker.forecast.probe import probe
from stoker.measure.session import Job, Script, run_script
from stoker.records import Extent, Setting

ITEMS, BATCH, ROUNDS = 2000, 8, 5
ITEM_S, SLOW, ONE_IN = 0.002, 60.0, 50
SETTINGS = {
    "1 ahead": {"prefetch_factor": 1},
    "2 ahead": {},
    "4 ahead": {"prefetch_factor": 4},
    "8 ahead": {"prefetch_factor": 8},
    "2 ahead, out of order": {"in_order": False},
}


class Waits(Dataset[Any]):
    def __init__(self) -> None:
        rng = random.Random(1)
        self.seconds = [ITEM_S * (SLOW if rng.randrange(ONE_IN) == 0 else 1.0) for _ in range(ITEMS)]

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds[index])
        return torch.zeros(3, 64, 64)


class Computes(Waits):
    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + self.seconds[index]
        while time.thread_time() < end:
            pass
        return torch.zeros(3, 64, 64)


def waits() -> stoker.Workload:
    return stoker.Workload(model=torch.nn.Identity(), dataset=Waits)


def computes() -> stoker.Workload:
    return stoker.Workload(model=torch.nn.Identity(), dataset=Computes)


def settings(workers: int) -> dict[str, Setting]:
    return {
        name: Setting(batch_size=BATCH, num_workers=workers, **changes)  # type: ignore[arg-type]
        for name, changes in SETTINGS.items()
    }


def rounds(workers: int, seen: dict[str, list[float]]) -> Script[None]:
    """All settings forth and back, each round in a process of its own."""
    for number in range(ROUNDS):
        chosen = list(settings(workers).items())
        first = Setting(batch_size=BATCH, num_workers=workers)
        yield Job(setting=first, extent=Extent(batches=4 * workers, warmup=0), fresh=number > 0)
        for name, setting in chosen if number % 2 == 0 else reversed(chosen):
            trial = yield Job(setting=setting, extent=Extent(batches=ITEMS // BATCH, warmup=0))
            assert trial.outcome == "done", trial.problem
            seen[name].append(trial.total_s)


def measure(name: str, workers: int) -> list[dict[str, Any]]:
    source = f"{__file__}:{name}"
    mean_s = sum(Waits().seconds) / ITEMS
    device = f"sleep:{1000 * mean_s / workers:.3f}ms/item"
    probes = probe(source, batch_sizes=(BATCH,), mode="infer", device=device, budget_s=30)
    predictor = Predictor(probes)
    seen: dict[str, list[float]] = {each: [] for each in SETTINGS}
    run_script(source, rounds(workers, seen), mode="infer", device=device)
    told = {each: predictor.predict(setting, ITEMS) for each, setting in settings(workers).items()}
    return [
        {
            "items": name,
            "workers": workers,
            "setting": each,
            "least_s": ITEMS * mean_s / workers,
            "runs_s": seen[each],
            "ratio": quartiles([one / other for one, other in zip(seen[each], seen["2 ahead"], strict=True)]),
            "predicted_s": told[each].total_s,
            "predicted_ratio": told[each].total_s / told["2 ahead"].total_s,
            "interval_s": told[each].interval_s,
            "probed_items": predictor.costs.sampled,
        }
        for each in SETTINGS
    ]


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows = [row for name, workers in (("waits", 8), ("computes", 2)) for row in measure(name, workers)]
    write(options.output, "uneven", rows)
    for before, row in pairwise([None, *rows]):
        assert row is not None
        if before is None or before["items"] != row["items"]:
            least = f"at least {row['least_s']:.1f} s; {row['probed_items']} items probed"
            say(f"{row['items']}, {row['workers']} workers, {least}")
        low, middle, high = row["ratio"]
        measured = f"{median(row['runs_s']):6.2f} s  {middle:.2f} ({low:.2f} - {high:.2f})"
        say(f"  {row['setting']:24s}{measured}   predicted {row['predicted_s']:6.2f} s  {row['predicted_ratio']:.2f}")


if __name__ == "__main__":
    main()
