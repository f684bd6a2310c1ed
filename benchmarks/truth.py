"""Does each stage's reported time match what was planted in reading, in a transform and in the step?

python benchmarks/truth.py
"""

from pathlib import Path
from typing import Any

from common import arguments, say, write

import stoker
from stoker.analysis.spans import whole

WORKLOAD = Path(__file__).parents[1] / "tests" / "workloads" / "planted.py"
PLANTED_S = {"read": 0.004, "transform": 0.006, "step": 0.030}


def measure(workers: int, batch_size: int, batches: int) -> dict[str, Any]:
    trial = stoker.profile(
        f"{WORKLOAD}:planted",
        stoker.Setting(batch_size=batch_size, num_workers=workers),
        stoker.Extent(batches=batches, warmup=2),
        device="cpu",
    )
    assert trial.outcome == "done", trial.problem
    count = {"read": trial.items, "transform": trial.items, "step": len(trial.timeline.items)}
    found = {name: trial.stages[name].total_s / count[name] for name in PLANTED_S}
    return {
        "workers": workers,
        "batch_size": batch_size,
        "planted_s": PLANTED_S,
        "reported_s": found,
        "error": {name: found[name] / PLANTED_S[name] - 1 for name in PLANTED_S},
        "accounted": whole(trial).seconds / trial.total_s,
        "samples_s": {name: trial.stages[name].samples_s for name in PLANTED_S},
    }


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows = [measure(workers, 16, 40) for workers in (0, 1, 2, 4)]
    write(options.output, "truth", rows)
    say("workers   read      transform   step      accounted")
    for row in rows:
        errors = "   ".join(f"{row['error'][name]:+7.2%}" for name in PLANTED_S)
        say(f"{row['workers']:7d}   {errors}   {row['accounted']:9.4%}")


if __name__ == "__main__":
    main()
