"""Seconds of the objective, from runs that were shorter, disturbed or odd."""

import pytest

from stoker.analysis.objective import steady_item_s, trial_s
from stoker.records import Extent, Measured, Objective, Setting, Stage, Subject, Timeline, Trial


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
