"""Two sides of saved results, and whether the second is faster: `stoker.compare`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from stoker.analysis.compare import Measurement, Measurements, compare_runs, of_figures, of_plan, of_trial
from stoker.errors import InputError
from stoker.records import Comparison, Plan, Record, Stalls, Trial, parse, read
from stoker.studies.study import Study, stored_study
from stoker.studies.transfer import KIND

Source = str | Path | Record | Study
"""A saved file, the name of a study in a store, or a record."""


def compare(
    a: Source | Sequence[Source],
    b: Source | Sequence[Source],
    *,
    db: str | Path = "stoker.db",
    anyway: bool = False,
) -> Comparison:
    """Whether side `b` is faster or slower than side `a`, stage by stage, each with an interval.

    A side is one result or several: files that Stoker saved, trials and plans, studies, or names of studies in the
    store `db`. With several runs a side, the interval comes from the spread between them. Raises InputError for what
    holds no runs, for a side without a finished one, and for unlike machines unless `anyway`.
    """
    return compare_runs(_side("A", a, Path(db)), _side("B", b, Path(db)), anyway=anyway)


def _side(name: str, sources: Source | Sequence[Source], db: Path) -> Measurements:
    listed = [sources] if isinstance(sources, str | Path | Record | Study) else list(sources)
    if not listed:
        raise InputError(f"side {name} is empty: name a saved file")
    runs: list[Measurement] = []
    left_out: list[str] = []
    shown: list[str] = []
    seen: dict[Any, str] = {}
    for source in listed:
        label = _label(source)
        record = _opened(source, db)
        identity = _identity(record)
        if identity is not None and identity in seen:
            raise InputError(f"side {name} has the same runs twice: {seen[identity]} and {label}")
        seen[identity] = label
        shown.append(label)
        for make in _makers(record, label):
            try:
                runs += make()
            except InputError as error:
                left_out.append(f"{label}: {error}")
    return Measurements(runs=tuple(runs), sources=tuple(shown), left_out=tuple(left_out))


def _label(source: Source) -> str:
    if isinstance(source, Study):
        return source.name
    if isinstance(source, Record):
        return type(source).__name__.lower()
    return Path(source).name


def _identity(record: Any) -> Any:
    """What is the same for two copies of one result; None where that cannot be said."""
    if isinstance(record, Trial) and record.when is not None:
        return record.when, record.total_s
    return msgspec.json.encode(record) if isinstance(record, Record) else None


class _Exported(Record, frozen=True):
    """A study that was exported as JSON. Columns of its trials are those of its frame."""

    trials: list[dict[str, Any]]
    study: str = ""
    machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)


Opened = Record | Study


def _opened(source: Source, db: Path) -> Opened:
    """The record or study behind a source; raises InputError where there is none."""
    if isinstance(source, Study | Record):
        return source
    path = Path(source)
    if path.suffix == ".json" or path.is_file():
        return _exported(path) or read(path)
    if not db.is_file():
        raise InputError(f"there is no file {source}, and no store {db} that could have a study of that name")
    return stored_study(str(source), db)


def _exported(path: Path) -> _Exported | None:
    """The exported study in a file; None for any other document, and for what cannot be read."""
    try:
        data = path.read_bytes()
        document = msgspec.json.decode(data)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return None
    try:
        return msgspec.convert(document, _Exported)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: this exported study cannot be read: {error}") from None


Maker = Callable[[], Sequence[Measurement]]


def _makers(record: Opened, label: str) -> Iterable[Maker]:
    """Functions that make the measurements of each run; they raise InputError for one that did not finish."""
    match record:
        case Trial():
            yield lambda: [of_trial(record)]
        case Stalls():
            for trial in {id(each): each for each in (record.memory, record.cached, record.cold)}.values():
                yield lambda trial=trial: [of_trial(trial)]  # type: ignore[misc]
        case Plan():
            yield lambda: of_plan(record)
        case _Exported():
            yield from _of_exported(record)
        case Study():
            yield from _of_study(record)
        case _:
            kind = type(record).__name__.lower()
            raise InputError(f"{label} holds a {kind}; compare takes trials, plans and studies")


def _of_exported(study: _Exported) -> Iterable[Maker]:
    for row in study.trials:
        values = study.tasks.get(str(row.get("task_key")), {}).get("values")
        machine = study.machines.get(str(row.get("machine")))
        yield _row_maker(row, values if isinstance(values, dict) else {}, machine, row.get("record"))


def _of_study(study: Study) -> Iterable[Maker]:
    """The last attempt at each task and repeat, with its raw samples where the store keeps them."""
    from stoker.studies.store import Store

    with Store(study.store_path, create=False) as store:
        cells = {key: cell for key, (cell, _) in store.cells(study.name).items()}
        machines = store.machines()
    last = {(row.key, row.repeat, row.machine): row for row in sorted(study.rows(documents=True), key=_attempt)}
    for row in last.values():
        figures = {**row.figures, "outcome": row.outcome}
        yield _row_maker(figures, cells[row.key], machines.get(row.machine), row.document)


def _attempt(row: Any) -> int:
    return int(row.attempt)


def _row_maker(figures: dict[str, Any], values: dict[str, Any], machine: dict[str, Any] | None, record: Any) -> Maker:
    def make() -> list[Measurement]:
        if figures.get("outcome", "done") != "done":
            raise InputError(f"a trial ended with {figures['outcome']}")
        found = _trial(record)
        if found is None:
            return [of_figures(figures, values, machine)]
        measured = of_trial(found, values)
        return [msgspec.structs.replace(measured, machine=machine or measured.machine)]

    return make


def _trial(record: Any) -> Trial | None:
    """The trial in a stored document; None where there is none, or something else."""
    if record is None:
        return None
    data = record if isinstance(record, bytes) else msgspec.json.encode(record)
    found = parse(data)
    return found if isinstance(found, Trial) else None
