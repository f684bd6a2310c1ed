"""What is advised, from runs whose costs were made here. Each wrong advice that users got is one test."""

from typing import Any

import pytest
from msgspec.structs import replace

from stoker.analysis.interference import own_threads
from stoker.forecast.predictor import Predictor
from stoker.machine import inspect
from stoker.records import (
    Extent,
    Machine,
    Remedy,
    Setting,
    Stage,
    Subject,
    Timeline,
    Trial,
    VerifiedRemedy,
    WorkerLog,
)
from stoker.tuning.caching import deterministic_prefix
from stoker.tuning.remedies import advise, remedies
from tests.forecast.test_fit import eight_cores, run

COLLATE_S = 0.0005


def machine(cpus: int = 2) -> Machine:
    found = inspect()
    return replace(
        found,
        cpu=replace(found.cpu, quota=None, affinity=cpus, usable=float(cpus)),
        host=replace(found.host, available_bytes=2**34, shm_free_bytes=2**34),
    )


def trial(
    *,
    batch: int = 16,
    batches: int = 20,
    step_s: float = 0.01,
    first_step_s: float | None = None,
    item_s: float = 0.0002,
    cpu_share: float = 1.0,
    workers: int = 0,
    stages: dict[str, float] | None = None,
    sizes: tuple[int, ...] | None = None,
    output_bytes: dict[str, float] | None = None,
    cpus: int = 2,
    subject: dict[str, Any] | None = None,
    took_s: float | None = None,
) -> Trial:
    """A run that loads a batch, computes it, and so on: with workers, each of them loads all the time."""
    load_s = item_s * batch + COLLATE_S
    steps = [step_s if first_step_s is None else first_step_s, *[step_s] * (batches - 1)]
    now, asked, got, done, began = 0.0, list[float](), list[float](), list[float](), list[float]()
    for place, step in enumerate(steps):
        ready = (place // workers + 1) * load_s if workers else now + load_s
        asked.append(now)
        got.append(max(now, ready))
        began.append(got[-1] - load_s if not workers else ready - load_s)
        done.append(got[-1] + step)
        now = done[-1]
    items = sizes or (batch,) * batches
    names = stages or {"item": 1.0}
    worker_s = {name: (share * item_s * batch,) * batches for name, share in names.items()}
    loop_s = {
        "wait": tuple(after - before for before, after in zip(asked, got, strict=True)),
        "forward": tuple(steps),
        "other": (0.0,) * (batches + 1),
    }
    made = {
        "start": Stage(clock="loop", samples_s=(0.0,)),
        **{name: Stage(clock="loop", samples_s=values) for name, values in loop_s.items()},
        **{name: Stage(clock="worker", samples_s=values) for name, values in worker_s.items()},
        "collate": Stage(clock="worker", samples_s=(COLLATE_S,) * batches),
    }
    about = Subject(name="made", model="none", data="made", mode="infer", device="cpu", items=10_000)
    return Trial(
        outcome="done",
        workload=replace(about, **(subject or {})),
        setting=Setting(batch_size=batch, num_workers=workers),
        extent=Extent(batches=batches - 3, warmup=3),
        machine=machine(cpus),
        items=sum(items),
        total_s=now if took_s is None else took_s,
        stages=made,
        timeline=Timeline(
            asked_s=tuple(asked), got_s=tuple(got), done_s=tuple(done), items=items, batches=(batches,), epoch_s=(now,)
        ),
        workers=WorkerLog(
            worker=tuple(place % max(1, workers) for place in range(batches)),
            began_s=tuple(began),
            ended_s=tuple(start + load_s for start in began),
            cpu_s=(cpu_share * load_s,) * batches,
            item_s=(item_s,) * sum(items),
            batch_bytes=tuple(600_000 * count for count in items),
            delay_s=(0.0,) * batches,
            output_bytes=output_bytes or {},
        ),
    )


def named(found: list[Remedy], start: str) -> list[Remedy]:
    return [remedy for remedy in found if remedy.change.startswith(start)]


# ---------------------------------------------------------------- batch sizes


def test_no_batch_size_is_advised_from_a_single_one() -> None:
    assert not named(advise(trial(step_s=0.01)), "batch")


def test_a_second_size_says_whether_smaller_batches_are_slower() -> None:
    """A small net: the step takes the same for 4 items as for 16."""
    found = advise(trial(), trial(batch=4, step_s=0.01))
    assert not named(found, "batch")
    larger = advise(trial(), trial(batch=64, step_s=0.01))
    [remedy] = named(larger, "batch")
    assert remedy.changes == {"batch_size": 64}
    assert remedy.kind == "setting"
    assert remedy.after_s < 0.8 * remedy.before_s
    [said] = named(advise(trial(subject={"mode": "train"}), trial(batch=64, subject={"mode": "train"})), "batch")
    assert "5 updates an epoch in place of 20" in said.change


def test_a_failed_second_run_says_nothing() -> None:
    failed = Trial(outcome="oom", workload=trial().workload, setting=Setting(batch_size=64), extent=Extent())
    assert not named(advise(trial(), failed), "batch")


def test_compiling_is_not_scaled() -> None:
    """6 s of compilation are in every run, whatever the batch and the device."""
    slow = trial(first_step_s=6.0)
    for remedy in advise(slow, trial(batch=64, first_step_s=6.0)):
        assert remedy.before_s == slow.total_s
        assert remedy.after_s > 6.0, remedy.change


def test_a_batch_sampler_sets_its_sizes_itself() -> None:
    sampled = trial(batch=32, subject={"batch_sampler": True})
    sampled = replace(sampled, setting=replace(sampled.setting, batch_size=64))
    found = advise(sampled, trial(batch=8))
    assert found
    assert not named(found, "batch")
    assert named(found, "workers")


def test_a_function_that_passes_over_the_size_leaves_no_batch_to_advise() -> None:
    """Batches of five, whether 8 or 64 are asked for."""
    subject = {"batching": "function"}
    one, other = (trial(batch=size, sizes=(5,) * 20, subject=subject, step_s=0.01) for size in (8, 64))
    assert not named(advise(one, other), "batch")
    assert named(advise(trial(batch=8, subject=subject), trial(batch=64, subject=subject)), "batch")


# ---------------------------------------------------------------- the time before


def test_the_time_before_is_what_was_measured() -> None:
    found = advise(trial(took_s=3.21))
    assert found
    assert {remedy.before_s for remedy in found} == {3.21}
    assert all(remedy.after_s < 3.21 for remedy in found), "a finding is no remedy"


def test_what_ifs_come_last_and_are_called_so() -> None:
    found = advise(trial(stages={"decode": 0.6, "transform": 0.4}, item_s=0.001))
    kinds = [remedy.kind for remedy in found]
    assert "what_if" in kinds
    assert kinds == sorted(kinds, key=lambda kind: kind == "what_if")
    assert all((remedy.kind == "what_if") == ("twice as fast" in remedy.change) for remedy in found)
    first = [remedy.after_s for remedy in found if remedy.kind != "what_if"]
    assert first == sorted(first)


# ---------------------------------------------------------------- workers


def test_more_workers_than_cpus_for_items_that_wait() -> None:
    """50 ms of network an item, almost no CPU time, two CPUs: 12 workers were five times as fast as 2."""
    waiting = trial(batch=4, item_s=0.05, cpu_share=0.02, workers=2, batches=40)
    [remedy] = named(advise(waiting), "workers")
    assert isinstance(remedy.changes["num_workers"], int)
    assert remedy.changes["num_workers"] >= 8
    assert remedy.after_s < remedy.before_s / 3


def test_no_more_workers_than_cpus_for_items_that_compute() -> None:
    [remedy] = named(advise(trial(batch=4, item_s=0.05, workers=0, batches=40)), "workers")
    assert remedy.changes == {"num_workers": 2}
    assert not named(advise(trial(batch=4, item_s=0.05, workers=2, batches=40)), "workers")


def test_workers_are_charged_with_what_starting_one_took() -> None:
    """Half a second of work, and a worker that takes a second to start: none pays for so short a run."""
    short = trial(batch=4, item_s=0.005, step_s=0.01, batches=20)
    [remedy] = named(advise(short), "workers")
    assert "what starting them takes was not measured" in remedy.change
    started = trial(batch=4, item_s=0.005, step_s=0.0, batches=4, workers=1)
    quick, slow = (replace(started, start_s=seconds) for seconds in (0.01, 1.0))
    [remedy] = named(advise(replace(short, started=(quick,))), "workers")
    assert "not measured" not in remedy.change
    assert not named(advise(replace(short, started=(slow,))), "workers")


def test_more_workers_for_a_stream_that_each_would_repeat_are_a_change_of_code() -> None:
    """As it is, each of them would give all items; a single one repeats nothing."""
    found = named(advise(trial(batch=4, item_s=0.05, step_s=0.1, batches=40, subject={"repeats": True})), "workers")
    [several] = [remedy for remedy in found if remedy.kind == "code"]
    assert "once the stream shares its items out" in several.change
    [one] = [remedy for remedy in found if remedy.kind == "setting"]
    assert one.changes == {"num_workers": 1}
    assert not [each for each in advise(trial(batch=4, item_s=0.05, subject={"stream": True})) if each.kind == "code"]


def test_workers_that_wait_for_a_cpu_do_not_seem_to_wait_for_data() -> None:
    """Eight workers on two CPUs use a quarter of their time; the rest they would have computed, too."""
    crowded = trial(batch=4, item_s=0.05, cpu_share=0.25, workers=8, batches=40)
    delay_s = tuple(
        0.75 * (end - start) for start, end in zip(crowded.workers.began_s, crowded.workers.ended_s, strict=True)
    )
    crowded = replace(crowded, workers=replace(crowded.workers, delay_s=delay_s))
    assert crowded.workers.waiting_share == pytest.approx(0.0, abs=1e-9)
    assert all(remedy.changes.get("num_workers", 0) in (0, 1, 2) for remedy in advise(crowded))


def test_threads_of_loop_and_workers_add_up() -> None:
    found = replace(trial(workers=3), threads=2)
    assert own_threads(found) == 5
    assert own_threads(replace(found, workload=replace(found.workload, device="cuda:0"))) == 4
    assert own_threads(replace(found, setting=replace(found.setting, worker_threads=2))) == 8


def test_start_methods_and_threads_of_workers_are_advised_where_they_were_probed() -> None:
    probed = eight_cores()
    usual = [
        replace(each, start_method="spawn" if each.num_workers else None, start_s=2.0 * each.num_workers)
        for each in probed.runs
    ]
    quick = replace(run(1, 0.001), kind="started", start_method="fork", start_s=0.01)
    threaded = replace(run(1, 0.0005), kind="threaded", worker_threads=2)
    setting = Setting(batch_size=4, num_workers=1)
    probed = replace(probed, runs=(*usual, quick, threaded), setting=setting)
    found = remedies(Predictor(probed), setting, 4000, chosen=True)
    assert {"multiprocessing_context": "fork"} in [remedy.changes for remedy in found]
    assert {"worker_threads": 2} in [remedy.changes for remedy in found]
    alone = remedies(Predictor(replace(probed, runs=tuple(usual))), setting, 4000, chosen=True)
    assert not [remedy for remedy in alone if remedy.changes]


def crowded(step_s: float, **setting: Any) -> Trial:
    """A run whose threads wait for CPUs that other processes use."""
    made = trial(step_s=step_s, subject={"mode": "train"})
    threads = setting.get("threads") or 2
    made = replace(made, threads=threads, run_delay=1.0, interference=1.5, idle_cpus=0.0)
    return replace(made, setting=replace(made.setting, **setting))


def test_one_thread_is_a_remedy_where_a_run_with_one_was_faster() -> None:
    """Two threads that share a CPU made steps of 350 ms; one alone needs 10 ms."""
    slow, quick = crowded(0.35), crowded(0.01, threads=1)
    [remedy] = named(advise(slow, quick), "threads")
    assert remedy.change == "threads in the loop's process 2 → 1 (torch.set_num_threads(1))"
    assert (remedy.kind, remedy.changes) == ("setting", {"threads": 1})
    assert remedy.before_s == slow.total_s
    assert quick.total_s < remedy.after_s < slow.total_s / 3, "the warm-up takes as long as before"
    assert advise(slow, quick)[0] == remedy


def test_threads_are_left_alone_without_a_run_that_was_faster_or_without_a_busy_host() -> None:
    slow, quick = crowded(0.35), crowded(0.01, threads=1)
    assert not named(advise(slow), "threads")
    assert not named(advise(slow, crowded(0.34, threads=1)), "threads")
    assert not named(advise(replace(slow, run_delay=0.0, interference=0.0, idle_cpus=1.0), quick), "threads")


def test_a_run_with_other_threads_says_nothing_about_the_rest() -> None:
    slow, quick = crowded(0.35), crowded(0.01, threads=1)
    rest = [remedy for remedy in advise(slow, quick) if "threads" not in remedy.changes]
    assert rest == advise(slow)


# ---------------------------------------------------------------- caching

SHARES = {"read": 0.05, "decode": 0.5, "transform": 0.45, "transform.Resize": 0.25, "transform.ToTensor": 0.2}
BYTES = {"decode": 500_000.0, "transform.Resize": 150_000.0, "transform.ToTensor": 600_000.0}


def test_all_that_is_deterministic_may_be_cached() -> None:
    found = deterministic_prefix(SHARES, BYTES)
    assert found is not None
    assert (found.last, found.stops_at, found.item_bytes) == ("ToTensor", None, 600_000.0)
    assert found.share == pytest.approx(0.95)


@pytest.mark.parametrize("unknown", ["RandomResizedCrop", "RandAugment", "Mine", "RandomResizedCrop.2"])
def test_caching_stops_at_the_first_transform_that_may_be_random(unknown: str) -> None:
    shares = {"decode": 0.5, "transform": 0.5, f"transform.{unknown}": 0.3, "transform.ToTensor": 0.2}
    found = deterministic_prefix(shares, {**BYTES, f"transform.{unknown}": 150_000.0})
    assert found is not None
    assert (found.last, found.stops_at, found.share) == (None, unknown, 0.5)


def test_own_code_between_decoding_and_transforms_ends_it_too() -> None:
    found = deterministic_prefix({**SHARES, "item": 0.1}, BYTES)
    assert found is not None
    assert (found.last, found.stops_at) == (None, "Resize")


def test_what_decodes_out_of_sight_is_not_cached() -> None:
    assert deterministic_prefix(SHARES, {}) is None
    assert deterministic_prefix({"item": 1.0}, {}) is None


def test_the_cache_is_sized_for_the_whole_set() -> None:
    shares = {"decode": 0.7, "transform": 0.3, "transform.RandomResizedCrop": 0.3}
    made = trial(stages=shares, item_s=0.001, output_bytes={"decode": 1_000_000.0})
    [remedy] = named(advise(made), "cache")
    assert remedy.change == "cache decoded images, before RandomResizedCrop (9.31 GiB for all 10,000 items)"
    assert remedy.kind == "code"


# ---------------------------------------------------------------- verified


def test_the_measured_gain_is_the_median_of_the_pairs() -> None:
    remedy = Remedy(change="workers 0 → 2", before_s=4.0, after_s=2.0, changes={"num_workers": 2}, kind="setting")
    each = VerifiedRemedy(remedy=remedy, before_s=(4.0, 4.4, 4.2), after_s=(2.0, 4.0, 2.8))
    assert each.predicted_gain == 2.0
    assert each.measured_gain == pytest.approx(1.5)
    assert VerifiedRemedy(remedy=remedy, before_s=(), after_s=(), problem="died").measured_gain is None
