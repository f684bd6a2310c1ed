"""Probes of real loaders: what they hold, how they read back, and what is predicted from them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import stoker
from stoker.errors import InputError
from stoker.forecast.predictor import Predictor, landscape, parse_faster, predict
from stoker.forecast.probe import probe, prober
from stoker.forecast.probes import facts_of, read
from stoker.measure.malloc import ENVIRONMENT, MallocSetting, can_keep_memory
from stoker.measure.session import Script, run_script
from stoker.records import Probes, Setting, encode
from stoker.tuning.remedies import remedies

HERE = Path(__file__).parents[1] / "workloads" / "planted.py"


@pytest.fixture(scope="module")
def probes() -> Probes:
    return probe(f"{HERE}:planted", batch_sizes=(2, 4, 8), device="cpu", budget_s=30)


def test_probes_hold_what_predictions_need(probes: Probes) -> None:
    kinds = {run.kind for run in probes.runs}
    assert {"load", "slow", "step"} <= kinds
    assert {0, 1} <= {run.num_workers for run in probes.of("load")}
    steps = [place for place, run in enumerate(probes.runs) if run.kind == "step"]
    others = [place for place, run in enumerate(probes.runs) if run.kind == "load" and run.batch_size != 4]
    assert max(steps) < min(others), "a short budget leaves out what tells least"
    assert probes.subject.name.endswith("planted")
    assert probes.subject.model == "Identity"
    assert probes.machine.usable_cores > 0
    for run in probes.runs:
        assert len(run.asked_s) == len(run.got_s) == len(run.items)


@pytest.mark.skipif(not can_keep_memory(), reason="this malloc has no such settings, or they are set")
def test_a_malloc_that_keeps_memory_is_tried_last_and_once() -> None:
    quick = probe(f"{HERE}:plain", batch_sizes=(2, 4, 8), device="cpu", budget_s=30)
    assert [run.num_workers for run in quick.of("kept")] == [1]
    assert quick.runs[-1].kind == "kept"
    assert {run.batch_size for run in quick.of("slow")} == {2, 4, 8}, "what receiving costs goes by bytes"


def test_the_workloads_own_worker_init_fn_runs_after_ours() -> None:
    seen: list[int] = []
    MallocSetting(None)(0)
    MallocSetting(seen.append)(3)
    assert seen == [3]


def test_keeping_memory_is_advised_where_it_was_seen_to_help(probes: Probes) -> None:
    def advised(share: float | None) -> list[str]:
        runs = [run for run in probes.runs if run.kind != "kept"]
        usual = next(run for run in runs if run.kind == "load" and run.num_workers == 1)
        if share is not None:
            ended = tuple(
                began + share * (end - began) for began, end in zip(usual.began_s, usual.ended_s, strict=True)
            )
            collate = tuple(share * seconds for seconds in usual.collate_s)
            runs.append(msgspec.structs.replace(usual, kind="kept", ended_s=ended, collate_s=collate))
        predictor = Predictor(msgspec.structs.replace(probes, runs=tuple(runs)))
        found = remedies(predictor, Setting(batch_size=4, num_workers=1), 64, chosen=True)
        return [remedy.change for remedy in found if ENVIRONMENT in remedy.change]

    assert len(advised(0.5)) == 1
    assert advised(1.0) == []
    assert advised(None) == []


def test_without_workers_a_sleeping_step_is_part_of_the_probe() -> None:
    found = probe(f"{HERE}:plain", batch_sizes=(2, 4), device="sleep:10ms", mode="infer", budget_s=30)
    alone = [run for run in found.of("load") if run.num_workers == 0]
    assert {run.batch_size for run in alone} == {2, 4}
    for run in (*alone, *found.of("single")):
        assert all(done - got >= 0.009 for got, done in zip(run.got_s, run.done_s, strict=True))
    beside = [run for run in found.of("load") if run.num_workers]
    assert all(min(done - got for got, done in zip(run.got_s, run.done_s, strict=True)) < 0.009 for run in beside)
    assert len(found.of("single")) == (found.machine.usable_cores >= 2)


def test_one_thread_is_advised_where_it_was_seen_to_help(probes: Probes) -> None:
    assert not probes.of("single"), "a step on the CPU needs all of them"

    def advised(share: float, workers: int) -> list[str]:
        usual = next(run for run in probes.of("load") if run.num_workers == 0)
        waits = [share * (got - asked) for asked, got in zip(usual.asked_s, usual.got_s, strict=True)]
        got = tuple(asked + wait for asked, wait in zip(usual.asked_s, waits, strict=True))
        single = msgspec.structs.replace(usual, kind="single", got_s=got)
        predictor = Predictor(msgspec.structs.replace(probes, runs=(*probes.runs, single)))
        setting = Setting(batch_size=usual.batch_size, num_workers=workers)
        found = remedies(predictor, setting, 64, chosen=True)
        return [remedy.change for remedy in found if "set_num_threads(1)" in remedy.change]

    assert len(advised(0.4, 0)) == 1
    assert advised(1.0, 0) == []
    assert advised(0.4, 1) == [], "workers have one thread as it is"


def test_items_that_differ_are_probed_in_greater_number_and_not_taken_for_cold_ones() -> None:
    odd = HERE.parent / "odd.py"
    found = probe(f"{odd}:uneven", batch_sizes=(4, 8), device="sleep:1ms", mode="infer", budget_s=20)
    assert not [note for note in found.notes if "read again" in note]
    first, *_, last = [run for run in found.of("load") if (run.batch_size, run.num_workers) == (8, 1)]
    assert sum(last.items) > 1.5 * sum(first.items)
    assert Predictor(found).costs.sampled == sum(last.items)
    alike = probe(f"{odd}:three_items", batch_sizes=(1, 2), device="sleep:1ms", mode="infer", budget_s=5)
    assert max(sum(run.items) for run in alike.of("load")) <= 3


def test_probes_read_back_as_they_were(probes: Probes) -> None:
    assert read(encode(probes)) == probes
    with pytest.raises(InputError, match="no probes that this version can read"):
        read(b'{"runs": 3}')


def test_planted_costs_come_out_of_them(probes: Probes) -> None:
    costs = Predictor(probes).costs
    # Never less than was planted; a busy machine only ever adds to it.
    assert costs.worker_item_s.at(4) >= 0.010 * 0.99
    assert costs.step.host_s.at(4) >= 0.030 * 0.99
    assert costs.waiting_share > 0.3  # the planted delays sleep
    assert costs.shares["transform"] == pytest.approx(0.6, abs=0.1)
    assert costs.shares["read"] == pytest.approx(0.4, abs=0.1)


def test_a_prediction_says_what_limits_it(probes: Probes) -> None:
    slow = stoker.predict(probes, Setting(batch_size=8, num_workers=0), items=400)
    assert slow.total_s >= (400 * 0.010 + 50 * 0.030) * 0.99
    assert slow.limited_by in ("transform", "step")
    assert slow.interval_s[0] < slow.total_s < slow.interval_s[1]
    many = stoker.predict(probes, Setting(batch_size=8, num_workers=8), items=4000)
    assert many.wait_share < slow.wait_share
    assert many.total_s < 10 * slow.total_s


def test_what_ifs_change_the_answer(probes: Probes) -> None:
    setting = Setting(batch_size=8, num_workers=1)
    usual = stoker.predict(probes, setting, items=400).total_s
    assert stoker.predict(probes, setting, items=400, faster={"transform": 4}).total_s < usual
    assert stoker.predict(probes, setting, items=400, cores=64).total_s <= usual * 1.0001
    with pytest.raises(InputError, match="no stage named"):
        stoker.predict(probes, setting, items=400, faster={"paint": 2})
    with pytest.raises(InputError, match="cores must be above 0"):
        stoker.predict(probes, setting, items=400, cores=0)


def test_the_landscape_covers_what_was_probed(probes: Probes) -> None:
    cells = landscape(Predictor(probes), 100)
    assert {cell.setting.batch_size for cell in cells} == {2, 4, 8}
    assert {0, 1, 2} <= {cell.setting.num_workers for cell in cells}


@pytest.mark.parametrize("text", ["decode", "decode=", "decode=fast"])
def test_a_change_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="decode=2x"):
        parse_faster([text])


def test_items_must_be_there_to_count(probes: Probes) -> None:
    with pytest.raises(InputError, match="items must be at least 1"):
        Predictor(probes).predict(Setting(), 0)


@pytest.mark.parametrize("name", ["raises", "dies"])
def test_a_set_that_breaks_late_is_probed_as_far_as_it_goes(name: str) -> None:
    with pytest.raises(InputError, match="not even a short run"):
        probe(f"{HERE}:{name}", batch_sizes=(8, 16), mode="infer", device="cpu", budget_s=5)


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_little_shared_memory_bounds_what_is_probed(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(machine: Any) -> Any:
        return msgspec.structs.replace(facts_of(machine), shm_free_bytes=room)

    monkeypatch.setattr("stoker.forecast.runner.facts_of", little)
    found = probe(f"{HERE}:plain", batch_sizes=(4, 32), mode="infer", device="sleep:1ms", budget_s=2)
    item = max(run.bytes[0] / run.items[0] for run in found.runs)
    assert all(run.batch_size * item * 4 <= room for run in found.runs if run.num_workers)
    assert bool([run for run in found.runs if run.num_workers]) == (room == 5000)
    # What was not probed is said; on a busy host time may run out before memory does.
    assert any("do not fit" in note or "as the budget was spent" in note for note in found.notes)
    assert stoker.predict(found, Setting(batch_size=8, num_workers=1), items=100).total_s > 0


def test_a_stream_can_be_probed() -> None:
    found = probe(f"{HERE}:stream", batch_sizes=(4, 8), device="cpu", budget_s=2)
    assert found.subject.items is None
    assert stoker.predict(found, Setting(batch_size=8, num_workers=1), items=100).total_s > 0
    with pytest.raises(InputError, match="--items"):
        stoker.predict(found, Setting(batch_size=8))


@pytest.mark.parametrize(
    ("name", "budget_s", "fits"), [("plain", 60, True), ("plain", 1e-9, False), ("large", 60, False)]
)
def test_a_size_beyond_the_usual_is_probed_where_it_fits(name: str, budget_s: float, fits: bool) -> None:
    known: list[Probes] = []

    def script() -> Script[Probes | None]:
        at_work = prober(Setting(), [2, 4], budget_s=0.5)
        known.append((yield from at_work.script()))
        return (yield from at_work.further(32, budget_s))

    source = f"{HERE}:{'plain' if name == 'plain' else 'out_of_memory_above_16'}"
    found = run_script(source, script(), mode="infer", device="cpu")
    assert (found is not None) == fits
    if found is not None:
        assert {run.kind for run in found.runs if run.batch_size == 32} == {"step", "load"}
        assert len(found.runs) > len(known[0].runs)
        assert not found.ran_out


def test_start_methods_and_threads_are_probed_and_predicted_where_asked() -> None:
    options: dict[str, Any] = {"start_methods": ("spawn",), "worker_threads": (2,), "budget_s": 120}
    found = probe(f"{HERE}:plain", batch_sizes=(2, 4), device="sleep:1ms", mode="infer", **options)
    assert [run.start_method for run in found.of("started")] == ["spawn"]
    assert {run.worker_threads for run in found.of("threaded")} == {2}
    usual = Setting(batch_size=4, num_workers=1)
    spawned = replace(usual, multiprocessing_context="spawn")
    assert predict(found, spawned, items=64).first_batch_s > predict(found, usual, items=64).first_batch_s
    assert predict(found, replace(usual, worker_threads=2), items=64).total_s > 0
    with pytest.raises(InputError, match="--start-methods forkserver"):
        predict(found, replace(usual, multiprocessing_context="forkserver"))
    with pytest.raises(InputError, match="--worker-threads 3"):
        predict(found, replace(usual, worker_threads=3))
