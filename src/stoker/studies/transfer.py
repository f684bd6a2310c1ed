"""Trials into files and out of them: export, import of tables and saved trials, and the published figures."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from stoker.analysis import published
from stoker.analysis.machines import facts_of
from stoker.atomic import write_whole
from stoker.errors import InputError
from stoker.records import Extent, Outcome, Setting, Task, Trial, WorkloadSpec, parse
from stoker.records.documents import SCHEMA
from stoker.studies.axes import EXTENT, NAMES, SEARCH, SETTING
from stoker.studies.figures import figures_of
from stoker.studies.fingerprint import fingerprint
from stoker.studies.grid import Grid
from stoker.studies.store import Store, TrialRow

if TYPE_CHECKING:
    import polars as pl

    from stoker.studies.study import Study

FORMATS = (".csv", ".parquet", ".json")
KIND = "trials"
"""The kind of an exported JSON document."""


def export(study: "Study", path: Path, *, samples: bool = False) -> int:
    """Write a study's trials: a table, or one JSON document {kind, schema, study, machines, tasks, trials}. The number
    of trials. With `samples` (JSON only) every trial has its `record` with the raw samples."""
    if path.suffix not in FORMATS:
        raise InputError(f"cannot export to {path.name}: choose a name that ends in {', '.join(FORMATS)}")
    if samples and path.suffix != ".json":
        raise InputError("raw samples go into .json only; a table has one row a trial")
    frame = study.trials()
    if path.suffix == ".csv":
        write_whole(path, frame.write_csv().encode())
    elif path.suffix == ".parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        write_whole(path, buffer.getvalue())
    else:
        with Store(study.store_path, create=False) as store:
            write_whole(path, _document(study, frame, store, samples))
    return frame.height


def _document(study: "Study", frame: "pl.DataFrame", store: Store, samples: bool) -> Iterator[bytes]:
    """The JSON document in parts, one a trial: with raw samples it may be larger than memory."""
    tasks, machines = store.tasks(study.name), store.machines()
    keys, used = set(frame["task_key"]), set(frame["machine"])
    head = {
        "kind": KIND,
        "schema": SCHEMA,
        "study": study.name,
        "machines": {machine: facts for machine, facts in machines.items() if machine in used},
        "tasks": {key: {"task": task, "values": cell} for key, (task, cell, _) in tasks.items() if key in keys},
    }
    yield msgspec.json.encode(head).removesuffix(b"}") + b',\n"trials": ['
    for number, values in enumerate(frame.iter_rows(named=True)):
        row = {name: value for name, value in values.items() if value is not None}
        if samples:
            document = store.document(row["task_key"], row["repeat"], row["machine"], row["attempt"])
            row["record"] = msgspec.Raw(document) if document else None
        yield (b",\n" if number else b"\n") + msgspec.json.encode(row)
    yield b"\n]}\n"


# ---------------------------------------------------------------- import


class Imported(NamedTuple):
    """A trial from outside: what was asked, in a grid's terms and as a task, and what became of it."""

    values: dict[str, Any]
    task: Task
    row: TrialRow


Machines = dict[str, dict[str, Any]]

_IDENTITY = {"study", "kind", "task_key", "repeat", "attempt", "attempts", "machine", "machine_label", "outcome"}
_CIRCUMSTANCES = {"began", "wall_s", "problem", "torch", "stoker", "record"}
_RESULTS = ("seconds", "max_batch", "steady_item_s")
_AXES = tuple(dict.fromkeys(name for names in NAMES.values() for name in names if name not in _RESULTS))
_MORE_AXES = ("family", *SEARCH, "score", "sleep_s", "pin_memory_device")
"""Columns of other people's tables that tell tasks apart, as in `analysis.frames`."""
_WHOLE = {
    *("items", "batches", "epochs", "batch_size", "num_workers", "prefetch_factor", "accumulate", "gpus"),
    *("repeat", "attempt", "max_batch"),
}


def import_files(
    paths: Sequence[Path], *, name: str, db: Path, columns: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Make a study of CSV tables, exported studies or saved trials. (trials in the files, trials that were new).

    `columns` maps our names to a table's: {"seconds": "end_to_end"}. A table has one row a trial; it needs `workload`
    (or `model`) and `seconds` (or `max_batch`).
    """
    if not paths:
        raise InputError("name a file to import")
    found: list[Imported] = []
    machines: Machines = {}
    for path in paths:
        if path.suffix == ".csv":
            found += _of_table(_table_rows(path, columns or {}), machines, path.name)
        else:
            found += _of_document(path, machines)
    return _save(found, machines, name, db)


PUBLISHED: dict[str, Callable[[], "pl.DataFrame"]] = {
    "batch-and-workers": published.grid,
    "batch-impact": published.batch_impact,
    "batch-medians": published.batch_trials,
    "data-loading": published.loader_runs,
    "inference-times": lambda: published.inference_times().rename({"item_s": "steady_item_s"}),
    "max-batch": published.max_batches,
    "stage-times": published.stage_trials,
}
"""Published figures that can be a study like any other, most by the preset that they belong to."""


def import_published(which: str, *, db: Path, name: str | None = None) -> tuple[int, int]:
    """Make a study of the figures that the seeds' authors published. (trials, trials that were new)."""
    if which not in PUBLISHED:
        raise InputError(f"no published figures called {which!r}; choose {', '.join(PUBLISHED)}")
    machines: Machines = {}
    rows = [{**row, "machine": published.MACHINE} for row in PUBLISHED[which]().to_dicts()]
    return _save(_of_table(rows, machines, None), machines, name or f"published-{which}", db)


def parse_map(text: str | None) -> dict[str, str]:
    """`seconds=end_to_end,workload=net`: a table's columns by our names."""
    columns: dict[str, str] = {}
    for part in (text or "").split(","):
        ours, equals, theirs = part.partition("=")
        if part.strip() and not (equals and ours.strip() and theirs.strip()):
            raise InputError(f"{part!r} maps nothing; write it like seconds=end_to_end")
        if part.strip():
            columns[ours.strip()] = theirs.strip()
    return columns


def _of_table(rows: Iterable[dict[str, Any]], machines: Machines, file: str | None) -> list[Imported]:
    """Rows of a table, each a trial. Rows of several machines stay apart; equal ones are repeats."""
    found = []
    for row in rows:
        values = {name: value for name, value in row.items() if value is not None}
        values.setdefault("workload", values.get("model"))
        machine = str(values.get("machine_label") or values.get("machine") or "unknown machine")
        facts = {"label": f"{machine}, imported from {file}" if file else machine}
        machines[fingerprint(facts)] = facts
        cell = {name: values[name] for name in (*_AXES, *_MORE_AXES) if name in values}
        known = {*_IDENTITY, *_CIRCUMSTANCES, *cell}
        has_result = any(values.get(name) is not None for name in _RESULTS)
        task = _task_of(cell)
        trial = TrialRow(
            key=task.key(),
            repeat=int(values.get("repeat", 0)),
            machine=fingerprint(facts),
            outcome=values.get("outcome", "done" if has_result else "failed"),
            wall_s=values.get("wall_s"),
            figures={name: value for name, value in values.items() if name not in known},
            problem=values.get("problem"),
            versions={name: str(values[name]) for name in ("torch", "stoker") if name in values},
        )
        found.append(Imported(cell, task, trial))
    return found


def _task_of(cell: Mapping[str, Any]) -> Task:
    """A row of a table as a task: what a setting and an extent know, and the rest as options. Nothing checks that it
    could be run here, as it never is."""
    spec = WorkloadSpec(spec=str(cell["workload"]), data=cell.get("data"), items=cell.get("items"))
    fields = {"mode": cell.get("mode"), "device": cell.get("device", "auto")}
    setting = {name: cell[name] for name in SETTING if name in cell}
    extent = {name: cell[name] for name in EXTENT if name in cell}
    used = {"workload", "data", "items", *fields, *setting, *extent}
    try:
        return msgspec.convert(
            {
                "workload": msgspec.to_builtins(spec),
                **fields,
                "setting": msgspec.to_builtins(msgspec.convert(setting, Setting)),
                "extent": msgspec.to_builtins(msgspec.convert({"batches": None, **extent}, Extent)),
                "options": {"imported": True, **{name: cell[name] for name in cell if name not in used}},
            },
            Task,
        )
    except msgspec.ValidationError as error:
        shown = ", ".join(f"{name}={value}" for name, value in cell.items())
        raise InputError(f"a row of the table makes no sense ({shown}): {error}") from None


def _table_rows(path: Path, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    reader = csv.DictReader(io.StringIO(text))
    names = list(reader.fieldnames or [])
    for ours, theirs in columns.items():
        if theirs not in names:
            raise InputError(f"{path} has no column {theirs!r} for {ours}; it has {', '.join(names)}")
    ours_by_theirs = {theirs: ours for ours, theirs in columns.items()}
    known = {ours_by_theirs.get(name, name) for name in names}
    if not known.intersection(_RESULTS) or not known & {"workload", "model"}:
        raise InputError(
            f"{path} needs the columns seconds and workload; it has {', '.join(names) or 'none'}. Name others with "
            "--map seconds=COLUMN,workload=COLUMN"
        )
    rows = []
    for number, line in enumerate(reader, start=2):
        if None in line:
            raise InputError(f"{path}, line {number}: more values than the {len(names)} columns")
        values = {ours_by_theirs.get(name, name): text for name, text in line.items() if text}
        if not values.keys() & {"workload", "model"}:
            raise InputError(f"{path}, line {number}: no workload")
        rows.append({name: _typed(name, text, f"{path}, line {number}") for name, text in values.items()})
    if not rows:
        raise InputError(f"{path} has no rows")
    return rows


def _typed(name: str, text: str, place: str) -> Any:
    if name == "outcome":
        if text not in get_args(Outcome):
            raise InputError(f"{place}: outcome must be one of {', '.join(get_args(Outcome))}, got {text!r}")
        return text
    if name in _WHOLE or name in _RESULTS or name.endswith("_s"):
        try:
            number = float(text)
        except ValueError:
            raise InputError(f"{place}: {name} must be a number, got {text!r}") from None
        if name in _RESULTS and not (math.isfinite(number) and number > 0):
            raise InputError(f"{place}: {name} must be above 0, got {text!r}")
        if name not in _WHOLE:
            return number
        if not number.is_integer():
            raise InputError(f"{place}: {name} must be a whole number, got {text!r}")
        return int(number)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _of_document(path: Path, machines: Machines) -> list[Imported]:
    """A saved trial, or an exported study."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        exported = msgspec.json.decode(data, type=_Exported)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [_of_trial(path, data, machines)]
    if exported.schema > SCHEMA:
        raise InputError(f"{path} has schema {exported.schema}, and this Stoker reads up to {SCHEMA}: update Stoker")
    machines.update(exported.machines)
    found = []
    for row in exported.trials:
        asked = exported.tasks.get(row["task_key"])
        if asked is None or row["machine"] not in exported.machines:
            raise InputError(f"{path} is incomplete: it lacks the task or the machine of one of its trials")
        known = {*_IDENTITY, *_CIRCUMSTANCES, *asked.values}
        trial: dict[str, Any] = {
            "key": row["task_key"],
            "figures": {name: value for name, value in row.items() if name not in known},
            "versions": {name: row[name] for name in ("torch", "stoker") if name in row},
        }
        same = ("repeat", "machine", "outcome", "began", "wall_s", "problem")
        trial |= {name: row[name] for name in same if name in row}
        record = row.get("record")
        try:
            made = msgspec.convert(trial, TrialRow)
        except msgspec.ValidationError as error:
            raise InputError(f"{path} has a trial that cannot be read: {error}") from None
        document = msgspec.json.encode(record) if record else None
        found.append(Imported(asked.values, asked.task, msgspec.structs.replace(made, document=document)))
    return found


class _Asked(msgspec.Struct):
    task: Task
    values: dict[str, Any]


class _Exported(msgspec.Struct, tag_field="kind", tag=KIND):
    """An exported study."""

    schema: int
    study: str
    machines: Machines
    tasks: dict[str, _Asked]
    trials: list[dict[str, Any]]


def _of_trial(path: Path, data: bytes, machines: Machines) -> Imported:
    try:
        trial = parse(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(trial, Trial):
        raise InputError(f"{path} holds a {type(trial).__name__.lower()}, and only trials can be imported")
    facts = facts_of(trial.machine) if trial.machine else {"label": "unknown machine"}
    machines[fingerprint(facts)] = facts
    subject = trial.workload
    values = {
        "workload": subject.name,
        "data": subject.data,
        "mode": subject.mode,
        "device": subject.device,
        **{name: value for name, value in msgspec.to_builtins(trial.setting).items() if value is not None},
        **({"items": trial.items} if trial.items else {}),
    }
    has_key = trial.task is not None and trial.task.workload is not None
    task = trial.task if has_key and trial.task is not None else _task_of(values)
    row = TrialRow(
        key=task.key(),
        repeat=0,
        machine=fingerprint(facts),
        outcome=trial.outcome,
        began=trial.when,
        wall_s=trial.total_s or None,
        figures=figures_of(trial),
        problem=trial.problem.sentence if trial.problem else None,
        document=data,
    )
    return Imported(values, task, row)


def _save(found: Sequence[Imported], machines: Machines, name: str, db: Path) -> tuple[int, int]:
    tasks = {each.row.key: (each.task, each.values) for each in found}
    with Store(db) as store:
        before = store.study(name)
        if before is not None and before["source"] != "import":
            raise InputError(f"{db} has a study {name!r} that was run here; import under another name")
        store.check()
        earlier = {key: (task, cell) for key, (task, cell, _) in store.tasks(name).items()} if before else {}
        present = store.trials(name)
        rows = _numbered([each.row for each in found], present)
        kinds = {task.kind for task, _ in tasks.values()}
        is_limit = kinds == {"limit"} or all("max_batch" in each.row.figures for each in found)
        repeats = 1 + max((row.repeat for row in (*present, *rows)), default=0)
        grid = Grid(name=name, kind="limit" if is_limit else "profile", repeats=repeats)
        for machine, facts in machines.items():
            store.add_machine(machine, facts)
        store.add_study(name, grid, "import", {**earlier, **tasks})
        store.record_all(rows)
    return len(found), len(rows)


def _numbered(rows: Sequence[TrialRow], present: Sequence[TrialRow]) -> list[TrialRow]:
    """The rows that are not present yet. Several trials of one task on one machine are repeats of it, where they are
    not numbered apart."""
    taken: dict[tuple[str, str], set[int]] = {}
    known: set[tuple[str, str, str]] = set()
    for row in present:
        taken.setdefault((row.key, row.machine), set()).add(row.repeat)
        known.add((row.key, row.machine, repr(sorted(row.figures.items()))))
    found = []
    for row in rows:
        if (row.key, row.machine, repr(sorted(row.figures.items()))) in known:
            continue
        numbers = taken.setdefault((row.key, row.machine), set())
        repeat = row.repeat if row.repeat not in numbers else max(numbers) + 1
        numbers.add(repeat)
        found.append(msgspec.structs.replace(row, repeat=repeat))
    return found
