"""The thesis' figures: consistent with each other where the thesis is, and beside trials of its presets."""

from typing import Any

import polars as pl
import pytest

from stoker.analysis import thesis
from stoker.errors import InputError

FIGURES = thesis.published()


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    names = dict.fromkeys(name for row in rows for name in row)
    data = {name: [row.get(name) for row in rows] for name in names}
    return pl.DataFrame({"outcome": ["done"] * len(rows), "workload": ["resnet50"] * len(rows), **data}, strict=False)


def here(preset: str, *rows: dict[str, Any]) -> dict[str, str | None]:
    return {row["what"]: row["here"] for row in thesis.beside(preset, frame(*rows)).rows}


def there(preset: str, *rows: dict[str, Any]) -> dict[str, str | None]:
    return {row["what"]: row["thesis"] for row in thesis.beside(preset, frame(*rows)).rows}


def test_errors_of_estimates_are_those_printed_with_the_other_sign() -> None:
    """Equation 5.1 counts a low estimate as positive; the thesis prints 17.1, 10.22, 5, 0, 26.4 and 9.04 %."""
    printed = {"resnet34": 17.1, "resnet50": 10.22, "resnet152": 5, "densenet201": 0, "alexnet": 26.4, "r3d_18": 9.04}
    rows = {row["model"]: row for row in FIGURES["limits"] if row["actual"]}
    assert set(rows) == set(printed)
    for model, row in rows.items():
        assert -100 * (row["estimated"] - row["actual"]) / row["actual"] == pytest.approx(printed[model], abs=0.05)


def test_what_contradicts_itself_is_named_and_does() -> None:
    notes = FIGURES["notes"]
    assert set(notes) == set(thesis.PRESETS)
    estimates = {(row["model"], row["memory_gb"]): row["estimated"] for row in FIGURES["limits"]}
    assert "GPU memory" in notes["thesis-workers-batch"][1]
    for row in FIGURES["by_memory"]:
        item_bytes = 3 * 224 * 224 * 4
        assert row["num_workers"] * row["batch_size"] * item_bytes < 3 * 2**30, "far below 32 GB"
    assert "373" in notes["thesis-convergence"][0]
    assert estimates["resnet34", 16] == 373
    assert {row["accuracy"] for row in FIGURES["convergence"] if row["model"] == "resnet34"} == {0.0}
    assert "46" in notes["thesis-search-time"][0]
    assert estimates["densenet201", 11] == 46 < 50
    around = FIGURES["around"]
    faster = {}
    for table in ("5.3", "5.4", "5.5"):
        rows = [row for row in around if row["table"] == table]
        [own] = [row["seconds"] for row in rows if row.get("estimate")]
        faster[table] = sum(1 for row in rows if row["seconds"] and row["seconds"] < own)
    assert faster == {"5.3": 2, "5.4": 2, "5.5": 3}
    assert "two of four in table 5.3" in notes["thesis-workers-batch"][2]


def test_any_other_study_has_no_figures() -> None:
    assert thesis.preset_of("thesis-limit-small") == "thesis-limit"
    assert thesis.preset_of("night") is None
    with pytest.raises(InputError, match="none of the thesis' presets"):
        thesis.beside("night", frame({"seconds": 1.0}))


@pytest.mark.parametrize("preset", thesis.PRESETS)
def test_a_study_without_trials_has_notes_alone(preset: str) -> None:
    found = thesis.beside(preset, pl.DataFrame())
    assert found.rows == ()
    assert any("V100" in note for note in found.notes)
    assert thesis.source() in found.notes[-1]


def test_epochs() -> None:
    times = {"first_epoch_s": 3.0, "later_epoch_s": 2.0, "shortest_epoch_s": 1.6, "longest_epoch_s": 2.4}
    assert list(here("thesis-epochs", times).values()) == ["1.50", "1.50"]


def test_utilisation_is_the_gpus_own_or_the_share_of_computing() -> None:
    rows = [
        {"batch_size": 32, "seconds": 10.0, "forward_s": 3.0, "backward_s": 2.0},
        {"batch_size": 64, "seconds": 5.0, "forward_s": 3.0, "backward_s": 1.0},
    ]
    found = here("thesis-batch", *rows)
    assert found["time of an epoch, batch 32 → 64"] == "10 s → 5 s"
    assert found["utilisation, batch 32 → 64"] == "50% → 80%"
    assert found["GPU memory, batch 32 → 64"] is None
    measured = [{**row, "gpu_utilisation_mean": 0.9, "gpu_memory_bytes_max": 2**33} for row in rows]
    found = here("thesis-batch", *measured)
    assert found["utilisation, batch 32 → 64"] == "90% → 90%"
    assert found["GPU memory, batch 32 → 64"] == "8 GiB → 8 GiB"


def test_the_batch_of_the_highest_utilisation() -> None:
    used = {(4, 32): 0.2, (4, 128): 0.5, (4, 256): 0.4, (32, 32): 0.83, (32, 128): 0.9, (32, 256): 0.97}
    rows = [
        {"num_workers": workers, "batch_size": batch, "seconds": 1.0, "forward_s": share}
        for (workers, batch), share in used.items()
    ]
    found = thesis.beside("thesis-pairs", frame(*rows)).rows
    assert [(row["thesis"], row["here"]) for row in found] == [
        ("128", "128 (50%)"),
        ("512", "256 (97%)"),
        ("17% to 83% at batch 32", "20% to 83% at batch 32"),
        ("13% to 97% at batch 256", "40% to 97% at batch 256"),
    ]


def test_most_workers_are_those_that_ran() -> None:
    rows = [
        {"memory_limit": memory, "batch_size": 128, "num_workers": workers, "seconds": 2.0 if ran else None}
        | {"outcome": "done" if ran else "oom"}
        for memory, workers, ran in (("20GB", 16, True), ("20GB", 32, False), ("60GB", 16, True), ("60GB", 32, True))
    ]
    names = list(rows[0])
    found = thesis.beside("thesis-dram", pl.DataFrame({name: [row[name] for row in rows] for name in names})).rows
    assert [(row["thesis"], row["here"]) for row in found] == [
        ("32 of 64 (20GB)", "16 of 32"),
        ("32 of 64 (128GB)", "32 of 32"),
        ("about 1", "1.00"),
    ]


def test_limits_by_gpu_memory() -> None:
    rows = [
        {"gpu_memory": "16GiB", "method": "two-point", "max_batch": 150},
        {"gpu_memory": "16GiB", "method": "auto", "max_batch": 200},
        {"gpu_memory": "11GiB", "method": "auto", "max_batch": 120},
    ]
    found = here("thesis-limit", *rows)
    assert found["resnet50, 16 GB, two-point estimate"] == "150"
    assert found["resnet50, 16 GB, largest batch"] == "200"
    assert found["resnet50, 16 GB, error of the estimate"] == "-25.0%"
    assert found["resnet50, 11 GB, two-point estimate"] is None
    said = there("thesis-limit", *rows)
    assert said["resnet50, 16 GB, error of the estimate"] == "-10.2%"
    assert said["resnet50, 11 GB, two-point estimate"] == "102"


def test_times_around_an_estimate_are_relative_to_it() -> None:
    plan = {"kind": "tune", "host_memory": "128GB", "batch_size": 40, "num_workers": 4}
    times = {(40, 4): 10.0, (40, 8): 9.0, (40, 2): 20.0, (32, 4): 11.0}
    runs = [
        {"kind": "profile", "batch_size": batch, "num_workers": workers, "seconds": seconds} | {"forward_s": 8.0}
        for (batch, workers), seconds in times.items()
    ]
    found = thesis.beside("thesis-workers-batch", frame(plan, *runs)).rows
    assert [(row["thesis"], row["here"]) for row in found] == [
        ("1.00, 99% used (160 × 32)", "1.00, 80% used (40 × 4)"),
        ("1.00, 99% used (160 × 64)", "0.90, 89% used (40 × 8)"),
        ("1.00, 99% used (160 × 16)", "2.00, 40% used (40 × 2)"),
        ("1.00, 99% used (128 × 32)", "1.10, 73% used (32 × 4)"),
        ("1.00, 99% used (128 × 64)", None),
        ("160 × 32 workers", "40 × 4 workers"),
    ]


def test_learning_with_the_batch_in_question_less_the_usual_one() -> None:
    row = {
        "workload": "r3d_18",
        "batch_size": 16,
        "against": 155,
        "validation_loss": 3.0,
        "against_validation_loss": 3.5,
        "loss_difference": 0.5,
        "loss_margin": 0.2,
        "metric": 0.5,
        "against_metric": 0.4,
        "metric_difference": -10.0,
        "metric_margin": 2.0,
        "metric_scale": 100,
        "train_s": 100.0,
        "against_train_s": 80.0,
    }
    found = {row["what"].partition(": ")[2]: row for row in thesis.beside("thesis-convergence", frame(row)).rows}
    assert found["validation loss"]["thesis"] == "-0.061 (3.273 → 3.212)"
    assert found["validation loss"]["here"] == "+0.5 ± 0.2 (3 → 3.5)"
    assert found["accuracy"]["here"] == "-0.1 ± 0.02 (0.5 → 0.4)"
    assert found["time of the training, as a ratio"]["thesis"] == "0.86 (220 → 190)"
    assert found["time of the training, as a ratio"]["here"] == "0.80"


def test_a_manual_search_takes_equation_5_2() -> None:
    """At each size the time of an iteration times 1 % of the iterations of an epoch of ImageNet."""
    rows = [{"batch_size": 32, "steady_item_s": 0.001}, {"batch_size": 64, "steady_item_s": 0.0005}]
    done = [{**row, "outcome": "done"} for row in rows]
    expected = 0.032 * round(12811.67 / 32) + 0.032 * round(12811.67 / 64)
    assert thesis.manual_seconds(done) == pytest.approx(expected)
    assert thesis.manual_seconds([*done, {"batch_size": 128, "outcome": "oom"}]) is None
    whole = {"batch_size": 64, "outcome": "done", "seconds": 0.032, "run_items": 64}
    assert thesis.manual_seconds([done[0], whole]) == pytest.approx(expected)


def test_both_searches_of_a_model() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "limit", "workload": "alexnet", "method": "trace", "max_batch": 70},
        *(
            {"kind": "profile", "workload": "sleep:1ms", "stands_for": "alexnet", "batch_size": size, "num_workers": 2}
            | {"steady_item_s": 0.001}
            for size in (32, 64)
        ),
        *(
            {"kind": "profile", "workload": "sleep:1ms", "stands_for": "alexnet", "batch_size": size, "num_workers": 0}
            | {"seconds": size / 10}
            for size in (10, 50)
        ),
    ]
    found = here("thesis-search-time", *rows)
    assert found["alexnet, doubling: batch"] == "64"
    assert found["alexnet, two-point: time"] == "6 s"
    assert found["alexnet, estimate: batch"] == "70"
    assert there("thesis-search-time", *rows)["alexnet, doubling: batch"] == "1,024"
