"""The published grid's benchmark: what it asks for, and that its committed rows are those of the published cells."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from stoker.analysis import published
from stoker.analysis.accuracy import predicted_choice, prediction_accuracy
from stoker.analysis.regret import one_for_all

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "published_grid.py"


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    packed = (BENCHMARKS / "results" / "a5000-published" / "published-grid.json.gz").read_bytes()
    return pl.DataFrame(json.loads(gzip.decompress(packed))["rows"])


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)


def test_without_the_authors_files_it_says_which_it_needs(tmp_path: Path) -> None:
    nothing = _run()
    assert nothing.returncode == 1
    assert "a5000_loader_runs.json and a5000_loader_runs_tensors.json" in nothing.stderr
    assert "Traceback" not in nothing.stderr
    (tmp_path / "a5000_loader_runs.json").write_text("[]")
    half = _run("--data", str(tmp_path))
    assert half.returncode == 1
    assert half.stderr.strip() == f"{tmp_path} has no a5000_loader_runs_tensors.json"


def test_the_committed_cells_are_the_published_ones(rows: pl.DataFrame) -> None:
    columns = ["data", "workload", "batch_size", "num_workers", "seconds"]
    assert rows.select(columns).sort(columns).equals(published.grid().select(columns).sort(columns))
    assert rows.filter(pl.col("predicted_s") <= 0).height == 0


def test_running_three_predicted_settings_costs_less_than_one_setting_for_all(rows: pl.DataFrame) -> None:
    accuracy = prediction_accuracy(rows)
    assert accuracy["cells"].to_list() == [540, 540]
    assert accuracy["error_median"].max() < 0.04  # type: ignore[operator]
    for chosen, authors in zip(predicted_choice(rows, 3).to_dicts(), one_for_all(rows).to_dicts(), strict=True):
        assert chosen["regret_mean"] < authors["regret_mean"] / 5
        assert chosen["regret_worst"] < authors["regret_worst"]
