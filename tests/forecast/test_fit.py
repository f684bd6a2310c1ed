"""From probes to costs, on runs whose costs are known because they were made here."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stoker.forecast.costs import Table
from stoker.forecast.fit import Level, fit, isotonic
from stoker.forecast.loader import Amount
from stoker.forecast.predictor import Predictor
from stoker.forecast.samples import drift
from stoker.forecast.simulate import simulate
from stoker.records import Facts, Kind, Probes, Run, Setting, Subject

COLLATE_S, SEND_S, PIN_S, ANEW_S, LATE_S = 0.004, 0.002, 0.005, 0.010, 0.030


def run(workers: int, item_s: float, *, batch: int = 4, batches: int = 12, kind: Kind = "load", **more: Any) -> Run:
    """Batches one after another, each with its items, its collating and, where pinned, its way to the loop."""
    took = item_s * batch + COLLATE_S
    began = [place // max(1, workers) * took for place in range(batches)]
    ended = [start + took for start in began]
    got = [end + 0.001 for end in ended]
    return Run(
        kind=kind,
        batch_size=batch,
        num_workers=workers,
        prefetch_factor=2,
        pinned=bool(more.get("pin_s")),
        total_s=ended[-1],
        start_s=0.0,
        asked_s=tuple(began),
        got_s=tuple(more.pop("got_s", got)),
        done_s=tuple(got),
        items=(batch,) * batches,
        bytes=(100,) * batches,
        worker=tuple(place % max(1, workers) for place in range(batches)),
        began_s=tuple(began),
        ended_s=tuple(ended),
        cpu_s=(took,) * batches,
        collate_s=(COLLATE_S,) * batches,
        item_s=(item_s,) * (batch * batches),
        **more,
    )


def probes(*runs: Run, cores: float = 8) -> Probes:
    facts = Facts(
        usable_cores=cores,
        available_bytes=1,
        shm_free_bytes=None,
        open_files=1024,
    )
    subject = Subject(name="made", model="none", data="made", mode="infer", device="cuda:0", items=100, parameters=0)
    return Probes(subject=subject, machine=facts, setting=Setting(), runs=runs)


def eight_cores() -> Probes:
    """Items of 1 ms, no step; eight cores and 16 GiB."""
    found = probes(run(0, 0.001), run(1, 0.001), run(4, 0.001), cores=8)
    return msgspec.structs.replace(
        found,
        machine=msgspec.structs.replace(found.machine, available_bytes=2**34),
        subject=msgspec.structs.replace(found.subject, device="sleep:0ms", items=1000),
    )


def test_isotonic_regression_pools_values_that_fall() -> None:
    assert isotonic([Level(1.0, 3), Level(0.9, 9), Level(1.2, 4)]) == pytest.approx([0.925, 0.925, 1.2])
    assert isotonic([Level(1.0, 1), Level(1.1, 1)]) == [1.0, 1.1]


def test_a_core_is_not_faster_because_others_are_busy() -> None:
    unlucky = fit(probes(run(0, 0.010), run(1, 0.010), run(8, 0.008, batches=32)))
    assert unlucky.slow(8) == 1.0
    assert 0.008 <= unlucky.worker_item_s.at(4) < 0.009, "most batches ran in the crowd"
    crowded = fit(probes(run(0, 0.008), run(1, 0.008), run(8, 0.010, batches=32)))
    assert crowded.worker_item_s.at(4) == pytest.approx(0.008)
    assert crowded.slow(8) == pytest.approx((0.040 + COLLATE_S) / (0.032 + COLLATE_S))


def test_an_item_takes_as_long_in_a_batch_larger_than_any_probed() -> None:
    costs = fit(probes(run(0, 0.010), run(1, 0.006), run(1, 0.008, batch=8)))
    assert costs.worker_item_s.at(8) == costs.worker_item_s.at(512)


def test_a_landing_with_pinned_memory_comes_apart_into_its_parts() -> None:
    def landed(workers: int) -> Run:
        firsts = [LATE_S] * workers
        later = 12 - workers
        send = [SEND_S + extra for extra in (*firsts, *[0.0] * later)]
        pin = [PIN_S + extra for extra in (*[ANEW_S] * workers, *[0.0] * later)]
        took = 4 * 0.010 + COLLATE_S
        got = [
            (place // workers + 1) * took + sending + pinning + 0.001
            for place, (sending, pinning) in enumerate(zip(send, pin, strict=True))
        ]
        return run(workers, 0.010, got_s=got, send_s=tuple(send), pin_s=tuple(pin))

    costs = fit(probes(run(0, 0.010), landed(1), landed(4)))
    assert costs.pin_s.at(4) == pytest.approx(PIN_S)
    assert costs.pin_anew_s.at(4) == pytest.approx(ANEW_S)
    assert costs.receive_s.at(4) == pytest.approx(SEND_S)
    assert costs.flight_s.at(4) == pytest.approx(0.001)
    assert costs.first_flight_s.at(4) == 0.0, "making pinned memory is counted once"
    assert costs.first_sends[:5] == pytest.approx((*(LATE_S,) * 4, 4)), "seen with four workers"
    assert costs.first_sends.seen == pytest.approx((LATE_S, LATE_S)), "of the first two"


def test_batches_that_find_no_pinned_memory_are_known_by_their_time_wherever_they_stand() -> None:
    def pinned(workers: int, new: set[int]) -> Run:
        pin = tuple(PIN_S + (ANEW_S if place in new else 0.0005 * (place % 3)) for place in range(12))
        return run(workers, 0.010, pin_s=pin, send_s=(SEND_S,) * 12)

    crowds = (pinned(4, set(range(12))), pinned(4, {*range(11)}))
    costs = fit(probes(run(0, 0.010), pinned(1, {0, 1}), *crowds))
    assert PIN_S <= costs.pin_s.at(4) <= PIN_S + 0.001
    assert costs.pin_s.at(4) + costs.pin_anew_s.at(4) == pytest.approx(PIN_S + ANEW_S)


def test_a_worker_that_has_nothing_to_do_yet_is_not_slow_to_go_on() -> None:
    quick = run(1, 0.010)
    took = 4 * 0.010 + COLLATE_S
    # The loop takes 0.2 s for a batch: from the third on, a worker waits until it is assigned the next batch.
    began, ended, got = [0.0], [took], [took + 0.2]
    for place in range(1, 12):
        began.append(max(ended[-1] + 0.0005, got[place - 2] if place > 1 else 0.0))
        ended.append(began[-1] + took)
        got.append(max(ended[-1], got[-1]) + 0.2)
    waits = msgspec.structs.replace(quick, began_s=tuple(began), ended_s=tuple(ended), got_s=tuple(got))
    assert fit(probes(run(0, 0.010), waits)).gap_s.at(4) == pytest.approx(0.0005)


def test_how_long_a_worker_stays_slow_is_seen_in_its_next_batches() -> None:
    def crowd(slow: Callable[[int], int]) -> Run:
        took = [0.1 * (1.5 if slow(place) == place % 8 else 1.0) for place in range(32)]
        ended = [place // 8 + seconds for place, seconds in enumerate(took)]
        made = run(8, 0.010, batches=32)
        began = tuple(float(place // 8) for place in range(32))
        return msgspec.structs.replace(made, began_s=began, ended_s=tuple(ended))

    alone = (run(0, 0.010), run(1, 0.010))
    assert fit(probes(*alone)).lasting == 0.0
    assert fit(probes(*alone, crowd(lambda place: 3))).lasting == pytest.approx(1.0)
    assert fit(probes(*alone, crowd(lambda place: place // 8))).lasting < 0.2


def test_workers_get_their_first_orders_one_after_another() -> None:
    """The last worker has just been forked: that it begins late is no matter of the orders."""
    crowd = run(4, 0.01)
    began = (0.000, 0.001, 0.002, 0.050, *crowd.began_s[4:])
    single = msgspec.structs.replace(run(1, 0.01), start_s=0.012)
    late = msgspec.structs.replace(crowd, began_s=began, start_s=4 * 0.012)
    costs = fit(probes(single, late))
    assert costs.hand_s == pytest.approx(0.001)
    assert costs.fork_s == pytest.approx(0.012 - 2 * 0.001), "handing out two orders to each is part of the start"


@pytest.mark.parametrize(("workers", "cores", "seconds"), [(1, 2, 3.0), (2, 2, 3.0), (4, 2, 1.5)])
def test_what_a_worker_needs_before_its_first_item_is_known_from_one_run_with_any_number(
    workers: int, cores: float, seconds: float
) -> None:
    late = run(workers, 0.001)
    moved = {name: tuple(3.0 + each for each in getattr(late, name)) for name in ("began_s", "ended_s", "got_s")}
    costs = fit(probes(msgspec.structs.replace(late, **moved), cores=cores))
    assert costs.init_s == pytest.approx(seconds)


def test_of_runs_with_one_and_with_many_workers_the_first_say_what_a_worker_needs() -> None:
    late = msgspec.structs.replace(run(4, 0.001), began_s=tuple(9.0 + place for place in range(12)))
    assert fit(probes(run(1, 0.001), late)).init_s == 0


def test_the_first_batch_of_a_loop_without_workers_costs_what_it_was_seen_to() -> None:
    inline, single = run(0, 0.01), run(1, 0.01)
    slow_s = 0.25
    late = {name: tuple(value + slow_s for value in getattr(inline, name)) for name in ("got_s", "done_s", "ended_s")}
    later = {name: tuple(value + slow_s for value in getattr(inline, name)[1:]) for name in ("asked_s", "began_s")}
    slow = msgspec.structs.replace(inline, **late, **{name: (0.0, *values) for name, values in later.items()})
    costs = fit(probes(slow, single))
    assert costs.inline_cold_s.at(4) == pytest.approx(slow_s)
    assert costs.cold_s.at(4) == pytest.approx(0.0)
    slowed = Predictor(probes(slow, single)).predict(Setting(batch_size=4, num_workers=0), 100)
    usual = Predictor(probes(inline, single)).predict(Setting(batch_size=4, num_workers=0), 100)
    assert slowed.first_batch_s - usual.first_batch_s == pytest.approx(slow_s, rel=0.1)
    assert slowed.total_s - usual.total_s == pytest.approx(slow_s, rel=0.1)


def test_what_a_crowd_costs_is_not_counted_as_cold_too() -> None:
    def cold(workers: int, times: float, batches: int) -> Run:
        made = run(workers, 0.010 * times, batches=batches)
        took = times * (4 * 0.010 + COLLATE_S)
        spans = [took + (times * 0.020 if place < workers else 0.0) for place in range(batches)]
        ended = tuple(began + span for began, span in zip(made.began_s, spans, strict=True))
        collate = (times * COLLATE_S,) * batches
        return msgspec.structs.replace(made, ended_s=ended, cpu_s=tuple(spans), collate_s=collate)

    costs = fit(probes(run(0, 0.010), cold(1, 1.0, 12), cold(8, 1.5, 32)))
    assert costs.slow(8) == pytest.approx(1.5)
    assert costs.cold_s.at(4) == pytest.approx(0.020), "twenty milliseconds for one worker, and for one of eight"


@pytest.mark.parametrize(("lost", "times"), [(0.0, 1.0), (0.2, 1.25), (0.5, 2.0), (0.6, 2.5), (3.0, 4.0)])
def test_a_step_on_the_cpu_slows_down_as_it_was_seen_to_beside_workers(lost: float, times: float) -> None:
    step = msgspec.structs.replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=(0.100,) * 12)
    beside = run(1, 0.009, kind="crowded")
    spans = [
        (began, began + 0.1 + lost * (ended - began))
        for began, ended in zip(beside.began_s, beside.ended_s, strict=True)
    ]
    # Each batch loads while one step goes on, and no other.
    got = tuple(0.2 * place for place in range(12))
    done = tuple(start + until - began for start, (began, until) in zip(got, spans, strict=True))
    loads = {"began_s": got, "ended_s": tuple(start + 0.04 for start in got)}
    beside = msgspec.structs.replace(beside, got_s=got, done_s=done, **loads)
    made = probes(run(0, 0.010), run(1, 0.010), step, beside, cores=2)
    made = msgspec.structs.replace(made, subject=msgspec.structs.replace(made.subject, device="cpu"))
    assert fit(made).step.crowded == pytest.approx(times)
    assert fit(made).step.threads == 2


def test_batches_that_malloc_never_keeps_cost_as_the_larger_probe_did() -> None:
    def inline(batch: int, waited_s: float) -> Run:
        made = run(0, 0.001, batch=batch, batches=4)
        got = tuple(asked + batch * waited_s for asked in made.asked_s)
        return msgspec.structs.replace(made, got_s=got, bytes=(batch * 2**20,) * 4)

    table = fit(probes(inline(8, 0.001), inline(128, 0.003), run(1, 0.001))).inline_item_s
    assert table.at(8) == table.at(32)
    assert table.at(33) == table.at(128) == pytest.approx(3 * table.at(8))
    small = fit(probes(inline(8, 0.001), inline(32, 0.003), run(1, 0.001))).inline_item_s
    assert small.at(8) < small.at(20) < small.at(32), "all of it below: a line"


def test_one_worker_on_a_slow_core_is_outvoted_by_those_on_others() -> None:
    costs = fit(probes(run(0, 0.010), run(1, 0.019, batches=12), run(8, 0.010, batches=32)))
    assert 0.010 < costs.worker_item_s.at(4) < 0.012, "near the mean over cores, not over batches"


def test_a_machine_that_changed_meanwhile_widens_the_interval() -> None:
    assert drift([run(1, 0.010), run(1, 0.010), run(8, 0.020)]) == 0.0
    assert drift([run(1, 0.010), run(1, 0.012)]) == pytest.approx(0.2)
    assert drift([run(1, 0.010)]) > 0, "nobody looked twice: it is not known to be steady"
    even, uneven = (
        Predictor(probes(run(0, 0.010), run(1, 0.010), run(1, again_s))).predict(Setting(batch_size=4), 64)
        for again_s in (0.010, 0.013)
    )
    assert uneven.interval_s[1] / uneven.total_s > even.interval_s[1] / even.total_s


def test_two_runs_of_the_same_setting_are_both_counted() -> None:
    longer, shorter = run(1, 0.010, batches=12), run(1, 0.012, batches=6)
    costs = fit(probes(run(0, 0.010), longer, shorter, run(8, 0.011, batches=32)))
    assert costs.worker_item_s.at(4) == pytest.approx(0.011)


def test_batches_that_differ_more_than_their_items_are_uneven() -> None:
    even = run(4, 0.01, batches=24)
    took = 0.04 + COLLATE_S
    slow = [1.2 if place % 2 else 1 / 1.2 for place in range(24)]
    ended = tuple(began + took * factor for began, factor in zip(even.began_s, slow, strict=True))
    uneven = msgspec.structs.replace(even, ended_s=ended)
    assert fit(probes(run(1, 0.01), even)).unevenness == pytest.approx(0.0, abs=1e-9)
    assert fit(probes(run(1, 0.01), uneven)).unevenness == pytest.approx(math.log(1.2), rel=0.05)
    by_chance = tuple(0.01 * (0.2 if place % 2 else 1.8) for place in range(4 * 24))
    varied = msgspec.structs.replace(uneven, item_s=by_chance)
    assert fit(probes(msgspec.structs.replace(run(1, 0.01, batches=24), item_s=by_chance), varied)).unevenness == 0


def test_steps_beside_a_worker_are_compared_with_those_of_the_same_process() -> None:
    step = msgspec.structs.replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=(0.100,) * 12)
    got = tuple(0.2 * place for place in range(12))
    took = (0.3, *(0.090,) * 8, *(0.070,) * 3)  # 20 ms lost to 40 ms of loading, in a process quicker than the other's
    ended = tuple(start + 0.04 for start in got[:9]) + (0.0,) * 3
    loads = {"began_s": (*got[:9], 0.0, 0.0, 0.0), "ended_s": ended}
    done = tuple(start + each for start, each in zip(got, took, strict=True))
    beside = msgspec.structs.replace(run(1, 0.009, kind="crowded"), got_s=got, done_s=done, **loads)
    made = probes(run(0, 0.010), run(1, 0.010), step, beside, cores=2)
    made = msgspec.structs.replace(made, subject=msgspec.structs.replace(made.subject, device="cpu"))
    assert fit(made).step.crowded == pytest.approx(2.0)


def test_the_first_step_on_the_cpu_takes_longer_and_is_counted_once() -> None:
    done = (0.180, *(0.100,) * 11)
    step = msgspec.structs.replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=done)
    made = probes(run(0, 0.010), run(1, 0.010), step, cores=2)
    made = msgspec.structs.replace(made, subject=msgspec.structs.replace(made.subject, device="cpu"))
    costs = fit(made)
    assert costs.step.first_s.at(4) == pytest.approx(0.080)
    bare = replace(costs, step=replace(costs.step, first_s=Table()))
    for workers in (0, 1):
        setting = Setting(batch_size=4, num_workers=workers)
        for epochs in (1, 3):
            longer, usual = (simulate(each, setting, Amount(items=32, epochs=epochs)).total_s for each in (costs, bare))
            assert longer - usual == pytest.approx(0.080, abs=0.02)
