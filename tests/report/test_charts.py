"""Specifications: every field that a chart reads is in its rows, signs are there, names are always the same."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from stoker.report import charts
from stoker.report.html import Figure, svg
from tests.report.samples import all_pages

GENERATED = {"_begin", "_end", "_time", "_zero", "place", "sign"}


def fields(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "field" and isinstance(value, str):
                yield value
            else:
                yield from fields(value)
    elif isinstance(part, list):
        for each in part:
            yield from fields(each)


def marks(spec: dict[str, Any]) -> list[str]:
    own = [spec["mark"]["type"]] if "mark" in spec else []
    return own + [
        mark for each in (*spec.get("layer", ()), *([spec["spec"]] if "spec" in spec else [])) for mark in marks(each)
    ]


FIGURES = [
    pytest.param(figure, id=f"{name}-{number}")
    for name, page in all_pages().items()
    for number, figure in enumerate(page.figures, start=1)
]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_chart_reads_only_what_its_rows_have(figure: Figure) -> None:
    columns = {name for row in figure.rows for name in row}
    assert set(fields(figure.spec)) <= columns | GENERATED
    assert figure.spec["data"] == {"name": charts.DATA}


@pytest.mark.parametrize("figure", FIGURES)
def test_axes_have_titles_and_marks_have_tooltips(figure: Figure) -> None:
    def encodings(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "encoding" in part:
            yield part["encoding"]
        for each in (*part.get("layer", ()), *([part["spec"]] if "spec" in part else [])):
            yield from encodings(each)

    found = list(encodings(dict(figure.spec)))
    assert any("tooltip" in each for each in found)
    titled = [each["x"].get("title") for each in found if "title" in each.get("x", {})]
    assert titled
    assert all(titled)


@pytest.mark.parametrize("figure", FIGURES)
def test_charts_have_rows_a_text_and_a_finding(figure: Figure) -> None:
    assert figure.rows
    assert len(figure.title) > 10
    assert figure.title in figure.alt


CELLS: list[dict[str, Any]] = [
    {"batch_size": 8, "num_workers": 1, "seconds": 2.0, "regret": 1.0, "outcome": "done"},
    {"batch_size": 8, "num_workers": 2, "seconds": 1.0, "regret": 0.0, "outcome": "done"},
    {"batch_size": 16, "num_workers": 1, "seconds": None, "regret": None, "outcome": "oom"},
    {"batch_size": 16, "num_workers": 2, "seconds": None, "regret": None, "outcome": "missing"},
]


def test_a_heat_map_has_signs_for_what_failed_and_a_ring_for_the_best() -> None:
    spec = charts.heat_map(CELLS)
    assert marks(spec) == ["rect", "rect", "text", "text", "rect"]
    picture = svg(Figure("t", "", "a", spec, CELLS))
    assert ">M<" in picture
    assert ">·<" in picture
    assert picture.count(charts.RING) == 1
    assert charts.sign_text(CELLS) == "M out of memory. · not run."


def test_without_failures_there_are_no_signs() -> None:
    assert marks(charts.heat_map(CELLS[:2])) == ["rect", "text", "rect"]


def test_names_do_not_depend_on_what_was_drawn_before() -> None:
    first = [charts.heat_map(CELLS), charts.lines(CELLS[:2], x="num_workers", x_title="workers", y_title="time")]
    for _ in range(3):
        charts.timeline([{"lane": "loop", "does": "wait", "batch": 0, "begin_s": 0.0, "end_s": 1.0, "turn": 0}])
    again = [charts.heat_map(CELLS), charts.lines(CELLS[:2], x="num_workers", x_title="workers", y_title="time")]
    assert json.dumps(first) == json.dumps(again)


def test_layers_without_rows_of_their_own_draw_those_of_the_chart() -> None:
    rows = [{"setting": f"s{n}", "a": 1.0 + n, "b": 2.0 + n} for n in range(4)]
    spec = charts.scatter(rows, x="a", y="b", x_title="a", y_title="b", label="setting")
    line, points = spec["layer"]
    assert len(line["data"]["values"]) == 2
    assert "data" not in points
    assert svg(Figure("t", "", "a", spec, rows)).count("#0072b2") == len(rows)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.5, 0.9), (3e-6, 4.0), (7, 7.2)])
def test_logarithmic_axes_have_a_few_ticks_within_the_values(low: float, high: float) -> None:
    rows = [{"x": 1, "y": low}, {"x": 2, "y": high}]
    spec = charts.lines(rows, x="x", y="y", x_title="x", y_title="y", logarithmic=True)
    ticks = spec["encoding"]["y"]["axis"]["values"]
    begin, end = spec["encoding"]["y"]["scale"]["domain"]
    assert 2 <= len(ticks) <= 8
    assert all(begin <= tick <= end for tick in ticks)


def test_bars_in_order_stand_on_the_axis() -> None:
    rows = [{"batch": 0, "wait_s": 1.0}, {"batch": 1, "wait_s": 0.5}]
    spec = charts.bars_in_order(rows, x="batch", y="wait_s", x_title="batch", y_title="wait")
    heights = [float(each) for each in re.findall(r"v(\d+(?:\.\d+)?)h-", svg(Figure("t", "", "a", spec, rows)))]
    assert len(heights) >= 2
    assert heights[-2] == pytest.approx(2 * heights[-1], rel=0.01)


def colours_of(theme: str) -> list[str]:
    """The colours of categories; the dark page replaces some of them."""
    script = (files("stoker.report") / "assets" / "page.js").read_text(encoding="utf-8")
    listed = script.partition("BRIGHTER = {")[2].partition("}")[0]
    brighter = dict(re.findall(r'"(#\w+)": "(#\w+)"', listed))
    assert len(brighter) == 6
    return [brighter.get(each, each) if theme == "dark" else each for each in charts.CATEGORIES]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_categories_look_alike(theme: str) -> None:
    parts = [[int(each[at : at + 2], 16) for at in (1, 3, 5)] for each in colours_of(theme)]
    assert min(math.dist(one, other) for one, other in itertools.combinations(parts, 2)) > 45


def test_short_times_have_a_unit_in_their_cells() -> None:
    def texts(seconds: float) -> list[str]:
        rows = [{"batch_size": 8, "num_workers": 0, "seconds": seconds, "regret": 0.0, "outcome": "done"}]
        return re.findall(r">([^<]+)</text>", svg(Figure("", "", "", charts.heat_map(rows), rows)))

    assert "2.03ms" in texts(0.00203)
    assert "1.25" in texts(1.25)
