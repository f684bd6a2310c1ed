"""The tables of `stoker search`: the ranking, where the time went, what would run, and the blocks of a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import CandidateTrial, RankedModel, Ranking
from stoker.units import format_bytes, format_count, format_seconds

_STAGES = (
    ("read", "read"),
    ("build", "build"),
    ("move", "move"),
    ("split", "split"),
    ("prefix", "prefix"),
    ("load data", "load"),
    ("inference", "infer"),
    ("score", "score"),
)
"""Columns of the breakdown: stages of the preparation one by one, the other groups whole."""
_SHOWN = 0.005
"""A stage of the preparation that takes a smaller share of every candidate's time has no column."""
_COLD = 0.5
"""Below this share in the page cache a weights file counts as cold."""


def ranking_view(found: Ranking) -> RenderableType:
    lines: list[RenderableType] = [_headline(found), Text()]
    if found.ranked is not None:
        lines += [*(Text(each, style="bold") for each in _answers(found)), Text(), _ranked(found)]
    done = [each for each in found.candidates if each.outcome == "done" or each.stages.batch_items]
    if done:
        lines += [Text("Where the time went", style="bold"), _stages(done), *_setting_lines(done)]
    lines += [Text(_failure(each), style="red") for each in found.failed]
    if found.unfinished:
        why = f": {found.stopped}" if found.stopped else ""
        lines.append(Text(f"not run{why}: {', '.join(found.unfinished)}", style="yellow"))
    reused = f", {format_count(len(found.reused), 'candidate')} from the store" if found.reused else ""
    lines.append(Text(f"took {format_seconds(found.wall_s)}{reused}", style="dim"))
    lines += [Text(f"note: {note}", style="dim") for note in found.notes]
    return Group(*lines)


def candidate_view(trial: CandidateTrial) -> RenderableType:
    """One candidate: what it cost and scored, or why it failed."""
    about = f" · {trial.data} · {format_count(trial.items, 'item')}, {trial.classes:,} classes · {trial.part}"
    lines: list[RenderableType] = [Text.assemble((trial.model, "bold"), f"{about} · {trial.device}"), Text()]
    lines += [Text(f"{each.score}: {_figure(each.value, 3)}") for each in trial.scores]
    lines += [Text(f"{name} cannot be computed: {why}", style="yellow") for name, why in trial.score_problems.items()]
    if trial.stages.batch_items:
        lines += [_stages([trial]), *_setting_lines([trial])]
    if trial.outcome != "done":
        lines.append(Text(_failure(trial), style="red"))
    lines += [Text(f"note: {note}", style="dim") for note in trial.notes]
    return Group(*lines)


def _headline(found: Ranking) -> Text:
    done = next((each for each in found.candidates if each.outcome == "done"), None)
    what = ""
    if done is not None:
        labels = "random classes" if found.labels == "random" else "classes"
        what = f" · {format_count(done.items, 'item')}, {done.classes:,} {labels}"
    part = "full models" if found.part == "full" else found.part
    return Text.assemble((found.data, "bold"), f"{what} · {part} · {found.device}")


def _answers(found: Ranking) -> list[str]:
    """The ranking in sentences."""
    ranked = found.ranked
    assert ranked is not None
    first = [each.model for each in ranked.models if each.place == 1]
    if len(ranked.models) == 1:
        sentences = [f"{first[0]} is the only candidate that could be scored."]
    elif len(first) == 1:
        sentences = [f"{first[0]} is best."]
    else:
        sentences = [f"{', '.join(first)} cannot be told apart at the top."]
    if ranked.scores_add_nothing:
        sentences.append("The scores add nothing to the static order.")
    if not ranked.static_used and len(ranked.models) > 1:
        why = "is of different data sets" if ranked.static_mixed else "is not known for every candidate"
        sentences.append(f"The published accuracy {why}, so the scores are ranked alone.")
    if not ranked.resamples:
        sentences.append("There are too few resamples for intervals: only equal ranks are ties.")
    return sentences


def _ranked(found: Ranking) -> RenderableType:
    """The order, with what decided it. More than two scores have tables of their own: they would not fit beside."""
    assert found.ranked is not None
    models = found.ranked.models
    shown = [each.score for each in models[0].scores]
    together = len(shown) <= _BESIDE
    table = _model_table(models, ("mean rank", "static", *(shown if together else ())))
    for each in models:
        figures = _score_cells(each, shown if together else ())
        mean = _with_interval(each.mean_rank, each.low, each.high)
        table.add_row(_place(each, models), each.model, mean, _static(each), *figures)
    if together:
        return table
    more = []
    for start in range(0, len(shown), _A_TABLE):
        names = shown[start : start + _A_TABLE]
        more.append(_model_table(models, names))
        for each in models:
            more[-1].add_row(_place(each, models), each.model, *_score_cells(each, names))
    return Group(table, *more)


def _score_cells(model: RankedModel, names: Sequence[str]) -> list[str]:
    return [_with_interval(each.value, each.low, each.high) for each in model.scores if each.score in names]


_BESIDE = 2
_A_TABLE = 3
"""Scores that fit beside a name in 80 columns, with their intervals: with the mean rank, and without."""


def _model_table(models: Sequence[RankedModel], titles: Sequence[str]) -> Table:
    table = _table()
    table.add_column("place", justify="right", no_wrap=True)
    table.add_column("model", overflow="fold", min_width=min(18, max(len(each.model) for each in models)))
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _place(model: RankedModel, models: Sequence[RankedModel]) -> str:
    shared = sum(each.place == model.place for each in models) > 1
    return f"{'=' if shared else ''}{model.place}"


def _static(model: RankedModel) -> str:
    """Published accuracy and parameters."""
    accuracy = "–" if model.static.accuracy is None else f"{model.static.accuracy:.1f} %"
    return accuracy if model.static.parameters is None else f"{accuracy}\n{_count(model.static.parameters)}"


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    text = _figure(value, 3)
    if low is None or high is None:
        return text
    digits = 2 if high - low >= _NARROW else 3
    return f"{text}\n{_figure(low, digits)} … {_figure(high, digits)}"


_NARROW = 0.05
"""An interval that is narrower needs one digit more."""


def _figure(value: float, digits: int) -> str:
    """Scores are near 1; one that is not is written with as many significant digits."""
    text = f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.{digits + 1}g}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def _count(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:.1f} M"
    return f"{count / 1e3:.1f} k" if count >= 10_000 else f"{count:,}"


def _stages(trials: Sequence[CandidateTrial]) -> Table:
    """Seconds of each stage by candidate; stages that take next to nothing are left out."""
    rows = [_stage_seconds(each) for each in trials]
    always = ("load data", "inference", "score")
    shares = [
        {name: row[name] / max(trial.total_s, 1e-9) for name, _ in _STAGES}
        for trial, row in zip(trials, rows, strict=True)
    ]
    columns = [
        (name, title) for name, title in _STAGES if name in always or any(each[name] > _SHOWN for each in shares)
    ]
    table = _table()
    table.add_column("model", overflow="fold", min_width=12)
    for title in (*(title for _, title in columns), "all", "batch", "workers"):
        table.add_column(title, justify="right", no_wrap=title != "workers")
    for trial, row in zip(trials, rows, strict=True):
        cells = [_seconds(row[name]) for name, _ in columns]
        if columns[0][0] == "read" and trial.stages.read_resident is not None and trial.stages.read_s:
            cells[0] = f"{_seconds(sum(trial.stages.read_s))}\n{_temperature(trial)}"
        table.add_row(trial.model, *cells, format_seconds(trial.total_s), f"{trial.batch_size}", f"{trial.num_workers}")
    return table


def _stage_seconds(trial: CandidateTrial) -> dict[str, float]:
    totals = trial.stages.totals_s
    return {**totals, **trial.stages.groups_s, "read": sum(trial.stages.read_s)}


def _temperature(trial: CandidateTrial) -> str:
    """Whether the weights were in the page cache, and whether the candidate before hid their reading."""
    where = "cold" if (trial.stages.read_resident or 0.0) < _COLD else "warm"
    hidden = trial.stages.read_wait_s < sum(trial.stages.read_s) / 2
    return f"{where}, hidden" if hidden else where


def _seconds(value: float) -> str:
    return format_seconds(value) if value else "–"


def _setting_lines(trials: Sequence[CandidateTrial]) -> list[Text]:
    """Why the first candidate has its batch size and workers: for the others it is in the document."""
    first = trials[0]
    if not first.setting_reason or first.setting_reason == "as asked":
        return []
    return [Text(f"{first.model}: {first.setting_reason}", style="dim")]


def _failure(trial: CandidateTrial) -> str:
    said = trial.problem.sentence if trial.problem else "no reason is known"
    where = f", at {trial.problem.where}" if trial.problem and trial.problem.where else ""
    what = "out of memory" if trial.outcome == "oom" else trial.outcome.replace("_", " ")
    return f"{trial.model} {what}: {said}{where}"


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)


# ---------------------------------------------------------------- before it runs


def forecast_view(document: Mapping[str, Any]) -> RenderableType:
    """What a search would do."""
    items = f"{document['items']:,} items" if document["items"] is not None else "all items"
    about = f" · {items} · {document['part']} · scores {', '.join(document['scores'])}"
    table = _table()
    table.add_column("model", overflow="fold")
    table.add_column("weights", overflow="fold")
    table.add_column("time", justify="right")
    table.add_column("known from")
    for row in document["candidates"]:
        seconds = "?" if row["seconds"] is None else format_seconds(row["seconds"])
        basis = "done: not run again" if row["is_done"] else row["basis"]
        table.add_row(row["model"], row["weights"] or "random", seconds, basis)
    lines: list[RenderableType] = [Text.assemble((document["data"], "bold"), about), Text(), table]
    left = document["left_s"]
    how_long = "unknown for at least one candidate" if left is None else f"about {format_seconds(left)}"
    lines.append(Text(f"the rest takes: {how_long}", style="bold"))
    lines += [
        Text(f"{row['model']} would fail: {row['problem']}", style="red")
        for row in document["candidates"]
        if row["problem"]
    ]
    return Group(*lines)


# ---------------------------------------------------------------- blocks


def blocks_view(document: Mapping[str, Any]) -> RenderableType:
    """The blocks of a model, and where each part begins."""
    shape = " × ".join(map(str, document["shape"]))
    blocks = document["blocks"]
    whole_s = sum(row["time_s_per_item"] for row in blocks)
    about = (
        f" · {format_count(len(blocks), 'block')}, {_count(document['parameters'])} parameters · "
        f"{format_seconds(whole_s)} an item · batch {document['items']} of {shape} · {document['device']}"
    )
    table = _table()
    for title, side in (("", "right"), ("block", "left"), ("parameters", "right"), ("output", "right")):
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("part that begins here", overflow="fold")
    for row in blocks:
        table.add_row(
            str(row["index"]),
            row["name"],
            f"{row['parameters']:,}",
            format_bytes(row["output_bytes_per_item"]),
            format_seconds(row["time_s_per_item"]),
            f"{row['time_s_per_item'] / whole_s:.0%}" if whole_s else "–",
            ", ".join(row["begins"]),
        )
    lines: list[RenderableType] = [Text.assemble((document["model"], "bold"), about), Text(), table]
    if document["whole_reason"] is not None:
        lines.append(Text(f"it runs whole: {document['whole_reason']}", style="yellow"))
    lines.append(Text("output and time are those of one item", style="dim"))
    return Group(*lines)
