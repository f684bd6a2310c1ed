"""One bottleneck, named for the stage that costs the most."""

from typing import Any

from stoker.analysis.spans import steady, whole
from stoker.analysis.verdict import verdict
from stoker.records import Extent, Setting, Stage, Subject, Timeline, Trial

SUBJECT = Subject(name="test", model="Linear", data="numbers", mode="infer", device="cpu", items=100)


def trial(workers: int = 2, start: float = 0.01, warmup: int = 1, **stages: list[float]) -> Trial:
    """A trial of five batches of ten items, with these seconds for each batch; worker stages by their usual names."""
    loop = {"wait", "copy", "forward", "backward", "update", "other"}
    made: dict[str, Stage] = {"start": Stage(clock="loop", samples_s=(start,))}
    for name, samples in stages.items():
        name = name.replace("__", ".")
        made[name] = Stage(clock="loop" if name in loop else "worker", samples_s=tuple(samples))
    return Trial(
        outcome="done",
        workload=SUBJECT,
        setting=Setting(batch_size=10, num_workers=workers),
        extent=Extent(batches=4, warmup=warmup),
        items=50,
        total_s=sum(stage.total_s for stage in made.values() if stage.clock == "loop"),
        stages=made,
        timeline=Timeline(items=(10,) * 5, batches=(5,)),
    )


def test_a_starved_device_names_the_workers_slowest_stage() -> None:
    judged = verdict(
        trial(wait=[1, 1, 1, 1, 1], forward=[0.25] * 5, read=[0.1] * 5, decode=[0.9] * 5, collate=[0.2] * 5)
    )
    assert judged is not None
    assert judged.bottleneck == "decode"
    assert abs(judged.share - 0.8 * 0.75) < 1e-9
    assert "80%" in judged.sentence


def test_named_members_of_a_stage_are_not_counted_twice() -> None:
    judged = verdict(trial(wait=[1] * 5, decode=[0.5] * 5, transform=[0.6] * 5, transform__Resize=[0.6] * 5))
    assert judged is not None
    assert judged.bottleneck == "transform"


def test_a_busy_device_names_its_slowest_stage() -> None:
    judged = verdict(trial(wait=[0.1] * 5, forward=[1] * 5, backward=[2] * 5, update=[0.1] * 5, decode=[9] * 5))
    assert judged is not None
    assert judged.bottleneck == "backward"


def test_a_slow_copy_is_named() -> None:
    judged = verdict(trial(wait=[0.1] * 5, copy=[2] * 5, forward=[1] * 5))
    assert judged is not None
    assert judged.bottleneck == "copy"


def test_a_run_that_is_mostly_start_says_so() -> None:
    judged = verdict(trial(start=5, wait=[3, 0, 0, 0, 0], forward=[0.1] * 5))
    assert judged is not None
    assert judged.bottleneck == "start"


def test_a_trial_that_did_not_finish_has_none() -> None:
    unfinished = Trial(outcome="oom", workload=SUBJECT, setting=Setting(), extent=Extent())
    assert verdict(unfinished) is None


def test_steady_state_leaves_out_each_epochs_warm_up() -> None:
    values: dict[str, Any] = {"wait": [5, 1, 1, 5, 1], "forward": [1] * 5}
    found = trial(**values)
    by_epoch = Trial(
        outcome="done",
        workload=SUBJECT,
        setting=found.setting,
        extent=Extent(batches=2, warmup=1, epochs=2),
        items=50,
        total_s=found.total_s,
        stages=found.stages,
        timeline=Timeline(items=(10,) * 5, batches=(3, 2)),
    )
    span = steady(by_epoch)
    assert span is not None
    assert (span.batches, span.items, span.loop_s["wait"]) == (3, 30, 3)
    assert whole(by_epoch).loop_s["wait"] == 13
