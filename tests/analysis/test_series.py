"""Rows of single results: what the charts of a trial, a plan, a limit and predictions are drawn from."""

import msgspec
import pytest

from stoker.analysis.series import (
    SeriesRules,
    candidate_rows,
    gauge_rows,
    item_rows,
    landscape_rows,
    memory_rows,
    ruled_out_rows,
    setting_text,
    stage_rows,
    timeline_rows,
    wait_rows,
)
from stoker.records import Attempt, Gauge
from tests.report.samples import a_limit, a_plan, a_trial


def test_a_timeline_has_every_batch_in_its_worker_and_in_the_loop() -> None:
    trial = a_trial()
    rows = timeline_rows(trial)
    batches = range(len(trial.timeline.got_s))
    assert sorted(row["batch"] for row in rows if row["does"] == "load") == list(batches)
    assert [row["batch"] for row in rows if row["does"] == "wait"] == list(batches)
    assert all(row["begin_s"] <= row["end_s"] for row in rows)
    assert len({row["lane"] for row in rows}) == trial.setting.num_workers + 1


def test_a_long_timeline_has_its_first_batches() -> None:
    rows = timeline_rows(a_trial(), rules=SeriesRules(batches=3))
    assert {row["batch"] for row in rows} == {0, 1, 2}


def test_without_workers_there_is_only_the_loop() -> None:
    trial = a_trial()
    alone = msgspec.structs.replace(trial, setting=msgspec.structs.replace(trial.setting, num_workers=0))
    assert {row["lane"] for row in timeline_rows(alone)} == {"loop"}


def test_waits_that_share_a_bar_keep_the_longest() -> None:
    trial = a_trial()
    samples = trial.stages["wait"].samples_s
    rows = wait_rows(trial, rules=SeriesRules(waits=4))
    assert len(rows) <= 4
    assert max(row["wait_s"] for row in rows) == max(samples)
    assert [row["wait_s"] for row in wait_rows(trial)] == list(samples)


def test_stages_of_the_loop_add_up_to_the_run() -> None:
    trial = a_trial()
    loop = [row for row in stage_rows(trial) if row["clock"] == "loop"]
    assert sum(row["seconds"] for row in loop) == pytest.approx(trial.total_s, rel=0.05)
    assert sum(row["share"] for row in loop) == pytest.approx(1.0)


def test_many_readings_keep_their_peak() -> None:
    gauge = Gauge(times_s=tuple(range(1000)), samples=tuple(7.0 if step == 501 else 1.0 for step in range(1000)))
    trial = msgspec.structs.replace(a_trial(), gauges={"cpu_cores": gauge, "unknown": gauge})
    rows = gauge_rows(trial, rules=SeriesRules(readings=10))
    assert len(rows) == 10
    assert max(row["value"] for row in rows) == 7.0
    assert {row["gauge"] for row in rows} == {"CPU cores in use"}


def test_item_times_rise_from_the_shortest_to_the_longest() -> None:
    rows = item_rows(a_trial())
    times = [row["item_s"] for row in rows]
    assert times == sorted(times)
    assert (rows[0]["quantile"], rows[-1]["quantile"]) == (0, 1)
    assert times[-1] == max(a_trial().workers.item_s)


def test_a_landscape_has_each_setting_once_and_what_was_ruled_out() -> None:
    plan = a_plan()
    rows = landscape_rows(plan)
    places = [(row["batch_size"], row["num_workers"]) for row in rows]
    assert len(places) == len(set(places))
    assert {row["note"] for row in rows if row["outcome"] == "ruled out"} == {each.sentence for each in plan.ruled_out}
    assert min(row["regret"] for row in rows if row["regret"] is not None) == 0


def test_candidates_have_their_roles() -> None:
    plan = a_plan()
    roles = {row["role"]: row for row in candidate_rows(plan)}
    assert (roles["plan"]["batch_size"], roles["plan"]["num_workers"]) == (plan.batch_size, plan.num_workers)
    assert plan.current is not None
    assert roles["current"]["predicted_s"] == plan.current.predicted_s


def test_bounds_count_what_they_ruled_out() -> None:
    rows = ruled_out_rows(a_plan())
    assert sum(row["settings"] for row in rows) == len(a_plan().ruled_out)


def test_memory_is_a_line_and_failed_tries_stand_at_the_budget() -> None:
    tries = (
        Attempt(batch_size=8, outcome="done", peak_bytes=5, reserved_bytes=9),
        Attempt(batch_size=99, outcome="oom", peak_bytes=5),
    )
    limit = msgspec.structs.replace(a_limit(), probes=tries)
    rows = memory_rows(limit)
    assert [(row["bytes"], row["what"]) for row in rows[-2:]] == [(9, "done"), (limit.gpu_memory_bytes, "oom")]
    model = [row for row in rows if row["what"] == "model"]
    slope = (model[-1]["bytes"] - model[0]["bytes"]) / (model[-1]["batch_size"] - model[0]["batch_size"])
    assert slope == limit.bytes_per_item


@pytest.mark.parametrize(
    ("batch_size", "workers", "text"),
    [(1024, 1, "batch 1,024, 1 worker"), (8, None, "batch 8"), (None, 0, "0 workers"), (None, None, "")],
)
def test_settings_in_words(batch_size: int | None, workers: int | None, text: str) -> None:
    assert setting_text(batch_size, workers) == text
