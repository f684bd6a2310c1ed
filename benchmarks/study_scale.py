"""What ten thousand trials cost: the bookkeeping of each, the file, and the commands that read it.

python benchmarks/study_scale.py [--trials 10000]

The trials are real runs on an H200 with all their raw samples, each sample varied by up to a tenth. A real driver
records them in a real store; only the runs themselves are left out. Bookkeeping is everything from the end of a run to
the start of the next: summary figures, JSON, compression, and the two transactions that record a trial and claim the
next. The commands are processes of their own, start of Python included. Run it on an idle machine.
"""

import gzip
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import msgspec
from common import arguments, say, write

from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.records import Machine, Task, Trial
from stoker.records.documents import labelled
from stoker.studies.executors import Finished, OnFinished, Per
from stoker.studies.figures import figures_of
from stoker.studies.study import study

SAMPLES = Path(__file__).parents[1] / "tests" / "answers" / "trials.jsonl.gz"
VARIANTS = 50
"""Different documents: more would take longer to make than the study to write."""
MODELS, KINDS, SIZES, WORKERS = 10, 2, 10, 10
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("status", "scale"),
    "show": ("show", "scale"),
    "show --ties": ("show", "scale", "--ties"),
    "export .csv": ("export", "scale", "-o", "scale.csv"),
    "export .parquet": ("export", "scale", "-o", "scale.parquet"),
    "export .json": ("export", "scale", "-o", "scale.json"),
    "run --dry-run": ("run", "scale", "--dry-run"),
    "run, nothing left": ("run", "scale", "--quiet"),
}
ROUNDS = 3
"""Of each command; the median counts."""


def grid(trials: int) -> dict[str, Any]:
    """2,000 tasks, as often as it takes."""
    tasks = MODELS * KINDS * SIZES * WORKERS
    return {
        "name": "scale",
        "repeats": max(1, round(trials / tasks)),
        "fixed": {"mode": "infer", "items": 7424},
        "axes": {
            "workload": [f"model_{number}" for number in range(MODELS)],
            "data": ["jpeg", "tensors"],
            "batch_size": [8 * (1 + number) for number in range(SIZES)],
            "num_workers": list(range(WORKERS)),
        },
    }


def variants() -> list[Trial]:
    """Real runs, every sample varied."""
    runs = [msgspec.json.decode(line) for line in gzip.decompress(SAMPLES.read_bytes()).splitlines()]
    chance = random.Random(0)
    return [msgspec.convert(_varied(runs[number % len(runs)], chance), Trial) for number in range(VARIANTS)]


def _varied(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict):
        return {name: _varied(each, chance) for name, each in value.items()}
    if isinstance(value, list):
        return [_varied(each, chance) for each in value]
    return value * chance.uniform(0.9, 1.1) if isinstance(value, float) else value


class Recorded:
    """An executor whose runs are done already. `bookkeeping_s` has the seconds from each run to the next."""

    def __init__(self, runs: list[Trial]) -> None:
        self._runs, self._machine, self._chance = runs, inspect(), random.Random(1)
        self._ended: float | None = None
        self.bookkeeping_s: list[float] = []

    per: Per | None = None

    def begin(self, tasks: Sequence[Task]) -> None:
        """Nothing has to be made ready."""

    def machines(self) -> Sequence[Machine]:
        return (self._machine,)

    def at_once(self, jobs: int) -> int:
        return jobs

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        if self._ended is not None:
            self.bookkeeping_s.append(perf_counter() - self._ended)
        trial = msgspec.structs.replace(self._chance.choice(self._runs), task=task)
        self._ended = perf_counter()
        return Finished(
            outcome="done",
            figures=figures_of(trial),
            began=datetime.now(UTC),
            wall_s=trial.total_s,
            document=msgspec.json.encode(labelled(trial, msgspec.to_builtins(trial))),
            versions={"stoker": self._machine.software.stoker, "torch": self._machine.software.torch},
        )

    def search(self, tasks: Sequence[Task], on_finished: OnFinished, **_: Any) -> None:
        raise NotImplementedError("this benchmark has no search")

    def stop(self) -> None:
        """Nothing runs in other threads."""


def command(place: Path, words: tuple[str, ...]) -> tuple[float, int]:
    """Seconds of a command, and the most memory that it had."""
    began = perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "stoker", "study", *words], cwd=place, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"stoker study {' '.join(words)} ended with status {os.waitstatus_to_exitcode(status)}")
    return perf_counter() - began, usage.ru_maxrss * 1024


def measured(trials: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="stoker-", dir=Path.cwd()) as name:
        place = Path(name)
        made = study(grid(trials), db=place / "stoker.db")
        executor = Recorded(variants())
        began = perf_counter()
        summary = made.run(executor=executor)
        seconds = perf_counter() - began
        samples = sorted(executor.bookkeeping_s)
        row: dict[str, Any] = {
            "trials": summary.ran,
            "tasks": len(made.tasks),
            "seconds": seconds,
            "trials_per_s": summary.ran / seconds,
            "bookkeeping_ms": {
                "median": 1e3 * median(samples),
                "p99": 1e3 * samples[len(samples) * 99 // 100],
                "largest": 1e3 * samples[-1],
                "first_tenth": 1e3 * fmean(executor.bookkeeping_s[: len(samples) // 10]),
                "last_tenth": 1e3 * fmean(executor.bookkeeping_s[-(len(samples) // 10) :]),
            },
            "file_bytes": (place / "stoker.db").stat().st_size,
        }
        documents = [len(each.document or b"") for each in made.rows(documents=True, keys=list(made.tasks)[:20])]
        row["document_bytes"] = fmean(documents)
        found: dict[str, Any] = {}
        for label, words in COMMANDS.items():
            times = [command(place, words) for _ in range(ROUNDS)]
            found[label] = {"seconds": median(each[0] for each in times), "peak_bytes": max(each[1] for each in times)}
        row["commands"] = found
        row["export_bytes"] = {kind: (place / f"scale.{kind}").stat().st_size for kind in ("csv", "parquet", "json")}
    return row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="how many, in steps of 2,000")
    options = parser.parse_args()
    row = measured(options.trials)
    say(f"{row['trials']:,} trials, {row['file_bytes'] / 1e6:.0f} MB, {row['bookkeeping_ms']}")
    for name, each in row["commands"].items():
        say(f"{name}: {each['seconds']:.2f} s, {each['peak_bytes'] / 1e6:.0f} MB")
    write(options.output, "study-scale", [row])


if __name__ == "__main__":
    main()
