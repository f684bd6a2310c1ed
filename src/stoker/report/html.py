"""One self-contained HTML page: charts that work offline, and their rows beside them.

JavaScript is embedded once. Each chart is a Vega-Lite specification as JSON, with an SVG that is shown without scripts
and in print. Everything that comes from users is escaped. Equal input gives equal bytes.
"""

import html
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from stoker.records import Record

MOST_ROWS = 20_000
"""Rows of one chart that are offered for download; more make the page slow to open."""


class Figure(NamedTuple):
    """A chart. `title` says the finding, `alt` describes the picture, `rows` are what it was drawn from."""

    title: str
    note: str
    alt: str
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]


class Card(Record, frozen=True):
    """An answer at the top of the page: what it is about, the answer, and what to know about it."""

    about: str
    answer: str
    detail: str = ""


class Section(NamedTuple):
    """Figures that belong together. `text` may be empty."""

    title: str
    figures: Sequence[Figure]
    text: str = ""


class Page(NamedTuple):
    """A whole report."""

    kind: str
    title: str
    subtitle: str
    cards: Sequence[Card]
    sections: Sequence[Section]
    facts: Mapping[str, str]
    notes: Sequence[str] = ()
    reload_s: int | None = None


def render(page: Page) -> str:
    """The page as HTML."""
    figures = [figure for section in page.sections for figure in section.figures]
    places = {id(figure): number for number, figure in enumerate(figures, start=1)}
    sections = "".join(_section(section, places) for section in page.sections)
    refresh = f'<meta http-equiv="refresh" content="{page.reload_s}">' if page.reload_s else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{refresh}<title>{_text(page.title)} – Stoker</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"{_header(page)}\n<main>\n{_cards(page.cards)}{_notes(page.notes)}{sections}</main>\n{_facts(page.facts)}\n"
        f"{_scripts() if figures else ''}</body>\n</html>\n"
    )


def _header(page: Page) -> str:
    button = '<button id="theme" type="button" aria-label="Switch between light and dark">◐</button>'
    return (
        f"<header>{button}<small>{_text(page.kind)}</small><h1>{_text(page.title)}</h1>"
        f"<p>{_text(page.subtitle)}</p></header>"
    )


def _cards(cards: Sequence[Card]) -> str:
    if not cards:
        return ""
    each = (
        f'<div class="card"><small>{_text(card.about)}</small><strong>{_text(card.answer)}</strong>'
        f"<p>{_text(card.detail)}</p></div>"
        for card in cards
    )
    return f'<section class="cards">{"".join(each)}</section>\n'


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{_text(note)}</li>" for note in notes)}</ul>\n'


def _section(section: Section, places: Mapping[int, int]) -> str:
    heading = f"<h2>{_text(section.title)}</h2>" if section.title else ""
    text = f"<p>{_text(section.text)}</p>" if section.text else ""
    return f"<section>{heading}{text}{''.join(_figure(each, places[id(each)]) for each in section.figures)}</section>\n"


def _figure(figure: Figure, number: int) -> str:
    """A chart with its caption, its SVG, its specification and its rows."""
    rows = list(figure.rows)[:MOST_ROWS]
    cut = f" (the first {MOST_ROWS:,} of {len(figure.rows):,})" if len(figure.rows) > MOST_ROWS else ""
    return (
        f'<figure id="f{number}"><figcaption><b>{_text(figure.title)}</b><span>{_text(figure.note)}</span></figcaption>'
        f'<div class="chart" role="img" aria-label="{_text(figure.alt)}"><div class="still">{svg(figure.spec)}</div>'
        '<div class="live" hidden></div></div>'
        f'<p class="tools"><button type="button" data-save="csv">rows{cut}</button>'
        '<button type="button" data-save="svg">picture</button></p>'
        f'<script type="application/json" class="spec">{_json(figure.spec)}</script>'
        f'<script type="application/json" class="rows">{_json(rows)}</script></figure>'
    )


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    return f"<footer><dl>{rows}</dl></footer>"


def _scripts() -> str:
    return f"<script>{_bundle()}</script>\n<script>{_asset('page.js')}</script>\n"


@cache
def _bundle() -> str:
    """Vega-Embed and what it needs, as one script that defines `vegaEmbed`."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(script).replace("</script", "<\\/script")


@cache
def _asset(name: str) -> str:
    return files("stoker.report").joinpath("assets", name).read_text(encoding="utf-8").strip()


def svg(spec: Mapping[str, Any]) -> str:
    """The chart as an SVG picture, drawn without a browser."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(json.dumps(spec)))


def png(spec: Mapping[str, Any], *, scale: float = 2.0) -> bytes:
    """The chart as a PNG picture."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(json.dumps(spec), scale=scale))


def _text(value: object) -> str:
    """Text from anywhere, safe in HTML. Control characters and overlong texts are cut: they are names, not prose."""
    text = "".join(each if each.isprintable() else " " for each in str(value))
    return html.escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


_LONGEST = 600


def _json(value: Any) -> str:
    """JSON that ends no script element and starts no comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


Draw = Callable[..., Mapping[str, Any]]
