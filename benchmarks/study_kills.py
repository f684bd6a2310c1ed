"""Does a study survive kills? Two drivers share a file, one of them gets SIGKILL at a random moment, again and again.

python benchmarks/study_kills.py [--kills 40] [--jobs 1] [--seed 0]

Each call makes a study of its own, kills so many drivers, lets one last driver finish, and counts what was lost,
doubled or left behind. Rows of calls with other seeds are kept, so 200 kills may be done in
pieces. Timing does not matter.
"""

import json
import random
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import arguments, say, write

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from stoker.studies.study import stored_study  # noqa: E402 - the drivers are those of the tests
from tests.studies.kills import Driver, leftovers, place, survivors  # noqa: E402

NAME = "study-kills"
TASKS = 6
"""Of the grid that the tests kill, too."""
ROWS_A_KILL = 4
"""How many runs the study has for each kill, so that it is not finished before the last of them."""
AT_ONCE = 0.25
"""The share of kills that do not wait for a trial to finish: they hit a driver that starts."""
LONGEST_S = {"start": 3.0, "trial": 1.0}
"""How long to wait at most before a kill, after a driver was started, or after a trial was recorded."""
PATIENCE_S = 60.0


def rows_of(store: Path) -> int:
    return int(_read(store, "SELECT COUNT(*) FROM trials", default=[(0,)])[0][0])


def holders(store: Path) -> set[int]:
    """PIDs of the drivers that have claimed a task."""
    return {json.loads(owner)["pid"] for (owner,) in _read(store, "SELECT owner FROM claims", default=[])}


def _read(store: Path, query: str, default: Any) -> Any:
    if not store.exists():
        return default
    db = sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=PATIENCE_S)
    try:
        return db.execute(query).fetchall()
    except sqlite3.OperationalError:  # its tables are not there yet
        return default
    finally:
        db.close()


def await_moment(store: Path, drivers: list[Driver], rng: random.Random) -> None:
    """Until a random moment: soon, or a moment after one more trial is recorded."""
    if rng.random() < AT_ONCE:
        time.sleep(rng.uniform(0.0, LONGEST_S["start"]))
        return
    before, deadline = rows_of(store), time.monotonic() + PATIENCE_S
    while rows_of(store) == before and time.monotonic() < deadline and not all(each.has_ended for each in drivers):
        time.sleep(0.02)
    time.sleep(rng.uniform(0.0, LONGEST_S["trial"]))


def killed_and_resumed(kills: int, jobs: int, seed: int) -> dict[str, Any]:
    """Kill one of two drivers so many times, finish the study, and count."""
    rng = random.Random(seed)
    repeats = max(2, ROWS_A_KILL * kills // TASKS)
    began = time.monotonic()
    with place(seed=seed, repeats=repeats) as folder:
        store = folder / "stoker.db"
        options = ("--jobs", str(jobs))
        ended: list[Driver] = []
        drivers = [Driver(folder, *options) for _ in range(2)]
        done = with_claim = 0
        while done < kills - len(drivers):
            await_moment(store, drivers, rng)
            number = rng.randrange(2)
            victim = drivers[number]
            if victim.has_ended:
                break
            with_claim += victim.pid in holders(store)
            victim.kill()
            done += 1
            ended.append(victim)
            drivers[number] = Driver(folder, *options)
        for driver in drivers:
            with_claim += driver.pid in holders(store)
            driver.kill()
        last = Driver(folder, *options)
        status = last.wait()
        found = _counted(folder, TASKS * repeats, [*ended, *drivers, last])
    asked = {"kills": done + len(drivers), "with_claim": with_claim, "jobs": jobs, "seed": seed, "drivers_at_once": 2}
    return {**asked, **found, "last_status": status, "seconds": time.monotonic() - began}


def _counted(folder: Path, expected: int, drivers: list[Driver]) -> dict[str, Any]:
    """What the promise forbids: each count should be 0."""
    rows = stored_study("killed", folder / "stoker.db").rows()
    first = {(row.key, row.repeat): row for row in rows if row.attempt == 0}
    reported = [line for driver in drivers for line in driver.lines]
    times = Counter((line["key"], line["repeat"]) for line in reported)
    changed = sum(
        1
        for line in reported
        if (row := first.get((line["key"], line["repeat"]))) is not None and row.figures["seconds"] != line["seconds"]
    )
    pids = {pid for driver in drivers for pid in driver.pids}
    return {
        "runs": expected,
        "recorded": len(rows),
        "reported": len(reported),
        "missing": expected - len(first),
        "lost": sum(1 for slot in times if slot not in first),
        "changed": changed,
        "doubled": len(rows) - len(first) + sum(1 for count in times.values() if count > 1),
        "not_done": sum(1 for row in rows if row.outcome != "done"),
        "claims_left": len(holders(folder / "stoker.db")),
        "processes": len(pids),
        "orphans": len(survivors(pids)),
        "leftovers": len(leftovers(folder, pids)),
    }


def earlier(folder: Path, seed: int) -> list[dict[str, Any]]:
    """The rows of calls with other seeds."""
    path = folder / f"{NAME}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return [row for row in rows if row["seed"] != seed]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=40, help="how many drivers to kill")
    parser.add_argument("--jobs", type=int, default=1, help="trials at once over both drivers")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of the order of tasks")
    options = parser.parse_args()
    row = killed_and_resumed(options.kills, options.jobs, options.seed)
    say(", ".join(f"{name} {value}" for name, value in row.items()))
    write(options.output, NAME, sorted([*earlier(options.output, options.seed), row], key=lambda each: each["seed"]))


if __name__ == "__main__":
    main()
