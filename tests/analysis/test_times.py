"""Per-item times, first batches, stage shares and utilisation, from tables computed by hand."""

import pytest

from stoker.analysis.times import first_batches, item_times, stage_shares, utilisation
from stoker.errors import InputError
from tests.analysis.trial_rows import picked, trials

COLUMNS = (
    "model batch_size items seconds start_s first_batch_s wait_s forward_s decode_s transform_s transform.Resize_s"
)
TABLE = trials(
    ("a", 8, 100, 10.0, 0.5, 1.5, 2.0, 4.0, 3.0, 9.0, 8.0),
    ("a", 8, 100, 30.0, 0.7, 1.7, 4.0, 8.0, 5.0, 15.0, 9.0),
    ("b", 8, 100, "oom", None, None, None, None, None, None, None),
    columns=COLUMNS,
)  # fmt: skip
"""Two repeats, and a model that runs out of memory."""


def test_seconds_an_item() -> None:
    rows = picked(item_times(TABLE), "workload", "outcome", "item_s", "wait_item_s", "forward_item_s")
    assert rows[0] == ("a", "done", 0.2, 0.03, 0.06)
    assert rows[1] == ("b", "oom", None, None, None)


def test_seconds_until_the_first_batch_have_the_start_of_workers_in_them() -> None:
    rows = picked(first_batches(TABLE), "workload", "start_s", "first_batch_s", "latency_s", "share")
    assert rows[0][0] == "a"
    assert rows[0][1:] == pytest.approx((0.6, 1.6, 2.2, 0.11))
    assert rows[1] == ("b", None, None, None, None)


def test_a_start_that_was_not_measured_is_not_invented() -> None:
    rows = first_batches(TABLE.drop("start_s"))
    assert picked(rows, "start_s", "latency_s")[0] == (None, 1.6)


def test_stages_have_shares_of_their_own_clock() -> None:
    found = stage_shares(TABLE)
    assert set(found["workload"]) == {"a"}
    rows = {row["stage"]: (row["clock"], row["stage_s"], row["share"]) for row in found.to_dicts()}
    assert list(rows) == ["start", "wait", "forward", "other", "decode", "transform", "transform.Resize"]
    assert rows["wait"][0] == "loop"
    assert rows["wait"][1:] == pytest.approx((3.0, 0.15))
    assert rows["other"][1:] == pytest.approx((20 - 0.6 - 3 - 6, (20 - 0.6 - 3 - 6) / 20))
    assert rows["decode"][0] == "worker"
    assert rows["decode"][1:] == pytest.approx((4.0, 4 / 16))
    assert rows["transform.Resize"][1:] == pytest.approx((8.5, 8.5 / 16))


def test_shares_of_the_loop_add_up() -> None:
    found = stage_shares(TABLE)
    loop = found.filter(clock="loop")
    assert loop["share"].sum() == pytest.approx(1.0)
    parts = found.filter(clock="worker").filter(~found.filter(clock="worker")["stage"].str.contains(".", literal=True))
    assert parts["share"].sum() == pytest.approx(1.0)


def test_a_measured_rest_is_taken_as_it_is() -> None:
    frame = trials(("a", 10.0, 4.0, 1.0), columns="model seconds wait_s other_s")
    assert picked(stage_shares(frame), "stage", "share") == [("wait", 0.4), ("other", 0.1)]


def test_utilisation_is_computing_over_everything() -> None:
    frame = trials(
        ("a", 10.0, 4.0, 3.0, 0.5), ("b", 10.0, 4.0, None, None), ("c", 10.0, None, None, None),
        ("d", "oom", 1.0, 1.0, 1.0),
        columns="model seconds forward_s backward_s update_s",
    )  # fmt: skip
    rows = picked(utilisation(frame), "workload", "compute_s", "utilisation")
    assert rows == [("a", 7.5, 0.75), ("b", 4.0, 0.4), ("c", None, None), ("d", None, None)]


@pytest.mark.parametrize("analysis", [item_times, first_batches, stage_shares, utilisation])
def test_what_was_not_measured_is_asked_for_in_a_sentence(analysis: object) -> None:
    with pytest.raises(InputError, match=r"needs? (the|a) column|need columns"):
        analysis(trials(("a", 1.0), columns="model seconds"))  # type: ignore[operator]
