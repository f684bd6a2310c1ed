"""Trials into files and out of them: export, import of tables and saved trials, and the published figures."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.atomic import write_whole
from stoker.errors import InputError
from stoker.records import Trial, parse
from stoker.records.documents import SCHEMA
from stoker.studies.figures import figures_of
from stoker.studies.fingerprint import facts_of, fingerprint
from stoker.studies.grid import Grid, task_of
from stoker.studies.store import Store, TrialRow

if TYPE_CHECKING:
    from stoker.studies.study import Study

FORMATS = (".csv", ".parquet", ".json")


def export(study: "Study", path: Path, *, samples: bool = False) -> Path:
    """Write a study's trials: a table, or one JSON document {kind, schema, trials}. With `samples` (JSON only) every
    trial has its record with the raw samples."""
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
        rows = frame.to_dicts()
        if samples:
            _add_samples(rows, study)
        document = {"kind": "trials", "schema": SCHEMA, "study": study.name, "trials": rows}
        write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    return path


def _add_samples(rows: list[dict[str, Any]], study: "Study") -> None:
    documents = {
        (row.key, row.repeat, row.machine, row.attempt): row.document
        for row in study.rows(documents=True)
        if row.document
    }
    for row in rows:
        document = documents.get((row["task_key"], row["repeat"], row["machine"], row["attempt"]))
        row["record"] = msgspec.Raw(document) if document else None


# ---------------------------------------------------------------- import


def import_files(
    paths: Sequence[Path], *, name: str, db: Path, columns: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Make a study of a CSV table or of saved trials. (rows in the files, rows that were new).

    `columns` maps our names to the table's: {"seconds": "end_to_end"}. A table needs `seconds` and `workload` (or
    `model`), and has one row a trial.
    """
    if not paths:
        raise InputError("name a file to import")
    rows: list[tuple[dict[str, Any], TrialRow]] = []
    machines: dict[str, dict[str, Any]] = {}
    for path in paths:
        if path.suffix == ".csv":
            found = _table_rows(path, columns or {})
            machine = {"label": f"imported from {path.name}", "table": sha256(path.name.encode()).hexdigest()[:8]}
            rows += _as_rows(found, fingerprint(machine), machines, machine)
        else:
            rows.append(_saved_trial(path, machines))
    return _store(rows, machines, name, db)


def import_published(which: str, *, db: Path, name: str | None = None) -> tuple[int, int]:
    """Make a study of the figures that the seeds' authors published."""
    from stoker.analysis import published

    tables = {"batch-and-workers": published.grid, "inference-times": published.inference_times}
    if which not in tables:
        raise InputError(f"no published figures called {which!r}; choose {', '.join(tables)}")
    frame = tables[which]()
    machine = {"label": "RTX A5000, Threadripper PRO 3995WX (published by hpides/alsatian)", "published": True}
    machines: dict[str, dict[str, Any]] = {}
    found = [{key: value for key, value in row.items() if value is not None} for row in frame.to_dicts()]
    rows = _as_rows(found, fingerprint(machine), machines, machine)
    return _store(rows, machines, name or f"published-{which}", db)


_CELL = ("workload", "data", "mode", "device", "source", "items", "batch_size", "num_workers", "prefetch_factor")
_CELL_MORE = ("pin_memory", "persistent_workers", "in_order", "precision", "multiprocessing_context", "batches")
_WHOLE = {"items", "batch_size", "num_workers", "prefetch_factor", "batches", "repeat"}
_NOT_FIGURES = {"study", "task_key", "attempt", "machine", "outcome", "repeat", "problem"}


def _as_rows(
    found: Iterable[dict[str, Any]], machine: str, machines: dict[str, dict[str, Any]], facts: dict[str, Any]
) -> list[tuple[dict[str, Any], TrialRow]]:
    machines[machine] = facts
    rows = []
    seen: dict[str, int] = {}
    for values in found:
        if "workload" not in values and "model" in values:
            values["workload"] = values["model"]
        cell = {name: values[name] for name in (*_CELL, *_CELL_MORE) if name in values}
        key = task_of(cell, "profile").key()
        repeat = int(values.get("repeat", seen.get(key, 0)))
        seen[key] = repeat + 1
        figures = {name: value for name, value in values.items() if name not in {*_NOT_FIGURES, *cell}}
        outcome = values.get("outcome", "done" if values.get("seconds") is not None else "failed")
        row = TrialRow(key=key, repeat=repeat, machine=machine, outcome=outcome, figures=figures)
        rows.append((cell, row))
    return rows


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
    known = [ours_by_theirs.get(name, name) for name in names]
    if "seconds" not in known or not {"workload", "model"} & set(known):
        raise InputError(
            f"{path} needs the columns seconds and workload; it has {', '.join(names) or 'none'}. Name others with "
            "--map seconds=COLUMN,workload=COLUMN"
        )
    rows = []
    for number, line in enumerate(reader, start=2):
        values = {ours_by_theirs.get(name, name): text for name, text in line.items() if name is not None}
        rows.append({name: _typed(name, each, path, number) for name, each in values.items() if each not in (None, "")})
    if not rows:
        raise InputError(f"{path} has no rows")
    return rows


def _typed(name: str, text: str, path: Path, number: int) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if name in _WHOLE or name == "seconds" or name.endswith("_s"):
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{path}, line {number}: {name} must be a number, got {text!r}") from None
        return int(value) if name in _WHOLE else value
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _saved_trial(path: Path, machines: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], TrialRow]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        trial = parse(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(trial, Trial):
        raise InputError(f"{path} holds a {type(trial).__name__.lower()}, and only trials can be imported")
    facts = facts_of(trial.machine) if trial.machine else {"label": "unknown machine"}
    machine = fingerprint(facts)
    machines[machine] = facts
    cell = {
        "workload": trial.workload.name,
        "data": trial.workload.data,
        "mode": trial.workload.mode,
        "device": trial.workload.device,
        **msgspec.to_builtins(trial.setting),
        **({"items": trial.items} if trial.items else {}),
    }
    cell = {name: value for name, value in cell.items() if value is not None and name in (*_CELL, *_CELL_MORE)}
    key = (
        trial.task.key()
        if trial.task is not None and trial.task.workload is not None
        else task_of(cell, "profile").key()
    )
    row = TrialRow(
        key=key,
        repeat=0,
        machine=machine,
        outcome=trial.outcome,
        began=trial.when,
        wall_s=trial.total_s or None,
        figures=figures_of(trial),
        problem=trial.problem.sentence if trial.problem else None,
        document=data,
    )
    return cell, row


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


def _store(
    rows: Sequence[tuple[dict[str, Any], TrialRow]], machines: Mapping[str, dict[str, Any]], name: str, db: Path
) -> tuple[int, int]:
    tasks = {row.key: (task_of(cell, "profile"), cell) for cell, row in rows}
    numbered = _numbered([row for _, row in rows])
    with Store(db) as store:
        before = store.study(name)
        if before is not None and before["source"] != "import":
            raise InputError(f"{db} has a study {name!r} that was run here; import under another name")
        earlier = {key: (task, cell) for key, (task, cell, _) in store.tasks(name).items()} if before else {}
        for machine, facts in machines.items():
            store.add_machine(machine, facts)
        grid = Grid(name=name, repeats=1 + max((row.repeat for row in numbered), default=0))
        store.add_study(name, grid, "import", {**earlier, **tasks})
        return len(rows), store.record_all(numbered)


def _numbered(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Several files of one task are repeats of it."""
    count: dict[tuple[str, str], int] = {}
    found = []
    for row in rows:
        place = (row.key, row.machine)
        repeat = max(row.repeat, count.get(place, 0))
        count[place] = repeat + 1
        found.append(msgspec.structs.replace(row, repeat=repeat))
    return found
