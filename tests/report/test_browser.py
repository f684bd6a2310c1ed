"""Reports in a real browser, Debian's chromium: `make browser` installs it. Skipped where there is none."""

import csv
import io
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.report.html import render
from tests.report.samples import all_pages, grid_page, hostile_page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run: make browser")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; run: make browser")

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-background-networking"]
WIDE, NARROW = 1400, 390


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        found = engine.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    pages = {**all_pages(), "hostile": hostile_page()}
    found = {}
    for name, page in pages.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(render(page), encoding="utf-8")
    return found


class Tab:
    """A page that was opened without a network. `problems` are console errors, exceptions and attempts to connect."""

    def __init__(self, browser: Any, path: Path, *, width: int = WIDE, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **options)
        self.context.set_offline(True)
        self.problems: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", lambda each: self._heard(each))
        self.page.on("pageerror", lambda each: self.problems.append(str(each)))
        self.page.on("dialog", lambda each: self.problems.append(each.message))
        self.page.on("request", lambda each: self._asked(each.url))
        self.page.goto(path.as_uri())

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(url)

    def draw(self) -> None:
        """Scroll to every chart and wait until it is drawn."""
        for number in range(1, self.page.locator("figure").count() + 1):
            self.page.locator(f"#f{number}").scroll_into_view_if_needed()
            self.page.wait_for_selector(f"#f{number}[data-drawn]")

    def cells(self, figure: str, layer: int = 0) -> Any:
        """The marks of one layer of a chart with panels."""
        return self.page.locator(f"{figure} .live [class*='layer_{layer}_marks'] path")


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def tab(name: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, files[name], **options))
        return tabs[-1]

    yield tab
    for each in tabs:
        each.context.close()


@pytest.mark.parametrize("name", [*all_pages(), "hostile"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_chart_is_drawn_within_the_page(opened: Callable[..., Tab], name: str, width: int) -> None:
    tab = opened(name, width=width)
    tab.draw()
    assert tab.page.locator("figure[data-drawn=yes]").count() == tab.page.locator("figure").count() > 0
    assert tab.problems == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.page.evaluate("document.fonts.status") == "loaded"


def test_charts_below_the_fold_wait_until_they_are_seen(opened: Callable[..., Tab]) -> None:
    tab = opened("grid")
    tab.page.wait_for_selector("#f1[data-drawn=yes]")
    last = len(grid_page().figures)
    assert tab.page.locator(f"#f{last}[data-drawn]").count() == 0
    tab.page.locator(f"#f{last}").scroll_into_view_if_needed()
    tab.page.wait_for_selector(f"#f{last}[data-drawn=yes]")


def test_marks_are_as_many_as_rows(opened: Callable[..., Tab]) -> None:
    tab = opened("grid")
    tab.draw()
    for number, figure in enumerate(grid_page().figures[:2], start=1):
        assert tab.cells(f"#f{number}").count() == len(figure.rows)
        assert tab.cells(f"#f{number}", 1).count() == len({row["workload"] for row in figure.rows})
    for number, figure in enumerate(grid_page().figures, start=1):
        if figure.alt.startswith("Bars of average regret"):
            assert tab.page.locator(f"#f{number} .live .mark-rect.role-mark path").count() == 2 * len(figure.rows)


def test_a_tooltip_has_the_numbers_of_its_cell(opened: Callable[..., Tab]) -> None:
    tab = opened("grid")
    tab.page.wait_for_selector("#f1[data-drawn=yes]")
    cell = tab.cells("#f1").nth(100)
    datum = cell.evaluate(
        "each => { const {batch_size, num_workers, workload} = each.__data__.datum; "
        "return {batch_size, num_workers, workload}; }"
    )
    row = next(row for row in grid_page().figures[0].rows if datum.items() <= row.items())
    cell.hover(force=True)
    tab.page.wait_for_selector("#vg-tooltip-element.visible")
    cells = tab.page.locator("#vg-tooltip-element td").all_inner_texts()
    shown = dict(zip(cells[::2], cells[1::2], strict=True))
    found = {name.rstrip(":"): value for name, value in shown.items()}
    assert (found["workload"], found["batch size"], found["workers"]) == (
        row["workload"],
        str(row["batch_size"]),
        str(row["num_workers"]),
    )
    assert float(found["seconds"].replace(",", "")) == pytest.approx(row["seconds"], rel=1e-3)
    assert found["slower than the best"] == f"{row['regret']:.1%}"


def brightness(colour: str) -> float:
    red, green, blue = (int(each) for each in re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 3


def test_the_theme_can_be_switched_and_charts_follow(opened: Callable[..., Tab]) -> None:
    tab = opened("grid", color_scheme="light")
    tab.page.wait_for_selector("#f1[data-drawn=yes]")

    def seen() -> tuple[float, float]:
        page = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        label = "getComputedStyle(document.querySelector('#f1 .live .role-axis-label text')).fill"
        return brightness(page), brightness(tab.page.evaluate(label))

    light_page, light_label = seen()
    tab.page.click("#theme")
    tab.page.wait_for_function(
        "before => getComputedStyle(document.querySelector('#f1 .live .role-axis-label text')).fill !== before",
        arg="rgb(89, 99, 110)",
    )
    dark_page, dark_label = seen()
    assert light_page > 200 > light_label
    assert dark_page < 60 < dark_label
    assert tab.problems == []


def test_numbers_fit_their_cells(opened: Callable[..., Tab]) -> None:
    for width in (WIDE, NARROW):
        tab = opened("loader", width=width)
        tab.page.wait_for_selector("#f1[data-drawn=yes]")
        texts = tab.page.locator("#f1 .live [class*='layer_1_marks'] text")
        cell = tab.cells("#f1").first.bounding_box()["width"]
        assert texts.count() in (0, 70)
        assert all(texts.nth(number).bounding_box()["width"] <= cell + 2 for number in range(0, texts.count(), 7))
    assert tab.problems == []


def test_a_dark_system_has_a_dark_page(opened: Callable[..., Tab]) -> None:
    tab = opened("grid", color_scheme="dark")
    assert brightness(tab.page.evaluate("getComputedStyle(document.body).backgroundColor")) < 60


@pytest.mark.parametrize(("name", "number"), [("grid", 1), ("grid", 3), ("trial", 2)])
def test_the_csv_has_the_rows(opened: Callable[..., Tab], name: str, number: int) -> None:
    tab = opened(name)
    with tab.page.expect_download() as waiting:
        tab.page.click(f"#f{number} [data-save=csv]")
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    rows = all_pages()[name].figures[number - 1].rows
    read = list(csv.DictReader(io.StringIO(text)))
    assert len(read) == len(rows)
    for found, row in zip(read, rows, strict=True):
        assert found.keys() == row.keys()
        for column, value in row.items():
            if isinstance(value, float):
                assert math.isclose(float(found[column]), value, rel_tol=1e-12)
            else:
                assert found[column] == ("" if value is None else str(value))


def test_a_csv_has_no_formulas_of_others(opened: Callable[..., Tab]) -> None:
    tab = opened("hostile")
    with tab.page.expect_download() as waiting:
        tab.page.click("#f1 [data-save=csv]")
    read = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert len(read) == len(hostile_page().figures[0].rows)
    names = {row["workload"] for row in read}
    assert any(name.startswith("'=cmd") for name in names)
    assert not any(name.startswith("=") for name in names)


def test_the_svg_is_a_picture_of_its_own(opened: Callable[..., Tab], browser: Any, tmp_path: Path) -> None:
    tab = opened("hostile")
    with tab.page.expect_download() as waiting:
        tab.page.click("#f1 [data-save=svg]")
    picture = tmp_path / "picture.svg"
    picture.write_bytes(Path(waiting.value.path()).read_bytes())
    alone = Tab(browser, picture)
    assert alone.page.evaluate("document.documentElement.tagName") == "svg"
    assert alone.page.evaluate("window.hit") is None
    assert alone.problems == []
    alone.context.close()


def test_hostile_names_do_no_harm(opened: Callable[..., Tab]) -> None:
    tab = opened("hostile")
    tab.draw()
    tab.cells("#f1").first.hover(force=True)
    tab.page.wait_for_selector("#vg-tooltip-element.visible")
    assert tab.page.evaluate("window.hit") is None
    assert tab.page.locator("img").count() == 0
    assert "<script>window.hit = 1</script>" in tab.page.locator("h1").inner_text()
    assert tab.problems == []


def test_without_scripts_there_are_pictures(opened: Callable[..., Tab]) -> None:
    tab = opened("grid", java_script_enabled=False)
    stills = tab.page.locator(".still svg")
    assert stills.count() == len(grid_page().figures)
    assert all(stills.nth(number).bounding_box()["height"] > 50 for number in range(stills.count()))


def test_print_has_every_chart(opened: Callable[..., Tab]) -> None:
    tab = opened("grid", color_scheme="dark")
    tab.page.wait_for_selector("#f1[data-drawn=yes]")
    tab.page.emulate_media(media="print")
    stills = tab.page.locator(".still svg")
    assert stills.count() == len(grid_page().figures)
    assert all(stills.nth(number).is_visible() for number in range(stills.count()))
    assert not any(each.is_visible() for each in tab.page.locator(".live").all())
    assert brightness(tab.page.evaluate("getComputedStyle(document.body).backgroundColor")) > 200
    whole = tab.page.pdf(format="A4")
    tab.page.evaluate("document.querySelectorAll('.still').forEach(each => each.remove())")
    without = tab.page.pdf(format="A4")
    assert whole.startswith(b"%PDF")
    assert len(whole) > 1.5 * len(without)
    assert whole.count(b"/Type /Page\n") > without.count(b"/Type /Page\n")


def test_wide_charts_become_narrow_when_the_window_does(opened: Callable[..., Tab]) -> None:
    tab = opened("trial")
    tab.draw()
    tab.page.set_viewport_size({"width": NARROW, "height": 900})
    tab.page.wait_for_function(
        "[...document.querySelectorAll('figure')].every(each => Number(each.dataset.width) === each.clientWidth)"
    )
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= NARROW
