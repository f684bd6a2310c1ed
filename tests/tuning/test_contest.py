"""Which candidates run, and how often, on a simulated machine: a clock, and what each setting takes."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stoker.measure.session import Job
from stoker.records import Candidate, Measured, Objective, Prediction, Setting, Stage, Subject, Timeline, Trial
from stoker.tuning import contest
from stoker.tuning.contest import Listener, job_of, knee, standings
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


def ran(found: Candidate, *samples_s: float) -> Candidate:
    seen = Measured(samples_s=samples_s, run_s=samples_s, items=ITEMS, first_batch_s=0.0, steady_items_per_s=1.0)
    return msgspec.structs.replace(found, measured=seen)


class Machine:
    """Runs jobs on a clock of its own."""

    def __init__(self, takes: Callable[[int, int], float], monkeypatch: pytest.MonkeyPatch) -> None:
        self._takes, self.now, self.ran = takes, 0.0, list[int]()
        self.warmed_up: list[tuple[int, bool, int]] = []
        monkeypatch.setattr(contest, "perf_counter", lambda: self.now)

    def contend(
        self, found: list[Candidate], left_s: float, request: TuneRequest | None = None, *, on_gpu: bool = False
    ) -> list[Candidate]:
        listener = Listener(lambda setting: None, lambda trial: None)
        unused: Any = None  # this planner neither predicts nor looks at bounds
        script = simulate(
            Choice(found, request or TuneRequest(), Objective(items=ITEMS), unused, unused, left_s, listener, on_gpu)
        )
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
        ({1: (1.00, 1.00), 2: (0.99,)}, 2),
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
