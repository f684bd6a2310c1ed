"""How large are reports, and how long do they take? And the reports that the docs show.

python benchmarks/reports.py [--docs]

`--docs` draws docs/reports again: the published grid as a page and as a picture, the timeline of a single run, and the
top of the page of each small preset whose trials `study_presets.py` wrote.
"""

import argparse
import gzip
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import polars as pl
from common import RESULTS, arguments, say, write

from stoker.analysis import published
from stoker.integrations.reports import published_beside
from stoker.records import Trial
from stoker.report.html import Page, png, render
from stoker.report.pages import study_page, trial_page
from stoker.report.pages.study import StudyAbout
from stoker.studies.presets import read_preset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "reports"
WORKERS = (1, 2, 4, 8, 12, 16, 24)
SIZES = (16, 32, 64, 128, 256, 512, 1024)
CASES = {"published grid": 0, "1,000 trials": 1029, "10,000 trials": 9800}


def made_up(models: int, kinds: int) -> pl.DataFrame:
    """Trials as a study would have them, every figure included: times of a loader and a device that overlap."""
    chance = random.Random(0)
    rows: list[dict[str, Any]] = []
    for model in range(models):
        for kind in range(kinds):
            for size in SIZES:
                for workers in WORKERS:
                    step_s = 9.2 * (1 + model) * (1 + 8 / size)
                    seconds = max(step_s, 37 * (1 + kind) / min(workers, 16)) * chance.uniform(0.97, 1.05)
                    failed = size == max(SIZES) and model % 5 == 4
                    figures = {
                        "seconds": seconds,
                        "first_batch_s": 0.05 * workers + 0.004 * size,
                        "wait_s": seconds * 0.4,
                        "forward_s": seconds * 0.5,
                        "decode_s": seconds * 3,
                        "transform_s": seconds * 2,
                        "gpu_utilisation_mean": 0.5,
                        "rss_bytes_max": 1e9 * (1 + workers),
                    }
                    rows.append(
                        {
                            "workload": f"model_{model:02}",
                            "data": f"data_{kind}",
                            "items": 9216,
                            "batch_size": size,
                            "num_workers": workers,
                            "outcome": "oom" if failed else "done",
                            "predicted_s": seconds * chance.uniform(0.9, 1.1),
                            "problem": "CUDA out of memory" if failed else None,
                            **(dict.fromkeys(figures) if failed else figures),
                        }
                    )
    return pl.DataFrame(rows, infer_schema_length=None)


def measure(name: str) -> dict[str, Any]:
    """One page, in a process of its own: imports, reading nothing, and the JavaScript are part of it."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import reports; reports.once({name!r})"
    before = os.times()
    began = perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wall_s, after = perf_counter() - began, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    row: dict[str, Any] = msgspec.json.decode(done.stdout)
    return {**row, "wall_s": wall_s, "cpu_s": cpu_s}


def once(name: str) -> None:
    """Make the page of a case and say what came out."""
    frame = (
        published.grid()
        if not CASES[name]
        else made_up(21 if CASES[name] < 2000 else 40, 1 if CASES[name] < 2000 else 5)
    )
    page = study_page(frame, StudyAbout(name=name))
    size = len(render(page).encode())
    sys.stdout.write(
        msgspec.json.encode({"name": name, "trials": frame.height, "charts": len(page.figures), "bytes": size}).decode()
    )


def draw() -> None:
    """The files of docs/reports."""
    DOCS.mkdir(parents=True, exist_ok=True)
    about = StudyAbout(
        name="batch-and-workers",
        title="Batch size and workers together, for twelve models",
        source=published.SOURCE,
        machines={published.MACHINE: published.MACHINE},
    )
    page = study_page(published.grid(), about)
    (DOCS / "batch-and-workers.html").write_text(render(page), encoding="utf-8")
    photograph(DOCS / "batch-and-workers.html", DOCS / "batch-and-workers.png")
    answers = ROOT / "tests" / "answers" / "trials.jsonl.gz"
    trials = [msgspec.json.decode(line, type=Trial) for line in gzip.decompress(answers.read_bytes()).splitlines()]
    picture(trial_page(next(trial for trial in trials if trial.setting.num_workers > 1)), "Timeline", "timeline")
    for trials_of in sorted((RESULTS / "two-cores" / "studies").glob("*.csv")):
        with tempfile.TemporaryDirectory(prefix="stoker-") as place:
            path = Path(place) / "page.html"
            path.write_text(render(small(trials_of)), encoding="utf-8")
            photograph(path, DOCS / f"{trials_of.stem}-small.png")


def small(trials_of: Path) -> Page:
    """The page of a small preset, as `stoker report` makes it from a store with these trials."""
    grid = read_preset(trials_of.stem, "small")
    frame = pl.read_csv(trials_of, infer_schema_length=None)
    about = StudyAbout(name=grid.name, title=grid.title, kind=grid.kind, about=grid.about)
    return study_page(frame, about, against=published_beside(grid.name, frame))


def picture(page: Page, kind: str, name: str) -> None:
    """The first chart of a kind as a small PNG."""
    found = next(figure for figure in page.figures if figure.alt.startswith(kind))
    (DOCS / f"{name}.png").write_bytes(png(found, scale=1.5))


def photograph(page: Path, target: Path) -> None:
    """The top of a page as a browser shows it; nothing where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        say("no chromium: the picture of the page stays as it is")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1220, "height": 1000}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("#f1[data-drawn=yes]")
        tab.screenshot(path=target)
        browser.close()


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--docs", action="store_true", help="only draw docs/reports")
    options = parser.parse_args()
    if options.docs:
        draw()
        return
    rows = [measure(name) for name in CASES]
    for row in rows:
        say(f"{row['name']}: {row['bytes'] / 1e6:.1f} MB, {row['charts']} charts, {row['cpu_s']:.1f} s of CPU")
    write(options.output, "reports", rows)


if __name__ == "__main__":
    main()
