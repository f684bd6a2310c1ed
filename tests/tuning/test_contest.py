"""Which candidates run, and how often, on a simulated machine: a clock, and what each setting takes."""

import math
import random
from collections.abc import Callable
from itertools import combinations
from statistics import fmean
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.session import Job
from stoker.records import Candidate, Measured, Objective, Prediction, Setting, Stage, Subject, Timeline, Trial
from stoker.tuning import contest
from stoker.tuning.contest import Listener, beliefs, job_of, knee, most_saved_s, standings, tied
from stoker.tuning.planners import Choice, simulate
from stoker.tuning.request import TuneRequest

SUBJECT = Subject(name="made", model="none", data="made", mode="infer", device="cpu", items=512, parameters=0)
ITEMS, SIZE = 512, 8


def candidate(workers: int, predicted_s: float, margin: float = 0.2, **more: Any) -> Candidate:
    setting = Setting(**{"batch_size": SIZE, "num_workers": workers, **more})
    predicted = Prediction(
        setting=setting,
        items=ITEMS,
        epochs=1,
        total_s=predicted_s,
        interval_s=(predicted_s * (1 - margin), predicted_s * (1 + margin)),
        first_batch_s=0.01,
        first_batch_interval_s=(0.0, 0.02),
        steady_items_per_s=ITEMS / predicted_s,
        wait_share=0.0,
        limited_by="step",
    )
    return Candidate(setting=setting, predicted_s=predicted_s, predicted=predicted)


def ran(found: Candidate, *samples_s: float, rounds: tuple[int, ...] = ()) -> Candidate:
    seen = Measured(
        samples_s=samples_s, run_s=samples_s, items=ITEMS, first_batch_s=0.0, steady_items_per_s=1.0, rounds=rounds
    )
    return msgspec.structs.replace(found, measured=seen)


class Machine:
    """Runs jobs on a clock of its own."""

    def __init__(self, takes: Callable[[int, int], float], monkeypatch: pytest.MonkeyPatch) -> None:
        self._takes, self.now, self.ran = takes, 0.0, list[int]()
        self.warmed_up: list[tuple[int, bool, int]] = []
        monkeypatch.setattr(contest, "perf_counter", lambda: self.now)

    def contend(
        self,
        found: list[Candidate],
        left_s: float,
        request: TuneRequest | None = None,
        *,
        on_gpu: bool = False,
        free_s: float = math.inf,
        epochs: int = 1,
    ) -> list[Candidate]:
        listener = Listener(lambda setting: None, lambda trial: None)
        unused: Any = None  # this planner neither predicts nor looks at bounds
        objective = Objective(items=ITEMS, epochs=epochs)
        choice = Choice(found, request or TuneRequest(), objective, unused, unused, left_s, listener, on_gpu, free_s)
        script = simulate(choice)
        trial: Any = None
        while True:
            try:
                trial = self._run(script.send(trial))
            except StopIteration as end:
                return list(end.value.ran)

    def _run(self, job: Job) -> Trial:
        if job.repeats:
            self.warmed_up.append((job.setting.batch_size, job.fresh, len(self.ran)))
            return Trial(outcome="done", workload=SUBJECT, setting=job.setting, extent=job.extent)
        workers = job.setting.num_workers
        epoch_s = self._takes(workers, self.ran.count(workers))
        self.ran.append(workers)
        batches = job.extent.batches or 0
        each_s = epoch_s * SIZE / ITEMS
        self.now += each_s * batches
        done = tuple(each_s * (place + 1) for place in range(batches))
        line = Timeline(
            asked_s=(0.0, *done[:-1]), got_s=(0.0, *done[:-1]), done_s=done, items=(SIZE,) * batches, batches=(batches,)
        )
        return Trial(
            outcome="done",
            workload=SUBJECT,
            setting=job.setting,
            extent=job.extent,
            items=SIZE * batches,
            total_s=each_s * batches,
            timeline=line,
            stages={"step": Stage(clock="loop", samples_s=(each_s,) * batches)},
        )


def test_what_is_clearly_worse_is_run_once_and_the_rest_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: {0: 1.0, 1: 2.0, 2: 1.02}[workers], monkeypatch)
    found = machine.contend([candidate(0, 1.0), candidate(1, 1.01), candidate(2, 1.02)], left_s=60)
    assert machine.ran.count(1) == 1
    assert machine.ran.count(0) == machine.ran.count(2) == 5
    assert machine.ran[:3] == [0, 1, 2]
    assert machine.ran[3:5] == [2, 0], "the second round goes the other way"
    assert [each.setting.num_workers for each in found] == [0, 2, 1]


def test_once_the_order_is_clear_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 1.0 + workers, monkeypatch)
    machine.contend([candidate(workers, 1.0) for workers in range(3)], left_s=60)
    assert sorted(machine.ran) == [0, 0, 1, 2]


@pytest.mark.parametrize(("left_s", "runners"), [(3.0, 3), (10.0, 6), (60.0, 8)])
def test_quick_runs_leave_time_for_more_of_those_that_may_be_best(
    left_s: float, runners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(lambda workers, run: 0.5, monkeypatch)
    machine.contend([candidate(workers, 0.5 + 0.001 * workers) for workers in range(12)], left_s=left_s)
    assert set(machine.ran) == set(range(runners))


def test_slow_runs_leave_time_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 60.0, monkeypatch)
    machine.contend([candidate(0, 60.0 + 0.001 * place) for place in range(3)] + [candidate(9, 60.1)], left_s=20)
    assert 9 not in machine.ran


def test_what_cannot_be_best_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 0.5, monkeypatch)
    machine.contend([*(candidate(workers, 0.5) for workers in range(3)), candidate(9, 0.7, margin=0.1)], left_s=60)
    assert 9 not in machine.ran


def test_the_current_setting_runs_however_bad_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 0.5 + workers, monkeypatch)
    request = TuneRequest(current=Setting(batch_size=SIZE, num_workers=9))
    machine.contend([*(candidate(workers, 0.5) for workers in range(3)), candidate(9, 5.0, 0.1)], 60, request)
    assert machine.ran.count(9) == 1


def test_one_unlucky_run_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(
        lambda workers, run: 1.3 if (workers, run) == (1, 0) else {0: 1.2, 1: 1.0, 2: 1.4}[workers], monkeypatch
    )
    found = machine.contend([candidate(workers, 1.0) for workers in range(3)], left_s=60)
    assert found[0].setting.num_workers == 1


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [
        ({1: (1.00, 1.00), 2: (0.99, 0.99)}, 1),
        ({1: (1.00,), 2: (0.99, 0.99)}, 2),
        ({1: (1.00, 1.00), 2: (0.99,)}, 1),
        ({1: (1.00,), 2: (0.99,)}, 1),
        ({1: (1.01, 1.02), 2: (0.99, 0.99)}, 1),
        ({1: (1.03,) * 8, 2: (0.99,) * 8}, 2),
        ({1: (1.05, 1.05), 2: (0.99, 0.99)}, 2),
    ],
)
def test_the_knee_is_the_leaner_of_two_that_are_known_to_be_alike(
    runs: dict[int, tuple[float, ...]], chosen: int
) -> None:
    found = [ran(candidate(workers, 1.0), *samples) for workers, samples in runs.items()]
    assert knee(found).setting.num_workers == chosen


def test_each_round_has_a_new_process_whose_warm_up_counts_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 1.0 + workers, monkeypatch)
    found = machine.contend([candidate(0, 1.0), candidate(1, 2.0)], left_s=60)
    assert machine.warmed_up == [(SIZE, True, 0), (SIZE, True, 2)]
    assert [each.measured.samples_s[0] for each in found if each.measured] == pytest.approx([1.0, 2.0])


def test_on_a_gpu_every_size_is_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 1.0 + workers, monkeypatch)
    sizes = ((0, 8), (1, 32), (2, 8))
    machine.contend([candidate(workers, 1.0, batch_size=size) for workers, size in sizes], left_s=60, on_gpu=True)
    assert machine.warmed_up == [(8, True, 0), (32, False, 0)]


def test_where_runs_are_few_a_prediction_counts_as_one_more() -> None:
    lucky, unlucky = ran(candidate(1, 0.92), 0.88, 1.13), ran(candidate(2, 0.75), 0.92)
    assert knee([lucky, unlucky, ran(candidate(3, 0.93), 1.11)]) is unlucky
    often = ran(candidate(1, 0.92), *[0.88] * 8), ran(candidate(2, 0.75), *[0.92] * 8)
    assert knee(often) is often[0], "many runs outvote it"


def test_what_all_predictions_are_off_by_changes_no_order() -> None:
    found = [ran(candidate(workers, 1.0 + workers), 2.0 + 2 * workers) for workers in range(3)]
    assert standings(found) == pytest.approx([2.0, 4.0, 6.0])


def test_in_a_round_that_time_will_cut_whoever_stands_best_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: {0: 0.9, 1: 0.95, 2: 1.0}[workers], monkeypatch)
    found = machine.contend([candidate(0, 0.8), candidate(1, 0.9), candidate(2, 0.95)], left_s=4.5)
    assert machine.ran == [0, 1, 2, 0], "not 2, with which the second round would begin"
    assert [each.runs for each in found] == [2, 1, 1]


def test_a_first_run_that_time_does_not_reach_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 20.0, monkeypatch)
    found = machine.contend([candidate(workers, 1.0 + workers) for workers in range(3)], left_s=10.0)
    assert machine.ran == [0]
    assert [each.setting.num_workers for each in found] == [0]


def test_nothing_that_ran_leaves_nothing_to_order(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 0.9, monkeypatch)
    monkeypatch.setattr(contest, "measured", lambda trials, objective: None)
    found = machine.contend([candidate(workers, 0.8) for workers in range(3)], left_s=1.0)
    assert [each.measured for each in found] == [None] * 3


def test_a_run_that_is_cut_short_has_whole_updates_in_it() -> None:
    gathering = candidate(0, 100.0, accumulate=16)
    batches = job_of(gathering, Objective(items=8 * ITEMS), 2.0).extent.batches
    assert batches is not None
    assert batches % 16 == 0
    assert 0 < batches < 8 * ITEMS // SIZE
    assert job_of(candidate(0, 1.0, accumulate=16), Objective(items=24), 2.0).extent.batches == 3, "no more than all"


# ---------------------------------------------------------------- beliefs, ties, and what more runs are worth

SECONDS = st.floats(0.1, 100.0)


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=5), st.floats(0.1, 10.0))
def test_a_machine_that_is_slower_as_a_whole_changes_no_order(found: list[tuple[float, ...]], slower: float) -> None:
    plain = [ran(candidate(place, each[0]), *each[1:]) for place, each in enumerate(found)]
    slow = [ran(candidate(place, each[0]), *(slower * one for one in each[1:])) for place, each in enumerate(found)]
    assert standings(slow) == pytest.approx([slower * each for each in standings(plain)], rel=1e-3)


def test_samples_of_one_round_are_compared_with_each_other() -> None:
    once = ran(candidate(1, 1.0), 1.0, 1.0, rounds=(0, 2))
    slow_round = ran(candidate(2, 1.0), 0.97, 1.2 * 0.97, 0.97, rounds=(0, 1, 2))
    other = ran(candidate(3, 1.0), 1.0, 1.2, 1.0, rounds=(0, 1, 2))
    takes = standings([once, slow_round, other])
    assert takes[1] < min(takes[0], takes[2])
    assert takes[0] == pytest.approx(takes[2], rel=0.03), "the slow round is no fault of who ran in it"


def test_one_disturbed_run_counts_less_than_the_others() -> None:
    scored = [ran(candidate(1, 1.0), 1.0, 1.0, 1.0, 2.0), ran(candidate(2, 1.0), 1.0, 1.0, 1.0, 1.0)]
    takes = standings(scored)
    assert takes[0] / takes[1] < 2.0**0.25 - 0.05


def test_more_runs_make_a_belief_surer_and_a_poor_prediction_less_sure() -> None:
    often, once = beliefs([ran(candidate(1, 1.0), *[1.0] * 5), ran(candidate(2, 1.0), 1.0)])
    assert often.error < once.error
    _, vague = beliefs([ran(candidate(1, 1.0), 1.0), ran(candidate(2, 1.0, margin=0.8), 1.0)])
    assert vague.error > once.error


def test_what_is_tied_is_the_best_and_what_is_near() -> None:
    scored = [ran(candidate(workers, 1.0), took, took) for workers, took in ((0, 1.2), (1, 1.01), (2, 1.0), (3, 1.5))]
    assert [each.setting.num_workers for each in tied(scored)] == [1, 2]
    assert knee(scored).setting.num_workers == 1
    assert [each.setting.num_workers for each in tied(scored[:1])] == [0]


def test_of_tied_settings_with_as_many_workers_the_one_with_the_least_memory_is_taken() -> None:
    scored = [ran(candidate(1, 1.0, batch_size=size), 1.0, 1.0) for size in (64, 16, 32)]
    assert knee(scored).setting.batch_size == 16


def test_two_tunings_of_nearly_equal_settings_agree_more_often_than_by_the_quickest_run() -> None:
    truth = {0: 1.3, 1: 1.0, 2: 0.995, 3: 0.99}

    def choices(seed: int) -> tuple[int, int]:
        noise = random.Random(seed)
        scored = [
            ran(
                candidate(workers, took * math.exp(noise.gauss(0, 0.03))),
                *(took * math.exp(noise.gauss(0, 0.04)) for _ in range(2)),
            )
            for workers, took in truth.items()
        ]
        return knee(scored).setting.num_workers, min(scored, key=lambda each: each.seconds).setting.num_workers

    def agreement(chosen: tuple[int, ...]) -> float:
        """How often two of them are the same."""
        return fmean(one == other for one, other in combinations(chosen, 2))

    ours, quickest = zip(*map(choices, range(40)), strict=True)
    assert agreement(ours) > agreement(quickest)
    assert 0 not in ours


def test_more_runs_can_save_a_share_of_the_job_and_nothing_once_the_order_is_certain() -> None:
    near = [ran(candidate(workers, 100.0), 100.0) for workers in (1, 2)]
    assert 1.0 < most_saved_s(near) < 20.0
    far = [ran(candidate(1, 100.0), *[100.0] * 5), ran(candidate(2, 200.0), *[200.0] * 5)]
    assert most_saved_s(far) == 0.0
    assert most_saved_s(near[:1]) == 0.0


@pytest.mark.parametrize(("epochs", "runs"), [(1, 1), (1000, 5)])
def test_rounds_beyond_the_free_time_have_to_pay(epochs: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda workers, run: 1.0, monkeypatch)
    found = [candidate(workers, 1.0 * epochs) for workers in (1, 2)]
    machine.contend(found, left_s=60, free_s=0.0, epochs=epochs)
    assert machine.ran.count(1) == machine.ran.count(2) == runs
