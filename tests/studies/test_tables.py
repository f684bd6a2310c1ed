"""Tables by name: runs of unequal length are compared by item, machines keep to themselves."""

import polars as pl
import polars.selectors as cs
import pytest

from stoker.studies.tables import made, rows_of, usual_table
from stoker.studies.transfer import PUBLISHED
from tests.analysis.trial_rows import trials

BATCHES = trials(
    ("a", 8, 1, 2.0, 80), ("a", 16, 1, 3.0, 160), ("b", 8, 1, 4.0, 80), ("b", 16, 1, 9.0, 160),
    columns="model batch_size num_workers seconds run_items", batches=10,
)  # fmt: skip
"""Ten batches of each size: the larger ones take longer, and for `a` less an item."""


def test_runs_of_so_many_batches_are_compared_by_item() -> None:
    best = made("best", BATCHES)
    assert best.select("workload", "batch_size", "item_s").rows() == [("a", 16, 3 / 160), ("b", 8, 4 / 80)]
    regret = made("regret", BATCHES).sort("batch_size")
    assert regret["regret_mean"].to_list() == pytest.approx(
        [((2 / 80) / (3 / 160) - 1) / 2, ((9 / 160) / 0.05 - 1) / 2]
    )


def test_runs_of_equal_items_are_compared_as_they_are() -> None:
    equal = BATCHES.with_columns(pl.lit(160).alias("run_items"))
    assert made("best", equal).select("workload", "batch_size", "seconds").rows() == [("a", 8, 2.0), ("b", 8, 4.0)]
    assert made("best", equal).to_dicts() == made("best", BATCHES.drop("run_items")).to_dicts()


def test_the_usual_table_answers_what_the_trials_can() -> None:
    assert usual_table("limit", pl.DataFrame()) == "largest-batch"
    assert usual_table("tune", BATCHES) == "best"
    assert usual_table("profile", pl.DataFrame()) == usual_table("profile", BATCHES) == "regret"
    assert usual_table("profile", PUBLISHED["inference-times"]()) == "item-times"
    assert usual_table("profile", PUBLISHED["stage-times"]()) == "stages"
    assert usual_table("profile", PUBLISHED["stage-times"]().drop(cs.ends_with("_s"))) == "best"


def test_a_machine_is_named_only_beside_another() -> None:
    one = pl.DataFrame({"machine": ["m", "m"], "x": [1, 2]})
    assert rows_of(one, {"m": "mine"}) == [{"x": 1}, {"x": 2}]
    two = pl.DataFrame({"machine": ["m", "n"], "x": [1, 2]})
    assert [row["machine"] for row in rows_of(two, {"m": "mine"})] == ["mine", "n"]
    assert rows_of(pl.DataFrame({"x": [1]}), {}) == [{"x": 1}]
