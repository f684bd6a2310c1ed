"""What `stoker compare` shows: a table for a terminal, and Markdown for the summary of a CI job."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import Comparison, Difference, Record, Side
from stoker.records.comparison import difference_sentence, times_text
from stoker.units import format_count, format_seconds

_UNITS = {"batch": "a batch", "item": "an item", "run": "a run"}
_COLOURS = {"faster": "green", "slower": "red", "cannot_tell": "yellow"}
_KINDS = {"task": "unlike tasks", "setting": "other settings", "version": "other versions"}


class Line(Record, frozen=True):
    """A line of the table, as text."""

    name: str
    a: str
    b: str
    change: str
    answer: str


def compare_view(found: Comparison, verdict: str | None = None) -> RenderableType:
    """The answer, the stages side by side, and what else may explain a difference. `verdict` is what follows for a
    limit that the user set."""
    parts: list[RenderableType] = [Text(found.what, style="bold")]
    parts += [Text(f"  {name}: {side_text(side)}") for name, side in (("A", found.a), ("B", found.b))]
    parts += [Text(), Text(f"{answer_text(found)}.", style=_COLOURS[found.answer])]
    if verdict:
        parts.append(Text(f"{verdict}."))
    parts += [Text(), _table(found)]
    parts += [Text(line) for line in changes_of(found)]
    parts += [Text(f"note: {note}", style="yellow") for note in notes_of(found)]
    return Group(*parts)


def compare_markdown(found: Comparison, verdict: str | None = None) -> str:
    """The same as Markdown."""
    lines = [f"### {_escaped(found.what)}", ""]
    lines += [f"**{_escaped(answer_text(found))}.**" + (f" {_escaped(verdict)}." if verdict else ""), ""]
    head = ("", "A", "B", f"B against A ({found.confidence:.0%} interval)", "")
    lines += [_line(head), _line(("---", "---:", "---:", "---:", "---"))]
    for section in rows_of(found):
        lines += [_line(tuple(map(_escaped, (row.name, row.a, row.b, row.change, row.answer)))) for row in section]
    lines += ["", *(f"- {name}: {_escaped(side_text(side))}" for name, side in (("A", found.a), ("B", found.b)))]
    lines += [f"- {_escaped(line)}" for line in changes_of(found)]
    lines += [f"- note: {_escaped(note)}" for note in notes_of(found)]
    return "\n".join(lines)


def answer_text(found: Comparison) -> str:
    """`Faster by 12 % (9–15): 41.2 ms → 36.3 ms a batch, once steady`."""
    ratio = found.total.ratio or 1.0
    times = f" ({1 / ratio:.3g} times as fast)" if ratio < _FEW_TIMES else ""
    several = ", mean of the tasks" if len(found.tasks) > 1 else ""
    steady = ", once steady" if found.basis == "steady" else ""
    what = f"{times_text(found.total)} {_UNITS[found.total.unit]}{steady}{several}{times}"
    glue = ";" if found.answer == "cannot_tell" else ":"
    return f"{found.sentence}{glue} {what}"


_FEW_TIMES = 2 / 3
"""From here on, a factor says more than a percentage."""


def notes_of(found: Comparison) -> list[str]:
    """What a reader of the answer must know, the most important first."""
    lines = []
    if found.drifted and found.reference is not None:
        lines.append(
            f"the machine itself was not as fast on both sides: a fixed job beside the runs is "
            f"{_lower(difference_sentence(found.reference))} on side B ({times_text(found.reference)}). Run the sides "
            "again, in alternation"
        )
    for name, side in (("A", found.a), ("B", found.b)):
        if side.disturbed:
            runs = format_count(side.runs, "run")
            lines.append(f"other processes disturbed {side.disturbed} of {runs} on side {name}")
        if side.left_out:
            lines.append(f"left out on side {name}: {'; '.join(side.left_out)}")
    if found.spread_known:
        lines.append(
            f"there are too few runs to measure how much they differ: the interval takes {found.spread:.1%} for it. "
            "Several runs a side, in alternation, make it narrower"
        )
    return [*lines, *found.notes]


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def side_text(side: Side) -> str:
    tasks = f" of {format_count(side.tasks, 'task')}" if side.tasks > 1 else ""
    names = ", ".join(side.sources[:_NAMED]) + (", …" if len(side.sources) > _NAMED else "")
    return f"{format_count(side.runs, 'run')}{tasks} ({names})"


_NAMED = 6
"""So many files are named on a side."""


def changes_of(found: Comparison) -> Iterable[str]:
    """What differs beside the times, a line for each kind."""
    for kind, words in _KINDS.items():
        changes = [f"{each.name} {each.a} → {each.b}" for each in found.changes if each.kind == kind]
        if changes:
            yield f"{words}: {', '.join(changes)}"


def rows_of(found: Comparison) -> list[list[Line]]:
    by_clock: dict[str, list[Line]] = {"loop": [_row(found.total)], "worker": [], "run": []}
    for stage in found.stages:
        if stage.ratio is not None or max((*stage.a_s, *stage.b_s), default=0.0) > _least_s(found, stage):
            by_clock[stage.clock].append(_row(stage))
    tasks = [_row(task) for task in found.tasks]
    return [section for section in (tasks, *by_clock.values()) if section]


def _least_s(found: Comparison, stage: Difference) -> float:
    """Stages below this are not shown: they are too short to be compared, and on both sides."""
    whole = max((*found.total.a_s, *found.total.b_s), default=0.0)
    return whole * _HIDE_BELOW if stage.clock == "loop" else 0.0


_HIDE_BELOW = 0.01


def _row(found: Difference) -> Line:
    change, answer = "–", "too short" if found.a_s and found.b_s else "not measured"
    if found.ratio is not None and found.interval is not None:
        low, high = map(_percent, found.interval)
        change, answer = f"{_percent(found.ratio)} ({low} … {high})", found.answer.replace("_", " ")
    return Line(name=_name(found), a=_mean(found.a_mean_s), b=_mean(found.b_mean_s), change=change, answer=answer)


def _name(found: Difference) -> str:
    if found.clock != "worker":
        return found.name
    stage, _, member = found.name.partition(".")
    return f"  {member}" if member else f"{stage}, an item"


def _mean(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _percent(ratio: float) -> str:
    """`+12 %`; large ones as a factor."""
    if ratio >= _FACTOR:
        return f"× {ratio:.3g}"
    change = 100 * (ratio - 1)
    return f"{change:+.0f} %" if abs(change) >= 10 else f"{change:+.1f} %"


_FACTOR = 3.0


def _table(found: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    what = _UNITS[found.total.unit] if found.total.unit != "run" else ""
    for title in (what, "A", "B", "B against A", ""):
        table.add_column(title, justify="left" if title in (what, "") else "right", no_wrap=title != what)
    for number, section in enumerate(rows_of(found)):
        if number:
            table.add_section()
        for row in section:
            style = _COLOURS.get(row.answer.replace(" ", "_"), "dim")
            table.add_row(Text(row.name), row.a, row.b, row.change, Text(row.answer, style=style))
    return table


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: names of files and tasks are the user's."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    for mark in "\\`*_[]<>|#":
        plain = plain.replace(mark, f"\\{mark}")
    return plain.replace("  ", " ").strip() if plain.strip() else plain
