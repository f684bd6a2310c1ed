"""A study's grid: a TOML file, checked, and the tasks that it asks for.

```toml
name = "my-grid"
seed = 0
repeats = 3
kind = "profile"            # or "limit", "tune", "search", "converge"

[fixed]
mode = "infer"
items = 9216                # items of one run: one pass, worker start included

[axes]                      # every combination; [[axes]] several times: those of each
workload = ["resnet18", "vit_b_16"]
batch_size = [32, 128, 256]
num_workers = [1, 2, 4, 8]

[[exclude]]                 # leave out every task that has these values
workload = "vit_b_16"
num_workers = 1

[[include]]                 # and add this one
workload = "resnet18"
batch_size = 512
num_workers = 16
```

A grid may name a `generator`: more cells follow then from the results of each of its own, with the values of `[then]`.
"""

import itertools
import math
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import field

from stoker.errors import InputError
from stoker.records import Extent, Record, Setting, Task, WorkloadSpec
from stoker.studies.axes import COMMON, EXTENT, LABELS, NAMES, SEARCH, SETTING, Kind, Value, checked, nearest
from stoker.studies.generators import GENERATORS
from stoker.studies.request import RULES as CONVERGE
from stoker.studies.request import ConvergeRequest
from stoker.studies.store import TrialRow
from stoker.units import parse_bytes, parse_seconds

_TOP = (
    *("name", "title", "seed", "repeats", "kind", "timeout", "about", "fixed", "axes", "exclude", "include"),
    *("generator", "then"),
)
_LONGEST_NAME = 100
_MOST_TASKS = 1_000_000
"""More than any machine can run, and about as many as fit into memory."""
_NEEDS_WORKERS = ("prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context")


class Grid(Record, frozen=True):
    """A checked grid. `tasks()` gives what it asks for; the same grid always gives the same tasks."""

    name: str
    kind: Kind = "profile"
    title: str = ""
    about: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    repeats: int = 1
    timeout_s: float | None = None
    fixed: dict[str, Value] = field(default_factory=dict)
    axes: tuple[dict[str, tuple[Value, ...]], ...] = ()
    exclude: tuple[dict[str, Value], ...] = ()
    include: tuple[dict[str, Value], ...] = ()
    generator: str | None = None
    then: dict[str, Value] = field(default_factory=dict)

    def cells(self) -> list[dict[str, Value]]:
        """The values of every task, fixed ones included, in the order in which the grid writes them."""
        products = (
            dict(zip(axes, values, strict=True)) for axes in self.axes for values in itertools.product(*axes.values())
        )
        left = [cell for cell in products if not any(_matches(cell, each) for each in self.exclude)]
        return [{**self.fixed, **cell} for cell in (*left, *self.include)]

    @property
    def axis_names(self) -> list[str]:
        """The names of all axes, in the order in which the grid writes them."""
        return list(dict.fromkeys(name for axes in self.axes for name in axes))

    def tasks(self) -> dict[str, "Asked"]:
        """Every task by its key. Cells that ask for the same thing (prefetching without workers) are one task. Of a
        grid with a generator, those that need no results."""
        return self.asked({})

    def asked(
        self, rows: Mapping[str, Sequence[TrialRow]], cells: Iterable[Mapping[str, Value]] | None = None
    ) -> dict[str, "Asked"]:
        """Every task that is known given these trials by key, the last attempt at each repeat. `cells` are some of the
        grid's."""
        found: dict[str, Asked] = {}
        for cell in self.cells() if cells is None else cells:
            if self.generator is None:
                _add(found, cell, self.kind)
            else:
                self._generate(found, cell, rows)
        return found

    def _generate(
        self, found: dict[str, "Asked"], cell: Mapping[str, Value], rows: Mapping[str, Sequence[TrialRow]]
    ) -> None:
        """What a cell's generator asks for, until trials are missing."""
        generator = GENERATORS[str(self.generator)].make(cell, self.then)
        wanted = next(generator)
        while True:
            keys = [_add(found, each, each.get("kind", self.kind)) for each in wanted]
            answers = [[row for row in rows.get(key, ()) if row.repeat < self.repeats] for key in keys]
            if any(len(answer) < self.repeats for answer in answers):
                return
            try:
                wanted = generator.send(answers)
            except StopIteration:
                return


class Asked(Record, frozen=True):
    """A task, and the values of the cell that asked for it."""

    task: Task
    values: dict[str, Value]


def _add(found: dict[str, Asked], cell: Mapping[str, Value], kind: Any) -> str:
    """Note the task of a cell, unless it is there. Its key."""
    task = task_of(cell, kind)
    key = task.key()
    found.setdefault(key, Asked(task=task, values=dict(cell)))
    return key


def order(keys: Iterable[str], seed: int, repeats: int) -> Iterator[tuple[str, int]]:
    """Every (key, repeat), shuffled by the seed: all tasks once before the second repeat begins.

    So a machine that becomes slower does not make one setting look slower than another.
    """
    names = sorted(keys)
    for repeat in range(repeats):
        shuffled = names.copy()
        random.Random(f"{seed}/{repeat}").shuffle(shuffled)
        yield from ((key, repeat) for key in shuffled)


def _matches(cell: Mapping[str, Value], part: Mapping[str, Value]) -> bool:
    return all(name in cell and cell[name] == value for name, value in part.items())


# ---------------------------------------------------------------- a cell as a task


def task_of(cell: Mapping[str, Value], kind: Kind) -> Task:
    """What a cell asks for. Raises InputError for a value that is impossible."""
    spec = WorkloadSpec(
        spec=str(cell["workload"]),
        data=_text(cell, "data"),
        items=_count(cell, "items"),
        weights=_text(cell, "weights"),
    )
    common: dict[str, Any] = {"kind": kind, "workload": spec, "mode": cell.get("mode")}
    if "device" in cell:
        common["device"] = cell["device"]
    if kind == "profile":
        return Task(**common, setting=_setting(cell), extent=_extent(cell))
    if kind == "search":
        return _candidate(cell, common)
    if kind == "converge":
        return _converge_task(cell, common)
    setting: dict[str, Any] = {
        name: cell[name] for name in ("precision", "cudnn_benchmark", "accumulate") if name in cell
    }
    if kind == "limit" and "ranks" in cell:
        setting["ranks"] = cell["ranks"]
    options = {name: value for name, value in cell.items() if name not in (*COMMON, *LABELS, *setting)}
    if kind == "limit" and spec.data is None and ":" not in spec.spec:
        common["workload"] = msgspec.structs.replace(spec, data="device")
    return Task(**common, setting=Setting(**setting), options=options)


def _candidate(cell: Mapping[str, Value], common: Mapping[str, Any]) -> Task:
    """One candidate of a model search. Its options are named as those of a search; `batches` are so many whole batches
    of items."""
    spec: WorkloadSpec = common["workload"]
    setting = _setting({name: cell[name] for name in ("batch_size", "num_workers") if name in cell})
    batches = _count(cell, "batches")
    if batches is not None:
        spec = msgspec.structs.replace(spec, items=batches * setting.batch_size)
    options = {name: cell[name] for name in SEARCH if name in cell}
    if _count(cell, "classes") == 1:
        raise InputError("classes must be at least 2, got 1: of one class there is nothing to tell apart")
    extent = Extent(batches=None, warmup=_count(cell, "warmup"))  # all items
    return Task(**{**common, "workload": spec, "mode": "infer"}, setting=setting, extent=extent, options=options)


def _converge_task(cell: Mapping[str, Value], common: Mapping[str, Any]) -> Task:
    """As `stoker converge` notes it, so that equal trainings have equal keys."""
    if "against" not in cell:
        raise InputError("against is missing: the batch size in question")
    scale: Any = cell.get("scale_lr", "none")  # checked by axes and by the request
    request = ConvergeRequest(
        batch_size=int(cell.get("batch_size", Setting().batch_size)),
        against=int(cell["against"]),
        epochs=_count(cell, "epochs"),
        updates=_count(cell, "updates"),
        seeds=tuple(range(_count(cell, "seeds") or CONVERGE.seeds)),
        scale_lr=scale,
    )
    return request.task(common["workload"], _setting(cell), common.get("device", "auto"))


def check_cell(cell: Mapping[str, Value]) -> None:
    """Raises InputError for values that are possible one by one, and not together."""
    source, device = cell.get("source"), str(cell.get("device", ""))
    spec = WorkloadSpec(spec=str(cell["workload"]))
    for name in ("data", "weights"):
        if name in cell and spec.from_function:
            raise InputError(f"{name} goes with a model's name; {spec.spec} brings its own, so change it there")
    if source in ("cached", "cold") and cell.get("data") == "device":
        raise InputError(f"source {source} needs files, and data that is made on the device has none")
    if "weights_cache" in cell and ("weights" in cell or spec.from_function):
        raise InputError("weights_cache makes a file of random weights for a model's name; leave it or the weights out")
    if cell.get("validate") and cell.get("parallel", "ddp") == "ddp" and int(cell.get("ranks", 1)) > 1:
        raise InputError("validate scores a model in one process, and ranks are several; leave one of them out")
    if cell.get("validate") and device.startswith("sleep:"):
        raise InputError(f"validate scores a model, and {device} computes nothing; leave one of them out")


def _setting(cell: Mapping[str, Value]) -> Setting:
    values: dict[str, Any] = {name: cell[name] for name in SETTING if name in cell}
    if values.get("num_workers", 0) == 0:  # nothing to prefetch, to keep alive or to start
        for name in _NEEDS_WORKERS:
            values.pop(name, None)
    if values.get("ranks", 1) == 1:  # nothing is parallel
        values.pop("parallel", None)
    return Setting(**values)


def _extent(cell: Mapping[str, Value]) -> Extent:
    values: dict[str, Any] = {name: cell[name] for name in EXTENT if name in cell}
    if "memory_limit" in values:
        limit = values.pop("memory_limit")
        values["memory_limit_bytes"] = parse_bytes(limit) if isinstance(limit, str) else int(limit)
    if "items" in cell and "batches" not in values:
        values |= {"batches": None, "warmup": values.get("warmup", 0)}
    elif "epochs" in values and "batches" not in values:
        values["batches"] = None
    return Extent(**values)


def _text(cell: Mapping[str, Value], name: str) -> str | None:
    return str(cell[name]) if name in cell else None


def _count(cell: Mapping[str, Value], name: str) -> int | None:
    if name not in cell:
        return None
    value = cell[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be at least 1, got {value!r}")
    return value


# ---------------------------------------------------------------- reading


def read_grid(path: Path) -> Grid:
    """The grid in a TOML file. Every mistake is one sentence with its line and the nearest valid name."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    return parse_grid(text, str(path), default_name=path.stem)


def parse_grid(text: str, source: str, *, default_name: str = "study") -> Grid:
    """The grid in a TOML text; `source` names it in error messages."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(_toml_error(source, str(error))) from None
    return _Reader(text, source).grid(document, default_name)


def _toml_error(source: str, message: str) -> str:
    """tomllib's sentence, with the line in front as in all others."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", message, re.DOTALL)
    what, line = (found[1], f", line {found[2]}") if found else (message, "")
    return f"{source}{line}: this is not TOML: {what[0].lower()}{what[1:]}"


def grid_from(document: Mapping[str, Any]) -> Grid:
    """The grid in a mapping of the same shape as a TOML file."""
    return _Reader("", "the grid").grid(dict(document), "study")


class _Reader:
    """Checks a document and knows the lines of its keys."""

    def __init__(self, text: str, source: str) -> None:
        self._lines, self._source = text.splitlines(), source

    def grid(self, document: dict[str, Any], default_name: str) -> Grid:
        for name in document:
            if name not in _TOP:
                self._fail("", name, f"a grid has no {name}{nearest(name, _TOP)}")
        kind = document.get("kind", "profile")
        if kind not in NAMES:
            self._fail("", "kind", f"no such kind: {kind!r}{nearest(str(kind), NAMES)}; choose {', '.join(NAMES)}")
        fixed = self._values("fixed", self._table(document, "fixed"), kind)
        generator = self._generator(document, kind)
        then = self._values("then", self._table(document, "then"), "profile")
        written = document.get("axes", [])
        tables = written if isinstance(written, list) else [written]
        axes = tuple(self._axes(each, kind, fixed, number) for number, each in enumerate(tables))
        if not any(axes) and not document.get("include"):
            self._fail("", "axes", "the grid has no axes: give at least one, such as batch_size = [32, 128]")
        include = tuple(
            self._values("include", each, kind, number) for number, each in enumerate(self._tables(document, "include"))
        )
        exclude = tuple(
            self._excluded(each, axes, kind, number) for number, each in enumerate(self._tables(document, "exclude"))
        )
        grid = Grid(
            name=self._name(document.get("name", default_name)),
            kind=kind,
            title=self._typed(document, "title", str, ""),
            about=self._about(document),
            seed=self._typed(document, "seed", int, 0),
            repeats=self._typed(document, "repeats", int, 1),
            timeout_s=self._timeout(document),
            fixed=fixed,
            axes=axes,
            exclude=exclude,
            include=include,
            generator=generator,
            then=then,
        )
        if grid.repeats < 1:
            self._fail("", "repeats", f"repeats must be at least 1, got {grid.repeats}")
        if grid.timeout_s is not None and kind not in ("profile", "search"):
            self._fail("", "timeout", f"timeout goes with kind profile and search; a grid of kind {kind} has none")
        self._possible(grid)
        return grid

    def _generator(self, document: dict[str, Any], kind: str) -> str | None:
        name = document.get("generator")
        if name is None:
            if "then" in document:
                self._fail("", "then", "[then] has the values of a generator's later cells, and no generator is named")
            return None
        if name not in GENERATORS:
            known = ", ".join(GENERATORS)
            self._fail("", "generator", f"no such generator: {name!r}{nearest(str(name), GENERATORS)}; choose {known}")
        if GENERATORS[name].kind != kind:
            self._fail("", "generator", f'generator {name} begins with kind = "{GENERATORS[name].kind}", got {kind!r}')
        return str(name)

    def _possible(self, grid: Grid) -> None:
        """Make every task once, so that what is impossible is said before anything runs."""
        count = sum(math.prod(map(len, axes.values())) for axes in grid.axes)
        if count > _MOST_TASKS:
            self._fail("axes", "", f"the grid asks for {count:,} tasks, and {_MOST_TASKS:,} are the most")
        cells = grid.cells()
        if not cells:
            self._fail("exclude", "", "every task of the grid is excluded")
        for cell in cells:
            if "workload" not in cell:
                self._fail("axes", "", 'no workload: name one in [fixed] or [axes], such as workload = ["resnet18"]')
            if "items" in cell and "batches" in cell:
                self._fail("", "batches", "items and batches both say how long a run is; keep one of them")
            try:
                check_cell(cell)
                task_of(cell, grid.kind).key()
                if grid.generator is not None:
                    later = {name: value for name, value in cell.items() if name in COMMON and name != "device"}
                    task_of({**later, **grid.then}, "profile")
            except InputError as error:
                self._fail("", self._blamed(str(error), cell), str(error))

    def _blamed(self, message: str, cell: Mapping[str, Value]) -> str:
        """The key that an error is about, for its line."""
        found: dict[str, int] = {}
        for name in cell:
            match = re.search(rf"\b{name.replace('_', '[_ ]')}\b", message)
            if match:
                found[name] = match.start()
        return min(found, key=found.__getitem__, default="workload")

    def _axes(self, table: Any, kind: str, fixed: Mapping[str, Value], number: int) -> dict[str, tuple[Value, ...]]:
        if not isinstance(table, dict):
            self._fail("", "axes", f"[axes] must be a table, got {table!r}")
        self._names("axes", table, kind, number)
        axes: dict[str, tuple[Value, ...]] = {}
        for name, values in table.items():
            if name in fixed:
                self._fail("axes", name, f"{name} is both fixed and an axis; keep one of them", number)
            if not isinstance(values, list):
                sentence = f"an axis is a list, got {values!r}; write {name} = [{values!r}], or fix it"
                self._fail("axes", name, sentence, number)
            if not values:
                self._fail("axes", name, f"axis {name} is empty; give it values or leave it out", number)
            taken = tuple(self._value("axes", name, value, number) for value in values)
            if len({repr(value) for value in taken}) < len(taken):
                self._fail("axes", name, f"axis {name} has a value twice", number)
            axes[name] = taken
        return axes

    def _values(self, section: str, table: Any, kind: str, number: int = 0) -> dict[str, Value]:
        if not isinstance(table, dict):
            self._fail("", section, f"{section} must be a table, got {table!r}")
        self._names(section, table, kind, number)
        return {name: self._value(section, name, value, number) for name, value in table.items()}

    def _excluded(
        self, table: Any, axes: Sequence[Mapping[str, Sequence[Value]]], kind: str, number: int
    ) -> dict[str, Value]:
        values = self._values("exclude", table, kind, number)
        if not values:
            self._fail("exclude", "", "an empty [[exclude]] would leave out everything", number)
        known: dict[str, list[Value]] = {}
        for each in axes:
            for name, taken in each.items():
                known.setdefault(name, []).extend(value for value in taken if value not in known.get(name, []))
        for name, value in values.items():
            if name not in known:
                self._fail("exclude", name, f"{name} is not an axis of this grid{nearest(name, known)}", number)
            if value not in known[name]:
                has = ", ".join(map(str, known[name]))
                self._fail("exclude", name, f"axis {name} has no value {value!r}; it has {has}", number)
        return values

    def _value(self, section: str, name: str, value: Any, number: int = 0) -> Value:
        try:
            return checked(name, value)
        except InputError as error:
            self._fail(section, name, str(error), number)

    def _names(self, section: str, table: Mapping[str, Any], kind: str, number: int = 0) -> None:
        for name in table:
            if name not in NAMES[kind]:
                what = f"a study of kind {kind} has no axis {name}{nearest(name, NAMES[kind])}"
                others = [other for other, names in NAMES.items() if name in names]
                hint = f"; kind {' and '.join(others)} {'has' if len(others) == 1 else 'have'} it" if others else ""
                self._fail(section, name, what + hint, number)

    def _table(self, document: Mapping[str, Any], name: str) -> dict[str, Any]:
        table = document.get(name, {})
        if not isinstance(table, dict):
            self._fail("", name, f"[{name}] must be a table, got {table!r}")
        return table

    def _tables(self, document: Mapping[str, Any], name: str) -> list[Any]:
        tables = document.get(name, [])
        if not isinstance(tables, list):
            self._fail("", name, f"write [[{name}]] with two brackets: there may be several")
        return tables

    def _about(self, document: Mapping[str, Any]) -> dict[str, str]:
        """Free texts about a study, such as what a preset reproduces."""
        table = self._table(document, "about")
        for name, value in table.items():
            if not isinstance(value, str):
                self._fail("about", name, f"{name} must be a text, got {value!r}")
        return table

    def _typed(self, document: Mapping[str, Any], name: str, kind: type[Any], default: Any) -> Any:
        value = document.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            self._fail("", name, f"{name} must be a {'text' if kind is str else 'whole number'}, got {value!r}")
        return value

    def _name(self, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > _LONGEST_NAME:
            self._fail("", "name", f"name must be a printable text of 1 to {_LONGEST_NAME} characters, got {value!r}")
        return str(value).strip()

    def _timeout(self, document: Mapping[str, Any]) -> float | None:
        if "timeout" not in document:
            return None
        value = document["timeout"]
        try:
            seconds = parse_seconds(value) if isinstance(value, str) else float(value)
        except (InputError, TypeError, ValueError):
            self._fail("", "timeout", f"timeout must be a time like 10min, got {value!r}")
        if not 0 < seconds < math.inf:
            self._fail("", "timeout", f"timeout must be above 0 s, got {value!r}")
        return seconds

    def _fail(self, section: str, name: str, sentence: str, number: int = 0) -> NoReturn:
        line = self._line(section, name, number)
        raise InputError(f"{self._source}{f', line {line}' if line else ''}: {sentence}")

    def _line(self, section: str, name: str, number: int) -> int | None:
        """The line of a key: in the section's table of that number, or anywhere if the section is unknown. Without such
        a line, that of the section's heading."""
        key = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*=""")
        dotted = re.compile(rf"\s*{section}\s*\.\s*{re.escape(name)}\s*=")
        here, seen, heading = "", -1, None
        for place, line in enumerate(self._lines, start=1):
            header = re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", line)
            if header:
                here = header[1]
                seen += here == section
                if here == (section or name) and (seen == number or not section):
                    heading = heading or place
            elif name:
                is_inside = not section or (here == section and seen == number)
                if (is_inside and key.match(line)) or (not here and dotted.match(line)):
                    return place
        return heading


def parse_only(texts: Sequence[str], grid: Grid) -> dict[str, set[str]]:
    """`--only num_workers=8 --only workload=resnet18`: values by axis, as texts. Several values of one axis add up."""
    wanted: dict[str, set[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{text!r} selects nothing; write it like num_workers=8")
        seen = {str(cell[name]).lower() for cell in grid.cells() if name in cell}
        if not seen:
            known = sorted({each for cell in grid.cells() for each in cell})
            raise InputError(f"this grid has no {name!r}{nearest(name, known)}; it has {', '.join(known)}")
        for each in [value] if value.strip().lower() in seen else value.split(","):
            if each.strip().lower() not in seen:
                raise InputError(f"{name} is never {each.strip()!r} in this grid; it is {', '.join(sorted(seen))}")
            wanted.setdefault(name, set()).add(each.strip().lower())
    return wanted


def selected(values: Mapping[str, Value], wanted: Mapping[str, set[str]]) -> bool:
    """Whether a cell is among those that `--only` asks for."""
    return all(name in values and str(values[name]).lower() in chosen for name, chosen in wanted.items())
