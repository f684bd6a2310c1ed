"""The page of a study of what a model search spends: stages stacked, and the published ones beside."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.analysis.breakdown import VARIED, base_case, beside, breakdown, dominant, has_stages
from stoker.analysis.overview import Overview
from stoker.analysis.series import Rows
from stoker.report import charts
from stoker.report.html import Card, Figure, Section, Table
from stoker.report.pages.parts import RULES, capital, counted, figure, percent, short_names
from stoker.units import format_seconds

if TYPE_CHECKING:
    import polars as pl

    from stoker.report.pages.study import Against

_PARTS = ("full", "last:25%")
"""The parts that stand beside published ones, if all would be too many panels."""
_NOTE = "Medians of the repeats; the rows have the least and the most."


def bottleneck_cards(found: Overview) -> list[Card]:
    """Which stage takes most at each number of items, of full models."""
    return [
        Card(
            about=f"full models, {each.items:,} items",
            answer=f"{capital(each.name)}: {percent(each.share)} of the time",
            detail=f"{capital(each.sentence)}.",
        )
        for each in dominant(found.frame)
    ]


def bottleneck_sections(found: Overview, against: Sequence["Against"]) -> list[Section]:
    """Stages of the base case, what is varied one at a time, and published stages beside ours."""
    base = base_case(found.frame)
    return [
        Section("Parts of models", _parts(base)),
        Section("Numbers of items, and images that are decoded", _lengths(base)),
        Section("One thing at a time", _one_at_a_time(found.frame, base)),
        *(_beside(found.frame, each) for each in against),
        Section("Every stage", tables=_table(found.frame)),
    ]


def _rows(frame: "pl.DataFrame") -> Rows:
    """Stages as plain rows, with what a chart needs as text."""
    if not has_stages(frame):
        return []
    rows = breakdown(frame).rename({"stage_s": "seconds"}).to_dicts()
    return _named([{**row, "part": row.get("part") or "full"} for row in rows])


def _named(rows: Rows) -> Rows:
    """With the stages as words, and without those that take no visible time anywhere."""
    shares = ("share", "share_ours", "share_theirs")
    seen = {row["stage"] for row in rows if any((row.get(name) or 0.0) > _VISIBLE for name in shares)}
    return [{**row, "stage": _WORDS.get(row["stage"], row["stage"])} for row in rows if row["stage"] in seen]


_WORDS = {"prepare_model": "prepare model", "prepare_data": "prepare data", "forward": "inference"}
_VISIBLE = 0.001


def _part_place(part: str) -> tuple[bool, float]:
    """Full first, then the longest part; joint models after the others."""
    amount = part.rpartition("last:")[2]
    length = 1000.0 if part == "full" else float(amount.rstrip("%")) * (10 if amount.endswith("%") else 1)
    return part.startswith("joint"), -length


def _pair(title: str, rows: Rows, *, x: str, x_title: str, facet: str, note: str = _NOTE) -> list[Figure]:
    """Stages stacked, in seconds and as shares."""
    rows, cut = _panels(rows, facet)
    if not rows:
        return []
    draw = partial(charts.stage_bars, x=x, x_title=x_title, facet=facet)
    words = f"{note} {cut}".strip()
    return [
        figure(title, rows, draw, note=words, alt="Stages stacked"),
        figure(f"{title}, as shares", rows, partial(draw, normalised=True), note=words, alt="Shares of stages stacked"),
    ]


def _panels(rows: Rows, facet: str) -> tuple[Rows, str]:
    """As many panels as fit, and what to say where some do not."""
    names = list(dict.fromkeys(row[facet] for row in rows))
    if len(names) <= RULES.panels:
        return rows, ""
    chosen = set(names[: RULES.panels])
    return [row for row in rows if row[facet] in chosen], f"The first {RULES.panels} of {len(names)}."


def _parts(base: "pl.DataFrame") -> list[Figure]:
    """A pair of charts for each number of items: the parts of each model beside each other."""
    rows = [row for row in _rows(base) if row.get("data") != "jpeg"]
    figures: list[Figure] = []
    for items in sorted({row["items"] for row in rows if row.get("items")}):
        chosen = sorted((row for row in rows if row["items"] == items), key=_by_model_and_part)
        if len({row["part"] for row in chosen}) > 1:
            title = f"{items:,} items: {_shorter(chosen)}"
            figures += _pair(title, chosen, x="part", x_title="part", facet="workload")
    return figures


def _by_model_and_part(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return str(row["workload"]), _part_place(row["part"])


def _shorter(rows: Rows) -> str:
    """How much less time the shortest part takes than the full model, as a finding."""
    totals: dict[tuple[str, str], float] = {}
    for row in rows:
        totals[row["workload"], row["part"]] = totals.get((row["workload"], row["part"]), 0.0) + row["seconds"]
    ratios = {}
    for part in {row["part"] for row in rows} - {"full"}:
        both = [
            totals[model, part] / totals[model, "full"]
            for model, each in totals
            if each == part and (model, "full") in totals
        ]
        if both:
            ratios[part] = sorted(both)[len(both) // 2]
    if not ratios:
        return "the stages of each part"
    least = min(ratios, key=ratios.__getitem__)
    return f"{least} takes {percent(ratios[least])} of the full model's time at the median"


def _lengths(base: "pl.DataFrame") -> list[Figure]:
    """Full models over the number of items, for each kind of data."""
    rows = [row for row in _rows(base) if row["part"] == "full" and row.get("items")]
    rows = [{**row, "model": f"{row['workload']}, {row.get('data')}"} for row in rows]
    rows.sort(key=lambda row: (str(row["workload"]), str(row.get("data")), row["items"]))
    if len({(row["items"], row.get("data")) for row in rows}) < 2:
        return []
    rows = [{**row, "length": f"{row['items']:,}"} for row in rows]
    said = dominant(base)
    title = f"{capital(said[0].sentence)}" if said else "Stages over the number of items"
    return _pair(title, rows, x="length", x_title="items", facet="model")


def _one_at_a_time(frame: "pl.DataFrame", base: "pl.DataFrame") -> list[Figure]:
    """For each of what is varied: the stages with each of its values, shares of the time."""
    figures = []
    for name in VARIED:
        if name not in frame.columns or frame[name].n_unique() < 2:
            continue
        rows = _rows(_varying(frame, name))
        rows = [{**row, "value": _value(row.get(name)), "model": _length(row)} for row in rows if row["part"] == "full"]
        values = {row["model"]: {each["value"] for each in rows if each["model"] == row["model"]} for row in rows}
        rows = [row for row in rows if len(values[row["model"]]) > 1]
        rows.sort(key=lambda row: (row["model"], row.get(name) is None, row.get(name) or 0))
        rows, cut = _panels(rows, "model")
        if rows:
            what = name.replace("_", " ")
            draw = partial(charts.stage_bars, x="value", x_title=what, facet="model", normalised=True)
            models = counted(len({row["workload"] for row in rows}), "model")
            title = f"Shares of each stage by {what}, {models}"
            figures.append(figure(title, rows, draw, note=f"{_NOTE} {cut}", alt=f"Shares over {what}"))
    return figures


def _varying(frame: "pl.DataFrame", name: str) -> "pl.DataFrame":
    """The trials in which everything else that is varied has its most frequent value; of the batch size, runs of
    batches, if there are any."""
    import polars as pl

    if name == "batch_size" and "batches" in frame.columns and frame["batches"].count():
        return base_case(frame.filter(pl.col("batches").is_not_null()), but=(name,))
    return base_case(frame, but=(name,))


def _length(row: Mapping[str, Any]) -> str:
    items = f", {row['items']:,} items" if row.get("items") else ""
    batches = f", {row['batches']:,} batches" if row.get("batches") else ""
    data = f", {row['data']}" if row.get("data") else ""
    return f"{row['workload']}{data}{items}{batches}"


def _value(value: Any) -> str:
    return "as usual" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


# ---------------------------------------------------------------- beside published figures


def _beside(frame: "pl.DataFrame", other: "Against") -> Section:
    title = f"Beside {other.name}"
    both = beside(frame, other.frame).to_dicts()
    if not both:
        return Section(title, tables=[Table("", ["nothing in common"], [["The two share no run of a model."]])])
    both = _named([{**row, "part": row.get("part") or "full"} for row in both])
    names = short_names(row["workload"] for row in both)
    both = [{**row, "workload": names[row["workload"]]} for row in both]
    said = [
        f"{where}, {each.sentence}"
        for where, part in (("Here", frame), ("There", other.frame))
        for each in dominant(part)
    ]
    figures = [*_beside_bars(both, other.name), *_beside_points(both, other.name)]
    return Section(title, figures, f"{other.about} {'. '.join(said)}.")


def _beside_bars(both: Rows, name: str) -> list[Figure]:
    rows: Rows = []
    for row in both:
        data = row.get("data")
        named = [row["workload"], row["part"], f"{row['items']:,}", *([data] if data not in (None, "tensors") else [])]
        cell = {"run": ", ".join(named), "stage": row["stage"], "part": row["part"], "data": data}
        for where, side in (("here", "ours"), ("there", "theirs")):
            rows.append({**cell, "where": where, "seconds": row[f"{side}_s"], "share": row[f"share_{side}"]})
    if len({row["run"] for row in rows}) > RULES.panels:
        rows = [row for row in rows if row["part"] in _PARTS and row["data"] != "jpeg"]
    rows, cut = _panels(rows, "run")
    draw = partial(charts.stage_bars, x="where", x_title="where", facet="run", normalised=True)
    title = f"The same runs here and in {name}: shares of each stage"
    note = f"A panel for each model, part and number of items. Shares, because the machines differ. {cut}".strip()
    return [figure(title, rows, draw, note=note, alt="Shares, here and there")]


def _beside_points(both: Rows, name: str) -> list[Figure]:
    rows = [
        {**row, "run": f"{row['workload']}, {row['part']}, {row['items']:,} items, {row['stage']}"}
        for row in both
        if row["ours_s"] and row["theirs_s"]
    ]
    if not rows:
        return []
    ratios = sorted(row["ours_s"] / row["theirs_s"] for row in rows)
    draw = partial(
        charts.scatter,
        x="theirs_s",
        y="ours_s",
        x_title=f"{name}: seconds of a stage",
        y_title="here: seconds of a stage",
        label="run",
        colour="stage",
    )
    title = f"A stage here takes {ratios[len(ratios) // 2]:.2g} times the published time at the median"
    return [figure(title, rows, draw, note="The dashed line: equal.", alt="Stages here over stages there")]


def _table(frame: "pl.DataFrame") -> list[Table]:
    """The least, the median and the most of every stage; of many cells, the first."""
    rows = _rows(frame)
    cells: dict[str, list[str]] = {}
    order = list(dict.fromkeys(row["stage"] for row in rows))
    for row in rows:
        what = [f"{name.replace('_', ' ')} {_value(row[name])}" for name in VARIED if row.get(name) is not None]
        place = cells.setdefault(f"{_length(row)}, {row['part']}; {', '.join(what)}", ["–"] * len(order))
        text = format_seconds(row["seconds"])
        if row["repeats"] > 1:
            text += f" ({format_seconds(row['low_s'])} to {format_seconds(row['high_s'])})"
        place[order.index(row["stage"])] = text
    lines = [[cell, *values] for cell, values in cells.items()]
    title = "Median, and in brackets the least and the most of the repeats"
    if len(lines) > _MOST_LINES:
        title += f"; the first {_MOST_LINES} of {len(lines):,} cells, `study export` has all"
    head = ["run", *order]
    return [Table(title, head, lines[:_MOST_LINES])] if lines else []


_MOST_LINES = 120
