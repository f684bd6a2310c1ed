"""`stoker report`, `--report` of other commands, and what a notebook shows."""

import json
from pathlib import Path

import msgspec
import pytest

import stoker
from stoker.integrations.reports import LiveReport, LiveRules
from stoker.records import encode
from stoker.records.documents import labelled
from stoker.studies.driver import Progress
from stoker.studies.study import study
from tests.commands import here
from tests.report.samples import SAVED, a_limit, a_plan, a_trial, probes

GRID = """
name = "tiny"
[fixed]
mode = "infer"
data = "tensors"
items = 64
device = "sleep:1ms"
workload = "resnet18"
[axes]
batch_size = [8, 16]
num_workers = [0, 1]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one small study that really ran, and the published grid."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "grid.toml").write_text(GRID)
    page = folder / "live.html"
    db = folder / "s.db"
    done = here("study", "run", str(folder / "grid.toml"), "--db", str(db), "-q", "--report", str(page))
    assert done.returncode == 0, done.stderr
    assert here("study", "import", "--published", "batch-and-workers", "--db", str(db)).returncode == 0
    return db


def test_a_study_that_ran_has_a_page_at_its_end(store: Path) -> None:
    page = (store.parent / "live.html").read_text()
    assert "4 done" in page
    assert 'http-equiv="refresh"' not in page
    assert "Single runs" in page
    assert "Timeline of workers and loop" in page


def test_a_study_by_name(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = here("report", "published-batch-and-workers", "--db", str(store), "-o", str(out), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"file": str(out), "charts": 17, "pictures": []}
    assert "Twelve workloads have nine different best settings on jpeg" in out.read_text()


def test_a_study_beside_another(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = here("report", "tiny", "--db", str(store), "-o", str(out), "--against", "published")
    assert done.returncode == 0, done.stderr
    assert "Beside the published batch-and-workers" in out.read_text()
    done = here("report", "tiny", "--db", str(store), "-o", str(out), "--against", "tiny")
    assert "take 1 times as long here, at the median" in out.read_text()


def test_an_exported_study(store: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "trials.json", tmp_path / "r.html"
    assert here("study", "export", "tiny", "--db", str(store), "-o", str(path), "--samples").returncode == 0
    done = here("report", str(path), "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "<h1>tiny</h1>" in out.read_text()


def test_saved_results_and_pictures(tmp_path: Path) -> None:
    saved = tmp_path / "limit.json"
    saved.write_bytes(encode(labelled(a_limit(), msgspec.to_builtins(a_limit()))))
    out = tmp_path / "r.html"
    done = here("report", str(saved), "-o", str(out), "--png", str(tmp_path / "p"), "--svg", str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "p").glob("*.png"))) == len(list((tmp_path / "s").glob("*.svg"))) > 0
    assert here("report", str(SAVED / "plan.json"), "-o", str(out)).returncode == 0
    assert a_plan().line in out.read_text()


def test_probes_are_predicted(tmp_path: Path) -> None:
    saved, out = tmp_path / "probes.json", tmp_path / "r.html"
    saved.write_bytes(encode(labelled(probes(), msgspec.to_builtins(probes()))))
    assert here("report", str(saved), "-o", str(out)).returncode == 0
    assert "is predicted to be fastest" in out.read_text()
    done = here("predict", "--probes", str(saved), "-b", "64", "-w", "4", "--json", "--report", str(out))
    assert done.returncode == 0
    assert json.loads(done.stdout)["kind"] == "prediction"
    assert "this setting" in out.read_text()


def test_profile_and_limit_write_their_pages(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = here(
        *("profile", "resnet18", "--data", "tensors", "--mode", "infer", "--device", "sleep:1ms", "--items", "64"),
        *("--batches", "4", "-b", "8", "-q", "--report", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert "charts in" in done.stderr
    assert "Timeline of workers and loop" in out.read_text()
    done = here(
        *("limit", "resnet18", "--method", "trace", "--gpu-memory", "8GiB", "--gpu", "a100", "--mode", "infer"),
        *("-q", "--report", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert "Memory over batch size" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing-of-this-name", "--db", "none.db"), "none.db"),
        (("none.json",), "cannot read none.json"),
        ((str(SAVED / "plan.json"), "--against", "published"), "--against compares studies"),
        ((str(SAVED / "plan.json"), "-o", "no/such/folder/r.html"), "no/such/folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    out = () if "-o" in arguments else ("-o", str(tmp_path / "r.html"))
    done = here("report", *arguments, *out)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_a_live_page_is_written_at_most_once_a_minute(store: Path, tmp_path: Path) -> None:
    now = 0.0
    found = study("tiny", db=store)
    path = tmp_path / "live.html"
    live = LiveReport(found, path, rules=LiveRules(share=1.0), clock=lambda: now)
    written = []
    for now in (0.0, 30.0, 59.0, 61.0, 90.0, 125.0):
        path.unlink(missing_ok=True)
        live.update(Progress(done=2, of=4, running=(), left_s=5.0))
        if path.exists():
            written.append(now)
            assert 'http-equiv="refresh" content="60"' in path.read_text()
            assert "2 of 4 runs have an outcome, about 5 s left" in path.read_text()
    assert written == [0.0, 61.0, 125.0]
    live.finish()
    assert 'http-equiv="refresh"' not in path.read_text()


def test_python_writes_the_same_page(store: Path, tmp_path: Path) -> None:
    found = study("tiny", db=store)
    first, second = found.report(tmp_path / "a.html"), found.report(tmp_path / "b.html", png=tmp_path / "p")
    assert first.read_bytes() == second.read_bytes()
    assert list((tmp_path / "p").glob("*.png"))


def test_notebooks_show_the_answer_and_charts(store: Path) -> None:
    for record in (a_trial(), a_plan(), a_limit()):
        bundle = record._repr_mimebundle_()
        assert bundle["text/html"] == record._repr_html_()
        assert "<svg" in bundle["text/html"]
        assert "<script" not in bundle["text/html"]
        assert bundle["text/plain"]
    assert "<svg" in (study("tiny", db=store)._repr_html_() or "")
    assert study("pinning", db=store)._repr_html_() is None
    assert a_trial().setting._repr_html_() is None
    assert "text/html" not in stoker.Setting()._repr_mimebundle_()
