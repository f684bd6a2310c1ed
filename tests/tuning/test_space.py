"""Which settings are considered for a request, and what each is predicted to cost."""

from typing import Any

import pytest
from msgspec.structs import replace

from stoker.forecast.constraints import bounds_of
from stoker.forecast.predictor import Predictor
from stoker.records import Objective, Probes, Setting
from stoker.tuning.request import TuneRequest
from stoker.tuning.space import Space, candidates_of, larger_size
from tests.forecast.test_fit import eight_cores, probes, run


@pytest.fixture(scope="module")
def probed() -> Probes:
    """Items of 1 ms, no step; eight cores."""
    return eight_cores()


def considered(probed: Probes, request: TuneRequest, **bounds: Any) -> Any:
    space, predictor = Space(request=request), Predictor(probed)
    return candidates_of(space, Setting(), predictor, Objective(items=500), bounds_of(probed.machine, **bounds))


@pytest.mark.parametrize(
    "asked",
    [{"max_batch": 16}, {"batch_size": 64}, {"global_batch": 32}, {}],
    ids=["above the largest", "beside the only one", "no divisor", "above all"],
)
def test_the_current_setting_is_run_whatever_is_asked_for(asked: dict[str, Any], probed: Probes) -> None:
    now = Setting(batch_size=600, num_workers=3)
    found, _ = considered(probed, TuneRequest(current=now, **asked))
    [mine] = [each for each in found if each.setting.batch_size == 600]
    assert (mine.setting.num_workers, mine.asked_for, mine.setting.accumulate) == (3, False, 1)
    assert all(each.asked_for for each in found if each is not mine)


def test_settings_that_keep_an_effective_batch_have_one_update_for_all_of_it(probed: Probes) -> None:
    found, _ = considered(probed, TuneRequest(global_batch=64))
    assert {each.setting.batch_size * each.setting.accumulate for each in found} == {64}


def test_the_current_setting_is_ruled_out_if_it_does_not_fit(probed: Probes) -> None:
    found, out = considered(probed, TuneRequest(current=Setting(batch_size=600, num_workers=3)), max_batch=64)
    assert not [each for each in found if each.setting.batch_size == 600]
    assert [each.bound for each in out if each.batch_size == 600] == ["device_memory"]


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [({"max_batch": 3}, {1, 2, 3}), ({"host_memory_bytes": 1000}, {1, 2, 4, 5}), ({"host_memory_bytes": 200}, {1})],
)
def test_where_the_least_size_is_too_large_smaller_ones_are_considered(
    bounds: dict[str, int], sizes: set[int], probed: Probes
) -> None:
    found, out = considered(large_items(probed), TuneRequest(), **bounds)
    assert {each.setting.batch_size for each in found} == sizes
    assert 8 in {each.batch_size for each in out}, "and the others are ruled out by name"


def large_items(probed: Probes) -> Probes:
    """The same with items of 100 bytes."""
    return replace(probed, runs=tuple(replace(run, bytes=(400,) * len(run.bytes)) for run in probed.runs))


def test_all_are_looked_at_and_the_best_with_care(probed: Probes) -> None:
    varied = [replace(each, item_s=tuple(0.0005 + 0.00001 * place for place in range(48))) for each in probed.runs]
    probed = replace(probed, runs=tuple(varied))
    now = Setting(batch_size=96, num_workers=1)
    found, _ = considered(probed, TuneRequest(current=now))
    predictor = Predictor(probed)
    careful = [each for each in found if each.predicted == predictor.predict(each.setting, 500)]
    assert len(careful) < len(found), "the others were predicted roughly"
    assert found[:3] == careful[:3]
    assert all(each in careful for each in found if each.setting.batch_size == 96), "the current setting, and beside it"
    assert [each.predicted_s for each in found] == sorted(each.predicted_s for each in found)


def uneven(probed: Probes) -> Probes:
    """The same with one item in sixteen that takes fifty times as long, and a step that takes what eight workers do."""
    times = tuple(0.05 if place % 16 == 7 else 0.001 for place in range(48))
    step = replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=(0.003,) * 12)
    return replace(probed, runs=(*(replace(each, item_s=times) for each in probed.runs), step))


def test_workers_load_further_ahead_where_a_few_items_are_slow(probed: Probes) -> None:
    even, _ = considered(probed, TuneRequest(batch_size=4))
    assert {each.setting.prefetch_factor for each in even} == {2}
    found, _ = considered(uneven(probed), TuneRequest(batch_size=4))
    best = found[0]
    assert best.setting.prefetch_factor in (4, 8)
    [near] = [
        each
        for each in found
        if (each.setting.num_workers, each.setting.prefetch_factor) == (best.setting.num_workers, 2)
    ]
    assert best.predicted_s < near.predicted_s


def test_the_current_setting_is_one_setting_whatever_lies_beside_it(probed: Probes) -> None:
    request = TuneRequest(batch_size=4, current=Setting(batch_size=4, num_workers=8, prefetch_factor=4))
    found, _ = considered(uneven(probed), request)
    assert [each.setting.prefetch_factor for each in found if request.is_current(each.setting)] == [4]
    alone = TuneRequest(current=Setting(batch_size=4, num_workers=0, prefetch_factor=4))
    assert alone.is_current(Setting(batch_size=4)), "without workers there is nothing ahead"


def test_where_memory_is_short_workers_load_one_batch_ahead(probed: Probes) -> None:
    large = large_items(probed)
    little = replace(large, machine=replace(large.machine, shm_free_bytes=8 * 100 * 4))
    found, out = considered(little, TuneRequest(batch_size=8))
    assert {each.setting.num_workers: each.setting.prefetch_factor for each in found} == {0: 2, 1: 2, 2: 1}
    assert {each.num_workers for each in out if each.bound == "shm"} == {3, 4, 6, 8, 12, 16}


def test_few_items_make_small_batches(probed: Probes) -> None:
    predictor, bounds = Predictor(probed), bounds_of(probed.machine)
    found, _ = candidates_of(Space(request=TuneRequest()), Setting(), predictor, Objective(items=10), bounds)
    assert {each.setting.batch_size for each in found} == {8}


def test_a_global_batch_finds_a_size_that_leaves_room_for_gradients(probed: Probes) -> None:
    found, _ = considered(probed, TuneRequest(global_batch=1024), max_batch=20, max_accumulating_batch=3)
    assert {each.setting.batch_size for each in found} <= {1, 2, 3}
    assert found


@pytest.mark.parametrize(
    ("asked", "most", "size"),
    [
        ({}, 100_000, 4096),
        ({"largest": 4096}, 100_000, 32_768),
        ({}, 1500, 1500),
        ({}, 900, None),
        ({"max_batch": 512}, 100_000, None),
        ({"batch_size": 512}, 100_000, None),
        ({"global_batch": 512}, 100_000, None),
    ],
)
def test_sizes_beyond_the_usual_are_looked_at_where_nobody_set_a_bound(
    asked: dict[str, Any], most: int, size: int | None
) -> None:
    loads = (run(workers, 1e-6, batch=size) for workers in (0, 1) for size in (4, 64))
    quick = probes(*loads, cores=2)
    step = replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=(0.01,) * 12)
    more = replace(step, batch_size=64)  # takes no longer
    quick = replace(quick, runs=(*quick.runs, step, more), subject=replace(quick.subject, device="sleep:10ms"))
    asked = dict(asked)
    largest = {"largest": asked.pop("largest")} if "largest" in asked else {}
    space = Space(request=TuneRequest(**asked), **largest)
    assert larger_size(space, Setting(), Predictor(quick), Objective(items=100_000), most) == size


def test_sizes_beyond_the_usual_are_left_where_they_would_not_pay(probed: Probes) -> None:
    space = Space(request=TuneRequest())
    assert larger_size(space, Setting(), Predictor(probed), Objective(items=100_000), 100_000) is None


def test_batch_sizes_stay_within_what_was_asked() -> None:
    assert Space(request=TuneRequest(batch_size=48)).batch_sizes(None, None) == [48]
    assert Space(request=TuneRequest(max_batch=100)).batch_sizes(None, None) == [8, 16, 32, 64, 100]
    assert Space(request=TuneRequest()).batch_sizes(40, None) == [8, 16, 32]
    assert Space(request=TuneRequest()).batch_sizes(None, 3) == [1, 2, 3]
    assert Space(request=TuneRequest()).batch_sizes(5, None) == [1, 2, 4, 5]
    assert 48 in Space(request=TuneRequest(current=Setting(batch_size=48))).batch_sizes(None, None)


def test_start_methods_and_threads_are_considered_where_they_were_probed(probed: Probes) -> None:
    spawned = replace(run(1, 0.001), kind="started", start_method="spawn")
    threaded = replace(run(1, 0.0005), kind="threaded", worker_threads=2)
    probed = replace(probed, runs=(*probed.runs, spawned, threaded))
    request = TuneRequest(batch_size=4, start_methods=("spawn", "forkserver"), worker_threads=(2, 3))
    found, _ = considered(probed, request)
    kinds = {(each.setting.multiprocessing_context, each.setting.worker_threads) for each in found}
    assert kinds == {(None, None), ("spawn", None), (None, 2), ("spawn", 2)}
    plain, _ = considered(probed, TuneRequest(batch_size=4))
    assert {each.setting.multiprocessing_context for each in plain} == {None}


def test_sizes_beside_the_one_that_training_keeps_are_predicted_and_never_chosen(probed: Probes) -> None:
    request = TuneRequest(current=Setting(batch_size=16))
    space = Space.of(request, "train")
    assert space.probe_sizes(None) == [8, 16, 64]
    assert space.probe_sizes(20) == [8, 16]
    bounds = bounds_of(probed.machine)
    found, out = candidates_of(space, Setting(), Predictor(probed), Objective(items=500), bounds)
    assert {each.setting.batch_size for each in found if each.asked_for} == {16}
    assert {each.setting.batch_size for each in found if not each.asked_for} == {8, 32, 64}
    assert {each.batch_size for each in out} <= {16}
    assert Space.of(request, "infer").kept is None
    assert Space.of(replace(request, planner="grid"), "train").other_sizes(None) == []
