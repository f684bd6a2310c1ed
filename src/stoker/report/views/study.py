"""Tables of studies: presets, the list, the status, and every analysis."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stoker.analysis.breakdown import VARIED
from stoker.analysis.thesis import Beside
from stoker.units import format_count, format_seconds, format_workers

Row = Mapping[str, Any]

_WIDTH = 80
"""Of a terminal as people get it."""
_GAP = 2
_MOST_PARTS = 6
"""A finding for each part of a table, up to so many."""
_AXES = (
    *("machine", "data", "mode", "device", "source", "items", "batches", "epochs", "precision", "method"),
    *("gpu_memory", "family", "classes", "scores", "labels", "weights_cache", "part"),
)
_COUNTS = ("models", "missing", "repeats", "settings", "outcome", "unpredicted", "unmeasured")
"""Columns that need no place in a table where they never change; axes not even in a table of one row."""
_LEAST = (
    *("settings", "repeats", "ratio_low", "ratio_high", "pairs", "start_item_s", "stop_item_s", "other_item_s"),
    *("run_items", "threshold", "missing", "start_s", "first_batch_s", "compute_s"),
)
"""Columns that are left out first where a table is too wide for a terminal."""
_HEADS = {
    "batch_size": "batch",
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "regret_mean": "mean regret",
    "regret_worst": "worst regret",
    "settings": "of settings",
    "multiprocessing_context": "start method",
}
_STAGE_SHARE = " share"
_SHARES = ("regret", "lead", "excess", "threshold", "others_mean", "bias")


def table_of(rows: Sequence[Row], *, limit: int | None = None) -> RenderableType:
    """Rows as a table that fits a terminal: percentages for shares and regrets, seconds for times.

    What is the same in every row stands above the table. `limit` cuts long tables and says so.
    """
    if not rows:
        return Text("nothing to show yet: no trial has finished")
    rows = _with_length(rows)
    same = [name for name in rows[0] if _is_constant(name, rows)]
    names, left_out = _fitting([name for name in rows[0] if name not in same], rows)
    shown = rows if limit is None else rows[:limit]
    parts: list[RenderableType] = []
    if same:
        parts.append(Text(" · ".join(f"{_head(name)} {_cell(name, rows[0][name])}" for name in same), style="dim"))
    parts.append(_table(names, rows, shown))
    if len(shown) < len(rows):
        parts.append(Text(f"{format_count(len(rows) - len(shown), 'row')} more: --json or export", style="dim"))
    if left_out:
        parts.append(Text(f"left out here: {', '.join(map(_head, left_out))}; --json has all", style="dim"))
    return Group(*parts)


def _with_length(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Where some rows have a number of items and others one of batches, one column for both."""
    if not all(
        {"items", "batches"} <= row.keys() and (row["items"] is None) != (row["batches"] is None) for row in rows
    ):
        return [dict(row) for row in rows]
    found = []
    for row in rows:
        length = f"{row['items']:,} items" if row["items"] is not None else f"{row['batches']:,} batches"
        renamed = {"length" if name == "items" else name: length if name == "items" else row[name] for name in row}
        found.append({name: value for name, value in renamed.items() if name != "batches"})
    return found


def _table(names: Sequence[str], rows: Sequence[Row], shown: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    unbroken = sum(max(_width(name, rows), len(_head(name))) + _GAP for name in names) <= _WIDTH + _GAP
    for name in names:
        is_number = all(isinstance(row.get(name), int | float | None) for row in rows)
        head = _head(name) if unbroken else _head(name).replace(" ", "\n")
        table.add_column(head, justify="right" if is_number else "left", vertical="bottom", no_wrap=True)
    for row in shown:
        table.add_row(*(Text(_cell(name, row.get(name))) for name in names))
    return table


def _is_constant(name: str, rows: Sequence[Row]) -> bool:
    """Whether a column says the same in every row, and is not what the table is about."""
    values = {str(row.get(name)) for row in rows}
    if len(values) > 1:
        return False
    return name in _AXES or (len(rows) > 1 and (name in _COUNTS or values == {"None"}))


def _fitting(names: list[str], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The columns that fit beside each other, and those that do not, the least important first."""
    left_out: list[str] = []
    for name in _by_importance(names, rows):
        if sum(_width(each, rows) + _GAP for each in names) <= _WIDTH + _GAP:
            break
        names = [each for each in names if each != name]
        left_out.append(name)
    return names, left_out


def _by_importance(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The columns that may be left out: some by name, then stages by their largest value, the smallest first."""
    stages = [name for name in names if name.endswith((_STAGE_SHARE, "_item_s")) and name != "steady_item_s"]
    stages.sort(key=lambda name: max(row.get(name) or 0.0 for row in rows))
    return [*(name for name in _LEAST if name in names), *stages]


def _width(name: str, rows: Sequence[Row]) -> int:
    """How wide a column must be to show all of its values; its head may be broken at spaces."""
    return max(*(len(word) for word in _head(name).split()), *(len(_cell(name, row.get(name))) for row in rows))


def _head(name: str) -> str:
    return _HEADS.get(name, name.removesuffix("_s").removesuffix(_STAGE_SHARE).replace("_", " "))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name.startswith(_SHARES) or name.endswith(("share", "error", "utilisation", "fastest")) or "error" in name:
            return f"{value:.1%}"
        return format_seconds(value) if name.endswith("_s") or name == "seconds" else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def stages_view(rows: Sequence[Row], *, limit: int | None = None) -> RenderableType:
    """Shares of stages, a row for each cell, the loop and the workers apart."""
    parts: list[RenderableType] = []
    for clock, title in (("loop", "shares of the run"), ("worker", "shares of the workers' time")):
        wide: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows:
            if row["clock"] == clock:
                cell = {name: value for name, value in row.items() if name not in _STAGE}
                wide.setdefault(tuple(cell.values()), cell)[row["stage"] + _STAGE_SHARE] = row["share"]
        if wide:
            cells = list(wide.values())
            names = dict.fromkeys(name for row in cells for name in row)
            seen = [name for name in names if not name.endswith(_STAGE_SHARE) or _is_visible(name, cells)]
            parts += [Text(title), table_of([{name: row.get(name) for name in seen} for row in cells], limit=limit)]
    return Group(*parts) if parts else table_of([])


def _is_visible(name: str, rows: Sequence[Row]) -> bool:
    return any((row.get(name) or 0.0) >= _VISIBLE for row in rows)


def breakdown_view(rows: Sequence[Row], *, limit: int | None = None) -> RenderableType:
    """The stages of a search: of few cells a row for each stage, with the least and the most of the repeats; of many
    cells the medians beside each other, a row for each cell of the base case."""
    if len({tuple(_cell_of(row).values()) for row in rows}) <= _FEW_CELLS:
        names = {"stage_s": "median_s", "low_s": "least_s", "high_s": "most_s"}
        found = [{names.get(name, name): value for name, value in row.items()} for row in rows]
        found = [{**row, "stage": row["stage"].replace("_", " ")} for row in found]
        shared, found = _without_same(found)
        return Group(*shared, table_of(found, limit=limit))
    base = _base_rows(rows)
    seen = {row["stage"] for row in base if (row["share"] or 0.0) >= _WORTH_A_COLUMN}
    wide: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in base:
        place = wide.setdefault(tuple(_cell_of(row).values()), _cell_of(row))
        if row["stage"] in seen:
            place[_STAGE_HEADS.get(str(row["stage"]), str(row["stage"]))] = round(row["stage_s"], 2)
    order = dict.fromkeys(name for cell in wide.values() for name in cell)
    shared, found = _without_same([{name: cell.get(name) for name in order} for cell in wide.values()])
    said = "seconds, medians of the repeats; their least and most are in the report, and with --json"
    others = len({tuple(_cell_of(row).values()) for row in rows}) - len(wide)
    if others:
        said += f"; so are {format_count(others, 'cell')} that vary one thing"
    return Group(Text(said, style="dim"), *shared, table_of(found, limit=limit))


def _cell_of(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _STAGE}


def _base_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows in which what a study varies one at a time has its most frequent value."""
    for name in VARIED:
        if all(name in row for row in rows):
            usual = Counter(row[name] for row in rows).most_common(1)[0][0]
            rows = [row for row in rows if row[name] == usual]
    return rows


def _without_same(rows: Sequence[Row]) -> tuple[list[Text], list[dict[str, Any]]]:
    """Rows without axes that are the same in all of them, and the line that says those."""
    present = [name for name in ("workload", *VARIED) if all(name in row for row in rows)]
    same = [name for name in present if len({row[name] for row in rows}) == 1]
    said = " · ".join(f"{_head(name)} {_cell(name, rows[0][name])}" for name in same if rows[0][name] is not None)
    left = [{name: value for name, value in row.items() if name not in same} for row in rows]
    return ([Text(said, style="dim")] if said else []), left


_WORTH_A_COLUMN = 0.01
_STAGE_HEADS = {"prepare_model": "model", "prepare_data": "load", "forward": "infer"}
"""Short ones, so that many stages fit beside each other."""
_FEW_CELLS = 8
_STAGE = ("stage", "clock", "stage_s", "share", "low_s", "high_s", "repeats")
_VISIBLE = 0.001
"""A stage that has less than this share everywhere has no column."""


# ---------------------------------------------------------------- findings


def finding_view(best: Sequence[Row], summary: Sequence[Row], not_run: int, *, by_item: bool) -> RenderableType:
    """What a table says in a sentence for each part, and what it lacks. `best` has the best setting for all; `by_item`
    says that settings were compared by seconds an item."""
    split = _split(summary)
    varying = [name for name in split if len({str(row.get(name)) for row in summary}) > 1]
    sentences = [(row, _best_sentence(row, split)) for row in best]
    chosen = [(row, sentence) for row, sentence in sentences if sentence]
    lines = [Text(_part(row, varying) + sentence, style="bold") for row, sentence in chosen[:_MOST_PARTS]]
    if len(chosen) > _MOST_PARTS:
        lines.append(Text(f"… and {format_count(len(chosen) - _MOST_PARTS, 'part')} of the table more"))
    if by_item:
        lines.append(Text("runs differ in their number of items: settings are compared by seconds an item"))
    lines += [Text(note, style="yellow") for note in _notes(summary, not_run)]
    return Group(*lines)


def limit_finding_view(best: Sequence[Row], summary: Sequence[Row], not_run: int) -> RenderableType:
    """The same for studies of the largest batch."""
    varying = [name for name in _split(summary) if len({str(row.get(name)) for row in best}) > 1]
    lines = []
    for row in best:
        if row["all_models"] is not None:
            models = row["limited_by"] if row["models"] == 1 else f"all {row['models']} workloads"
            most = f", {row['most_models']:,} for most" if row["most_models"] != row["all_models"] else ""
            sentence = f"batch {row['all_models']:,} works for {models}{most}"
            lines.append(Text(f"{_part(row, varying)}{sentence}", style="bold"))
    return Group(*lines, *(Text(note, style="yellow") for note in _notes(summary, not_run)))


def search_finding_view(sentences: Sequence[str], summary: Sequence[Row], not_run: int) -> RenderableType:
    """The same for studies of what a search spends: which stage dominates at each number of items."""
    lines = [Text(sentence, style="bold") for sentence in sentences]
    return Group(*lines, *(Text(note, style="yellow") for note in _notes(summary, not_run)))


def convergence_finding_view(trials: Sequence[Row]) -> RenderableType:
    """What each comparison of two batch sizes says, and which of them ended badly."""
    lines = []
    for row in trials:
        rate = f", learning rate {row['scale_lr']}" if row.get("scale_lr", "none") not in (None, "none") else ""
        name = str(row["workload"]).rpartition("/")[2]
        about = f"{name}, {row['against']} against {row['batch_size']}{rate}: "
        if row.get("finding"):
            lines.append(Text(about + row["finding"], style="bold"))
        else:
            lines.append(Text(f"{about}{row['outcome']}: {row['problem']}", style="yellow"))
    return Group(*lines)


def beside_view(beside: Beside) -> RenderableType:
    """What the thesis says and what was found here, figure by figure."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name in ("figure", "what", "thesis", "here"):
        table.add_column("the thesis" if name == "thesis" else name, overflow="fold")
    before = None
    for row in beside.rows:
        figure = "" if row["figure"] == before else row["figure"]
        table.add_row(*map(Text, (figure, row["what"], row["thesis"] or "–", row["here"] or "–")))
        before = row["figure"]
    notes = [Text(note, style="dim") for note in beside.notes]
    return Group(Text(), Text("beside the thesis", style="bold"), table, *notes)


def _split(summary: Sequence[Row]) -> list[str]:
    """The columns that name a part of the table: those before the counts."""
    names = list(summary[0]) if summary else ["workloads"]
    return names[: names.index("workloads")]


def _part(row: Row, varying: Sequence[str]) -> str:
    """Which part of the table a sentence is about."""
    known = [(name, row[name]) for name in varying if row[name] is not None]
    texts = [value if isinstance(value, str) else f"{_head(name)} {_cell(name, value)}" for name, value in known]
    return ", ".join(texts) + (": " if texts else "")


def _best_sentence(row: Row, split: Sequence[str]) -> str | None:
    """None where no setting is recorded: there was nothing to choose from."""
    figures = ("regret_mean", "regret_worst", "models", "missing", "worst_model")
    setting = _setting({name: value for name, value in row.items() if name not in (*split, *figures)})
    if not setting:
        return None
    if row["models"] == 1:
        return f"{setting} is fastest"
    worst = f"worst {row['regret_worst']:.1%} ({row['worst_model']})"
    return f"{setting} is best: regret {row['regret_mean']:.1%}, {worst}"


def _setting(values: Row) -> str:
    parts = []
    for name, value in values.items():
        if name == "num_workers" and isinstance(value, int):
            parts.append(format_workers(value))
        elif isinstance(value, bool):
            parts.append(f"{'' if value else 'no '}{_head(name)}")
        elif value is not None:
            parts.append(f"{_head(name)} {_cell(name, value)}")
    return ", ".join(parts)


def _notes(summary: Sequence[Row], not_run: int) -> list[str]:
    notes = []
    cells = sum(row["cells"] for row in summary)
    failures = {name: sum(row[name] for row in summary) for name in ("oom", "crashed", "timed_out", "failed")}
    failed = sum(failures.values())
    if failed:
        kinds = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in failures.items() if count)
        verb = "has" if failed == 1 else "have"
        notes.append(f"{failed:,} of {format_count(cells, 'cell')} {verb} no time: {kinds}")
    missing = sum(row["missing"] for row in summary)
    if not_run:
        notes.append(f"{format_count(not_run, 'run')} of the grid {'is' if not_run == 1 else 'are'} missing")
    elif missing:
        notes.append(f"{missing:,} of {format_count(cells, 'cell')} {'has' if missing == 1 else 'have'} no trial")
    return notes


# ---------------------------------------------------------------- presets, list, status, run


def presets_view(rows: Iterable[Row]) -> RenderableType:
    """What each preset is, in both sizes."""
    parts: list[RenderableType] = []
    for row in rows:
        parts.append(Text.assemble((row["name"], "bold"), f" — {row['title']}"))
        parts.append(_indented(f"reproduces {row['reproduces']}", 2))
        for size in ("full", "small"):
            shape = row[size]
            runs = f"{format_count(shape['runs'], 'run')}{', and what follows from them,' if shape['follows'] else ''}"
            parts.append(_indented(f"{size}: {runs} on {shape['devices']}; {shape['time']}", 2))
            parts.append(_indented(f"differs: {shape['differs']}", 4, style="dim"))
        parts.append(Text())
    return Group(*parts[:-1])


def _indented(text: str, by: int, style: str = "") -> RenderableType:
    """Text whose wrapped lines are indented like its first."""
    return Padding(Text(text, style=style), (0, 0, 0, by), expand=False)


def list_view(rows: Sequence[Row], path: str) -> RenderableType:
    """The studies of a store."""
    if not rows:
        return Text(f"{path} has no studies")
    shown = [{**row, "created": str(row["created"])[:16].replace("T", " ")} for row in rows]
    return _table(list(shown[0]), shown, shown)


def status_view(status: Row) -> RenderableType:
    """How far a study is, by machine."""
    size = format_count(status["tasks"], "task")
    if status["source"] == "import":
        size += ", imported"
    elif status["repeats"] > 1:
        size += f" × {format_count(status['repeats'], 'repeat')}"
    parts: list[RenderableType] = [Text.assemble((status["name"], "bold"), f" · {size}")]
    if status["no_longer_asked"]:
        gone = format_count(status["no_longer_asked"], "task")
        verb = "is" if status["no_longer_asked"] == 1 else "are"
        parts.append(Text(f"{gone} {verb} no longer asked for; trials stay", style="yellow"))
    if not status["machines"]:
        parts.append(Text("no trial has finished yet"))
    for machine in status["machines"]:
        missing = f", {machine['missing']:,} missing" if machine["missing"] else ""
        replaced = machine["attempts"] - sum(machine["outcomes"].values())
        earlier = f" ({format_count(replaced, 'earlier attempt')} beside them)" if replaced else ""
        parts.append(Text(f"{machine['label']}: {_outcomes(machine['outcomes'])}{missing}{earlier}"))
    for each in status["running"]:
        what = ", ".join(f"{name}={value}" for name, value in each["values"].items())
        parts.append(Text(f"running since {each['since'][11:19]} UTC in process {each['pid']}: {what}"))
    return Group(*parts)


def run_view(summary: Row, next_step: str) -> RenderableType:
    """What a drive did."""
    ran = f"ran {format_count(summary['ran'], 'trial')} in {format_seconds(summary['seconds'])}"
    lines = [Text(f"{ran}: {_outcomes(summary['outcomes'])}" if summary["ran"] else "nothing was left to run")]
    if summary["lost"]:
        lines.append(Text(f"{format_count(summary['lost'], 'run')} lost with a node, and run again", style="yellow"))
    if summary["stopped"]:
        lines.append(Text(f"stopped: {summary['stopped']}", style="yellow"))
    if summary["unfinished"]:
        left = f"{summary['unfinished']:,} of {format_count(summary['slots'], 'run')}"
        lines.append(Text(f"{left} still to do: the same command goes on", style="yellow"))
    lines.append(Text(next_step))
    return Group(*lines)


def forecast_view(forecast: Row, sentence: str | None) -> RenderableType:
    """What a run would do: its size, its tasks, how long it should take."""
    left = forecast["slots"] - forecast["done"]
    size = f"{format_count(forecast['tasks'], 'task')}, {format_count(forecast['slots'], 'run')}"
    lines: list[RenderableType] = [Text(f"{size}: {forecast['done']:,} done, {left:,} to run")]
    if sentence:
        lines.append(Text(sentence, style="yellow"))
    unknown = "unknown, as nothing has finished yet"
    seconds = forecast["left_s"]
    time = "none" if not left else unknown if seconds is None else f"about {format_seconds(seconds)}"
    lines.append(Text(f"time left: {time}"))
    if forecast["follows"]:
        lines.append(Text(forecast["follows"]))
    lines.append(table_of(forecast["cells"], limit=20))
    return Group(*lines)


def _outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in outcomes.items())
