"""A study: a grid or a preset, its store, its runs and its tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.records import Record, Task, decode
from stoker.studies.driver import Driver, Progress, Summary
from stoker.studies.executors import Executor, LocalExecutor
from stoker.studies.fingerprint import facts_of, fingerprint_of, label
from stoker.studies.grid import Grid, parse_only, read_grid, selected
from stoker.studies.presets import preset_names, read_preset
from stoker.studies.store import Slot, Store, TrialRow

if TYPE_CHECKING:
    import polars as pl

DEFAULT_STORE = Path("stoker.db")


class Change(Record, frozen=True):
    """How a grid differs from the one stored under its name. `gone` tasks keep their trials."""

    new: int
    gone: int
    same: int
    first: bool

    @property
    def sentence(self) -> str | None:
        """What changed since the last run; None where nothing did."""
        if self.first or not (self.new or self.gone):
            return None
        return (
            f"the grid changed since the last run: {self.new} tasks are new, {self.gone} are no longer asked for "
            "(their trials stay)"
        )


class MachineStatus(Record, frozen=True):
    """A machine's part in a study. `attempts` counts all trials, retried ones included."""

    machine: str
    label: str
    outcomes: dict[str, int]
    missing: int
    attempts: int


class Status(Record, frozen=True):
    """How far a study is, for each machine that has trials of it."""

    name: str
    kind: str
    tasks: int
    repeats: int
    slots: int
    machines: tuple[MachineStatus, ...]
    running: int
    no_longer_asked: int


class Forecast(Record, frozen=True):
    """What a run would do. `left_s` is None where nothing has finished that the time could be told from."""

    tasks: int
    slots: int
    done: int
    left_s: float | None
    change: Change


class Study:
    """A named study in a store. `run()` continues it; the tables are polars frames."""

    def __init__(self, grid: Grid, store: Path, *, source: str) -> None:
        self.grid, self.store_path, self._source = grid, store, source
        self.name = grid.name

    # ------------------------------------------------------------ running

    def run(
        self,
        *,
        executor: Executor | None = None,
        only: Sequence[str] = (),
        repeats: int | None = None,
        budget_s: float | None = None,
        jobs: int = 1,
        retry: Sequence[str] = (),
        on_trial: Callable[[Slot, TrialRow], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_change: Callable[[Change], None] | None = None,
        on_event: OnEvent | None = None,
    ) -> Summary:
        """Run what has no outcome yet on this machine, and what `retry` names. Stops when the budget is spent."""
        _check_run(repeats, budget_s, jobs, retry)
        self._refuse_import()
        with Store(self.store_path) as store:
            change = self._save(store)
            if on_change is not None:
                on_change(change)
            driver = Driver(
                store,
                self.selected(only),
                executor or LocalExecutor(),
                seed=self.grid.seed,
                repeats=repeats or self.grid.repeats,
                jobs=jobs,
                budget_s=budget_s,
                timeout_s=self.grid.timeout_s,
                retry=retry,
                on_trial=on_trial,
                on_progress=on_progress,
                on_event=on_event,
            )
            return driver.run()

    def selected(self, only: Sequence[str] = ()) -> dict[str, Task]:
        """The grid's tasks by key; with `only` ("num_workers=8"), those whose values match."""
        wanted = parse_only(only, self.grid)
        return {key: asked.task for key, asked in self.grid.tasks().items() if selected(asked.values, wanted)}

    def forecast(self, *, only: Sequence[str] = (), repeats: int | None = None) -> Forecast:
        """What `run` would do on this machine, without running or writing anything."""
        tasks = self.grid.tasks()
        wanted = self.selected(only)
        count = repeats or self.grid.repeats
        if not self.store_path.exists():
            change = Change(new=len(tasks), gone=0, same=0, first=True)
            return Forecast(tasks=len(wanted), slots=len(wanted) * count, done=0, left_s=None, change=change)
        with Store(self.store_path, create=False) as store:
            change = self._changed(store)
            driver = Driver(store, wanted, LocalExecutor(), seed=self.grid.seed, repeats=count)
            done, left_s = driver.forecast()
        return Forecast(tasks=len(wanted), slots=len(wanted) * count, done=done, left_s=left_s, change=change)

    def _save(self, store: Store) -> Change:
        change = self._changed(store)
        tasks = {key: (asked.task, asked.values) for key, asked in self.grid.tasks().items()}
        store.add_study(self.name, self.grid, self._source, tasks)
        return change

    def _changed(self, store: Store) -> Change:
        """How this grid differs from the stored one. A study of another kind under the same name is refused."""
        before = store.study(self.name)
        now = set(self.grid.tasks())
        if before is None:
            return Change(new=len(now), gone=0, same=0, first=True)
        kind = json.loads(before["grid"]).get("kind", "profile")
        if kind != self.grid.kind:
            raise InputError(
                f"{self.store_path} has a study {self.name!r} of kind {kind}, not {self.grid.kind}; give this grid "
                "another name"
            )
        if before["source"] == "import":
            raise InputError(f"study {self.name!r} was imported; give this grid another name")
        asked = {key for key, is_asked in store.keys(self.name).items() if is_asked}
        return Change(new=len(now - asked), gone=len(asked - now), same=len(now & asked), first=False)

    def _refuse_import(self) -> None:
        if self._source == "import":
            raise InputError(f"study {self.name!r} was imported: its trials came from elsewhere and cannot be run here")

    # ------------------------------------------------------------ looking

    def status(self) -> Status:
        """How far the study is, by machine."""
        with Store(self.store_path, create=False) as store:
            keys = store.keys(self.name)
            asked = {key for key, is_asked in keys.items() if is_asked}
            rows = [row for row in store.trials(self.name) if row.key in asked]
            machines = store.machines()
            running = sum(1 for claim in store.claims() if claim.key in asked)
        repeats = max([self.grid.repeats, *(row.repeat + 1 for row in rows)])
        slots = len(asked) * (1 if self._source == "import" else self.grid.repeats)
        parts = []
        for machine in sorted({row.machine for row in rows}):
            own = [row for row in rows if row.machine == machine]
            last = {(row.key, row.repeat): row.outcome for row in own}
            outcomes: dict[str, int] = {}
            for outcome in last.values():
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
            parts.append(
                MachineStatus(
                    machine=machine,
                    label=label(machines.get(machine, {})),
                    outcomes=outcomes,
                    missing=max(0, slots - len(last)),
                    attempts=len(own),
                )
            )
        return Status(
            name=self.name,
            kind=self.grid.kind,
            tasks=len(asked),
            repeats=repeats,
            slots=slots,
            machines=tuple(parts),
            running=running,
            no_longer_asked=len(keys) - len(asked),
        )

    def rows(self, *, documents: bool = False, keys: Sequence[str] | None = None) -> list[TrialRow]:
        """Every trial of the tasks that the grid asks for, all attempts, as the store keeps them. `keys` chooses
        tasks."""
        with Store(self.store_path, create=False) as store:
            asked = {key for key, is_asked in store.keys(self.name).items() if is_asked}
            return [row for row in store.trials(self.name, documents=documents, keys=keys) if row.key in asked]

    def trials(self) -> "pl.DataFrame":
        """The trials frame: one row for each task and repeat, its last attempt. Columns: see `analysis.frames`."""
        from stoker.studies.frame import trials_frame

        with Store(self.store_path, create=False) as store:
            tasks = {key: found for key, found in store.tasks(self.name).items() if found[2]}
            return trials_frame(self.name, tasks, store.trials(self.name), self.grid.repeats)

    # ------------------------------------------------------------ tables

    def top(self, n: int = 3, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """How many workloads have each setting among their `n` fastest."""
        from stoker.analysis.regret import top_counts

        return top_counts(self.trials(), n, by=by)

    def regret(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """The average and worst regret of each setting over the workloads, the best first."""
        from stoker.analysis.regret import regret

        return regret(self.trials(), by=by)

    def best(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """The fastest setting of each workload."""
        from stoker.analysis.regret import best

        return best(self.trials(), by=by)

    def effects(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """What each axis of the setting does to the time, all else equal."""
        from stoker.analysis.effects import effects

        return effects(self.trials(), by=by)

    def ties(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """Which settings cannot be told apart from the best, given the spread of repeats."""
        from stoker.analysis.ties import ties

        return ties(self.trials(), by=by)

    def largest_batch(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """The largest batch that works for all, and for most, workloads."""
        from stoker.analysis.regret import largest_batch

        return largest_batch(self.trials(), by=by)

    def export(self, path: str | Path, *, samples: bool = False) -> Path:
        """Write the trials to a .csv, .parquet or .json file, whole or not at all."""
        from stoker.studies.transfer import export

        return export(self, Path(path), samples=samples)

    def report(
        self,
        path: str | Path,
        *,
        png: str | Path | None = None,
        svg: str | Path | None = None,
        against: str | None = None,
    ) -> Path:
        """Write the study's charts as one HTML file, and as pictures into the folders `png` and `svg`. `against` is
        another study of the store, or `published`."""
        write = import_module("stoker.integrations.reports").write_study
        written: Path = write(self, path, png=png, svg=svg, against=against)
        return written

    def _repr_html_(self) -> str | None:
        """The answer and the first charts, for a notebook; nothing before the first run."""
        if not self.store_path.exists():
            return None
        with Store(self.store_path, create=False) as store:
            if store.study(self.name) is None:
                return None
        return str(import_module("stoker.integrations.notebook").study_html(self))

    def labelled(self, frame: "pl.DataFrame") -> list[dict[str, Any]]:
        """The rows of a table. The machine's column stays only where there are several, by its label."""
        rows = frame.to_dicts()
        if len({row.get("machine") for row in rows}) <= 1:
            return [{name: value for name, value in row.items() if name != "machine"} for row in rows]
        labels = self.machines()
        return [{**row, "machine": labels.get(row["machine"], row["machine"])} for row in rows]

    def machines(self) -> dict[str, str]:
        """Labels of the machines in the store, by fingerprint."""
        with Store(self.store_path, create=False) as store:
            return {machine: label(facts) for machine, facts in store.machines().items()}


def study(source: str | Path | Mapping[str, Any], *, db: str | Path = DEFAULT_STORE, scale: str = "full") -> Study:
    """A study from a grid file, a preset's name, or the name of a study that the store has.

    Nothing is run or written yet. Raises InputError for a grid that cannot be run, with the line of the mistake.
    """
    store = Path(db)
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix == ".toml" or path.is_file():
            return Study(read_grid(path), store, source="grid")
        if str(source) in preset_names():
            return Study(read_preset(str(source), scale), store, source="preset")
        stored = _stored(str(source), store)
        if stored is not None:
            return stored
        known = ", ".join(preset_names())
        raise InputError(f"{source} is no grid file, no preset and no study in {store}; presets: {known}")
    if not isinstance(source, Mapping):
        raise InputError(
            f"a study needs a grid file or a preset's name, got {type(source).__name__}; a live Workload object has no "
            "key: name it as file.py:function in a grid"
        )
    from stoker.studies.grid import grid_from

    return Study(grid_from(source), store, source="grid")


def stored_study(name: str, db: Path) -> Study:
    """The study of that name in a store. Raises InputError where there is none."""
    found = _stored(name, db)
    if found is None:
        with Store(db, create=False) as store:
            names = ", ".join(each["name"] for each in store.studies())
        raise InputError(f"{db} has no study {name!r}; it has {names or 'none'}")
    return found


def _stored(name: str, path: Path) -> Study | None:
    if not path.exists():
        return None
    with Store(path, create=False) as store:
        found = store.study(name)
    if found is None:
        return None
    return Study(decode(found["grid"].encode(), Grid), path, source=found["source"])


_RETRIES = ("failed", "oom", "crashed", "timed_out", "done")


def _check_run(repeats: int | None, budget_s: float | None, jobs: int, retry: Sequence[str]) -> None:
    for name, value in (("repeats", repeats), ("jobs", jobs)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if budget_s is not None and budget_s <= 0:
        raise InputError(f"the budget must be above 0 s, got {budget_s:g}")
    for outcome in retry:
        if outcome not in _RETRIES:
            raise InputError(f"no such outcome: {outcome!r}; choose {', '.join(_RETRIES)}")


def listing(db: Path) -> list[dict[str, Any]]:
    """The studies of a store: name, kind, tasks, trials, where they came from."""
    with Store(db, create=False) as store:
        found = []
        for each in store.studies():
            grid = decode(each["grid"].encode(), Grid)
            found.append(
                {
                    "name": each["name"],
                    "kind": grid.kind,
                    "source": each["source"],
                    "tasks": sum(store.keys(each["name"]).values()),
                    "trials": store.count(each["name"]),
                    "created": each["created"][:16],
                }
            )
        return found


def this_machine() -> tuple[str, dict[str, Any]]:
    """The fingerprint of this machine and its facts."""
    machine = LocalExecutor().machine()
    return fingerprint_of(machine), facts_of(machine)
