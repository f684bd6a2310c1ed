"""35 loader runs of other people, on a machine we have never seen, predicted from six of them.

python benchmarks/a5000.py --runs FILE    a JSON list of {workers, batch_size, measurements: {load_data: [seconds]}}

Each run has the seconds that the loop waited for each of its first batches; Imagenette JPEGs, no work between batches,
32 logical CPUs. Calibrated on the 5 runs with one worker and on one run in which the workers contend; the others are
predicted.
"""

import json
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from common import arguments, say, write

from stoker.forecast.costs import Costs, FirstSends, StepCosts, Table
from stoker.forecast.loader import Amount
from stoker.forecast.simulate import simulate
from stoker.records import Setting

ITEMS = 9469
CORES = 32
CONTENDED = (32, 128)


class Run(NamedTuple):
    workers: int
    batch: int
    waits_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        return sum(self.waits_s)


def read(path: Path) -> list[Run]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [Run(row["workers"], row["batch_size"], tuple(row["measurements"]["load_data"])) for row in rows]


def costs_of(single: list[Run], *, fork_s: float, slow: float) -> Costs:
    """One worker's waits are its batches; what the first takes more is its start."""
    ordered = sorted(single, key=lambda run: run.batch)
    whole = [run for run in ordered if run.batch * len(run.waits_s) <= ITEMS]
    batch_s = {run.batch: fmean(run.waits_s[1:]) if run in whole else fmean(run.waits_s[1:-1]) for run in ordered}
    sizes = tuple(float(size) for size in batch_s)
    start_s = tuple(max(0.0, run.waits_s[0] - batch_s[run.batch] - fork_s) for run in ordered)
    # Several items to a batch: the spread of batches shrinks with their size, as that of a mean does.
    spread = [1 + (wait / batch_s[run.batch] - 1) * np.sqrt(run.batch) for run in whole for wait in run.waits_s[1:]]
    nothing = Table(flat=True)
    return Costs(
        cores=CORES,
        spread=np.maximum(0.05, np.asarray(spread)) / np.mean(np.maximum(0.05, spread)),
        unevenness=0.0,
        lasting=0.0,
        by_batch=False,
        inline_item_s=nothing,
        inline_between_s=nothing,
        inline_cold_s=Table(),
        worker_item_s=Table(sizes, tuple(seconds / size for size, seconds in batch_s.items()), True),
        waiting_share=0.0,
        collate_s=nothing,
        cold_s=Table(sizes, start_s, True),
        gap_s=nothing,
        flight_s=nothing,
        first_flight_s=nothing,
        first_sends=FirstSends(),
        receive_s=nothing,
        blocked_s=nothing,
        pin_s=nothing,
        pin_anew_s=Table(),
        between_s=nothing,
        fork_s=fork_s,
        hand_s=0.0,
        init_s=0.0,
        stop_s=(0.0, 0.0),
        slowdown=Table((1.0, float(CORES)), (1.0, slow), True),
        step=StepCosts(),
        shares={},
    )


def predicted(costs: Costs, run: Run) -> tuple[float, float]:
    """Seconds until the last batch that was timed, and until the first."""
    totals, firsts = [], []
    for seed in range(5):
        setting = Setting(batch_size=run.batch, num_workers=run.workers)
        seen = simulate(costs, setting, Amount(items=ITEMS), seed=seed)
        totals.append(seen.step_ends_s[min(len(run.waits_s), len(seen.step_ends_s)) - 1])
        firsts.append(seen.first_batch_s)
    return median(totals), median(firsts)


def calibrated(single: list[Run], contended: Run) -> Costs:
    """Two numbers from one run: what a fork costs, and how much slower every worker is when all CPUs are busy."""

    def miss(pair: tuple[float, float]) -> float:
        total, first = predicted(costs_of(single, fork_s=pair[0], slow=pair[1]), contended)
        return abs(total / contended.total_s - 1) + abs(first / contended.waits_s[0] - 1)

    pairs = product(np.linspace(0.001, 0.02, 20), np.linspace(1, 6, 26))
    fork_s, slow = min(((float(fork), float(slow)) for fork, slow in pairs), key=miss)
    return costs_of(single, fork_s=fork_s, slow=slow)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="the runs, as JSON")
    options = parser.parse_args()
    runs = read(options.runs)
    single = [run for run in runs if run.workers == 1]
    contended = next(run for run in runs if (run.workers, run.batch) == CONTENDED)
    costs = calibrated(single, contended)
    say(f"fork {costs.fork_s * 1e3:.0f} ms, all {CORES} CPUs busy: {costs.slow(CORES):.1f} times slower")
    rows: list[dict[str, Any]] = []
    for run in runs:
        if run in single or run == contended:
            continue
        total, first = predicted(costs, run)
        row = {"workers": run.workers, "batch": run.batch, "measured_s": run.total_s, "predicted_s": total}
        rows.append({**row, "first_s": run.waits_s[0], "predicted_first_s": first, "error": total / run.total_s - 1})
        say(
            f"batch {run.batch:5d}, {run.workers:3d} workers: {run.total_s:6.2f} s, predicted {total:6.2f} s "
            f"({rows[-1]['error']:+.0%}); first {run.waits_s[0]:.2f} s, predicted {first:.2f} s"
        )
    for label, kept in (("all", rows), ("workers within CPUs", [row for row in rows if row["workers"] <= CORES])):
        missed = np.abs([row["error"] for row in kept])
        early = np.abs([row["predicted_first_s"] / row["first_s"] - 1 for row in kept])
        say(
            f"{label}: {len(kept)} runs, median error {np.median(missed):.1%}, p90 {np.quantile(missed, 0.9):.1%}, "
            f"worst {missed.max():.1%}; first batch, median {np.median(early):.1%}"
        )
    write(options.output, "a5000", rows)


if __name__ == "__main__":
    main()
