"""Charts, as Vega-Lite specifications. `analysis` computes the rows, these functions draw them and nothing else.

Every function takes rows (mappings of plain values) and returns a specification without data: the page, `svg` and
`png` bring the same rows to it. Colours are safe for the colour-blind, and what failed has a sign as well as a colour.
"""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import altair as alt

INK = "#1f2328"
"""The colour of rings and text. The page replaces it by its own in the dark theme."""
CATEGORIES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#b3a800",
    "#7f7f7f",
    "#332288",
    "#44aa99",
)
"""Okabe and Ito's palette, made for the colour-blind, with a readable yellow; two more by Paul Tol."""
SEQUENTIAL: Final = "oranges"
STAGES = {
    "prepare": "#332288",
    "prepare model": "#332288",
    "load data": "#d55e00",
    "prepare data": "#d55e00",
    "start": "#7f7f7f",
    "read": "#332288",
    "decode": "#0072b2",
    "transform": "#56b4e9",
    "item": "#88ccee",
    "collate": "#44aa99",
    "send": "#b3a800",
    "pin": "#999933",
    "wait": "#d55e00",
    "copy": "#e69f00",
    "forward": "#009e73",
    "backward": "#117733",
    "exchange": "#882255",
    "idle": "#f0c8b4",
    "update": "#cc79a7",
    "step": "#009e73",
    "inference": "#009e73",
    "score": "#aa4499",
    "stop": "#bbbbbb",
    "other": "#dddddd",
}
"""One colour a stage, the same in every chart."""
LANES = {"load": "#0072b2", "start": "#7f7f7f", "wait": "#d55e00", "step": "#009e73"}
"""What a bar of the timeline is about, and its colour."""
SIGNS = {"oom": "M", "crashed": "✕", "timed_out": "T", "failed": "!", "ruled out": "–", "missing": "·"}
"""What stands in a cell without a time: out of memory, crashed, timed out, failed, ruled out, never run."""
RING = "#2563eb"
"""The ring around the best cell: seen on its light colour and on both themes."""
DATA = "rows"
"""The name under which a specification expects its rows."""

Unit = Literal["s", "B", "%", "", "n"]
"""Seconds, bytes, shares, numbers, counts."""
Rows = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]


def sign_text(rows: Rows) -> str:
    """What the signs in the cells of these rows mean."""
    words = {"oom": "out of memory", "timed_out": "timed out", "missing": "not run"}
    found = [name for name in SIGNS if any(row.get("outcome") == name for row in rows)]
    return " ".join(f"{SIGNS[name]} {words.get(name, name)}." for name in found)


def heat_map(rows: Rows, *, facet: str | None = None, what: str = "slower than the best", columns: int = 4) -> Spec:
    """Batch size over workers, a panel for each value of `facet`.

    Rows have `batch_size`, `num_workers`, `seconds`, `regret` (the colour) and `outcome`. Cells whose `regret` is 0
    have a ring. Maps of one or two panels have the seconds in their cells.
    """
    panels = len({row.get(facet) for row in rows}) if facet else 1
    roomy = panels <= 2
    gap = alt.Scale(paddingInner=0.05, paddingOuter=0.02)
    x = alt.X("num_workers:O", title="workers", axis=_SPACED, scale=gap)
    y = alt.Y("batch_size:O", title="batch size", sort="descending", scale=gap)
    tips = [
        *_facet_tip(facet),
        alt.Tooltip("batch_size:Q", title="batch size"),
        alt.Tooltip("num_workers:Q", title="workers"),
        alt.Tooltip("seconds:Q", format=",.4~g", title="seconds"),
        alt.Tooltip("regret:Q", format=".1%", title=what),
        alt.Tooltip("outcome:N"),
    ]
    tips += [alt.Tooltip(f"{name}:N", title=title) for name, title in _EXTRAS.items() if _has(rows, name)]
    scale = alt.Scale(scheme=SEQUENTIAL, domain=[0, 1], clamp=True)
    legend = alt.Legend(title=what, format=".0%", gradientLength=150, gradientThickness=8)
    base = alt.Chart()
    colour = alt.Color("regret:Q", scale=scale, legend=legend)
    timed = base.transform_filter("isValid(datum.regret)")
    layers: list[Any] = [timed.mark_rect(cornerRadius=2).encode(x, y, colour, tooltip=tips)]
    if any(row.get("regret") is None for row in rows):
        failed = base.transform_filter("!isValid(datum.regret)").transform_calculate(sign=_sign("datum.outcome"))
        blank = alt.value("#8c959f")
        layers.append(failed.mark_rect(cornerRadius=2, fillOpacity=0.16).encode(x, y, fill=blank, tooltip=tips))
        text = failed.mark_text(fontSize=12, fontWeight="bold", color=INK)
        layers.append(text.encode(x, y, text="sign:N", tooltip=tips))
    if roomy:
        dark = alt.condition("datum.regret > 0.55", alt.value("#ffffff"), alt.value("#24292f"))
        short = max((row["seconds"] for row in rows if row.get("seconds")), default=1.0) < _SHORT_S
        number = alt.Text("_time:N") if short else alt.Text("seconds:Q", format=".3~r")
        shown = timed.transform_calculate(_time="format(datum.seconds, '.3~s') + 's'") if short else timed
        layers.append(shown.mark_text(fontSize=11).encode(x, y, text=number, color=dark, tooltip=tips))
    if any(row.get("regret") is not None and row["regret"] <= 0 for row in rows):
        best = base.transform_filter("isValid(datum.regret) && datum.regret <= 0")
        ring = best.mark_rect(fill=None, stroke=RING, strokeWidth=2.4, cornerRadius=2)
        layers.append(ring.encode(x, y, tooltip=tips))
    workers = len({row.get("num_workers") for row in rows})
    sizes = len({row.get("batch_size") for row in rows})
    wide, high = (44, 28) if roomy else (22, 20)
    width, height = min(520, max(110, wide * workers)), min(420, max(44, high * sizes))
    chart = alt.layer(*layers).properties(width=width, height=height)
    spec = _finished(chart, rows=rows, facet=facet, columns=columns if panels > 2 else 2)
    return {**spec, "usermeta": {**spec["usermeta"], "across": workers, **({} if facet else {"cells": True})}}


_SHORT_S = 0.1
"""Cells whose longest time is shorter have a unit: 2.03ms in place of 0.00203."""


_EXTRAS = {"setting": "other settings", "note": "note", "low": "at least", "high": "at most"}


def lines(
    rows: Rows,
    *,
    x: str,
    y: str = "seconds",
    colour: str | None = None,
    facet: str | None = None,
    x_title: str,
    y_title: str,
    unit: Unit = "s",
    logarithmic: bool = False,
    independent_y: bool = False,
) -> Spec:
    """Lines with points. x is ordinal, because batch sizes and workers are not spaced evenly."""
    title = colour.replace("_", " ") if colour else ""
    linear = {"axis": _axis(unit, tickCount=3 if facet else 5), "scale": alt.Scale(zero=True)}
    tips = [
        *_facet_tip(facet),
        *([alt.Tooltip(f"{colour}:N", title=title)] if colour else []),
        alt.Tooltip(f"{x}:N", title=x_title),
        alt.Tooltip(f"{y}:Q", format=_FORMATS[unit], title=y_title),
    ]
    encoding: dict[str, Any] = {
        "x": alt.X(f"{x}:O", title=x_title, axis=_SPACED),
        "y": alt.Y(
            f"{y}:Q",
            title=y_title,
            **(_log(rows, (y,), unit) if logarithmic else linear),
        ),
        "tooltip": tips,
    }
    if colour:
        encoding["color"] = _category(colour, title, rows)
    point = alt.OverlayMarkDef(size=34, filled=True)
    plain: dict[str, Any] = {} if colour else {"color": CATEGORIES[0]}
    chart = alt.Chart().mark_line(point=point, strokeWidth=1.8, **plain).encode(**encoding)
    width, height = (170, 110) if facet else (420, 240)
    chart = chart.properties(width=width, height=height)
    return _finished(chart, rows=rows, facet=facet, columns=4, independent_y=independent_y)


def curves(rows: Rows, *, x: str, y: str, x_title: str, y_title: str) -> Spec:
    """A line for each `seed` with a colour for each `batch_size`, over a quantity."""
    base = alt.Chart().mark_line(point=alt.OverlayMarkDef(size=20, filled=True), strokeWidth=1.4, opacity=0.85)
    chart = base.encode(
        x=alt.X(f"{x}:Q", title=x_title, axis=_axis("s" if x == "seconds" else "n")),
        y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False), axis=_axis("")),
        color=_category("batch_size", "batch size", rows),
        detail="seed:N",
        tooltip=[
            alt.Tooltip("batch_size:N", title="batch size"),
            alt.Tooltip("seed:N", title="seed"),
            alt.Tooltip("epochs:Q", format=".3~g", title="epochs"),
            alt.Tooltip("updates:Q", format=",", title="updates"),
            alt.Tooltip("seconds:Q", format=".3~g", title="seconds"),
            alt.Tooltip(f"{y}:Q", format=".4~g", title=y_title),
        ],
    )
    return _finished(chart.properties(width=420, height=240), rows=rows)


def regret_bars(rows: Rows) -> Spec:
    """Average regret of each `setting` as a bar, the worst workload as a tick. Rows come sorted."""
    y = alt.Y("setting:N", sort=_order(rows, "setting"), title=None, axis=alt.Axis(labelLimit=200))
    tips = [
        alt.Tooltip("setting:N"),
        alt.Tooltip("regret_mean:Q", format=".2%", title="mean regret"),
        alt.Tooltip("regret_worst:Q", format=".2%", title="worst regret"),
        alt.Tooltip("models:Q", title="workloads"),
        alt.Tooltip("missing:Q", title="missing"),
    ]
    base = alt.Chart().encode(y=y, tooltip=tips)
    title = "slower than the best (tick: worst)"
    mean = base.mark_bar(color=CATEGORIES[5], height=10, cornerRadiusEnd=2).encode(
        x=alt.X("regret_mean:Q", title=title, axis=alt.Axis(format=".0%", grid=True, tickCount=6))
    )
    worst = base.mark_tick(color=INK, thickness=2, height=13).encode(x="regret_worst:Q")
    return _finished(alt.layer(mean, worst).properties(width=420, height=_height(rows, "setting")))


def bars(
    rows: Rows,
    *,
    label: str,
    value: str,
    title: str,
    unit: Unit = "s",
    colour: str | None = None,
    more: Mapping[str, str] | None = None,
    grouped: bool = True,
) -> Spec:
    """Horizontal bars, in the order of the rows; where labels have bars of several `colour`s they are grouped side by
    side. `more` are further tooltips."""
    tips = [
        alt.Tooltip(f"{label}:N", title=label.replace("_", " ")),
        *([alt.Tooltip(f"{colour}:N")] if colour else []),
        alt.Tooltip(f"{value}:Q", title=title, format=_FORMATS[unit]),
        *(alt.Tooltip(f"{name}:N", title=text) for name, text in (more or {}).items()),
    ]
    encoding: dict[str, Any] = {
        "x": alt.X(f"{value}:Q", title=title, axis=_axis(unit)),
        "y": alt.Y(f"{label}:N", sort=_order(rows, label), title=None, axis=alt.Axis(labelLimit=200)),
        "tooltip": tips,
    }
    height = _height(rows, label)
    mark: dict[str, Any] = {"color": CATEGORIES[0], "cornerRadiusEnd": 2}
    if colour:
        count = len({row[colour] for row in rows}) if grouped else 1
        height = max(height, 12 * count * len({row[label] for row in rows}))
        encoding["color"] = _category(colour, None, rows)
    if colour and grouped:
        encoding["yOffset"] = alt.YOffset(f"{colour}:N", sort=_order(rows, colour))
    else:
        mark["height"] = 11
    return _finished(alt.Chart().mark_bar(**mark).encode(**encoding).properties(width=420, height=height))


def stage_bars(rows: Rows, *, x: str, x_title: str, facet: str | None = None, normalised: bool = False) -> Spec:
    """Stages stacked: seconds, or shares of the whole. Rows have `stage` and `seconds`."""
    present = [name for name in STAGES if any(row["stage"] == name for row in rows)]
    others = sorted({str(row["stage"]) for row in rows} - set(present))
    order = [*present, *others]
    spare = [each for each in CATEGORIES if each not in {STAGES[name] for name in present}] or list(CATEGORIES)
    colours = [STAGES[name] for name in present] + [spare[place % len(spare)] for place in range(len(others))]
    title = "share of the time" if normalised else "seconds"
    axis = _axis("%" if normalised else "s")
    ticks = {str(row[x]) for row in rows}
    flat = len(ticks) * max((len(each) for each in ticks), default=1) * 7 < (190 if facet else 560)
    tips = [
        *_facet_tip(facet),
        alt.Tooltip(f"{x}:N", title=x_title),
        alt.Tooltip("stage:N"),
        alt.Tooltip("seconds:Q", format=",.4~g"),
        *([alt.Tooltip("share:Q", format=".1%")] if _has(rows, "share") else []),
        *(alt.Tooltip(f"{name}:Q", format=",.4~g") for name in ("low_s", "high_s") if _has(rows, name)),
    ]
    chart = (
        alt.Chart()
        .transform_calculate(place=f"indexof({json.dumps(order)}, datum.stage)")
        .mark_bar()
        .encode(
            x=alt.X(f"{x}:O", title=x_title, sort=_order(rows, x), axis=alt.Axis(labelAngle=0 if flat else -40)),
            y=alt.Y("seconds:Q", stack="normalize" if normalised else "zero", title=title, axis=axis),
            color=alt.Color("stage:N", sort=order, scale=alt.Scale(domain=order, range=colours), title=None),
            order=alt.Order("place:Q"),
            tooltip=tips,
        )
    )
    wide = min(560, max(120, 64 * len(ticks)))
    width, height = (190, 140) if facet else (wide, 260)
    return _finished(chart.properties(width=width, height=height), rows=rows, facet=facet, columns=4)


def scatter(
    rows: Rows,
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str,
    label: str,
    colour: str | None = None,
    unit: Unit = "s",
) -> Spec:
    """Two times of the same setting on logarithmic axes, with the line where both agree.

    Rows that have `low` and `high` have an interval of y.
    """
    names = (x, y, *(name for name in ("low", "high") if _has(rows, name)))
    log = _log(rows, names, unit)
    low, high = log["scale"].to_dict()["domain"]
    xs, ys = alt.X(f"{x}:Q", title=x_title, **log), alt.Y(f"{y}:Q", title=y_title, **log)
    agree = alt.Chart(alt.InlineData(values=[{x: low, y: low}, {x: high, y: high}]))
    tips = [
        alt.Tooltip(f"{label}:N", title=label.replace("_", " ")),
        *([alt.Tooltip(f"{colour}:N", title=colour.replace("_", " "))] if colour else []),
        alt.Tooltip(f"{x}:Q", format=",.4~g", title=x_title),
        alt.Tooltip(f"{y}:Q", format=",.4~g", title=y_title),
        *(alt.Tooltip(f"{name}:Q", format=",.4~g") for name in ("low", "high") if _has(rows, name)),
    ]
    layers: list[Any] = [agree.mark_line(color="#8c959f", strokeDash=[4, 4], strokeWidth=1).encode(x=xs, y=ys)]
    base = alt.Chart()
    if _has(rows, "low"):
        rule = base.mark_rule(color="#8c959f", strokeWidth=1.6, opacity=0.7)
        layers.append(rule.encode(x=xs, y=alt.Y("low:Q", title=y_title, **log), y2="high:Q", tooltip=tips))
    shade: Any = _category(colour, colour.replace("_", " "), rows) if colour else alt.value(CATEGORIES[0])
    layers.append(base.mark_circle(size=52, opacity=0.9).encode(x=xs, y=ys, color=shade, tooltip=tips))
    return _finished(alt.layer(*layers).properties(width=430, height=340))


def ratios(rows: Rows) -> Spec:
    """Points with their quartiles about 1, a panel for each `axis`: what a value of a setting does to the time."""
    tips = [
        alt.Tooltip("axis:N"),
        alt.Tooltip("value:N"),
        alt.Tooltip("reference:N", title="compared with"),
        alt.Tooltip("ratio:Q", format=".3~f", title="times as long"),
        alt.Tooltip("ratio_low:Q", format=".3~f", title="lower quartile"),
        alt.Tooltip("ratio_high:Q", format=".3~f", title="upper quartile"),
        alt.Tooltip("pairs:Q"),
    ]
    y = alt.Y("value:N", sort=alt.EncodingSortField(field="place", op="min"), title=None)
    base = alt.Chart().encode(y=y, tooltip=tips)
    log = _log(rows, ("ratio", "ratio_low", "ratio_high"), "")
    x = alt.X("ratio_low:Q", title="times as long as the first value", **log)
    spread = base.mark_rule(color="#8c959f", strokeWidth=2).encode(x=x, x2="ratio_high:Q")
    points = base.mark_circle(size=60, opacity=1, color=CATEGORIES[0]).encode(x=alt.X("ratio:Q", **log))
    height = max(60, 17 * max((sum(1 for r in rows if r["axis"] == a) for a in {r["axis"] for r in rows}), default=1))
    chart = alt.layer(spread, points).properties(width=300, height=min(height, 260))
    return _finished(chart, rows=rows, facet="axis", columns=3, independent_y=True)


def rank_intervals(rows: Rows) -> Spec:
    """The mean rank of each `model` as a point with its interval, the best on top; of the first place in a colour of
    its own. Rows come sorted, with `mean_rank`, `place`, and where they are known `low` and `high`."""
    return _intervals(rows, x="mean_rank", title="mean rank (1 is best)", first=True)


def score_intervals(rows: Rows) -> Spec:
    """The `value` of each `score` of each `model` with its interval, a panel a score."""
    return _intervals(rows, x="value", title="score", facet="score")


def _intervals(rows: Rows, *, x: str, title: str, facet: str | None = None, first: bool = False) -> Spec:
    tips = [
        *_facet_tip(facet),
        alt.Tooltip("model:N"),
        alt.Tooltip(f"{x}:Q", title=title, format=",.4~g"),
        *(alt.Tooltip(f"{name}:Q", format=",.4~g") for name in ("low", "high") if _has(rows, name)),
    ]
    y = alt.Y("model:N", sort=_order(rows, "model"), title=None, axis=alt.Axis(labelLimit=200))
    base = alt.Chart().encode(y=y, tooltip=tips)
    scale = alt.Scale(zero=False, nice=True)
    axis = alt.Axis(grid=True, tickCount=5)
    layers: list[Any] = []
    if _has(rows, "low"):
        rule = base.mark_rule(color="#8c959f", strokeWidth=2)
        layers.append(rule.encode(x=alt.X("low:Q", title=title, scale=scale, axis=axis), x2="high:Q"))
    shade = alt.condition("datum.place == 1", alt.value(CATEGORIES[2]), alt.value(CATEGORIES[0]))
    colour: Any = shade if first else alt.value(CATEGORIES[0])
    points = base.mark_circle(size=70, opacity=1)
    layers.append(points.encode(x=alt.X(f"{x}:Q", title=title, scale=scale, axis=axis), color=colour))
    width = 180 if facet else 420
    chart = alt.layer(*layers).properties(width=width, height=_height(rows, "model"))
    return _finished(chart, rows=rows, facet=facet, columns=3, independent_x=bool(facet))


def landscape(rows: Rows) -> Spec:
    """A heat map of predicted times, with a dot in the corner of each cell that was measured (`measured_s`)."""
    spec = heat_map(rows, what="slower than the least, predicted")
    if not _has(rows, "measured_s"):
        return spec
    dot = alt.Chart().transform_filter("isValid(datum.measured_s)")
    dots = dot.mark_circle(size=44, color=CATEGORIES[2], opacity=1, xOffset=16, yOffset=-8).encode(
        x="num_workers:O",
        y=alt.Y("batch_size:O", sort="descending"),
        tooltip=[
            alt.Tooltip("batch_size:Q", title="batch size"),
            alt.Tooltip("num_workers:Q", title="workers"),
            alt.Tooltip("seconds:Q", format=",.4~g", title="predicted seconds"),
            alt.Tooltip("measured_s:Q", format=",.4~g", title="measured seconds"),
        ],
    )
    layer = _finished(dots)
    return {**spec, "layer": [*spec["layer"], {name: layer[name] for name in ("transform", "mark", "encoding")}]}


def strip(rows: Rows, *, label: str, value: str, title: str) -> Spec:
    """A point for each value, a line for each label."""
    axis = _axis("s")
    chart = (
        alt.Chart()
        .mark_circle(size=54, opacity=0.75, color=CATEGORIES[0])
        .encode(
            x=alt.X(f"{value}:Q", title=title, axis=axis, scale=alt.Scale(zero=True)),
            y=alt.Y(f"{label}:N", sort=_order(rows, label), title=None, axis=alt.Axis(labelLimit=200)),
            tooltip=[alt.Tooltip(f"{label}:N"), alt.Tooltip(f"{value}:Q", title=title, format=",.4~g")],
        )
    )
    return _finished(chart.properties(width=420, height=_height(rows, label)))


def quantiles(rows: Rows, *, y: str, y_title: str) -> Spec:
    """A value over its quantile, from the least to the largest."""
    chart = (
        alt.Chart()
        .mark_line(color=CATEGORIES[0], point=alt.OverlayMarkDef(size=18, filled=True), strokeWidth=1.8)
        .encode(
            x=alt.X("quantile:Q", title="share of the items", axis=alt.Axis(format=".0%")),
            y=alt.Y(f"{y}:Q", title=y_title, axis=_axis("s")),
            tooltip=[
                alt.Tooltip("quantile:Q", format=".1%", title="share of the items"),
                alt.Tooltip(f"{y}:Q", format=",.4~g", title=f"{y_title}, at most"),
            ],
        )
    )
    return _finished(chart.properties(width=420, height=200))


def timeline(rows: Rows) -> Spec:
    """One run: workers as lanes with their batches as bars, the loop's waits and steps below. Scrolling zooms."""
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    whole = alt.Scale(domain=[0, max((row["end_s"] for row in rows), default=1)], nice=False)
    present = [name for name in LANES if any(row["does"] == name for row in rows)]
    scale = alt.Scale(domain=present, range=[LANES[name] for name in present])
    chart = (
        alt.Chart()
        .mark_bar(height={"band": 0.8}, cornerRadius=1, clip=True)
        .encode(
            x=alt.X("begin_s:Q", title="time after the start of the run", axis=_axis("s", tickCount=8), scale=whole),
            x2="end_s:Q",
            y=alt.Y("lane:N", sort=_order(rows, "lane"), title=None),
            color=alt.Color("does:N", scale=scale, title=None),
            opacity=alt.condition("datum.turn === 0", alt.value(1), alt.value(0.68)),
            tooltip=[
                alt.Tooltip("lane:N", title="who"),
                alt.Tooltip("does:N"),
                alt.Tooltip("batch:Q"),
                alt.Tooltip("begin_s:Q", format=",.4~g", title="from (s)"),
                alt.Tooltip("end_s:Q", format=",.4~g", title="to (s)"),
            ],
        )
        .properties(width=760, height=max(70, min(900, 26 * len(_order(rows, "lane")))))
        .add_params(zoom)
    )
    return _finished(chart)


def bars_in_order(rows: Rows, *, x: str, y: str, x_title: str, y_title: str, facet: str | None = None) -> Spec:
    """One thin bar a batch, in order."""
    width = 220 if facet else 760
    tips = [
        *_facet_tip(facet),
        alt.Tooltip(f"{x}:Q", title=x_title),
        alt.Tooltip(f"{y}:Q", format=",.4~g", title=f"{y_title} (s)"),
    ]
    values = sorted({row[x] for row in rows})
    step = min((after - before for before, after in itertools.pairwise(values)), default=1)
    scale = alt.Scale(domain=[min(values, default=0) - 0.6 * step, max(values, default=0) + 0.6 * step], nice=False)
    chart = (
        alt.Chart()
        .transform_calculate(_begin=f"datum.{x} - {0.4 * step}", _end=f"datum.{x} + {0.4 * step}", _zero="0")
        .mark_rect(color=CATEGORIES[5])
        .encode(
            x=alt.X("_begin:Q", title=x_title, axis=alt.Axis(tickMinStep=1, format="d"), scale=scale),
            x2="_end:Q",
            y=alt.Y(f"{y}:Q", title=y_title, axis=_axis("s"), scale=alt.Scale(zero=True)),
            y2="_zero:Q",
            tooltip=tips,
        )
    )
    chart = chart.properties(width=width, height=90 if facet else 180)
    return _finished(chart, rows=rows, facet=facet, columns=4)


def readings(rows: Rows) -> Spec:
    """Gauges over time, a panel each."""
    chart = (
        alt.Chart()
        .mark_area(line={"strokeWidth": 1.6}, opacity=0.25, color=CATEGORIES[0])
        .encode(
            x=alt.X("time_s:Q", title="seconds after the start of the run"),
            y=alt.Y("value:Q", title=None, axis=_axis("")),
            tooltip=[
                alt.Tooltip("gauge:N"),
                alt.Tooltip("time_s:Q", format=",.3~g", title="after (s)"),
                alt.Tooltip("value:Q", format=",.4~s"),
            ],
        )
        .properties(width=320, height=110)
    )
    return _finished(chart, rows=rows, facet="gauge", columns=2, independent_y=True)


def memory_line(rows: Rows, *, budget_bytes: int) -> Spec:
    """Memory over batch size as the model of it says (`what` is `model`), with the budget and the tries (their
    outcome)."""
    x = alt.X("batch_size:Q", title="batch size")
    y = alt.Y("bytes:Q", title="device memory", axis=_axis("B"))
    tips = [
        alt.Tooltip("what:N"),
        alt.Tooltip("batch_size:Q", title="batch size"),
        alt.Tooltip("bytes:Q", format=",.4~s", title="bytes"),
    ]
    base = alt.Chart()
    line = base.transform_filter("datum.what === 'model'").mark_line(color=CATEGORIES[0], strokeWidth=1.8)
    dots = base.transform_filter("datum.what === 'model'").mark_circle(color=CATEGORIES[0], size=40, opacity=1)
    rule = alt.Chart(alt.InlineData(values=[{"bytes": budget_bytes, "what": "budget"}]))
    rule = rule.mark_rule(color=CATEGORIES[5], strokeDash=[5, 4], strokeWidth=1.6)
    layers: list[Any] = [
        line.encode(x=x, y=y),
        dots.encode(x=x, y=y, tooltip=tips),
        rule.encode(y="bytes:Q", tooltip=[tips[0], tips[2]]),
    ]
    found = sorted({str(row["what"]) for row in rows} - {"model"})
    if found:
        shapes = [_SHAPES.get(name, "cross") for name in found]
        shape = alt.Shape("what:N", scale=alt.Scale(domain=found, range=shapes), title="tries")
        tried = base.transform_filter("datum.what !== 'model'").mark_point(size=80, filled=True, color=INK, opacity=1)
        layers.append(tried.encode(x=x, y=y, shape=shape, tooltip=tips))
    return _finished(alt.layer(*layers).properties(width=600, height=280))


_SHAPES = {"done": "circle", "oom": "cross", "crashed": "diamond", "timed_out": "triangle", "failed": "square"}


_SPACED = alt.Axis(labelAngle=0, labelOverlap=True, labelSeparation=4)
"""An axis of values in order that leaves out labels where a panel is too narrow for all."""
_FORMATS: dict[Unit, str] = {"s": ",.4~g", "B": ",.4~s", "%": ".1%", "": ",.4~g", "n": ",d"}
_SECONDS = (
    "datum.value == 0 ? '0' : abs(datum.value) >= 1 ? format(datum.value, ',~g') + ' s' : abs(datum.value) >= 0.001 ? "
    "format(datum.value * 1000, '~r') + ' ms' : format(datum.value * 1000000, '~r') + ' µs'"
)
_NUMBERS = "abs(datum.value) < 1000 ? format(datum.value, '~g') : format(datum.value, '.3~s')"
_LABELS: dict[Unit, str] = {"s": _SECONDS, "B": "format(datum.value, '.3~s') + 'B'", "": _NUMBERS, "n": _NUMBERS}
"""Expressions for the labels of axes: 500 ms rather than 0.5 or 500m."""


def _axis(unit: Unit, **more: Any) -> alt.Axis:
    more.setdefault("tickCount", 5)
    if unit == "%":
        return alt.Axis(format=".0%", grid=True, **more)
    if unit == "n":
        more["tickMinStep"] = 1
    return alt.Axis(labelExpr=_LABELS[unit], grid=True, **more)


def _log(rows: Rows, names: Sequence[str], unit: Unit) -> dict[str, Any]:
    """A logarithmic scale around the values, and an axis with a readable number of round ticks."""
    values = [float(row[name]) for row in rows for name in names if (row.get(name) or 0) > 0]
    low, high = (min(values) * 0.9, max(values) * 1.1) if values else (0.1, 1.0)
    for steps in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        ticks = [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    if len(ticks) < 2:
        ticks = [float(f"{value:.2g}") for value in (low / 0.9, math.sqrt(low * high), high / 1.1)]
    return {"scale": alt.Scale(type="log", domain=[low, high], nice=False), "axis": _axis(unit, values=ticks)}


_MOST_TICKS = 7


def _sign(field: str) -> str:
    """An expression that gives the sign of an outcome."""
    expression = "'·'"
    for outcome, sign in SIGNS.items():
        expression = f"{field} === '{outcome}' ? '{sign}' : {expression}"
    return expression


def _category(name: str, title: str | None, rows: Rows) -> alt.Color:
    order = _order(rows, name)
    colours = [CATEGORIES[place % len(CATEGORIES)] for place in range(len(order))]
    scale = alt.Scale(domain=order, range=colours)
    return alt.Color(f"{name}:N", title=title, scale=scale, legend=alt.Legend(symbolType="circle"))


def _facet_tip(facet: str | None) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{facet}:N", title=facet.replace("_", " "))] if facet else []


def _order(rows: Rows, name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _has(rows: Rows, name: str) -> bool:
    return any(row.get(name) is not None for row in rows)


def _height(rows: Rows, label: str) -> int:
    return max(40, 20 * len(_order(rows, label)))


def _finished(
    chart: Any,
    *,
    rows: Rows = (),
    facet: str | None = None,
    columns: int = 4,
    independent_x: bool = False,
    independent_y: bool = False,
) -> Spec:
    """The chart with the look that all charts share, its generated names made the same in every process."""
    if facet:
        header = alt.Header(
            title=None,
            labelFontSize=12,
            labelFontWeight="bold",
            labelLimit=int(chart.width) + 12,
            labelColor=INK,
            labelExpr=_two_lines(int(chart.width)),
        )
        panels = alt.Facet(f"{facet}:N", header=header, sort=_order(rows, facet))
        chart = chart.facet(facet=panels, data=alt.NamedData(name=DATA), columns=columns, spacing=16)
        if independent_x:
            chart = chart.resolve_scale(x="independent")
        if independent_y:
            chart = chart.resolve_scale(y="independent")
    spec: Spec = chart.to_dict(validate=False)
    _place_data(spec, spec.pop("datasets", {}))
    spec = _renumbered(spec)
    label = _longest_label(spec)
    meta: Spec = {"label": label, **({"panels": len(_order(rows, facet))} if facet else {})}
    columns = max(1, min(_MOST_COLUMNS, int(_LEGEND_WIDTH / (label * _LETTER_WIDTH + _SYMBOL_WIDTH))))
    look = {**_LOOK, "legend": {**_LOOK["legend"], "columns": columns}}
    return {**spec, "data": {"name": DATA}, "config": look, "usermeta": meta}


def _two_lines(width: int) -> str:
    """A Vega expression: the title of a panel, on two lines where it is too long for one."""
    fits = int(width / _TITLE_LETTER_WIDTH)
    return f"length(datum.label) > {fits} ? [slice(datum.label, 0, {fits}), slice(datum.label, {fits})] : datum.label"


_TITLE_LETTER_WIDTH = 6.6
"""Pixels of a bold letter of a panel's title."""
_LETTER_WIDTH, _SYMBOL_WIDTH, _LEGEND_WIDTH, _MOST_COLUMNS = 6.2, 34, 460, 8
"""Pixels of a legend's letters and symbols, and of its line. `page.js` has the same rule for the width of the page."""


def _longest_label(part: Any) -> int:
    """The length of the longest name in a legend."""
    if isinstance(part, list):
        return max((_longest_label(each) for each in part), default=1)
    if not isinstance(part, dict):
        return 1
    domain = part.get("scale", {}).get("domain", []) if isinstance(part.get("scale"), dict) else []
    own = max((len(each) for each in domain if isinstance(each, str)), default=1)
    return max(own, *(_longest_label(each) for name, each in part.items() if name != "scale"), 1)


_LOOK: Spec = {
    "aria": False,
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "grid": False,
        "gridColor": "#e5e9ee",
        "labelColor": "#59636e",
        "labelFontSize": 11,
        "labelLimit": 160,
        "tickColor": "#d0d7de",
        "titleColor": "#59636e",
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": "#59636e",
        "labelLimit": 180,
        "orient": "top",
        "titleColor": "#59636e",
        "titleFontWeight": "normal",
    },
}
"""`aria` is off for single marks: a page has thousands of them. Each figure has a text that describes it."""


def _place_data(part: Any, datasets: Mapping[str, Any]) -> None:
    """Put data that belongs to one layer into it, and remove the stand-ins that altair writes for charts without data:
    they would hide the rows."""
    if isinstance(part, list):
        for each in part:
            _place_data(each, datasets)
        return
    data = part.get("data")
    if isinstance(data, dict):
        values = datasets.get(data.get("name", ""), data.get("values"))
        if values and values != [{}]:
            part["data"] = {"values": values}
        else:
            del part["data"]
    for name in ("layer", "spec"):
        if name in part:
            _place_data(part[name], datasets)


def _renumbered(spec: Spec) -> Spec:
    """altair counts views and parameters through a whole process; here they are counted through one chart."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found.group(), f'"{found.group(1)}_{len(names) + 1}"')

    text = re.sub(r'"(view|param)_\d+"', name, json.dumps(spec))
    result: Spec = json.loads(text)
    return result
