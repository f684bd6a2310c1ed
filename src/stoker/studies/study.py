"""A study: a grid or a preset, its store, its runs and its tables."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.analysis.machines import label
from stoker.errors import InputError, MachineError
from stoker.events import OnEvent
from stoker.records import Record, Task, decode
from stoker.studies.driver import Driver, Progress, Summary
from stoker.studies.executors import Executor, LocalExecutor
from stoker.studies.fingerprint import fingerprint_of
from stoker.studies.generators import GENERATORS
from stoker.studies.grid import Asked, Grid, grid_from, parse_only, read_grid, selected
from stoker.studies.presets import preset_names, read_preset
from stoker.studies.store import Cluster, Slot, Store, TrialRow
from stoker.units import format_count

if TYPE_CHECKING:
    import polars as pl

DEFAULT_STORE = Path("stoker.db")
_EXAMPLES = 3
"""Of what changed in a grid, so many cells are named."""


class Change(Record, frozen=True):
    """How a grid differs from the one stored under its name. Nothing is deleted: what is `gone` keeps its trials.

    `renewed` of the new tasks have the values of a task that is gone: the file of their workload has other content.
    `new_cells` and `gone_cells` are examples. `repeats_before` is None where the number of repeats is the same.
    """

    new: int
    gone: int
    same: int
    first: bool
    renewed: int = 0
    new_cells: tuple[dict[str, Any], ...] = ()
    gone_cells: tuple[dict[str, Any], ...] = ()
    repeats_before: int | None = None

    @property
    def sentence(self) -> str | None:
        """What changed since the last run; None where nothing did."""
        parts = []
        if self.new and not self.first:
            parts.append(f"{format_count(self.new, 'task')} new{_examples(self.new_cells, self.new)}")
        if self.gone:
            gone = f"{format_count(self.gone, 'task')} no longer asked for{_examples(self.gone_cells, self.gone)}"
            parts.append(f"{gone}; trials stay")
        if self.renewed:
            parts.append(f"for {self.renewed:,} of them the file of the workload has changed")
        if self.repeats_before is not None:
            parts.append(f"the number of repeats was {self.repeats_before}")
        return f"the grid has changed since the last run: {'; '.join(parts)}" if parts else None


class MachineStatus(Record, frozen=True):
    """A machine's part in a study. `attempts` counts all trials, also those that a retry replaced. For a node of a
    cluster `missing` counts what no node of it has run."""

    machine: str
    label: str
    outcomes: dict[str, int]
    missing: int
    attempts: int


class RunningTrial(Record, frozen=True):
    """A trial that some driver runs now."""

    values: dict[str, Any]
    repeat: int
    since: str
    pid: int


class Status(Record, frozen=True):
    """How far a study is, on each machine that has trials of it. `slots` are its tasks times its repeats. `missing`
    counts those that a machine of its own has not run, and those that no node of a cluster has run."""

    name: str
    kind: str
    source: str
    tasks: int
    repeats: int
    slots: int
    machines: tuple[MachineStatus, ...]
    running: tuple[RunningTrial, ...]
    no_longer_asked: int
    missing: int = 0


class Forecast(Record, frozen=True):
    """What a run would do. `left_s` is None where nothing has finished from which it could be estimated."""

    tasks: int
    slots: int
    done: int
    left_s: float | None
    cells: tuple[dict[str, Any], ...]
    change: Change
    follows: str | None = None
    """What is not known before these have results; None where nothing is."""


class Study:
    """A named study in a store. `run()` continues it; its tables are polars frames, one function of `analysis` each."""

    def __init__(self, grid: Grid, store: Path, *, source: str, file: Path | None = None) -> None:
        self.grid, self.store_path, self.source, self.file = grid, store, source, file
        self.name = grid.name

    @property
    def tasks(self) -> dict[str, Asked]:
        """What the grid asks for, by key. Of a grid with a generator, also what follows from results in the store."""
        if self.grid.generator is None:
            return self._plain_tasks
        if not self.store_path.exists():
            return self.grid.tasks()
        with Store(self.store_path, create=False) as store:
            return self._known(store)

    @cached_property
    def _plain_tasks(self) -> dict[str, Asked]:
        return self.grid.tasks()

    def _known(self, store: Store, machine: str | None = None, only: Sequence[str] = ()) -> dict[str, Asked]:
        """The tasks that are known from the trials of a machine, or of every machine. `only` selects the first ones."""
        wanted = parse_only(only, self.grid)
        cells = [cell for cell in self.grid.cells() if selected(cell, wanted)]
        if self.grid.generator is None:
            return {key: asked for key, asked in self.tasks.items() if selected(asked.values, wanted)}
        found = self.grid.asked({}, cells)
        last = _last_rows(store.trials(keys=[*found, *store.keys(self.name)]))
        for each in last if machine is None else [machine]:
            found |= self.grid.asked(last.get(each, {}), cells)
        return found

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {str(self.store_path)!r})"

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
        """Run what has no outcome yet on this machine, and what `retry` names, until nothing is left or the budget is
        spent. `only` selects by value: ["num_workers=8"]. `repeats` replaces the grid's. With a `RayExecutor` the nodes
        of a cluster run the tasks, as many at once as have room; what any node has run is done."""
        _check_run(repeats, budget_s, jobs, retry)
        if jobs > 1 and executor is not None and executor.per is not None:
            raise InputError(f"a cluster runs as many trials at once as it has room for; leave out jobs, got {jobs}")
        self._refuse_import()
        wanted = self.selected(only)
        self._repeat(repeats)
        if executor is None or executor.per is not None:
            self._check_models(wanted)
        executor = executor or LocalExecutor()
        self._check_executor(wanted, executor)
        until = None if budget_s is None else monotonic() + budget_s
        done: list[Summary] = []
        with Store(self.store_path) as store:
            store.check()
            change = self._changed(store)
            if on_change is not None:
                on_change(change)
            seen: set[str] = set()
            while not done or (self.grid.generator and not done[-1].stopped and not done[-1].unfinished):
                wanted = self._next_tasks(store, executor, only, seen)
                if done and not wanted:
                    break
                seen |= set(wanted)
                driver = Driver(
                    store,
                    wanted,
                    executor,
                    seed=self.grid.seed,
                    repeats=self.grid.repeats,
                    jobs=jobs,
                    budget_s=None if until is None else max(0.0, until - monotonic()),
                    timeout_s=self.grid.timeout_s,
                    retry=retry,
                    on_trial=on_trial,
                    on_progress=_after(done, on_progress),
                    on_event=on_event,
                )
                done.append(driver.run())
        return _together(done)

    def _next_tasks(self, store: Store, executor: Executor, only: Sequence[str], seen: set[str]) -> dict[str, Task]:
        """The tasks for this machine that are known now and were not before; the store learns of all that are known."""
        if self.grid.generator is None:
            known, wanted = self.tasks, self.selected(only)
        else:
            mine = self._known(store, fingerprint_of(executor.machines()[0]), only)
            known = {**self._known(store), **mine}
            wanted = {key: asked.task for key, asked in mine.items() if key not in seen}
        tasks = {key: (asked.task, asked.values) for key, asked in known.items()}
        store.add_study(self.name, self.grid, self.source, tasks)
        return wanted

    def selected(self, only: Sequence[str] = ()) -> dict[str, Task]:
        """The grid's tasks by key; with `only`, those whose values match. Of a grid with a generator the first ones."""
        wanted = parse_only(only, self.grid)
        if self.grid.generator is not None:
            cells = [cell for cell in self.grid.cells() if selected(cell, wanted)]
            return {key: asked.task for key, asked in self.grid.asked({}, cells).items()}
        return {key: asked.task for key, asked in self.tasks.items() if selected(asked.values, wanted)}

    def forecast(
        self, *, executor: Executor | None = None, only: Sequence[str] = (), repeats: int | None = None
    ) -> Forecast:
        """What `run` would do on this machine, without running or writing anything."""
        _check_run(repeats, None, 1, ())
        self._refuse_import()
        wanted = self.selected(only)
        self._repeat(repeats)
        if executor is None or executor.per is not None:
            self._check_models(wanted)
        made = GENERATORS[self.grid.generator].sentence if self.grid.generator else None
        if not self.store_path.exists():
            change = Change(new=len(self.tasks), gone=0, same=0, first=True)
            cells = tuple(asked.values for key, asked in self.tasks.items() if key in wanted)
            slots = len(wanted) * self.grid.repeats
            return Forecast(
                tasks=len(wanted), slots=slots, done=0, left_s=None, cells=cells, change=change, follows=made
            )
        with Store(self.store_path, create=False) as store:
            change = self._changed(store)
            executor = executor or LocalExecutor()
            self._check_executor(wanted, executor)
            here = fingerprint_of(executor.machines()[0]) if self.grid.generator else None
            known = self._known(store, here, only)
            tasks = {key: asked.task for key, asked in known.items()}
            driver = Driver(store, tasks, executor, seed=self.grid.seed, repeats=self.grid.repeats)
            done, left_s = driver.forecast()
        slots = len(known) * self.grid.repeats
        return Forecast(
            tasks=len(known),
            slots=slots,
            done=done,
            left_s=left_s,
            cells=tuple(asked.values for asked in known.values()),
            change=change,
            follows=made if done < slots else None,
        )

    def _check_models(self, wanted: Mapping[str, Task]) -> None:
        """Raise InputError for a model's name that cannot be run, before a whole night of failures. Models that have
        run are left out."""
        from stoker.studies.models import first_misfit

        done: set[str] = set()
        if self.store_path.exists():
            with Store(self.store_path, create=False) as store:
                done = store.done(self.name)
        ran = {task.workload.spec for key, task in wanted.items() if key in done and task.workload}
        left = [task for task in wanted.values() if task.workload and task.workload.spec not in ran]
        misfit = first_misfit(left)
        if misfit.sentence is not None:
            raise InputError(f"{self._place_of(str(misfit.model))}{misfit.sentence}")

    def _check_executor(self, wanted: Mapping[str, Task], executor: Executor) -> None:
        """Raise InputError or MachineError where an executor cannot run a study as a whole.

        Where every task asks for a GPU and there is none, failures would only be in the way of runs on another day.
        What follows from a result is for the machine that it is of, and a cluster may have nodes of several kinds.
        """
        if executor.per is not None:
            if self.grid.generator is not None:
                raise InputError(
                    f"study {self.name!r} has a generator: its later runs follow from results of one machine; run it "
                    "there, without --ray"
                )
            return
        needs_gpu = bool(wanted) and all(task.device.startswith("cuda") for task in wanted.values())
        if needs_gpu and not any(machine.gpus for machine in executor.machines()):
            hint = "; --scale small needs none" if self.source == "preset" else ""
            raise MachineError(f"study {self.name!r} needs a GPU, and there is none here{hint}")

    def _place_of(self, model: str) -> str:
        """The grid's file and the line that names a model, as errors of the grid begin."""
        if self.file is None:
            return ""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        found = [number for number, line in enumerate(lines, start=1) if f'"{model}"' in line or f"'{model}'" in line]
        return f"{self.file}{f', line {found[0]}' if found else ''}: "

    def _repeat(self, repeats: int | None) -> None:
        if repeats is not None:
            self.grid = msgspec.structs.replace(self.grid, repeats=repeats)

    def _changed(self, store: Store) -> Change:
        """How this grid differs from the stored one. A study of another kind under the same name is refused."""
        before = store.study(self.name)
        now = {key: asked.values for key, asked in self.tasks.items()}
        if before is None:
            return Change(new=len(now), gone=0, same=0, first=True)
        if before["source"] == "import":
            raise InputError(f"study {self.name!r} was imported; give this grid another name")
        stored = decode(before["grid"].encode(), Grid)
        if stored.kind != self.grid.kind:
            raise InputError(
                f"{self.store_path} has a study {self.name!r} of kind {stored.kind}, not {self.grid.kind}; give this "
                "grid another name"
            )
        if self.grid.generator and msgspec.structs.replace(stored, repeats=self.grid.repeats) == self.grid:
            now = {key: cell for key, (cell, is_asked) in store.cells(self.name).items() if is_asked}
        asked = {key: cell for key, (cell, is_asked) in store.cells(self.name).items() if is_asked}
        new = {key: now[key] for key in now if key not in asked}
        gone = {key: asked[key] for key in asked if key not in now}
        return Change(
            new=len(new),
            gone=len(gone),
            same=len(now) - len(new),
            first=False,
            renewed=sum(1 for cell in new.values() if cell in gone.values()) if gone else 0,
            new_cells=self._axes_of(new),
            gone_cells=self._axes_of(gone),
            repeats_before=stored.repeats if stored.repeats != self.grid.repeats else None,
        )

    def _axes_of(self, cells: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """The first few cells, without the values that the grid fixes."""
        fixed = self.grid.fixed
        shown = [{name: value for name, value in cell.items() if name not in fixed} for cell in cells.values()]
        return tuple(shown[:_EXAMPLES])

    def _refuse_import(self) -> None:
        if self.source == "import":
            raise InputError(f"study {self.name!r} was imported: its trials came from elsewhere and cannot be run here")
        if self.source == "search":
            raise InputError(f"study {self.name!r} belongs to a search: give the command stoker search again")

    # ------------------------------------------------------------ looking

    def status(self) -> Status:
        """How far the study is, by machine."""
        with Store(self.store_path, create=False) as store:
            cells = store.cells(self.name)
            counts = store.counts(self.name, self.grid.repeats)
            own = {each: len(self._known(store, each)) for each in counts} if self.grid.generator else {}
            machines = store.machines()
            clusters = store.clusters(self.name)
            ran = {machine: count.slots for machine, count in counts.items()}
            for per in set(clusters.values()):
                nodes = tuple(machine for machine in ran if clusters.get(machine) == per)
                ran |= dict.fromkeys(nodes, self._ran(store, Cluster(per, nodes), cells))
            running = tuple(
                RunningTrial(values=cells[each.key][0], repeat=each.repeat, since=each.since, pid=each.owner.pid)
                for each in store.claims()
                if each.key in cells and cells[each.key][1]
            )
        tasks = sum(1 for _, is_asked in cells.values() if is_asked)
        slots = tasks * self.grid.repeats
        parts = tuple(
            MachineStatus(
                machine=machine,
                label=label(machines.get(machine, {})),
                outcomes=count.outcomes,
                missing=0 if self.source == "import" else own.get(machine, tasks) * self.grid.repeats - ran[machine],
                attempts=count.attempts,
            )
            for machine, count in counts.items()
        )
        return Status(
            name=self.name,
            kind=self.grid.kind,
            source=self.source,
            tasks=tasks,
            repeats=self.grid.repeats,
            slots=slots,
            machines=parts,
            running=running,
            no_longer_asked=len(cells) - tasks,
            missing=sum({clusters.get(part.machine, part.machine): part.missing for part in parts}.values()),
        )

    def _ran(self, store: Store, cluster: Cluster, cells: Mapping[str, tuple[Any, bool]]) -> int:
        """How many of the slots that the grid asks for any node of a cluster has run."""
        asked = {key for key, (_, is_asked) in cells.items() if is_asked}
        return sum(1 for slot in store.last_attempts(cluster) if slot.key in asked and slot.repeat < self.grid.repeats)

    def rows(self, *, documents: bool = False, keys: Sequence[str] | None = None) -> list[TrialRow]:
        """Every trial of the tasks that the grid asks for, all attempts, as they are stored. `keys` chooses tasks."""
        with Store(self.store_path, create=False) as store:
            asked = {key for key, (_, is_asked) in store.cells(self.name).items() if is_asked}
            return [row for row in store.trials(self.name, documents=documents, keys=keys) if row.key in asked]

    def trials(self) -> "pl.DataFrame":
        """One row for each task, repeat and machine: its last attempt. The columns are those of `analysis.frames`."""
        from stoker.studies.frame import trials_frame

        with Store(self.store_path, create=False) as store:
            cells = {key: cell for key, (cell, is_asked) in store.cells(self.name).items() if is_asked}
            rows = [row for row in store.trials(self.name) if row.key in cells]
            return trials_frame(self.name, self.grid.kind, cells, rows, self.machines(store))

    def machines(self, store: Store | None = None) -> dict[str, str]:
        """Labels of the machines in the store, by fingerprint."""
        if store is None:
            with Store(self.store_path, create=False) as opened:
                return self.machines(opened)
        return {machine: label(facts) for machine, facts in store.machines().items()}

    def export(self, path: str | Path, *, samples: bool = False) -> int:
        """Write the trials to a .csv, .parquet or .json file, whole or not at all. The number of trials."""
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

    # ------------------------------------------------------------ tables

    def table(
        self, name: str, *, by: Sequence[str] = (), trials: "pl.DataFrame | None" = None, **more: Any
    ) -> "pl.DataFrame":
        """A table by its name, such as "item-times"; `studies.tables` has all. `by` names columns that split it.

        `trials` is a frame that is there already, or a selection of it. Raises InputError for trials without the
        columns that the table needs.
        """
        from stoker.studies.tables import made

        return made(name, self.trials() if trials is None else trials, by=by, **more)

    def regret(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """The average and worst regret of each setting over the workloads, the best first."""
        return self.table("regret", by=by)

    def top(self, n: int = 3, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """How many workloads have each setting among their `n` fastest."""
        return self.table("top", by=by, n=n)

    def best(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """The fastest setting of each workload."""
        return self.table("best", by=by)

    def effects(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """What each axis does to the time, all else equal."""
        return self.table("effects", by=by)

    def ties(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """Which settings cannot be distinguished from the best, given the spread of repeats."""
        return self.table("ties", by=by)

    def largest_batch(self, *, by: Sequence[str] = ()) -> "pl.DataFrame":
        """The largest batch that works for all, and for most, workloads."""
        return self.table("largest-batch", by=by)


def study(source: str | Path | Mapping[str, Any], *, db: str | Path = DEFAULT_STORE, scale: str = "full") -> Study:
    """A study from a grid file, a mapping of the same shape, a preset's name, or the name of a study in the store.

    Nothing is run or written yet. Raises InputError for a grid that cannot be run, with the line of the mistake.
    """
    store = Path(db)
    if isinstance(source, Mapping):
        return Study(grid_from(source), store, source="grid")
    if not isinstance(source, str | Path):
        raise InputError(
            f"a study needs a grid file or a preset's name, got {type(source).__name__}; a live Workload object has no "
            "key: name it as file.py:function in a grid"
        )
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        return Study(read_grid(path), store, source="grid", file=path)
    if str(source) in preset_names():
        return Study(read_preset(str(source), scale), store, source="preset")
    found = _stored(str(source), store)
    if found is None:
        known = ", ".join(preset_names())
        raise InputError(f"{source} is no grid file, no preset and no study in {store}; presets: {known}")
    return found


def stored_study(name: str, db: Path) -> Study:
    """The study of that name in a store. Raises InputError where there is none."""
    with Store(db, create=False) as store:
        names = ", ".join(each["name"] for each in store.studies())
    found = _stored(name, db)
    if found is None:
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


def listing(db: Path) -> list[dict[str, Any]]:
    """The studies of a store: name, kind, tasks, trials, where they came from."""
    with Store(db, create=False) as store:
        return [
            {
                "name": each["name"],
                "kind": decode(each["grid"].encode(), Grid).kind,
                "source": each["source"],
                "tasks": sum(store.keys(each["name"]).values()),
                "trials": store.count(each["name"]),
                "created": each["created"],
            }
            for each in store.studies()
        ]


def _last_rows(rows: Sequence[TrialRow]) -> dict[str, dict[str, list[TrialRow]]]:
    """By machine and key, the last attempt at each repeat."""
    last: dict[tuple[str, str, int], TrialRow] = {}
    for row in rows:
        place = (row.machine, row.key, row.repeat)
        if place not in last or row.attempt > last[place].attempt:
            last[place] = row
    found: dict[str, dict[str, list[TrialRow]]] = {}
    for machine, key, repeat in sorted(last):
        found.setdefault(machine, {}).setdefault(key, []).append(last[machine, key, repeat])
    return found


def _after(done: Sequence[Summary], report: Callable[[Progress], None] | None) -> Callable[[Progress], None] | None:
    """Reports progress with what was run before counted."""
    before = sum(each.slots for each in done)
    if report is None or not before:
        return report
    return lambda at: report(at._replace(done=at.done + before, of=at.of + before))


def _together(summaries: Sequence[Summary]) -> Summary:
    """What several drives in a row did."""
    outcomes: dict[str, int] = {}
    for each in summaries:
        for outcome, count in each.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return Summary(
        machines=tuple(sorted({machine for each in summaries for machine in each.machines})),
        slots=sum(each.slots for each in summaries),
        ran=sum(each.ran for each in summaries),
        outcomes=outcomes,
        unfinished=sum(each.unfinished for each in summaries),
        seconds=sum(each.seconds for each in summaries),
        stopped=summaries[-1].stopped,
        lost=sum(each.lost for each in summaries),
    )


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


def _examples(cells: Sequence[Mapping[str, Any]], count: int) -> str:
    if not cells:
        return ""
    texts = [", ".join(f"{name}={value}" for name, value in cell.items()) for cell in cells]
    return f" ({'; '.join(texts)}{'; …' if count > len(texts) else ''})"
