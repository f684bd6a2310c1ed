"""Remedies that are run beside the present setting."""

from collections.abc import Callable
from pathlib import Path

import stoker
from stoker.measure.session import Job
from stoker.records import Extent, Objective, Problem, Remedy, Setting, Stage, Subject, Timeline, Trial, VerifiedRemedy
from stoker.tuning.verification import verification, verify

HERE = Path(__file__).parents[1] / "workloads" / "planted.py"
NOW = Setting(batch_size=8)
REMEDY = Remedy(change="workers 0 → 2", before_s=4.0, after_s=2.0, changes={"num_workers": 2}, kind="setting")
SUBJECT = Subject(name="made", model="none", data="made", mode="infer", device="cpu", items=4000)


def answered(takes: Callable[[Job, int], float | None], *remedies: Remedy) -> tuple[list[VerifiedRemedy], list[Job]]:
    """What a machine would say on which the n-th job takes so long for an item; None is a crash."""
    script = verification(NOW, remedies, Objective(items=4000), 40.0, Extent(seed=7))
    jobs: list[Job] = []
    try:
        job = next(script)
        while True:
            jobs.append(job)
            item_s = takes(job, len(jobs))
            job = script.send(made(job, item_s))
    except StopIteration as end:
        return end.value, jobs


def made(job: Job, item_s: float | None) -> Trial:
    if item_s is None:
        problem = Problem(sentence="it died")
        return Trial(outcome="crashed", workload=SUBJECT, setting=job.setting, extent=job.extent, problem=problem)
    batches, size = job.extent.batches or 1, job.setting.batch_size
    waits = (item_s * size,) * batches
    return Trial(
        outcome="done",
        workload=SUBJECT,
        setting=job.setting,
        extent=job.extent,
        items=batches * size,
        total_s=sum(waits),
        stages={"wait": Stage(clock="loop", samples_s=waits)},
        timeline=Timeline(items=(size,) * batches, batches=(batches,), got_s=waits),
    )


def test_runs_alternate_and_their_order_too() -> None:
    [found], jobs = answered(lambda job, _: 0.01 / (job.setting.num_workers or 1), REMEDY)
    assert [job.setting.num_workers for job in jobs] == [0, 2, 2, 0]
    assert {(job.extent.seed, job.extent.warmup) for job in jobs} == {(7, 0)}
    assert len({(job.extent.batches or 0) * job.setting.batch_size for job in jobs}) == 1
    assert found.measured_gain is not None
    assert abs(found.measured_gain - 2.0) < 0.05
    assert abs(found.before_s[0] - 40.0) < 1.0


def test_pairs_that_differ_ask_for_a_third() -> None:
    [found], jobs = answered(lambda job, number: 0.01 * number if job.setting.num_workers else 0.02, REMEDY)
    assert len(jobs) == 6
    assert len(found.before_s) == len(found.after_s) == 3


def test_as_many_pairs_as_asked_for() -> None:
    script = verification(NOW, [REMEDY], Objective(items=4000), 40.0, Extent(seed=7), pairs=5)
    jobs = 0
    try:
        job = next(script)
        while True:
            jobs += 1
            job = script.send(made(job, 0.01))
    except StopIteration as end:
        [found] = end.value
    assert (jobs, len(found.before_s), len(found.after_s)) == (10, 5, 5)


def test_a_remedy_that_breaks_says_so_and_the_next_is_run() -> None:
    other = Remedy(change="prefetch", before_s=4.0, after_s=3.0, changes={"batch_size": 16}, kind="setting")
    [broken, fine], _ = answered(lambda job, _: None if job.setting.num_workers else 0.01, REMEDY, other)
    assert (broken.problem, broken.measured_gain) == ("it died", None)
    assert fine.measured_gain is not None
    assert abs(fine.measured_gain - 1.0) < 0.05


def test_remedies_of_a_profile_are_run() -> None:
    extent = Extent(batches=6, warmup=1)
    trial = stoker.profile(f"{HERE}:planted", Setting(batch_size=4), extent, device="cpu")
    found = verify(f"{HERE}:planted", trial, [*stoker.advise(trial)], device="cpu")
    assert 1 <= len(found) <= 2
    assert all(each.problem is None and len(each.before_s) in (2, 3) for each in found)
    assert all(each.remedy.kind == "setting" for each in found)
    assert verify(f"{HERE}:planted", trial, []) == []
