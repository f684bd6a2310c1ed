"""The page: one file, escaped, the same bytes for the same input."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stoker.errors import InputError, MachineError
from stoker.report.files import write_page, write_pictures
from stoker.report.html import Card, Figure, Page, fragment, render, svg, text
from tests.report.samples import HOSTILE, all_pages, grid_page, hostile_page, hostile_ranking


class Elements(HTMLParser):
    """Counts elements and collects what could load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.loads += [str(value) for name, value in attrs if name in ("src", "href") and value]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_a_page_is_one_file_that_loads_nothing() -> None:
    page = render(grid_page())
    found = Elements(page)
    assert [each for each in found.loads if not each.startswith("#")] == []
    assert found.count["figure"] == len(grid_page().figures)
    assert "default-src 'none'" in page
    assert "refresh" not in page[:2000]


@pytest.mark.parametrize("page", [hostile_page, hostile_ranking])
def test_hostile_names_make_no_elements(page: Callable[[], Page]) -> None:
    clean, hostile = Elements(render(grid_page())), Elements(render(page()))
    assert "img" not in hostile.count
    assert hostile.handlers == []
    figures = hostile.count["figure"]
    assert hostile.count["script"] == 2 * figures + 2
    tables = {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    # Some versions of vl-convert draw the lines of a long title as tspan elements.
    assert set(hostile.count) <= set(clean.count) | tables | {"li", "ul", "tspan"}


@pytest.mark.parametrize("name", HOSTILE)
def test_text_is_escaped_short_and_printable(name: str) -> None:
    found = text(name)
    assert not set("<>\"'") & set(found)
    assert len(found) < 1200
    found.encode()


def test_equal_input_gives_equal_bytes_in_another_process() -> None:
    code = (
        "import hashlib, sys; from stoker.report.html import render; from tests.report.samples import all_pages;"
        "print([hashlib.sha256(render(all_pages()[name]).encode()).hexdigest() for name in sys.argv[1:]][-1])"
    )
    root = Path(__file__).parents[2]
    found = {
        subprocess.run(
            [sys.executable, "-c", code, *names], capture_output=True, text=True, check=True, cwd=root
        ).stdout
        for names in (["plan"], ["limit", "trial", "plan"])
    }
    assert len(found) == 1


def test_rows_in_the_page_are_those_of_the_figure() -> None:
    page = render(grid_page())
    found = re.findall(r'class="rows">(.*?)</script>', page)
    columns = json.loads(found[0])
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert rows == [dict(row) for row in grid_page().figures[0].rows]


def test_pictures_in_one_page_share_no_identifiers() -> None:
    page = render(all_pages()["trial"])
    found = re.findall(r' id="([^"]+)"', page)
    assert len(found) == len(set(found))
    used = set(re.findall(r"url\(#([^)]+)\)", page.partition("<script>")[0]))
    assert used <= set(found)


def test_numbers_that_json_lacks_are_refused_not_written() -> None:
    figure = grid_page().figures[2]
    broken = Figure("t", "", "a", figure.spec, [{"x": float("nan")}])
    with pytest.raises(ValueError, match="JSON"):
        render(Page("k", "t", "", (), [grid_page().sections[0]._replace(figures=[broken])], {}))


def test_a_page_for_every_kind_has_its_answer_before_its_charts() -> None:
    for page in all_pages().values():
        found = render(page)
        assert found.index(text(page.cards[0].answer)) < found.index("<figure")


def test_a_notebook_gets_no_scripts() -> None:
    found = fragment(hostile_page())
    assert "<script" not in found
    assert "<svg" in found


def test_a_page_without_charts_has_no_javascript() -> None:
    page = render(Page("k", "t", "", [Card(about="a", answer="b")], (), {}))
    assert "<script" not in page


def test_pictures_are_written_as_svg_and_png(tmp_path: Path) -> None:
    page = all_pages()["limit"]
    vectors = write_pictures(page, tmp_path / "a" / "svg", "svg")
    images = write_pictures(page, tmp_path / "png", "png")
    assert len(vectors) == len(images) == len(page.figures)
    assert vectors[0].read_text().startswith("<svg")
    assert images[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="svg or png"):
        write_pictures(page, tmp_path, "pdf")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot make the folder"):
        write_pictures(all_pages()["limit"], tmp_path / "file" / "x", "svg")


def test_a_written_page_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_page(all_pages()["limit"], path)
    assert path.read_text().rstrip().endswith("</html>")


def test_svg_pictures_have_the_rows() -> None:
    figure = grid_page().figures[2]
    assert svg(figure).count("<path") >= 2 * len(figure.rows)
