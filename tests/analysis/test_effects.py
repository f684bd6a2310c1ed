"""Effects of single axes, from tables computed by hand."""

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from stoker.analysis.effects import effects
from tests.analysis.trial_rows import LAW, grids, picked, trials


def test_effects_by_hand() -> None:
    frame = trials(
        ("jpeg", "a", 8, 1, 8.0), ("jpeg", "a", 8, 2, 4.0), ("jpeg", "a", 16, 1, 8.0), ("jpeg", "a", 16, 2, 2.0),
        ("tensors", "a", 8, 1, 1.0), ("tensors", "a", 8, 2, 2.0), ("tensors", "a", 16, 1, 1.0),
        ("tensors", "a", 16, 2, "oom"),
        columns="data model batch_size num_workers seconds",
    )  # fmt: skip
    found = effects(frame)
    workers = found.filter(pl.col("axis") == "num_workers")
    rows = picked(workers, "data", "value", "reference", "fastest", "pairs", "missing")
    assert rows == [
        ("jpeg", "1", "1", 0.0, 2, 0),
        ("jpeg", "2", "1", 1.0, 2, 0),
        ("tensors", "1", "1", 1.0, 2, 0),
        ("tensors", "2", "1", 0.0, 1, 1),
    ]
    # Ratios of jpeg at two workers are 1/2 and 1/4: their geometric mean is the root of 1/8.
    assert workers["ratio"].to_list() == pytest.approx([1.0, 8**-0.5, 1.0, 2.0])
    assert workers["ratio_low"][1] == pytest.approx(0.5 ** (2 - 0.25))
    data = found.filter(pl.col("axis") == "data")
    assert picked(data, "data", "value", "pairs", "missing") == [(None, "jpeg", 4, 0), (None, "tensors", 3, 1)]
    # 1/8, 2/4 and 1/8.
    assert data["ratio"][1] == pytest.approx((1 / 8 * 2 / 4 * 1 / 8) ** (1 / 3))


def test_an_axis_with_one_value_has_no_effect() -> None:
    found = effects(trials(("a", 8, 1, 1.0), ("a", 8, 2, 2.0)))
    assert found["axis"].unique().to_list() == ["num_workers"]
    assert effects(trials(("a", 1.0), columns="model seconds")).height == 0


def test_a_switch_is_an_axis_too() -> None:
    frame = trials(("a", 8, False, 4.0), ("a", 8, True, 3.0), columns="model batch_size pin_memory seconds")
    found = effects(frame)
    assert picked(found, "axis", "value", "reference", "ratio") == [
        ("pin_memory", "false", "false", 1.0),
        ("pin_memory", "true", "false", 0.75),
    ]


def test_machines_are_not_compared_with_each_other() -> None:
    frame = trials(("A", "a", 8, 1.0), ("B", "a", 16, 2.0), columns="machine model batch_size seconds")
    assert effects(frame).height == 0


@LAW
@given(grids())
def test_the_reference_is_one_and_the_order_of_rows_changes_nothing(frame: pl.DataFrame) -> None:
    found = effects(frame)
    same = found.filter((pl.col("value") == pl.col("reference")) & (pl.col("pairs") > 0))
    assert (same["ratio"] == 1.0).all()
    assert_frame_equal(effects(frame.sample(fraction=1.0, shuffle=True, seed=5)), found)
