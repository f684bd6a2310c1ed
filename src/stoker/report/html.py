"""One self-contained HTML page: charts that work offline, and their rows beside them.

JavaScript is embedded once. Each chart is a Vega-Lite specification and its rows as JSON, with an SVG that is shown
without scripts and in print. Everything that comes from users is escaped, and a content policy refuses the network.
Equal input gives equal bytes.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from stoker.records import Record


class Figure(NamedTuple):
    """A chart. `title` says the finding, `alt` describes the picture, `rows` are what it is drawn from.

    `spec` has no data. A `half` figure stands beside another one where the page is wide.
    """

    title: str
    note: str
    alt: str
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    half: bool = False


class Table(NamedTuple):
    """A small table: the names of its columns, and rows of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Card(Record, frozen=True):
    """An answer at the top of the page: what it is about, the answer, and what to know about it. `code` is to be
    pasted."""

    about: str
    answer: str
    detail: str = ""
    code: bool = False


class Section(NamedTuple):
    """Figures and tables that belong together. `text` may be empty."""

    title: str
    figures: Sequence[Figure] = ()
    text: str = ""
    tables: Sequence[Table] = ()


class Page(NamedTuple):
    """A whole report. `facts` stand at its end: machine, versions, date, counts. With `reload_s` it reloads itself."""

    kind: str
    title: str
    subtitle: str
    cards: Sequence[Card]
    sections: Sequence[Section]
    facts: Mapping[str, str]
    notes: Sequence[str] = ()
    reload_s: int | None = None

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]


_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
"""What the page may do: run its own scripts. Vega compiles expressions, which needs eval."""


def render(page: Page) -> str:
    """The page as HTML."""
    places = {id(figure): number for number, figure in enumerate(page.figures, start=1)}
    sections = "".join(_section(section, places) for section in page.sections)
    refresh = f'<meta http-equiv="refresh" content="{page.reload_s}">' if page.reload_s else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{refresh}<title>{text(page.title)} – Stoker</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"{_header(page)}\n<main>\n{_cards(page.cards)}{_notes(page.notes)}{sections}</main>\n{_facts(page.facts)}\n"
        f"{_scripts() if places else ''}</body>\n</html>\n"
    )


def fragment(page: Page, *, figures: int = 2) -> str:
    """The answer of a page and its first pictures without scripts, for a notebook."""
    pictures = "".join(
        f"<figure style='margin:14px 0 0'><b>{text(each.title)}</b><br>{svg(each, prefix=f'n{number}')}</figure>"
        for number, each in enumerate(page.figures[:figures])
    )
    cards = "".join(
        f"<p style='margin:6px 0'><small>{text(card.about)}</small><br><b>{text(card.answer)}</b><br>"
        f"{text(card.detail)}</p>"
        for card in page.cards
    )
    rows = "".join(
        f"<tr><th style='text-align:left'>{text(name)}</th><td style='text-align:left'>{text(value)}</td></tr>"
        for name, value in page.facts.items()
    )
    style = "background:#fff;color:#1f2328;padding:12px 16px;max-width:960px;overflow-x:auto;font-family:system-ui"
    return (
        f"<div style='{style}'><b>{text(page.title)}</b> <small>{text(page.subtitle)}</small>{cards}{pictures}"
        f"<details><summary>details</summary><table>{rows}</table></details></div>"
    )


def _header(page: Page) -> str:
    button = '<button id="theme" type="button" aria-label="Switch between light and dark">◐</button>'
    title = f"<small>{text(page.kind)}</small><h1>{text(page.title)}</h1><p>{text(page.subtitle)}</p>"
    return f"<header>{button}{title}</header>"


def _cards(cards: Sequence[Card]) -> str:
    if not cards:
        return ""
    each = (
        f'<div class="card{" code" if card.code else ""}"><small>{text(card.about)}</small>'
        f"<strong>{text(card.answer)}</strong><p>{text(card.detail)}</p></div>"
        for card in cards
    )
    return f'<section class="cards">{"".join(each)}</section>\n'


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>\n'


def _section(section: Section, places: Mapping[int, int]) -> str:
    heading = f"<h2>{text(section.title)}</h2>" if section.title else ""
    words = f"<p>{text(section.text)}</p>" if section.text else ""
    figures = "".join(_figure(each, places[id(each)]) for each in section.figures)
    tables = "".join(_table(each) for each in section.tables)
    return f'<section>{heading}{words}<div class="grid">{figures}</div>{tables}</section>\n'


def _table(table: Table) -> str:
    head = "".join(f"<th>{text(each)}</th>" for each in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    caption = f"<caption>{text(table.title)}</caption>" if table.title else ""
    return f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: str) -> str:
    """A cell of a table; a short one, such as `22.9 s`, stays on one line."""
    return f"<td{' class=short' if len(value) <= _SHORT else ''}>{text(value)}</td>"


_SHORT = 10
"""Characters of a cell that is not broken."""


def _figure(figure: Figure, number: int) -> str:
    """A chart with its caption, its SVG, its specification and its rows."""
    name = f"f{number}"
    return (
        f'<figure id="{name}"{" class=half" if figure.half else ""}><figcaption><b>{text(figure.title)}</b>'
        f"<span>{text(figure.note)}</span></figcaption>"
        f'<div class="chart" role="img" aria-label="{text(figure.alt)}">'
        f'<div class="still">{svg(figure, prefix=name)}</div><div class="live" hidden></div></div>'
        '<p class="tools"><button type="button" data-save="csv">rows (CSV)</button>'
        '<button type="button" data-save="svg">picture (SVG)</button></p>'
        f'<script type="application/json" class="spec">{_json(figure.spec)}</script>'
        f'<script type="application/json" class="rows">{_json(_columns(figure.rows))}</script></figure>\n'
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows by column: names once, not in every row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items() if value)
    return f"<footer><dl>{rows}</dl></footer>"


def _scripts() -> str:
    return f"<script>{_bundle()}</script>\n<script>{_asset('page.js')}</script>\n"


@cache
def _bundle() -> str:
    """Vega-Embed and what it needs, as one script that defines `vegaEmbed`."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(script).replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _asset(name: str) -> str:
    return files("stoker.report").joinpath("assets", name).read_text(encoding="utf-8").strip()


_TAG = re.compile(r"<[^>]*>")
_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")


def _rounded(number: re.Match[str]) -> str:
    """A hundredth of a pixel is enough, and half the bytes."""
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


_IDENTIFIER = re.compile(r'(?<= id=")[^"]+(?=")')


def svg(figure: Figure, *, prefix: str = "") -> str:
    """The chart as an SVG picture, drawn without a browser. Names inside begin with `prefix` and count from 1, so that
    several pictures share a page."""
    import vl_convert

    picture = str(vl_convert.vegalite_to_svg(_data_spec(figure)))
    picture = _TAG.sub(lambda tag: _LONG_NUMBER.sub(_rounded, tag.group()), picture)
    for number, name in enumerate(dict.fromkeys(_IDENTIFIER.findall(picture)), start=1):
        picture = picture.replace(f' id="{name}"', f' id="{prefix}-{number}"')
        picture = picture.replace(f"url(#{name})", f"url(#{prefix}-{number})")
    return picture


def png(figure: Figure, *, scale: float = 2.0) -> bytes:
    """The chart as a PNG picture on white."""
    import vl_convert

    spec = _data_spec(figure)
    spec["config"] = {**spec.get("config", {}), "background": "white"}
    return bytes(vl_convert.vegalite_to_png(spec, scale=scale))


def _data_spec(figure: Figure) -> dict[str, Any]:
    return {**figure.spec, "data": {"values": [dict(row) for row in figure.rows]}}


def text(value: object) -> str:
    """Text from anywhere, safe in HTML. Control characters become spaces, and texts that are too long are cut."""
    found = printable(str(value))
    return html.escape(found if len(found) <= _LONGEST else f"{found[:_LONGEST]}…")


def printable(value: str) -> str:
    """The text without control characters, marks that change the direction of writing, and lone surrogates."""
    return "".join(each if each.isprintable() or each == _JOINER else " " for each in value)


_LONGEST = 600
_JOINER = "\u200d"
"""Joins several emoji into one. The only invisible character that stays."""


def _json(value: Any) -> str:
    """JSON that ends no script element and starts no comment."""
    found = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        found = found.replace(character, f"\\u{ord(character):04x}")
    return found
