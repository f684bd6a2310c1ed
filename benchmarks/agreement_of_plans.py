"""Do several runs of `tune` agree, and what do their choices cost? Five runs on each of four workloads; then all chosen
settings and the best of each plan's candidates run whole, interleaved, and the regret of each choice is its median time
over the best median, less 1.

python benchmarks/agreement_of_plans.py --output benchmarks/results/two-cores
"""

import math
from collections import Counter
from itertools import combinations
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec
from common import arguments, say, write

import stoker
from stoker.measure.session import Job, Script, run_script
from stoker.records import Extent, Mode, Plan, Setting, WorkloadSpec


class Case(NamedTuple):
    """A workload, and the items to finish."""

    name: str
    data: str
    mode: Mode
    device: str
    items: int
    max_batch: int


CASES = (
    Case("resnet18", "tensors", "infer", "cpu", 512, 32),  # the model and the workers share the cores
    Case("mobilenet_v3_small", "jpeg", "train", "cpu", 512, 32),
    Case("resnet18", "jpeg", "infer", "sleep:2ms/item", 2048, 128),
    Case("resnet18", "tensors", "infer", "sleep:1ms/item", 4096, 128),
)


class Choice(NamedTuple):
    """What tells two settings of one plan apart."""

    batch_size: int
    num_workers: int
    prefetch_factor: int

    @classmethod
    def of(cls, found: Setting | Plan) -> "Choice":
        return cls(found.batch_size, found.num_workers, found.prefetch_factor if found.num_workers else 2)


def whole_runs(case: Case, settings: dict[Choice, Setting], rounds: int) -> Script[dict[Choice, list[float]]]:
    """All settings in interleaved rounds, each over all items; seconds of the runs that finished."""
    took: dict[Choice, list[float]] = {choice: [] for choice in settings}
    order = list(settings)
    for number in range(rounds):
        for choice in order if number % 2 == 0 else reversed(order):
            batches = math.ceil(case.items / choice.batch_size)
            trial = yield Job(setting=settings[choice], extent=Extent(batches=batches, warmup=0))
            if trial.outcome == "done":
                took[choice].append(trial.total_s)
    return took


def run_case(case: Case, *, tunings: int, rounds: int, budget_s: float) -> dict[str, Any]:
    source = WorkloadSpec(spec=case.name, data=case.data, items=case.items)
    plans = [
        stoker.tune(
            source, items=case.items, max_batch=case.max_batch, mode=case.mode, device=case.device, budget_s=budget_s
        )
        for _ in range(tunings)
    ]
    settings = {Choice.of(each.setting): each.setting for plan in plans for each in plan.candidates if each.measured}
    took = run_script(source, whole_runs(case, settings, rounds), mode=case.mode, device=case.device)
    medians = {choice: median(samples) for choice, samples in took.items() if samples}
    chosen = [Choice.of(plan) for plan in plans]
    best_s = min(medians.values())
    regrets = [medians[choice] / best_s - 1 for choice in chosen]
    pairs = list(combinations(chosen, 2))
    return {
        "case": case._asdict(),
        "chosen": [choice._asdict() for choice in chosen],
        "tune_s": [plan.seconds for plan in plans],
        "tied": [sum(each.tied for each in plan.candidates) for plan in plans],
        "runs": [{**choice._asdict(), "samples_s": samples} for choice, samples in took.items()],
        "regrets": regrets,
        "agreement": fmean(one == other for one, other in pairs) if pairs else None,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tunings", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each tuning")
    parser.add_argument("--cases", type=int, nargs="*", default=list(range(len(CASES))))
    asked = parser.parse_args()
    rows = []
    for place in asked.cases:
        row = run_case(CASES[place], tunings=asked.tunings, rounds=asked.rounds, budget_s=asked.budget)
        rows.append(row)
        counts = Counter(tuple(each.values()) for each in row["chosen"])
        say(
            f"{CASES[place].name}, {CASES[place].mode}, {CASES[place].data}, {CASES[place].device}: regret mean "
            f"{fmean(row['regrets']):.1%}, worst {max(row['regrets']):.1%}; tuned in {fmean(row['tune_s']):.0f} s, at "
            f"most {max(row['tune_s']):.0f} s; chosen (batch, workers, prefetch): {dict(counts)}"
        )
        write(asked.output, "agreement_of_plans", msgspec.to_builtins(rows))


if __name__ == "__main__":
    main()
