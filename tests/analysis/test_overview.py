"""Rows of a study's charts."""

import polars as pl
import pytest

from stoker.analysis import published
from stoker.analysis.overview import Overview, compared_rows, family_of, sample_keys
from stoker.errors import InputError
from tests.report.samples import rows


def overview(*workloads: str, data: tuple[str, ...] = ("jpeg",)) -> Overview:
    return Overview(pl.DataFrame(rows(workloads, data=data), infer_schema_length=None))


def test_parts_are_the_axes_that_vary() -> None:
    found = overview("net", data=("jpeg", "tensors"))
    assert (found.parts, found.part_title) == (["jpeg", "tensors"], "data")
    assert overview("net").parts == [""]


def test_cells_have_one_best_a_workload() -> None:
    cells = overview("a", "b").heat_rows()
    assert [row["workload"] for row in cells if row["regret"] == 0] == ["a", "b"]
    assert len(cells) == 12


def test_a_further_axis_is_reduced_to_its_best_and_named() -> None:
    table = [
        {**row, "prefetch_factor": ahead, "seconds": row["seconds"] and row["seconds"] * (3 - ahead)}
        for row in rows(("net",))
        for ahead in (1, 2)
    ]
    found = Overview(pl.DataFrame(table, infer_schema_length=None))
    cells = found.heat_rows()
    assert len(cells) == 6
    assert {row["setting"] for row in cells if row["outcome"] == "done"} == {"prefetch factor 2"}


def test_slices_lie_at_the_setting_for_all() -> None:
    found = overview("a", "b")
    value = found.middle("", "batch_size")
    line = found.slice_rows("", "num_workers", fixed="batch_size", value=value)
    assert value == 8
    assert [(row["workload"], row["num_workers"]) for row in line] == [(name, w) for name in "ab" for w in (0, 2, 4)]


def test_first_batches_and_stages_and_items() -> None:
    found = overview("a", "vit_b_16")
    assert [row["latency_s"] for row in found.first_batch_rows()][:3] == pytest.approx([0.1, 0.3, 0.5])
    loop = found.stage_rows()
    assert {row["stage"] for row in loop} == {"wait", "forward", "other"}
    assert {row["stage"] for row in found.stage_rows(clock="worker")} == {"decode"}
    assert {(row["workload"], row["family"]) for row in found.item_rows()} == {
        ("a", "CNN"),
        ("vit_b_16", "transformer"),
    }


def test_the_childs_time_is_no_stage() -> None:
    frame = pl.DataFrame(rows(("a",)), infer_schema_length=None).with_columns(wall_s=pl.lit(9.0))
    assert "wall" not in {row["stage"] for row in Overview(frame).stage_rows(clock="worker")}


def test_effects_are_in_the_order_of_their_values() -> None:
    found = overview("a", data=("jpeg", "tensors")).effect_rows()
    assert [row["value"] for row in found if row["axis"] == "workers (jpeg)"] == ["0", "2", "4"]
    assert [row["place"] for row in found] == list(range(len(found)))
    assert "data" in {row["axis"] for row in found}


def test_studies_of_the_same_runs_are_equal_and_of_fewer_items_an_item() -> None:
    grid = published.grid()
    same = compared_rows(grid, grid)
    assert {(row["ratio"], row["unit"]) for row in same} == {(1.0, "run")}
    fewer = grid.with_columns(pl.col("items") // 2, pl.col("seconds") / 2)
    assert {(round(row["ratio"], 9), row["unit"]) for row in compared_rows(fewer, grid)} == {(1.0, "item")}


def test_limits_are_compared_by_batch() -> None:
    limits = published.max_batches()
    doubled = limits.with_columns(pl.col("max_batch") * 2)
    assert {(row["ratio"], row["unit"]) for row in compared_rows(doubled, limits)} == {(2.0, "batch")}
    assert compared_rows(limits, published.grid()) == []


def test_times_after_the_warm_up_are_compared_where_one_study_has_nothing_else() -> None:
    theirs = published.inference_trials()
    ours = theirs.with_columns(
        (pl.col("steady_item_s") * 3).alias("steady_item_s"),
        pl.lit(320).alias("run_items"),
        pl.lit(7.0).alias("seconds"),  # of the whole run: not to be compared
    )
    rows = compared_rows(ours, theirs)
    assert len(rows) == 60
    assert {(round(row["ratio"], 9), row["unit"]) for row in rows} == {(3.0, "steady")}
    assert compared_rows(theirs, published.grid()) == []


def test_samples_are_of_the_widest_workload_the_fastest_first() -> None:
    table = [{**row, "task_key": f"{row['workload']}-{row['batch_size']}-{row['num_workers']}"} for row in rows(("a",))]
    assert sample_keys(pl.DataFrame(table, infer_schema_length=None)) == ["a-8-4", "a-8-0", "a-8-2"]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("resnet18", "CNN"),
        ("vit_b_16", "transformer"),
        ("timm/deit_tiny", "transformer"),
        ("hf/bert-base", "transformer"),
    ],
)
def test_families_by_name(name: str, family: str) -> None:
    assert family_of(name) == family


def test_a_frame_without_times_is_refused() -> None:
    with pytest.raises(InputError, match="seconds"):
        Overview(pl.DataFrame({"workload": ["a"]}))


def of_batches(batch_size: int, items: int, seconds: float) -> dict[str, object]:
    """A run of four batches: more items in larger ones."""
    figures = {"batch_size": batch_size, "run_items": items, "seconds": seconds}
    return {"workload": "net", "batches": 4, "num_workers": 0, "outcome": "done", **figures}


def test_runs_of_so_many_batches_are_compared_by_item() -> None:
    found = Overview(pl.DataFrame([of_batches(2, 8, 1.0), of_batches(32, 128, 4.0)]))
    assert found.by_item
    assert found.best_rows()[0]["batch_size"] == 32
    assert found.best_rows()[0]["seconds"] == pytest.approx(4.0 / 128)
    assert not overview("net").by_item


def test_times_an_item_leave_out_the_warm_up() -> None:
    frame = pl.DataFrame([of_batches(2, 8, 1.0), of_batches(32, 128, 4.0)])
    assert [row["item_s"] for row in Overview(frame).item_rows()] == pytest.approx([1 / 8, 4 / 128])
    warm = frame.with_columns(warmup=pl.lit(2), steady_item_s=pl.col("seconds") / 1000)
    assert [row["item_s"] for row in Overview(warm).item_rows()] == pytest.approx([0.001, 0.004])
    assert len(Overview(published.inference_trials()).item_rows()) == 60


def test_runs_of_so_many_batches_stand_beside_runs_of_as_many() -> None:
    loader = published.loader_runs()
    equal_items = loader.with_columns(batches=pl.lit(None, dtype=pl.Int64), seconds=pl.col("seconds") / 10)
    rows = compared_rows(pl.concat([loader, equal_items]), loader)
    assert {(row["batches"], row["ratio"], row["unit"]) for row in rows} == {(11, 1.0, "run")}
    assert len(rows) == 70


def test_a_device_that_sleeps_is_of_no_family() -> None:
    assert family_of("sleep:1ms/item") == "device"


def test_the_device_computes_a_share_of_the_run() -> None:
    shares = [row["value"] for row in overview("net").gauge_rows() if row["gauge"].startswith("device computing")]
    assert shares == pytest.approx([0.4] * len(shares))
    assert len(shares) == 5
