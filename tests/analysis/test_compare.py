"""Two sides of runs: the interval by hand and by simulation, stages, tasks, and what is refused."""

import math
import random
from statistics import NormalDist

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.analysis.compare import (
    RULES,
    Measurement,
    Measurements,
    Pace,
    Part,
    compare_runs,
    estimate,
    of_plan,
    of_trial,
)
from stoker.analysis.student import student_quantile
from stoker.errors import InputError
from stoker.records import Comparison, Setting, Subject, Trial
from tests.analysis.saved_trials import machine, trial

KNOWN = 0.05


def sides(a: list[Trial], b: list[Trial], *, anyway: bool = False) -> Comparison:
    made = [Measurements(runs=tuple(of_trial(each) for each in side)) for side in (a, b)]
    return compare_runs(*made, anyway=anyway)


def runs(seconds: list[float]) -> list[Trial]:
    return [trial({"wait": each / 4, "forward": 3 * each / 4}, number=number) for number, each in enumerate(seconds)]


# ---------------------------------------------------------------- the interval


def test_sides_of_equal_size_are_pooled() -> None:
    step = math.exp(0.1)
    found = estimate([([1.0, step**2], [2.0, 2.0 * step**2])], KNOWN)
    # Two values 0.2 apart have 0.02 around their mean: the variance is 0.02, and the difference of means has as much.
    half = student_quantile(0.975, 2) * math.sqrt(0.02)
    assert found.ratio == pytest.approx(2.0)
    assert found.interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert (found.freedom, found.known) == (2, False)
    assert found.spread == pytest.approx(math.sqrt(0.02))


def test_sides_of_unequal_size_have_welchs_freedom() -> None:
    a = [math.exp(each) for each in (0.0, 0.2)]
    b = [math.exp(each) for each in (0.0, 0.01, -0.01, 0.02, -0.02, 0.03, -0.03)]
    parts = [(0.02 / 2, 1), (0.0028 / 6 / 7, 6)]
    freedom = sum(part for part, _ in parts) ** 2 / sum(part**2 / count for part, count in parts)
    half = student_quantile(0.975, math.floor(freedom)) * math.sqrt(sum(part for part, _ in parts))
    found = estimate([(a, b)], KNOWN)
    assert math.log(found.interval[1] / found.ratio) == pytest.approx(half)


def test_one_run_a_side_takes_the_known_spread_and_the_error_within_the_runs() -> None:
    found = estimate([([1.0], [1.0])], KNOWN, [0.03, 0.03])
    half = NormalDist().inv_cdf(0.975) * math.sqrt(2) * math.hypot(KNOWN, 0.03)
    assert found.interval == pytest.approx((math.exp(-half), math.exp(half)))
    assert found.known


def test_too_few_runs_that_differ_more_than_is_known_are_believed() -> None:
    apart = estimate([([1.0, 2.0], [1.0])], KNOWN)
    assert apart.known
    assert apart.spread == pytest.approx(math.log(2) / math.sqrt(2))


def test_runs_that_are_alike_by_chance_are_not_taken_for_certain() -> None:
    found = estimate([([1.0, 1.0], [1.001, 1.001])], KNOWN)
    assert found.interval[0] < 1 < found.interval[1]


@given(
    a=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5),
    b=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5),
    factor=st.floats(0.1, 10.0),
)
def test_the_interval_follows_the_times_and_turns_with_the_sides(a: list[float], b: list[float], factor: float) -> None:
    found = estimate([(a, b)], KNOWN)
    assert found.interval[0] <= found.ratio <= found.interval[1]
    scaled = estimate([([factor * each for each in a], b)], KNOWN)
    assert scaled.interval == pytest.approx(tuple(each / factor for each in found.interval))
    turned = estimate([(b, a)], KNOWN)
    assert turned.interval == pytest.approx((1 / found.interval[1], 1 / found.interval[0]))


@pytest.mark.parametrize(("runs_a", "runs_b", "spread"), [(2, 2, 0.01), (3, 3, 0.02), (5, 2, 0.03), (1, 1, KNOWN)])
def test_equal_sides_are_called_different_once_in_twenty_times(runs_a: int, runs_b: int, spread: float) -> None:
    draw = random.Random(1)
    wrong, rounds = 0, 1500
    for _ in range(rounds):
        a, b = ([math.exp(draw.gauss(0, spread)) for _ in range(count)] for count in (runs_a, runs_b))
        low, high = estimate([(a, b)], KNOWN).interval
        wrong += not low <= 1 <= high
    # Three standard errors around 5 %; Welch's freedom is rounded down, so unequal sides are wrong less often.
    assert wrong / rounds <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / rounds)
    if runs_a == runs_b:
        assert wrong / rounds >= 0.05 - 3 * math.sqrt(0.05 * 0.95 / rounds)


# ---------------------------------------------------------------- answers


def test_slower_faster_and_cannot_tell() -> None:
    base = [1.0, 1.01, 0.99]
    slower = sides(runs(base), runs([1.1, 1.11, 1.09]))
    assert (slower.answer, slower.total.name, slower.total.unit) == ("slower", "total, once steady", "batch")
    assert slower.sentence == "Slower by 10 % (8–12)"
    faster = sides(runs([1.1, 1.11, 1.09]), runs(base))
    assert faster.sentence == "Faster by 9 % (7–11)"
    unsure = sides(runs(base), runs([1.0, 1.02, 0.99]))
    assert unsure.answer == "cannot_tell"
    assert unsure.sentence == "Cannot tell: between 3 % faster and 3 % slower"


def test_slower_than_allowed() -> None:
    base = [1.0, 1.01, 0.99]
    slower = sides(runs(base), runs([1.1, 1.11, 1.09]))
    assert slower.slower_than(0.05) is True
    assert slower.slower_than(0.11) is None
    assert slower.slower_than(0.2) is False
    assert sides(runs(base), runs(base[::-1])).slower_than(0.1) is False
    assert sides(runs(base), runs(base[::-1])).slower_than(0.0) is None
    with pytest.raises(InputError, match="share"):
        slower.slower_than(-0.1)


def test_stages_are_compared_each_with_its_own_interval() -> None:
    a = [trial({"wait": 0.02, "forward": 0.08 + each}, workers_s={"read": 0.1}) for each in (0.0, 1e-4, -1e-4)]
    b = [trial({"wait": 0.04, "forward": 0.08 + each}, workers_s={"read": 0.2}) for each in (0.0, 1e-4, -1e-4)]
    found = {each.name: each for each in sides(a, b).stages}
    assert found["wait"].answer == "slower"
    assert found["wait"].ratio == pytest.approx(2.0)
    assert found["wait"].a_mean_s == pytest.approx(0.02)
    assert found["forward"].answer == "cannot_tell"
    assert (found["read"].clock, found["read"].unit) == ("worker", "item")
    assert found["read"].b_mean_s == pytest.approx(0.2 / 8)


def test_a_stage_that_takes_next_to_nothing_on_both_sides_is_not_compared() -> None:
    a, b = trial({"wait": 1e-6, "forward": 0.1}), trial({"wait": 5e-6, "forward": 0.1})
    assert next(each for each in sides([a], [b]).stages if each.name == "wait").ratio is None


def test_a_wait_that_appears_is_slower_although_it_was_nothing_before() -> None:
    a = [trial({"wait": each, "forward": 0.1}) for each in (0.0, 1e-5, 3e-4)]
    b = [trial({"wait": each, "forward": 0.1}) for each in (0.020, 0.021, 0.022)]
    wait = next(each for each in sides(a, b).stages if each.name == "wait")
    assert wait.answer == "slower"
    assert wait.ratio == pytest.approx(20.6, rel=0.1)  # against the 1 % that it counts as


def test_one_run_is_judged_by_its_batches_too() -> None:
    quiet = trial({"wait": 0.05, "forward": 0.05})
    noisy = msgspec.structs.replace(
        quiet,
        stages={
            name: msgspec.structs.replace(stage, samples_s=tuple(0.05 + 0.02 * (-1) ** at for at in range(20)))
            for name, stage in quiet.stages.items()
        },
    )
    assert sides([quiet], [noisy]).spread > sides([quiet], [quiet]).spread == pytest.approx(RULES.cpu_spread)


def test_a_gpu_has_another_known_spread() -> None:
    on_gpu = Subject(name="net", model="Net", data="set", mode="train", device="cuda:0", items=10)
    one = trial({"forward": 0.1}, workload=on_gpu)
    assert sides([one], [one]).spread == pytest.approx(RULES.gpu_spread)


def test_seconds_an_item_where_batches_differ() -> None:
    found = sides(
        [trial({"forward": 0.08}, batch_size=8, number=at) for at in range(2)],
        [trial({"forward": 0.16}, batch_size=16, number=at) for at in range(2)],
    )
    assert found.total.unit == "item"
    assert found.total.ratio == pytest.approx(1.0)
    assert [(each.name, each.kind, each.a, each.b) for each in found.changes] == [("batch_size", "setting", "8", "16")]


def test_what_else_differs_is_named() -> None:
    other = Subject(name="other", model="Net", data="set", mode="infer", device="cpu", items=1000)
    newer = msgspec.structs.replace(machine(), software=msgspec.structs.replace(machine().software, torch="3.0"))
    b = trial({"forward": 0.1}, workload=other, machine=newer, setting=Setting(batch_size=8, num_workers=2))
    changes = {each.name: (each.kind, each.a, each.b) for each in sides([trial({"forward": 0.1})], [b]).changes}
    assert changes == {
        "workload": ("task", "net", "other"),
        "mode": ("task", "train", "infer"),
        "num_workers": ("setting", "0", "2"),
        "torch": ("version", "2.9", "3.0"),
    }


def test_runs_too_short_for_a_steady_part_are_compared_whole() -> None:
    found = sides([trial({"forward": 0.1}, batches=2)], [trial({"forward": 0.1}, batches=2)])
    assert (found.basis, found.total.name, found.total.unit) == ("run", "whole run", "run")
    assert found.total.a_s == pytest.approx((0.2,))


# ---------------------------------------------------------------- several tasks


def test_tasks_are_compared_one_by_one() -> None:
    def side(factor: float) -> list[Trial]:
        return [
            trial({"forward": factor * seconds * noise}, setting=Setting(batch_size=8, num_workers=workers))
            for workers, seconds in ((0, 1.0), (2, 0.1))
            for noise in (0.99, 1.01)
        ]

    found = sides(side(1.0), [*side(1.2), trial({"forward": 9.0}, setting=Setting(batch_size=8, num_workers=4))])
    assert [(each.name, each.answer) for each in found.tasks] == [
        ("num_workers=0", "slower"),
        ("num_workers=2", "slower"),
    ]
    assert found.total.ratio == pytest.approx(1.2)
    assert found.freedom == 4
    assert found.notes == ("1 task only on side B, left out: num_workers=4",)


def test_sides_without_a_common_task_are_refused() -> None:
    a = [trial({"forward": 0.1}, setting=Setting(num_workers=workers)) for workers in (0, 1)]
    b = [trial({"forward": 0.1}, setting=Setting(num_workers=workers)) for workers in (2, 3)]
    with pytest.raises(InputError, match=r"no task in common: A has num_workers=0; num_workers=1; B has num_workers=2"):
        sides(a, b)


# ---------------------------------------------------------------- the machine


def test_unlike_machines_are_refused_unless_asked() -> None:
    a, b = trial({"forward": 0.1}), trial({"forward": 0.1}, machine=machine("another CPU"))
    with pytest.raises(InputError, match=r"not alike \(A on 4 CPUs \(a CPU\), no GPU; B on 4 CPUs \(another CPU\)"):
        sides([a], [b])
    assert "not alike" in sides([a], [b], anyway=True).notes[0]
    with pytest.raises(InputError, match="not alike"):
        sides([a], [trial({"forward": 0.1}, machine=machine(cpus=2.0))])


def test_the_reference_job_flags_drift_and_changes_no_figure() -> None:
    a = [trial({"forward": 0.1}, number=at) for at in range(3)]
    b = [trial({"forward": 0.1}, number=at, reference_s=(0.003,)) for at in range(3)]
    found = sides(a, b)
    assert found.drifted
    assert found.reference is not None
    assert found.reference.ratio == pytest.approx(1.5)
    assert found.total.ratio == pytest.approx(1.0)
    assert not sides(a, a).drifted


def test_disturbed_runs_are_counted() -> None:
    b = trial({"forward": 0.1}, interference=1.0, idle_cpus=0.0)
    assert sides([trial({"forward": 0.1})], [b]).b.disturbed == 1


# ---------------------------------------------------------------- bad input


def test_runs_that_did_not_finish_and_empty_sides_are_refused() -> None:
    with pytest.raises(InputError, match="the run ended with timed out"):
        of_trial(trial({"forward": 0.1}, outcome="timed_out"))
    done = Measurements(runs=(of_trial(trial({"forward": 0.1})),))
    with pytest.raises(InputError, match=r"side B has no finished run: x\.json: the run ended with oom"):
        compare_runs(done, Measurements(runs=(), left_out=("x.json: the run ended with oom",)))


def test_plans_and_runs_are_not_mixed() -> None:
    run = Measurements(runs=(of_trial(trial({"forward": 0.1})),))
    plan = Measurements(runs=(Measurement(paces={"objective": Pace(total=Part(item_s=1.0))}),))
    with pytest.raises(InputError, match="compare like with like"):
        compare_runs(run, plan)


def test_a_plan_has_a_measurement_for_each_run() -> None:
    from tests.records.test_documents import PLAN

    assert PLAN.measured is not None
    twice = msgspec.structs.replace(PLAN, measured=msgspec.structs.replace(PLAN.measured, samples_s=(1.0, 2.0)))
    assert [each.paces["objective"].total.item_s for each in of_plan(twice)] == [1 / 8, 2 / 8]
    with pytest.raises(InputError, match="not measured"):
        of_plan(msgspec.structs.replace(PLAN, measured=None))
