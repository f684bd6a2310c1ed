"""Charts, as Vega-Lite specifications. `analysis` computes the rows, these functions draw them and nothing else.

Every function takes rows (mappings of plain values) and gives a specification that draws anywhere: in the page, as an
SVG, as a PNG. Colours are safe for the colour-blind; what failed has a sign as well as a colour.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

INK = "#1f2328"
"""The colour of rings and text. The page replaces it by its own in the dark theme."""
CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b3a800", "#7f7f7f", "#332288", "#44aa99")
"""Okabe and Ito's palette, made for the colour-blind, with a readable yellow; two more by Paul Tol."""
SEQUENTIAL = "oranges"
STAGES = {
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
    "update": "#cc79a7",
    "step": "#009e73",
    "score": "#aa4499",
    "stop": "#bbbbbb",
    "other": "#dddddd",
}
"""One colour a stage, the same in every chart."""
SIGNS = {"oom": "M", "crashed": "✕", "timed_out": "…", "failed": "!", "missing": "·"}
"""What stands in a cell without a time: out of memory, crashed, timed out, failed, never run."""

Rows = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]


def heat_map(rows: Rows, *, facet: str | None, colour: str = "regret", columns: int = 4) -> Spec:
    """Batch size over workers, a panel for each value of `facet`: how much slower than the best, which has a ring."""
    data = [{**row, "sign": SIGNS.get(str(row.get("outcome")), "")} for row in rows]
    best = [row for row in data if row.get(colour) is not None and row[colour] <= 0]
    x = alt.X("num_workers:O", title="workers", axis=alt.Axis(labelAngle=0))
    y = alt.Y("batch_size:O", title="batch size", sort="descending")
    tips = [
        *([alt.Tooltip(f"{facet}:N")] if facet else []),
        alt.Tooltip("batch_size:Q", title="batch size"),
        alt.Tooltip("num_workers:Q", title="workers"),
        alt.Tooltip("seconds:Q", format=",.3~f", title="seconds"),
        alt.Tooltip(f"{colour}:Q", format=".1%", title="slower than the best"),
        alt.Tooltip("outcome:N"),
    ]
    scale = alt.Scale(scheme=SEQUENTIAL, domain=[0, 1], clamp=True)
    legend = alt.Legend(title="slower than the best", format=".0%", orient="top", gradientLength=150, gradientThickness=8)
    base = alt.Chart()
    cells = base.mark_rect(cornerRadius=2).encode(x, y, alt.Color(f"{colour}:Q", scale=scale, legend=legend), tooltip=tips)
    signs = base.mark_text(fontSize=12, fontWeight="bold", color=INK).encode(x, y, text="sign:N", tooltip=tips)
    ring = (
        base.transform_filter(f"datum.{colour} !== null && datum.{colour} <= 0")
        .mark_rect(fill=None, stroke=INK, strokeWidth=1.8, cornerRadius=2)
        .encode(x, y, tooltip=tips)
    )
    layers = [cells, signs, *([ring] if best else [])]
    workers = len({row.get("num_workers") for row in data})
    sizes = len({row.get("batch_size") for row in data})
    chart = alt.layer(*layers).properties(width=max(90, 22 * workers), height=max(60, 20 * sizes))
    return _finished(chart, data, facet=facet, columns=columns)


def lines(
    rows: Rows,
    *,
    x: str,
    y: str = "seconds",
    colour: str | None = None,
    facet: str | None = None,
    x_title: str,
    y_title: str,
    columns: int = 3,
    y_format: str = "~s",
    logarithmic: bool = False,
) -> Spec:
    """Lines with points; x is ordinal, because batch sizes and workers are not spaced evenly."""
    tips = [alt.Tooltip(f"{name}:N") for name in dict.fromkeys(each for each in (facet, colour, x) if each)]
    tips.append(alt.Tooltip(f"{y}:Q", format=",.4~g", title=y_title))
    encoding: dict[str, Any] = {
        "x": alt.X(f"{x}:O", title=x_title, axis=alt.Axis(labelAngle=0)),
        "y": alt.Y(
            f"{y}:Q",
            title=y_title,
            axis=alt.Axis(format=y_format, grid=True),
            scale=alt.Scale(type="log") if logarithmic else alt.Scale(zero=True),
        ),
        "tooltip": tips,
    }
    if colour:
        encoding["color"] = alt.Color(
            f"{colour}:N", title=colour.replace("_", " "), scale=alt.Scale(range=list(CATEGORIES)), sort=None,
            legend=alt.Legend(orient="top", columns=6, symbolType="circle"),
        )
    chart = alt.Chart().mark_line(point=alt.OverlayMarkDef(size=34, filled=True), strokeWidth=1.8).encode(**encoding)
    width, height = (210, 140) if facet else (560, 260)
    return _finished(chart.properties(width=width, height=height), rows, facet=facet, columns=columns)


def regret_bars(rows: Rows) -> Spec:
    """Average regret of each setting as a bar, the worst workload as a tick. Rows come sorted."""
    data = [dict(row) for row in rows]
    order = list(dict.fromkeys(str(row["setting"]) for row in data))
    y = alt.Y("setting:N", sort=order, title=None, axis=alt.Axis(labelLimit=240))
    axis = alt.Axis(format=".0%", grid=True)
    tips = [
        alt.Tooltip("setting:N"),
        alt.Tooltip("regret_mean:Q", format=".2%", title="mean regret"),
        alt.Tooltip("regret_worst:Q", format=".2%", title="worst regret"),
        alt.Tooltip("models:Q", title="workloads"),
        alt.Tooltip("missing:Q", title="missing"),
    ]
    base = alt.Chart().encode(y=y, tooltip=tips)
    mean = base.mark_bar(color=CATEGORIES[5], height=10, cornerRadiusEnd=2).encode(
        x=alt.X("regret_mean:Q", title="slower than each workload's best: mean (bar) and worst (tick)", axis=axis)
    )
    worst = base.mark_tick(color=INK, thickness=2, height=13).encode(x="regret_worst:Q")
    chart = alt.layer(mean, worst).properties(width=560, height=max(60, 20 * len(order)))
    return _finished(chart, data)


def count_bars(rows: Rows, *, label: str, value: str, title: str) -> Spec:
    """Horizontal bars of a count."""
    data = [dict(row) for row in rows]
    order = list(dict.fromkeys(str(row[label]) for row in data))
    chart = (
        alt.Chart()
        .mark_bar(color=CATEGORIES[0], height=11, cornerRadiusEnd=2)
        .encode(
            x=alt.X(f"{value}:Q", title=title, axis=alt.Axis(tickMinStep=1, grid=True)),
            y=alt.Y(f"{label}:N", sort=order, title=None, axis=alt.Axis(labelLimit=240)),
            tooltip=[alt.Tooltip(f"{label}:N"), alt.Tooltip(f"{value}:Q", title=title)],
        )
        .properties(width=560, height=max(60, 20 * len(order)))
    )
    return _finished(chart, data)


def stage_bars(
    rows: Rows, *, x: str, x_title: str, facet: str | None = None, normalised: bool = False, columns: int = 3
) -> Spec:
    """Stages stacked: seconds, or shares of the whole."""
    present = [name for name in STAGES if any(row["stage"] == name for row in rows)]
    others = sorted({str(row["stage"]) for row in rows} - set(present))
    order = [*present, *others]
    colours = [STAGES.get(name, "#999999") for name in order]
    data = [{**row, "place": order.index(str(row["stage"]))} for row in rows]
    y = alt.Y(
        "seconds:Q",
        stack="normalize" if normalised else "zero",
        title="share of the time" if normalised else "seconds",
        axis=alt.Axis(format=".0%" if normalised else "~s", grid=True),
    )
    chart = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X(f"{x}:O", title=x_title, axis=alt.Axis(labelAngle=0 if len({row[x] for row in rows}) < 9 else -40)),
            y=y,
            color=alt.Color(
                "stage:N", sort=order, scale=alt.Scale(domain=order, range=colours),
                legend=alt.Legend(orient="top", columns=7, title=None),
            ),
            order=alt.Order("place:Q"),
            tooltip=[
                *([alt.Tooltip(f"{facet}:N")] if facet else []),
                alt.Tooltip(f"{x}:N", title=x_title),
                alt.Tooltip("stage:N"),
                alt.Tooltip("seconds:Q", format=",.4~g"),
            ],
        )
    )
    width, height = (190, 150) if facet else (560, 280)
    return _finished(chart.properties(width=width, height=height), data, facet=facet, columns=columns)


def scatter(rows: Rows, *, x: str, y: str, x_title: str, y_title: str, label: str, interval: bool = False) -> Spec:
    """Predicted against measured, on logarithmic axes, with the line where both agree and intervals where there are."""
    data = [dict(row) for row in rows]
    values = [float(row[name]) for row in data for name in (x, y) if row.get(name)]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    scale = alt.Scale(type="log", domain=[low * 0.9, high * 1.1], nice=False)
    base = alt.Chart()
    agree = alt.Chart(alt.Data(values=[{x: low, y: low}, {x: high, y: high}])).mark_line(
        color="#8c959f", strokeDash=[4, 4], strokeWidth=1
    )
    agree = agree.encode(x=alt.X(f"{x}:Q", scale=scale), y=alt.Y(f"{y}:Q", scale=scale))
    points = base.mark_circle(size=52, opacity=0.8, color=CATEGORIES[0]).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=scale, axis=alt.Axis(grid=True, format="~s")),
        y=alt.Y(f"{y}:Q", title=y_title, scale=scale, axis=alt.Axis(grid=True, format="~s")),
        tooltip=[alt.Tooltip(f"{label}:N"), alt.Tooltip(f"{x}:Q", format=",.4~g"), alt.Tooltip(f"{y}:Q", format=",.4~g")],
    )
    layers: list[alt.Chart] = [agree]
    if interval:
        layers.append(
            base.mark_rule(color=CATEGORIES[0], opacity=0.35).encode(
                x=alt.X("low:Q", scale=scale), x2="high:Q", y=alt.Y(f"{y}:Q", scale=scale)
            )
        )
    return _finished(alt.layer(*layers, points).properties(width=460, height=360), data)


def timeline(rows: Rows) -> Spec:
    """One run: workers as rows with their batches as bars, the loop's waits and steps below. Drag to zoom."""
    data = [dict(row) for row in rows]
    order = list(dict.fromkeys(str(row["lane"]) for row in data))
    kinds = ("load", "start", "wait", "copy", "step", "compute")
    colours = (CATEGORIES[0], "#7f7f7f", CATEGORIES[5], CATEGORIES[1], CATEGORIES[2], CATEGORIES[2])
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    chart = (
        alt.Chart()
        .mark_bar(height={"band": 0.8}, cornerRadius=1, stroke="white", strokeWidth=0.4)
        .encode(
            x=alt.X("begin_s:Q", title="seconds after the start of the run", axis=alt.Axis(grid=True)),
            x2="end_s:Q",
            y=alt.Y("lane:N", sort=order, title=None),
            color=alt.Color(
                "kind:N", scale=alt.Scale(domain=list(kinds), range=list(colours)),
                legend=alt.Legend(orient="top", title=None, values=[each for each in kinds if any(r["kind"] == each for r in data)]),
            ),
            tooltip=[
                alt.Tooltip("lane:N", title="who"),
                alt.Tooltip("kind:N", title="does"),
                alt.Tooltip("batch:Q"),
                alt.Tooltip("begin_s:Q", format=",.4~g", title="from (s)"),
                alt.Tooltip("end_s:Q", format=",.4~g", title="to (s)"),
            ],
        )
        .properties(width=760, height=max(90, 26 * len(order)))
        .add_params(zoom)
    )
    return _finished(chart, data)


def bars_in_order(rows: Rows, *, x: str, y: str, x_title: str, y_title: str, colour: str | None = None) -> Spec:
    """One thin bar a batch, in order: the wait of each batch."""
    data = [dict(row) for row in rows]
    encoding: dict[str, Any] = {
        "x": alt.X(f"{x}:Q", title=x_title),
        "y": alt.Y(f"{y}:Q", title=y_title, axis=alt.Axis(grid=True, format="~s")),
        "tooltip": [alt.Tooltip(f"{x}:Q", title=x_title), alt.Tooltip(f"{y}:Q", format=",.4~g", title=y_title)],
    }
    if colour:
        encoding["color"] = alt.Color(f"{colour}:N", scale=alt.Scale(range=list(CATEGORIES)), legend=alt.Legend(orient="top"))
    width = max(2.0, min(14.0, 700 / max(1, len(data))))
    chart = alt.Chart().mark_bar(color=CATEGORIES[5], width=width * 0.8).encode(**encoding)
    return _finished(chart.properties(width=760, height=200), data)


def readings(rows: Rows, *, columns: int = 2) -> Spec:
    """Gauges over time, a panel each."""
    chart = (
        alt.Chart()
        .mark_area(line={"strokeWidth": 1.6}, opacity=0.25, color=CATEGORIES[0])
        .encode(
            x=alt.X("time_s:Q", title="seconds after the start of the run"),
            y=alt.Y("value:Q", title=None, axis=alt.Axis(grid=True, format="~s")),
            tooltip=[alt.Tooltip("gauge:N"), alt.Tooltip("time_s:Q", format=",.3~g"), alt.Tooltip("value:Q", format=",.4~s")],
        )
        .properties(width=340, height=120)
    )
    return _finished(chart, rows, facet="gauge", columns=columns, independent_y=True)


def memory_line(rows: Rows, tries: Rows, *, budget_bytes: int) -> Spec:
    """Memory over batch size as predicted, with the budget, and the tries that ran and failed."""
    data = [dict(row) for row in rows]
    x = alt.X("batch_size:Q", title="batch size")
    y = alt.Y("bytes:Q", title="device memory", axis=alt.Axis(format="~s", grid=True))
    tips = [alt.Tooltip("batch_size:Q", title="batch size"), alt.Tooltip("bytes:Q", format=",.4~s")]
    line = alt.Chart().mark_line(color=CATEGORIES[0], strokeWidth=1.8).encode(x=x, y=y, tooltip=tips)
    rule = alt.Chart(alt.Data(values=[{"bytes": budget_bytes}])).mark_rule(color=CATEGORIES[5], strokeDash=[5, 4])
    layers: list[Any] = [line, rule.encode(y="bytes:Q", tooltip=[alt.Tooltip("bytes:Q", title="budget", format=",.4~s")])]
    if tries:
        shape = alt.Shape(
            "outcome:N", scale=alt.Scale(domain=["done", "oom", "crashed", "timed_out", "failed"],
                                         range=["circle", "cross", "cross", "triangle", "cross"]),
            legend=alt.Legend(orient="top", title=None),
        )
        points = alt.Chart(alt.Data(values=[dict(each) for each in tries])).mark_point(size=80, filled=True, color=INK)
        layers.append(points.encode(x=x, y=y, shape=shape, tooltip=[*tips, alt.Tooltip("outcome:N")]))
    return _finished(alt.layer(*layers).properties(width=600, height=280), data)


def _finished(
    chart: Any, rows: Rows, *, facet: str | None = None, columns: int = 4, independent_y: bool = False
) -> Spec:
    """The chart with its rows and the look that all charts share."""
    if facet:
        header = alt.Header(title=None, labelFontSize=12, labelFontWeight="bold", labelLimit=220)
        panels = alt.Facet(f"{facet}:N", header=header, sort=None)
        chart = chart.facet(facet=panels, data=alt.Data(values=[]), columns=columns, spacing=16)
        if independent_y:
            chart = chart.resolve_scale(y="independent")
    chart = chart.configure(font="system-ui, sans-serif", background="transparent")
    chart = chart.configure_view(stroke=None)
    chart = chart.configure_axis(
        domain=False, grid=False, gridColor="#e5e9ee", labelFontSize=11, titleFontSize=11, titleFontWeight="normal",
        labelColor="#59636e", titleColor="#59636e", tickColor="#d0d7de",
    )
    chart = chart.configure_legend(labelColor="#59636e", titleColor="#59636e", titleFontWeight="normal", labelLimit=200)
    spec: Spec = chart.to_dict(validate=False)
    spec.pop("datasets", None)
    spec["data"] = {"values": [dict(row) for row in rows]}
    return spec
