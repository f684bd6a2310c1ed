"""Which settings are considered for what a person asked, and what each is told to cost."""

import sys
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from stoker.analysis.objective import steady_item_s, trial_s
from stoker.errors import InputError
from stoker.forecast.constraints import bounds_of
from stoker.forecast.loader import Load
from stoker.forecast.predictor import Predictor, landscape, predict
from stoker.forecast.probes import read
from stoker.records import Extent, Measured, Objective, Probes, Setting, Stage, Subject, Timeline, Trial, encode
from stoker.report.views.prediction import grid_view
from stoker.tuning.candidates import Request, candidates_of, larger
from tests.forecast.test_fit import probes, run


@pytest.fixture(scope="module")
def probed() -> Probes:
    """Items of 1 ms, no step; eight cores."""
    found = probes(run(0, 0.001), run(1, 0.001), run(4, 0.001), cores=8)
    return replace(
        found,
        machine=replace(found.machine, available_bytes=2**34),
        subject=replace(found.subject, device="sleep:0ms", items=1000),
    )


def considered(probed: Probes, wish: Request, **bounds: Any) -> Any:
    predictor = Predictor(probed)
    return candidates_of(wish, Setting(), probed, predictor, Objective(items=500), bounds_of(probed.machine, **bounds))


@pytest.mark.parametrize(
    "wish",
    [{"max_batch": 16}, {"batch_size": 64}, {"global_batch": 32}, {}],
    ids=["above the largest", "beside the only one", "no divisor", "above all"],
)
def test_what_a_person_has_now_is_run_whatever_they_ask_for(wish: dict[str, int], probed: Probes) -> None:
    now = Setting(batch_size=600, num_workers=3)
    found, _ = considered(probed, Request(current=now, **wish))
    [mine] = [each for each in found if each.setting.batch_size == 600]
    assert (mine.setting.num_workers, mine.asked_for, mine.setting.accumulate) == (3, False, 1)
    assert all(each.asked_for for each in found if each is not mine)


def test_settings_that_keep_an_effective_batch_are_told_with_an_update_for_all_of_it(probed: Probes) -> None:
    found, _ = considered(probed, Request(global_batch=64))
    assert {each.setting.batch_size * each.setting.accumulate for each in found} == {64}


def test_what_a_person_has_now_is_ruled_out_where_the_machine_cannot_bear_it(probed: Probes) -> None:
    found, out = considered(probed, Request(current=Setting(batch_size=600, num_workers=3)), max_batch=64)
    assert not [each for each in found if each.setting.batch_size == 600]
    assert [each.bound for each in out if each.batch_size == 600] == ["device memory"]


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [({"max_batch": 3}, {1, 2, 3}), ({"host_memory_bytes": 1000}, {1, 2, 4, 5}), ({"host_memory_bytes": 200}, {1})],
)
def test_where_the_least_size_is_too_large_smaller_ones_are_considered(
    bounds: dict[str, int], sizes: set[int], probed: Probes
) -> None:
    found, out = considered(large_items(probed), Request(), **bounds)
    assert {each.setting.batch_size for each in found} == sizes
    assert 8 in {each.batch_size for each in out}, "and the others are ruled out by name"


def large_items(probed: Probes) -> Probes:
    """The same with items of 100 bytes."""
    return replace(probed, runs=tuple(replace(run, bytes=(400,) * len(run.bytes)) for run in probed.runs))


def test_all_are_looked_at_and_the_best_with_care(probed: Probes) -> None:
    varied = [replace(each, item_s=tuple(0.0005 + 0.00001 * place for place in range(48))) for each in probed.runs]
    probed = replace(probed, runs=tuple(varied))
    now = Setting(batch_size=96, num_workers=1)
    found, _ = considered(probed, Request(current=now))
    predictor = Predictor(probed)
    careful = [each for each in found if each.predicted == predictor.predict(each.setting, 500)]
    assert len(careful) < len(found), "the others were told roughly"
    assert found[:3] == careful[:3]
    assert all(each in careful for each in found if each.setting.batch_size == 96), "what they have, and beside it"
    assert [each.predicted_s for each in found] == sorted(each.predicted_s for each in found)


def uneven(probed: Probes) -> Probes:
    """The same with one item in sixteen that takes fifty times as long, and a step that takes what eight workers do."""
    times = tuple(0.05 if place % 16 == 7 else 0.001 for place in range(48))
    step = replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=(0.003,) * 12)
    return replace(probed, runs=(*(replace(each, item_s=times) for each in probed.runs), step))


def test_workers_load_further_ahead_where_a_few_items_are_slow(probed: Probes) -> None:
    even, _ = considered(probed, Request(batch_size=4))
    assert {each.setting.prefetch_factor for each in even} == {2}
    found, _ = considered(uneven(probed), Request(batch_size=4))
    best = found[0]
    assert best.setting.prefetch_factor in (4, 8)
    [near] = [
        each
        for each in found
        if (each.setting.num_workers, each.setting.prefetch_factor) == (best.setting.num_workers, 2)
    ]
    assert best.predicted_s < near.predicted_s


def test_what_a_person_has_now_is_one_setting_whatever_lies_beside_it(probed: Probes) -> None:
    wish = Request(batch_size=4, current=Setting(batch_size=4, num_workers=8, prefetch_factor=4))
    found, _ = considered(uneven(probed), wish)
    assert [each.setting.prefetch_factor for each in found if wish.is_current(each.setting)] == [4]
    alone = Request(current=Setting(batch_size=4, num_workers=0, prefetch_factor=4))
    assert alone.is_current(Setting(batch_size=4)), "without workers there is nothing ahead"


def test_where_memory_is_short_workers_load_one_batch_ahead(probed: Probes) -> None:
    large = large_items(probed)
    little = replace(large, machine=replace(large.machine, shm_free_bytes=8 * 100 * 4))
    found, out = considered(little, Request(batch_size=8))
    assert {each.setting.num_workers: each.setting.prefetch_factor for each in found} == {0: 2, 1: 2, 2: 1}
    assert {each.num_workers for each in out if each.bound == "/dev/shm"} == {3, 4, 6, 8, 12, 16}


def test_few_items_make_small_batches(probed: Probes) -> None:
    predictor, bounds = Predictor(probed), bounds_of(probed.machine)
    found, _ = candidates_of(Request(), Setting(), probed, predictor, Objective(items=10), bounds)
    assert {each.setting.batch_size for each in found} == {8}


def test_a_run_of_more_items_than_asked_for_is_not_less_than_nothing() -> None:
    extent = Extent(batches=1, warmup=0)
    subject = Subject(name="made", model="none", data="made", mode="infer", device="cpu", items=100)
    line = Timeline(asked_s=(0.0,), got_s=(0.9,), done_s=(1.0,), items=(32,), batches=(1,))
    trial = Trial(
        outcome="done", workload=subject, setting=Setting(), extent=extent, items=32, total_s=1.0, timeline=line
    )
    assert trial_s(Objective(items=8), trial) >= 1 / 4


def test_a_host_that_is_ahead_of_its_device_does_not_make_the_rest_of_a_run_quicker() -> None:
    count = 8
    loaded = tuple(0.05 * (place + 1) for place in range(count))
    line = Timeline(asked_s=(0.0, *loaded[:-1]), got_s=loaded, done_s=loaded, items=(32,) * count, batches=(count,))
    trial = Trial(
        outcome="done",
        workload=Subject(name="made", model="none", data="made", mode="infer", device="cuda:0", items=1024),
        setting=Setting(batch_size=32),
        extent=Extent(batches=count, warmup=0),
        items=32 * count,
        total_s=0.05 + 0.1 * count,
        timeline=line,
        stages={
            "wait": Stage(clock="loop", samples_s=(0.05, *(0.0,) * (count - 1))),
            "forward": Stage(clock="loop", samples_s=(0.1,) * count),
            "other": Stage(clock="loop", samples_s=(*(0.0,) * count, 3.0)),
        },
    )
    assert trial_s(Objective(items=1024), trial) == pytest.approx(0.05 + 0.1 * 32)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([2.0], 2.0), ([2.0, 2.1], 2.05), ([3.0, 2.0], 2.0), ([2.0, 9.0, 2.2], 2.2), ([1.0, 2.0, 3.0, 4.0], 2.5)],
)
def test_few_runs_of_a_setting_are_not_counted_as_better_than_many(samples: list[float], expected: float) -> None:
    found = Measured(samples_s=tuple(samples), run_s=tuple(samples), items=1, first_batch_s=0.1, steady_items_per_s=1.0)
    assert found.total_s == pytest.approx(expected)


def test_several_gpus_share_what_the_machine_has(probed: Probes) -> None:
    one, four = bounds_of(probed.machine), bounds_of(probed.machine, gpus=4)
    assert four.usable_cores == one.usable_cores / 4
    assert four.memory_bytes == one.memory_bytes // 4
    assert four.open_files == one.open_files, "each process may open as many"


@pytest.mark.parametrize("workers", [0, 2, 8])
def test_the_steady_rate_does_not_depend_on_how_many_batches_there_are(workers: int, probed: Probes) -> None:
    setting = Setting(batch_size=128, num_workers=workers)
    few, many = (predict(probed, setting, items=items).steady_items_per_s for items in (200, 100_000))
    assert few == pytest.approx(many, rel=0.25)


def test_a_short_last_batch_counts_as_what_it_is() -> None:
    load = Load(items=21)
    assert load.sizes(8) == [8, 8, 5]
    assert load.sizes(8, 2) == [8, 5]
    assert (load.batches(8), load.last(8)) == (3, 5)
    assert Load(items=21, drop_last=True).sizes(8) == [8, 8]
    assert Load(items=3, drop_last=True).sizes(8) == []


def test_a_very_long_run_is_told_from_a_short_one(probed: Probes) -> None:
    rates = [predict(probed, Setting(batch_size=8, num_workers=2), items=n).total_s / n for n in (10**5, 10**12)]
    assert rates[0] == pytest.approx(rates[1], rel=0.05)
    huge = predict(probed, Setting(batch_size=10**8, num_workers=2), items=10**10)
    assert huge.total_s == pytest.approx(10**10 * 0.002 / 2, rel=0.2), (
        "an item and its share of collating take 1 ms each"
    )


@pytest.mark.parametrize(
    "broken",
    [{"got_s": ()}, {"items": ()}, {"items": (0,) * 12}, {"cpu_s": (1.0,)}, {"batch_size": 0}],
    ids=lambda broken: ", ".join(broken),
)
def test_probes_that_do_not_hold_together_are_refused(broken: dict[str, Any], probed: Probes) -> None:
    first, *rest = probed.runs
    assert read(encode(probed)) == probed
    with pytest.raises(InputError, match="do not hold together"):
        read(encode(replace(probed, runs=(replace(first, **broken), *rest))))


def test_probes_of_a_machine_without_cores_or_of_another_version_are_refused(probed: Probes) -> None:
    with pytest.raises(InputError, match="do not hold together"):
        read(encode(replace(probed, machine=replace(probed.machine, usable_cores=0))))
    with pytest.raises(InputError, match="version 7, this Stoker reads 1: probe again"):
        read(b'{"version": 7, "all": "else"}')
    with pytest.raises(InputError, match="no probes that this version can read: Input data was truncated"):
        read(encode(probed)[:100])


def test_a_landscape_of_many_workers_fits_a_terminal(probed: Probes, capsys: pytest.CaptureFixture[str]) -> None:
    wide = replace(probed, runs=(*probed.runs, replace(probed.runs[0], batch_size=512)))
    predictor = Predictor(wide, cores=32)
    Console(width=80, file=sys.stdout).print(grid_view(landscape(predictor, wide, 600), wide))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "batch 4" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cores": float("nan")}, "cores must be above 0"),
        ({"cores": float("inf")}, "cores must be above 0"),
        ({"faster": {"step": float("nan")}}, "factor above 0"),
        ({"items": 0}, "items must be at least 1"),
    ],
)
def test_numbers_that_are_none_are_refused(options: dict[str, Any], words: str, probed: Probes) -> None:
    with pytest.raises(InputError, match=words):
        predict(probed, Setting(), **{"items": 100, **options})


@pytest.mark.parametrize(("device", "each_s"), [("cpu", 0.2), ("cuda:0", 0.1)])
def test_steps_that_shared_their_cores_stand_for_the_rest_of_a_run(device: str, each_s: float) -> None:
    """Of sixteen, the last four had been loaded ahead, and had all cores to themselves."""
    took = (*(0.2,) * 12, *(0.1,) * 4) if device == "cpu" else (0.1,) * 16
    ends = tuple(float(sum(took[: place + 1])) for place in range(16))
    trial = Trial(
        outcome="done",
        workload=Subject(name="made", model="none", data="made", mode="infer", device=device, items=1024),
        setting=Setting(batch_size=8, num_workers=2),
        extent=Extent(batches=16, warmup=0),
        items=128,
        total_s=ends[-1],
        timeline=Timeline(
            asked_s=(0.0, *ends[:-1]), got_s=(0.0, *ends[:-1]), done_s=ends, items=(8,) * 16, batches=(16,)
        ),
        stages={"forward": Stage(clock="loop", samples_s=took)},
    )
    assert trial_s(Objective(items=1024), trial) == pytest.approx(ends[-1] + each_s * 112)


@pytest.mark.parametrize(("device", "workers"), [("cpu", 2), ("cpu", 0), ("cuda:0", 2)])
@pytest.mark.parametrize(("accumulate", "batches"), [(16, 16), (4, 16), (4, 20), (5, 15), (40, 40), (40, 20)])
def test_the_rate_of_a_run_has_as_many_updates_in_it_as_there_are(
    accumulate: int, batches: int, device: str, workers: int
) -> None:
    took = tuple(0.02 + (0.06 if (place + 1) % accumulate == 0 else 0.0) for place in range(batches))
    ends = tuple(float(sum(took[: place + 1])) for place in range(batches))
    trial = Trial(
        outcome="done",
        workload=Subject(name="made", model="none", data="made", mode="train", device=device, items=1024),
        setting=Setting(batch_size=8, num_workers=workers, accumulate=accumulate),
        extent=Extent(batches=batches, warmup=0),
        items=8 * batches,
        total_s=ends[-1],
        timeline=Timeline(
            asked_s=(0.0, *ends[:-1]), got_s=(0.0, *ends[:-1]), done_s=ends, items=(8,) * batches, batches=(batches,)
        ),
        stages={"forward": Stage(clock="loop", samples_s=took)},
    )
    each_s = (0.02 + (0.06 / accumulate if accumulate <= batches else 0.0)) / 8
    assert steady_item_s(trial) == pytest.approx(each_s)


def test_a_global_batch_finds_a_size_that_leaves_room_for_gradients(probed: Probes) -> None:
    found, _ = considered(probed, Request(global_batch=1024), max_batch=20, max_accumulating_batch=3)
    assert {each.setting.batch_size for each in found} <= {1, 2, 3}
    assert found


@pytest.mark.parametrize(
    ("wish", "most", "size"),
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
    wish: dict[str, Any], most: int, size: int | None
) -> None:
    loads = (run(workers, 1e-6, batch=size) for workers in (0, 1) for size in (4, 64))
    quick = probes(*loads, cores=2)
    step = replace(run(0, 0.0, kind="step"), got_s=(0.0,) * 12, done_s=(0.01,) * 12)
    more = replace(step, batch_size=64)  # takes no longer
    quick = replace(quick, runs=(*quick.runs, step, more), subject=replace(quick.subject, device="sleep:10ms"))
    assert larger(Request(**wish), Setting(), Predictor(quick), Objective(items=100_000), most) == size


def test_sizes_beyond_the_usual_are_left_where_they_would_not_pay(probed: Probes) -> None:
    assert larger(Request(), Setting(), Predictor(probed), Objective(items=100_000), 100_000) is None


def test_an_effective_batch_that_no_epoch_fills_is_refused() -> None:
    with pytest.raises(InputError, match="more than the set's 100 items"):
        Request(global_batch=128).effective_notes("train", 100)
    assert Request(global_batch=64).effective_notes("train", 100) == []
    assert "no updates" in Request(global_batch=128).effective_notes("infer", 100)[0]


@pytest.mark.parametrize("setting", [{"num_workers": 10**9}, {"num_workers": 1, "prefetch_factor": 10**9}])
def test_what_would_take_for_ever_to_simulate_is_refused(setting: dict[str, Any], probed: Probes) -> None:
    with pytest.raises(InputError, match="can be simulated up to 1024"):
        predict(probed, Setting(**setting), items=100)
