"""Tuning real workloads, constraints on numbers, and every odd thing that people give it."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

import stoker
from stoker import Setting
from stoker.errors import InputError
from stoker.forecast.constraints import bounds_of, ruled_out
from stoker.records import Facts, Limit, Mode
from stoker.tuning.candidates import Request, parse_current
from stoker.tuning.contest import standings
from stoker.tuning.remedies import advise
from stoker.tuning.tune import Plan, tune
from stoker.tuning.tuner import find_ceiling
from tests.commands import apart, here

HERE = Path(__file__).parents[1] / "workloads" / "planted.py"
ODD = Path(__file__).parents[1] / "workloads" / "odd.py"
FACTS = Facts(
    usable_cores=4,
    memory_bytes=8 * 2**30,
    available_bytes=4 * 2**30,
    shm_free_bytes=64 * 2**20,
    open_files=1024,
)


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize(
    ("setting", "item_bytes", "bound"),
    [
        (Setting(batch_size=16, num_workers=2), 600_000, None),
        (Setting(batch_size=64, num_workers=2), 600_000, "/dev/shm"),
        (Setting(batch_size=64, num_workers=0), 600_000, None),
        (Setting(batch_size=256, num_workers=0), 10**7, "host memory"),
        (Setting(batch_size=300, num_workers=0), 1, "device memory"),
        (Setting(batch_size=8, num_workers=5), 1, "CPUs"),
        (Setting(batch_size=1, num_workers=4, prefetch_factor=200), 1, "file descriptors"),
    ],
)
def test_each_bound_is_named(setting: Setting, item_bytes: int, bound: str | None) -> None:
    found = ruled_out(setting, item_bytes, bounds_of(FACTS, max_batch=256))
    assert (found.bound if found else None) == bound


def test_gradients_that_are_kept_for_the_next_batch_take_room() -> None:
    bounds = bounds_of(FACTS, max_batch=256, max_accumulating_batch=246)
    assert ruled_out(Setting(batch_size=256), 1, bounds) is None
    assert ruled_out(Setting(batch_size=246, accumulate=2), 1, bounds) is None
    found = ruled_out(Setting(batch_size=247, accumulate=2), 1, bounds)
    assert found is not None
    assert "246 where gradients are kept" in found.sentence


@pytest.mark.parametrize(
    ("global_batch", "mode", "asked", "ceiling"),
    [
        (None, "train", [1], (100, 100)),
        (512, "train", [2, 1], (100, 90)),
        (80, "train", [2], (90, 90)),
        (512, "infer", [2], (90, 90)),
    ],
)
def test_the_ceiling_counts_gradients_that_are_kept(
    global_batch: int | None, mode: Mode, asked: list[int], ceiling: tuple[int, int]
) -> None:
    seen: list[int] = []

    def find(accumulate: int = 1) -> Limit:
        seen.append(accumulate)
        return limit_of(100 if accumulate == 1 else 90, mode)

    assert find_ceiling(find, Request(global_batch=global_batch)) == ceiling
    assert seen == asked


def limit_of(batch_size: int, mode: Mode) -> Limit:
    return Limit(
        max_batch=batch_size,
        interval=(batch_size, batch_size),
        comfortable_batch=None,
        method="trace",
        gpu_memory_bytes=2**30,
        peak_bytes_at_max=2**30,
        bytes_per_item=2**20,
        fixed_bytes=0,
        workload="made",
        mode=mode,
        precision="fp32",
        optimizer=None,
    )


def test_workers_that_wait_for_storage_may_be_more_than_the_cpus() -> None:
    bounds = bounds_of(FACTS, waiting_share=0.75)
    assert ruled_out(Setting(batch_size=1, num_workers=16), 1, bounds) is None
    assert ruled_out(Setting(batch_size=1, num_workers=17), 1, bounds) is not None


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 8), st.integers(1, 10**7))
def test_what_is_allowed_fits_into_shared_memory(batch: int, workers: int, prefetch: int, item: int) -> None:
    setting = Setting(batch_size=batch, num_workers=workers, prefetch_factor=prefetch)
    if ruled_out(setting, item, bounds_of(FACTS)) is None:
        assert setting.in_flight_batches * batch * item <= 64 * 2**20


# ---------------------------------------------------------------- what a person may ask for


@given(st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_the_effective_batch_is_exactly_what_was_asked_for(share: int, gpus: int) -> None:
    wish = Request(global_batch=share * gpus, gpus=gpus)
    for size in wish.batch_sizes(512, None):
        assert size * wish.accumulation(size) * gpus == share * gpus


def test_a_global_batch_that_nothing_divides_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be split evenly over 2 GPUs"):
        Request(global_batch=257, gpus=2)
    with pytest.raises(InputError, match="does not divide 100"):
        Request(global_batch=100, batch_size=64)
    assert Request(global_batch=257).batch_sizes(128, None) == [1]


def test_batch_sizes_stay_within_what_was_asked() -> None:
    assert Request(batch_size=48).batch_sizes(None, None) == [48]
    assert Request(max_batch=100).batch_sizes(None, None) == [8, 16, 32, 64, 100]
    assert Request().batch_sizes(40, None) == [8, 16, 32]
    assert Request().batch_sizes(None, 3) == [1, 2, 3]
    assert Request().batch_sizes(5, None) == [1, 2, 4, 5]
    assert 48 in Request(current=Setting(batch_size=48)).batch_sizes(None, None)


@pytest.mark.parametrize(
    "text", ["", "batch", "batch=x", "batch=1;workers=2", "bacth=4", "workers=4", "batch=²,workers=1"]
)
def test_a_current_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="batch=64,workers=4"):
        parse_current(text)


def test_the_current_setting_is_read() -> None:
    assert parse_current("batch=64, workers=4") == Setting(batch_size=64, num_workers=4)


# ---------------------------------------------------------------- tuning


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tune(
        f"{HERE}:planted",
        items=400,
        max_batch=32,
        device="cpu",
        budget_s=14,
        current=Setting(batch_size=8, num_workers=0),
    )


def test_a_plan_beats_what_it_found(plan: Plan) -> None:
    assert plan.measured is not None
    assert plan.gain is not None
    assert plan.gain > 1.5  # loading is hidden behind the steps
    assert plan.num_workers > 0
    assert plan.predicted is not None
    assert plan.current is not None
    assert plan.current.measured is not None
    assert plan.verdict is not None
    assert plan.seconds > 0
    scored = [each for each in plan.candidates if each.measured]
    takes = standings(scored)
    [chosen] = [seconds for each, seconds in zip(scored, takes, strict=True) if same_as_planned(each.setting, plan)]
    assert chosen <= min(takes) * 1.02 + 1e-9
    is_quickest = plan.measured.total_s <= min(each.seconds for each in scored) * 1.02
    assert is_quickest or any("faster in few runs" in note for note in plan.notes)


def same_as_planned(setting: Setting, plan: Plan) -> bool:
    return (setting.batch_size, setting.num_workers, setting.prefetch_factor) == (
        plan.batch_size,
        plan.num_workers,
        plan.prefetch_factor,
    )


def test_a_plan_makes_its_loader(plan: Plan) -> None:
    loader = plan.loader(list(range(100)), shuffle=True)
    assert loader.batch_size == plan.batch_size
    assert loader.num_workers == plan.num_workers
    assert plan.loader([1], num_workers=0).num_workers == 0
    sampler = BatchSampler(SequentialSampler(range(9)), 3, drop_last=False)
    assert plan.loader(list(range(9)), batch_sampler=sampler).batch_sampler is sampler
    assert plan.line.startswith("DataLoader(dataset, batch_size=")


def test_the_document_has_what_programs_need(plan: Plan) -> None:
    from stoker.report.documents import plan_document, to_json

    found = json.loads(to_json(plan_document(plan)))
    assert {
        "batch_size",
        "num_workers",
        "prefetch_factor",
        "pin_memory",
        "persistent_workers",
        "accumulate",
        "predicted",
        "measured",
        "current",
        "candidates",
        "ruled_out",
        "verdict",
        "seconds",
    } <= set(found)
    assert found["measured"]["total_s"] > 0


def test_remedies_come_by_gain(plan: Plan) -> None:
    helps = [remedy for remedy in plan.remedies if remedy.after_s < remedy.before_s]
    assert [remedy.after_s for remedy in helps] == sorted(remedy.after_s for remedy in helps)


def test_a_profile_says_what_would_help() -> None:
    trial = stoker.profile(f"{HERE}:planted", Setting(batch_size=8), stoker.Extent(batches=6, warmup=1), device="cpu")
    found = advise(trial)
    assert any("workers 0 →" in remedy.change for remedy in found)
    assert all(math.isfinite(remedy.after_s) for remedy in found)


def test_epochs_of_a_profile_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(predictor: Any, setting: Setting, items: int, *, epochs: int, waited: float | None) -> list[Any]:
        counted.append(items * epochs)
        return []

    monkeypatch.setattr("stoker.tuning.remedies.remedies", count)
    extent = stoker.Extent(batches=6, warmup=1, epochs=3)
    trial = stoker.profile(f"{HERE}:planted", Setting(batch_size=8), extent, device="cpu")
    advise(trial)
    assert counted == [trial.items]


def test_the_batch_can_be_fixed_and_the_effective_batch_kept() -> None:
    found = tune(f"{HERE}:planted", items=60, batch_size=4, global_batch=16, gpus=2, device="cpu", budget_s=3)
    assert found.batch_size == 4
    assert found.batch_size * found.accumulate * found.gpus == 16


def test_the_thesis_planner_takes_the_largest_batch() -> None:
    found = tune(f"{HERE}:plain", max_batch=16, device="sleep:5ms", mode="infer", budget_s=3, planner="thesis")
    assert found.batch_size == 16
    assert found.num_workers == 1


def test_the_thesis_planner_runs_the_current_setting_and_says_what_it_takes_for_granted() -> None:
    options: dict[str, Any] = {"max_batch": 16, "device": "sleep:5ms", "mode": "infer", "budget_s": 3}
    found = tune(f"{HERE}:plain", planner="thesis", current="batch=8,workers=0", **options)
    assert found.batch_size == 16
    assert found.gain is not None
    assert any("t_d / t_g" in note and "at batch 8" in note for note in found.notes)


def test_a_batch_sampler_leaves_only_the_workers_to_choose() -> None:
    found = tune(f"{ODD}:own_batches", device="sleep:5ms", mode="infer", budget_s=3, current="batch=64,workers=0")
    assert {each.setting.batch_size for each in found.candidates} == {5}
    assert found.line.startswith("DataLoader(dataset, batch_sampler=batch_sampler, num_workers=")
    assert found.current is not None
    assert any("batch_sampler sets its batches" in note for note in found.notes)


def test_the_thesis_planner_keeps_the_effective_batch() -> None:
    options: dict[str, Any] = {"max_batch": 40, "device": "sleep:5ms", "mode": "infer", "budget_s": 3}
    found = tune(f"{HERE}:plain", global_batch=96, planner="thesis", **options)
    assert (found.batch_size, found.accumulate) == (32, 3)
    assert found.predicted is not None
    assert found.predicted.setting.batch_size == 32


def test_the_gpu_that_is_tuned_for_is_the_one_whose_memory_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def find(source: Any, **options: Any) -> Any:
        asked.append(options["device"])
        raise InputError("enough")

    monkeypatch.setattr("stoker.tuning.tune.limit", find)
    for device in ("cuda:1", "cpu", "sleep:1ms"):
        with pytest.raises(InputError, match="enough"):
            tune(f"{HERE}:plain", device=device, gpu_memory="4GiB")
    assert asked == ["cuda:1", "auto", "auto"]


# ---------------------------------------------------------------- odd inputs


def test_a_set_of_three_items() -> None:
    found = tune(f"{ODD}:three_items", device="cpu", mode="infer", budget_s=4)
    assert found.batch_size <= 3


def test_a_stream_needs_to_be_told_how_long() -> None:
    with pytest.raises(InputError, match="--items"):
        tune(f"{HERE}:stream", device="cpu", mode="infer", budget_s=2, max_batch=16)
    found = tune(f"{HERE}:stream", items=200, device="cpu", mode="infer", budget_s=2, max_batch=16)
    assert found.measured is not None
    assert any("once for each worker" in note for note in found.notes) == (found.num_workers > 1)


def test_a_budget_of_one_second_is_answered_and_said() -> None:
    found = tune(f"{HERE}:planted", items=64, device="cpu", mode="infer", max_batch=16, budget_s=1)
    assert found.batch_size >= 1
    assert any("budget" in note for note in found.notes)
    for budget_s in (0, math.nan):
        with pytest.raises(InputError, match="above 0"):
            tune(f"{HERE}:plain", budget_s=budget_s)


def test_items_of_wildly_varying_cost() -> None:
    found = tune(f"{ODD}:uneven", items=200, device="sleep:1ms", mode="infer", max_batch=16, budget_s=4)
    assert found.measured is not None
    assert found.predicted is not None
    assert found.predicted.interval_s[0] < found.predicted.total_s


def test_a_set_that_is_all_corrupt_is_one_sentence() -> None:
    with pytest.raises(InputError, match="broken file") as caught:
        tune(f"{ODD}:corrupt", device="cpu", mode="infer", budget_s=4)
    assert "\n" not in str(caught.value)


def test_runs_that_all_fail_are_one_sentence_and_no_plan() -> None:
    with pytest.raises(InputError, match=r"not one run .* the last page is missing, at .*odd.py"):
        tune(f"{ODD}:breaks_late", device="sleep:1ms", mode="infer", max_batch=16, budget_s=4)


def test_a_stream_that_is_empty_is_one_sentence() -> None:
    with pytest.raises(InputError, match="gives no items"):
        tune(f"{ODD}:empty_stream", items=100, device="cpu", mode="infer", budget_s=2)


@pytest.mark.parametrize(("name", "words"), [("out_of_memory", "out of"), ("bad_step", "shapes do not match")])
def test_a_step_that_never_runs_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tune(f"{HERE}:{name}", device="cpu", mode="infer", max_batch=16, budget_s=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"max_batch": 0}, "max batch must be at least 1"),
        ({"items": 0}, "items must be at least 1"),
        ({"mode": "guess"}, "no such mode"),
        ({"planner": "guess"}, "no such planner"),
    ],
)
def test_wrong_values_are_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tune(f"{HERE}:plain", device="cpu", budget_s=2, **{"mode": "infer", **options})


def test_an_interrupted_tune_keeps_what_was_measured(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    command = [
        sys.executable,
        "-m",
        "stoker",
        "tune",
        f"{HERE}:plain",
        "--items",
        "100000",
        "--device",
        "sleep:9ms",
    ]
    command += ["--mode", "infer", "--budget", "10s", "--max-batch", "8", "--save", str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("trying"):
                break
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith("stoker: interrupted")
    found = json.loads(kept.read_text())
    assert found["interrupted"] is True
    assert found["probes"]["runs"]
    assert not [child for child in psutil.Process().children(recursive=True) if "stoker" in child.cmdline()]


# ---------------------------------------------------------------- as commands


def test_probe_predict_and_grid_as_commands(tmp_path: Path) -> None:
    kept = str(tmp_path / "probes.json")
    options = ("--batch-sizes", "4,8", "--device", "sleep:2ms", "--mode", "infer", "--budget", "2s", "--quiet")
    done = apart("probe", f"{HERE}:plain", "-o", kept, *options)
    assert done.returncode == 0, done.stderr
    assert "probed in" in done.stdout
    one = here("predict", "--probes", kept, "-b", "8", "-w", "2", "--items", "1000", "--json")
    assert one.returncode == 0, one.stderr
    assert {"total_s", "interval_s", "first_batch_s", "steady_items_per_s", "wait_share", "limited_by"} <= set(
        json.loads(one.stdout)
    )
    whole = here("predict", "--probes", kept, "--grid", "--items", "1000", "--cores", "8", "--faster", "step=3x")
    assert whole.returncode == 0, whole.stderr
    assert "Best: batch" in whole.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "--probes", "no_such.json", "--grid"), "cannot read no_such.json"),
        (("tune", f"{HERE}:plain", "--budget", "soon"), "is not a time"),
        (("tune", f"{HERE}:plain", "--current", "64/4"), "batch=64,workers=4"),
        (("tune", f"{HERE}:plain", "--global-batch", "257", "--gpus", "2"), "cannot be split"),
        (("probe", f"{HERE}:plain", "-o", "p.json", "--batch-sizes", "a"), "8,32,128"),
    ],
)
def test_a_wrong_command_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    done = here(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
