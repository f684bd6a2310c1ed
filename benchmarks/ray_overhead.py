"""What Ray adds to a trial, and how many trials a second one driver can record.

python benchmarks/ray_overhead.py [--trials 40] [--rows 2000]

The same short trial is run by turns on this machine and on a local Ray cluster of one node, in pairs: the difference is
what Ray adds. Then a real driver records real trials in a real store for clusters of 1 to 1,000 nodes. Only the runs
are left out: each node waits so briefly that there is always more to record than the driver can. That is its greatest
rate. Run it on an idle machine.
"""

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
from common import arguments, say, write
from study_scale import grid, variants

from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.records import Extent, Machine, Setting, Task, Trial, WorkloadSpec
from stoker.records.documents import labelled
from stoker.studies.driver import Driver
from stoker.studies.executors import Executor, Finished, LocalExecutor, OnFinished, Per
from stoker.studies.figures import figures_of
from stoker.studies.ray import RayExecutor
from stoker.studies.store import Store
from stoker.studies.study import study

NODES = (1, 10, 100, 1000)
BUSY_S = {1: 0.0, 10: 0.02, 100: 0.2, 1000: 2.0}
"""How long a run lasts with so many nodes: 500 trials a second together, more than a store can take."""
TASK = Task(
    workload=WorkloadSpec(spec="resnet18", data="device", items=64),
    mode="infer",
    device="sleep:1ms",
    setting=Setting(batch_size=16, num_workers=1),
    extent=Extent(batches=None, warmup=0),
)


def seconds(executor: Executor) -> float:
    """One trial from its request to its result."""
    began = perf_counter()
    finished = executor.run(TASK, timeout_s=60.0, on_event=None)
    if finished.outcome != "done":
        sys.exit(f"the trial ended with {finished.outcome}: {finished.problem}")
    return perf_counter() - began


def overhead(trials: int) -> dict[str, Any]:
    """Pairs of the same trial, the first of each pair by turns."""
    local = LocalExecutor()
    began = perf_counter()
    with RayExecutor() as ray:
        ray.begin([TASK])
        start_s = perf_counter() - began
        for executor in (local, ray):  # the first trial of each starts the process that the others are forked from
            seconds(executor)
        pairs = []
        for number in range(trials):
            order: Sequence[Executor] = (local, ray) if number % 2 else (ray, local)
            taken = {executor: seconds(executor) for executor in order}
            pairs.append((taken[local], taken[ray]))
    added = sorted(there - here for here, there in pairs)
    return {
        "trials": trials,
        "local_s": median(here for here, _ in pairs),
        "ray_s": median(there for _, there in pairs),
        "added_s": median(added),
        "added_quartiles_s": (added[len(added) // 4], added[len(added) * 3 // 4]),
        "cluster_start_s": start_s,
        "pairs_s": pairs,
    }


class Nodes:
    """A cluster of so many nodes whose runs are over already, as they come from the nodes."""

    per: Per | None = "node"

    def __init__(self, nodes: int) -> None:
        self.nodes, self._machine = nodes, inspect()
        self._finished = [self._of(trial) for trial in variants()]

    def _of(self, trial: Trial) -> Finished:
        return Finished(
            outcome="done",
            figures={**figures_of(trial), "per": "node", "node": "a node"},
            began=datetime.now(UTC),
            wall_s=trial.total_s,
            document=msgspec.json.encode(labelled(trial, msgspec.to_builtins(trial))),
            versions={"stoker": self._machine.software.stoker, "torch": self._machine.software.torch},
        )

    def begin(self, tasks: Sequence[Task]) -> None:
        """Every node is there."""

    def machines(self) -> Sequence[Machine]:
        return (self._machine,)

    def at_once(self, jobs: int) -> int:
        return self.nodes

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        time.sleep(BUSY_S[self.nodes])
        return random.choice(self._finished)

    def search(self, tasks: Sequence[Task], on_finished: OnFinished, **_: Any) -> None:
        raise NotImplementedError("this benchmark has no search")

    def stop(self) -> None:
        """Runs end by themselves."""


def rate(nodes: int, rows: int) -> dict[str, Any]:
    """How many trials a second a driver hands out and records."""
    with tempfile.TemporaryDirectory(prefix="stoker-", dir=Path.cwd()) as name:
        made = study(grid(rows), db=Path(name) / "stoker.db")
        with Store(made.store_path) as store:
            asked = {key: (each.task, each.values) for key, each in made.tasks.items()}
            store.add_study(made.name, made.grid, made.source, asked)
            tasks = {key: task for key, (task, _) in asked.items()}
            driver = Driver(store, tasks, Nodes(nodes), repeats=made.grid.repeats)
            began = perf_counter()
            ran = driver.run().ran
            took = perf_counter() - began
    return {"nodes": nodes, "rows": ran, "seconds": took, "rows_per_s": ran / took}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=40, help="pairs of trials")
    parser.add_argument("--rows", type=int, default=2000, help="trials to record for each number of nodes")
    options = parser.parse_args()
    row = overhead(options.trials)
    low, high = row["added_quartiles_s"]
    added = f"{1e3 * row['added_s']:.1f} ms more (quartiles {1e3 * low:.1f} to {1e3 * high:.1f})"
    say(f"local {row['local_s']:.3f} s, Ray {row['ray_s']:.3f} s: {added}; start {row['cluster_start_s']:.1f} s")
    rates = [rate(nodes, options.rows) for nodes in NODES]
    for each in rates:
        say(f"{each['nodes']:,} nodes: {each['rows_per_s']:.0f} trials a second")
    write(options.output, "ray-overhead", [{**row, "rates": rates}])


if __name__ == "__main__":
    main()
