"""Ranks: is a delay in one of them found there, and what does the plan of `tune --ranks` cost against its grid?

python benchmarks/ranks.py               planted delays, then regret
python benchmarks/ranks.py --planted     only the delays

A delay is planted in the items or in the step of one rank of two, which writes down by its own clock how long each was.
What is reported is how much longer that rank takes in that stage than the other one; with workers, how much longer its
workers take for their items.

For the regret every setting of a small grid runs in turns, as often as `--turns` says, and the plan is judged by those
runs alone: (its time − the best) / the best. The devices sleep, so that two cores suffice for two ranks.
"""

import os
import tempfile
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from common import arguments, say, write

import stoker
from stoker.analysis import ranks
from stoker.analysis.interference import disturbed
from stoker.analysis.objective import trial_s
from stoker.measure.session import Job, Script, run_script
from stoker.records import Extent, Objective, Setting, Trial, WorkloadSpec

WORKLOAD = Path(__file__).parents[1] / "tests" / "workloads" / "ranked.py"
PLANTED = [("slow_items", "wait", workers) for workers in (0, 1)] + [
    ("slow_step", "forward", 0),
    ("own_updates", "step", 0),
]
CASES = [("jpeg", "sleep:1ms/item"), ("jpeg", "sleep:4ms/item"), ("tensors", "sleep:0.4ms/item")]
BATCHES, WORKERS, ITEMS = (8, 16, 32, 64), (0, 1, 2), 512
BUDGET_S = 20.0


def planted(workload: str, stage: str, workers: int, batches: int) -> dict[str, Any]:
    """What one delay was by the script's own clock, and what was reported."""
    batch_size, warmup = 8, 4
    with tempfile.TemporaryDirectory() as notes:
        os.environ["RANKED_NOTES"] = notes
        setting = Setting(batch_size=batch_size, num_workers=workers, ranks=2)
        trial = stoker.profile(f"{WORKLOAD}:{workload}", setting, Extent(batches=batches, warmup=warmup), device="cpu")
        assert trial.outcome == "done", trial.problem
        spent = [float(line) for line in (Path(notes) / "spent-1").read_text().split()]
    each = batch_size if workload == "slow_items" else 1
    steps = [sum(spent[at : at + each]) for at in range(0, len(spent), each)][warmup : warmup + batches]
    found = ranks.figures(trial)
    named, reported_s = ranks.excess(found, found[1])
    pace = ranks.sets_pace(found)
    expected_s = fmean(steps)
    if workers:  # a part of the delay lies beside the step: the workers' own stages have all of it
        mine, theirs = (trial.rank_logs[rank].stages["item"].samples_s[warmup:] for rank in (1, 0))
        reported_s = fmean(mine) - fmean(theirs)
    return {
        "workload": workload,
        "workers": workers,
        "stage": named,
        "expected_stage": stage,
        "pace_rank": None if pace is None else pace.rank,
        "planted_s": expected_s,
        "reported_s": reported_s,
        "error": reported_s / expected_s - 1,
        "disturbed": disturbed(trial),
        "figures": [{name: getattr(one, name) for name in one.__struct_fields__} for one in found],
    }


def regret(data: str, device: str, turns: int) -> dict[str, Any]:
    """The plan's time against the best of the grid, both by the same runs."""
    source = WorkloadSpec(spec="resnet18", data=data, items=ITEMS)
    began = perf_counter()
    plan = stoker.tune(
        source, ranks=2, items=ITEMS, max_batch=max(BATCHES), mode="train", device=device, budget_s=BUDGET_S
    )
    tune_s = perf_counter() - began
    chosen = Setting(
        batch_size=plan.batch_size, num_workers=plan.num_workers, prefetch_factor=plan.prefetch_factor, ranks=2
    )
    cells = [Setting(batch_size=size, num_workers=count, ranks=2) for size in BATCHES for count in WORKERS]
    cells = list(dict.fromkeys([*cells, chosen]))
    objective = Objective(items=ITEMS // 2)
    samples: dict[Setting, list[float]] = {cell: [] for cell in cells}

    def judged() -> Script[None]:
        for turn in range(turns):
            for cell in cells if turn % 2 == 0 else reversed(cells):
                trial: Trial = yield Job(setting=cell, extent=Extent(batches=None, warmup=0))
                if trial.outcome == "done":
                    samples[cell].append(trial_s(objective, trial))

    run_script(source, judged(), mode="train", device=device)
    seconds = {cell: median(found) for cell, found in samples.items() if found}
    best = min(seconds, key=lambda cell: seconds[cell])
    predicted = plan.predicted.total_s if plan.predicted is not None else None
    return {
        "data": data,
        "device": device,
        "plan": [plan.batch_size, plan.num_workers, plan.prefetch_factor],
        "best": [best.batch_size, best.num_workers, best.prefetch_factor],
        "regret": seconds[chosen] / seconds[best] - 1,
        "predicted_s": predicted,
        "plan_s": seconds[chosen],
        "best_s": seconds[best],
        "tune_s": tune_s,
        "samples_s": [
            [cell.batch_size, cell.num_workers, cell.prefetch_factor, found] for cell, found in samples.items()
        ],
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--planted", action="store_true", help="only the delays")
    parser.add_argument("--batches", type=int, default=40, help="steps of a planted run")
    parser.add_argument("--turns", type=int, default=3, help="runs of each setting of the grid")
    options = parser.parse_args()
    delays = [planted(*case, options.batches) for case in PLANTED]
    write(options.output, "ranks-planted", delays)
    say("workload      workers   stage      planted    reported   error")
    for row in delays:
        say(
            f"{row['workload']:13s} {row['workers']:7d}   {row['stage']:8s} {row['planted_s'] * 1e3:8.2f} ms "
            f"{row['reported_s'] * 1e3:8.2f} ms {row['error']:+7.2%}{'   disturbed' if row['disturbed'] else ''}"
        )
    if options.planted:
        return
    found = []
    for case in CASES:
        found.append(regret(*case, options.turns))
        write(options.output, "ranks-regret", found)
        row = found[-1]
        say(f"{row['data']}, {row['device']}: plan {row['plan']}, best {row['best']}, regret {row['regret']:.1%}")


if __name__ == "__main__":
    main()
