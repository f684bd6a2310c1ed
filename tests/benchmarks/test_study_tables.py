"""What the docs and the presets say of studies are the figures of the stored results."""

import study_presets
import study_tables
from common import RESULTS

from stoker.studies.presets import read_preset


def test_the_time_of_a_small_preset_is_the_measured_one() -> None:
    stored = {path.stem for path in (RESULTS / "two-cores" / "studies").glob("*.json")}
    assert {"batch-and-workers", "data-loading"} <= stored
    for name in stored:
        row = study_tables.rows(f"studies/{name}")[0]
        assert read_preset(name, "small").about["time"] == study_presets.time_text(row)
        assert row["wall_s"] < 600


def test_the_kills_lost_nothing() -> None:
    for row in study_tables.rows("study-kills"):
        assert row["recorded"] == row["runs"]
        counts = ("missing", "lost", "changed", "doubled", "not_done", "claims_left", "orphans", "leftovers")
        assert {name: row[name] for name in counts} == dict.fromkeys(counts, 0)


def test_the_published_half_of_a_table_is_what_the_authors_print() -> None:
    lines = study_tables.batch_and_workers().splitlines()
    assert "batch 128, workers 12" in lines[3]
    assert "2.0% (5.9%)" in lines[4]
    assert "batch 128, workers 8: 6 of 12" in lines[5]
