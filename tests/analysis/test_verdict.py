"""One bottleneck, named for the stage that costs the most."""

from io import StringIO
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from stoker.analysis.interference import thread_change
from stoker.analysis.spans import steady, whole
from stoker.analysis.verdict import verdict
from stoker.machine import inspect
from stoker.records import Extent, Gauge, Setting, Stage, Subject, Timeline, Trial, WorkerLog
from stoker.report.views.profile import profile_view

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


# ---------------------------------------------------------------- the pace of a loop with workers


def paced(waits: list[float], step: float, *, workers: int = 2, **stages: float) -> Trial:
    """As many steady batches as there are waits, after one of warm-up."""
    count = len(waits) + 1
    rows: dict[str, Any] = {name: [seconds] * count for name, seconds in stages.items()}
    found = trial(workers=workers, wait=[0.0, *waits], forward=[step] * count, **rows)
    return replace(
        found, items=10 * count, timeline=Timeline(items=(10,) * count, batches=(count,)), extent=Extent(warmup=1)
    )


def test_workers_that_deliver_every_40_ms_set_the_pace_of_a_step_of_30_ms() -> None:
    judged = verdict(paced([0.02, 0.0] * 10, 0.03, decode=0.06, collate=0.01))
    assert judged is not None
    assert judged.bottleneck == "decode"
    assert "every 40 ms" in judged.sentence
    assert not judged.findings


def test_a_few_late_batches_are_no_pace() -> None:
    judged = verdict(paced([0.0] * 19 + [0.09], 0.03, decode=0.06))
    assert judged is not None
    assert steady(paced([0.0] * 19 + [0.09], 0.03)).share("wait") > 0.05  # type: ignore[union-attr]
    assert judged.bottleneck == "forward"


def test_a_wait_below_a_twentieth_is_none_however_regular() -> None:
    judged = verdict(paced([0.001] * 20, 0.03, decode=0.06))
    assert judged is not None
    assert judged.bottleneck == "forward"
    assert "more workers will not help" in judged.findings[0]


def test_without_workers_loading_and_computing_add_up_and_the_larger_is_named() -> None:
    assert verdict(paced([0.02] * 20, 0.03, workers=0, decode=0.02)).bottleneck == "forward"  # type: ignore[union-attr]
    assert verdict(paced([0.04] * 20, 0.03, workers=0, decode=0.04)).bottleneck == "decode"  # type: ignore[union-attr]


def test_a_wait_after_the_batch_was_loaded_is_for_sending_or_pinning() -> None:
    found = paced([0.01] * 20, 0.03, decode=0.06, send=0.002, pin=0.012)
    asked = tuple(0.04 * place for place in range(21))
    line = replace(found.timeline, asked_s=asked, got_s=tuple(at + 0.01 for at in asked), done_s=asked)
    loaded = replace(found, timeline=line, workers=WorkerLog(ended_s=tuple(at - 0.02 for at in asked)))
    judged = verdict(loaded)
    assert judged is not None
    assert judged.bottleneck == "pin"
    assert any("pin_memory=False" in finding for finding in judged.findings)
    late = replace(found, timeline=line, workers=WorkerLog(ended_s=tuple(at + 0.009 for at in asked)))
    assert verdict(late).bottleneck == "decode"  # type: ignore[union-attr]


def test_workers_that_always_load_set_the_pace_however_late_their_batches_arrive() -> None:
    # Python code of items holds the interpreter, so the thread that sends the batch before takes long beside it.
    asked = tuple(0.1 * place for place in range(21))

    def judged(**stages: float) -> str:
        found = paced([0.07] * 20, 0.03, workers=1, **stages)
        line = replace(found.timeline, asked_s=asked, got_s=tuple(at + 0.07 for at in asked), done_s=asked)
        log = WorkerLog(ended_s=tuple(at + 0.02 for at in asked))
        return verdict(replace(found, timeline=line, workers=log)).bottleneck  # type: ignore[union-attr]

    assert judged(item=0.099, send=0.05) == "item"
    assert judged(item=0.05, send=0.03) == "send"
    assert judged(item=0.099, send=0.1) == "send"


# ---------------------------------------------------------------- a busy host


def plain(view: Any) -> str:
    """The view as text."""
    with StringIO() as text:
        Console(file=text, width=200).print(view)
        return text.getvalue()


def on_two_cpus(found: Trial, **more: Any) -> Trial:
    machine = inspect()
    return replace(
        found, machine=replace(machine, cpu=replace(machine.cpu, quota=None, affinity=2, usable=2.0)), **more
    )


def test_a_host_that_others_use_makes_the_verdict_uncertain() -> None:
    quiet = on_two_cpus(paced([0.0] * 20, 0.03), threads=2, run_delay=0.05, interference=0.1, idle_cpus=0.0)
    judged = verdict(quiet)
    assert judged is not None
    assert (judged.uncertain, judged.doubt) == (False, "")
    busy = replace(quiet, run_delay=1.2, interference=1.3)
    judged = verdict(busy)
    assert judged is not None
    assert judged.uncertain
    assert "other processes used 1.3 CPUs" in judged.doubt
    assert "one thread instead of 2" in judged.findings[0]
    assert (thread_change(busy), thread_change(quiet)) == ({"threads": 1}, {})
    workers = replace(busy, threads=1, setting=replace(busy.setting, worker_threads=3))
    assert thread_change(workers) == {"worker_threads": 1}
    alone = replace(busy, threads=1)
    assert thread_change(alone) == {}
    assert "fewer than 2 workers" in verdict(alone).findings[0]  # type: ignore[union-attr]


def test_more_threads_than_cpus_make_it_uncertain_too() -> None:
    gauges = {"cpu_cores": Gauge(times_s=(0.0,), samples=(1.9,))}
    crowded = on_two_cpus(paced([0.0] * 20, 0.03), threads=2, run_delay=1.5, gauges=gauges)
    judged = verdict(crowded)
    assert judged is not None
    assert judged.uncertain
    assert "4 threads of this run (2 in the loop's process, 2 workers)" in judged.doubt
    assert "torch.set_num_threads(1)" in judged.findings[0]
    shown = plain(profile_view(crowded, judged, ()))
    assert shown.index("Uncertain:") < shown.index("Bottleneck: forward (uncertain)")
