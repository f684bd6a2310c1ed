"""Drivers: what they run, in which order, beside whom, and what an interrupt or a budget leaves."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import Interrupted, MachineError
from stoker.records import Task
from stoker.studies.driver import Driver, Progress
from stoker.studies.store import Cluster, Place, Slot, Store, TrialRow
from tests.studies.quick import QuickCluster, QuickExecutor, other_machine, seconds_of, small_study, this_machine


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, task: Task) -> None:
        self.now += 10.0


def stored(folder: Path) -> tuple[Store, dict[str, Task]]:
    study = small_study(folder)
    store = Store(study.store_path)
    tasks = study.grid.tasks()
    store.add_study(study.name, study.grid, "grid", {key: (asked.task, asked.values) for key, asked in tasks.items()})
    return store, {key: asked.task for key, asked in tasks.items()}


def driven(folder: Path, executor: QuickExecutor, **options: Any) -> tuple[Any, list[TrialRow]]:
    store, tasks = stored(folder)
    with store:
        summary = Driver(store, tasks, executor, **options).run()
        return summary, store.trials("small")


# ---------------------------------------------------------------- what runs


def test_every_task_is_run_once_and_nothing_the_second_time(tmp_path: Path) -> None:
    executor = QuickExecutor()
    summary, rows = driven(tmp_path, executor)
    assert (summary.ran, summary.slots, summary.unfinished, summary.outcomes) == (8, 8, 0, {"done": 8})
    assert len({task.key() for task in executor.ran}) == 8
    assert {row.key: row.figures["seconds"] for row in rows} == {task.key(): seconds_of(task) for task in executor.ran}
    again, rows = driven(tmp_path, executor)
    assert (again.ran, len(rows), len(executor.ran)) == (0, 8, 8)


def test_all_tasks_come_once_before_the_second_repeat(tmp_path: Path) -> None:
    executor = QuickExecutor()
    driven(tmp_path, executor, repeats=3, seed=5)
    keys = [task.key() for task in executor.ran]
    rounds = [keys[:8], keys[8:16], keys[16:]]
    assert all(len(set(each)) == 8 for each in rounds)
    assert rounds[0] != rounds[1]


@pytest.mark.parametrize("outcome", ["oom", "crashed", "timed_out", "failed"])
def test_every_end_is_an_outcome_that_is_stored_and_counted(tmp_path: Path, outcome: Any) -> None:
    summary, rows = driven(tmp_path, QuickExecutor(outcomes={8: outcome}))
    assert summary.outcomes == {"done": 4, outcome: 4}
    assert (summary.unfinished, summary.stopped) == (0, None)
    assert {row.problem for row in rows} == {None, f"it was {outcome}"}


def test_a_retry_adds_an_attempt_and_runs_only_what_was_asked_for(tmp_path: Path) -> None:
    driven(tmp_path, QuickExecutor(outcomes={8: "oom"}))
    summary, rows = driven(tmp_path, QuickExecutor(), retry=["failed"])
    assert (summary.ran, len(rows)) == (0, 8)
    summary, rows = driven(tmp_path, QuickExecutor(outcomes={8: "failed"}), retry=["oom"])
    assert (summary.ran, len(rows)) == (4, 12)
    assert sorted((row.attempt, row.outcome) for row in rows if row.attempt) == [(1, "failed")] * 4
    assert driven(tmp_path, QuickExecutor(), retry=["oom"])[0].ran == 0, "the last attempt counts"
    assert driven(tmp_path, QuickExecutor(), retry=["failed", "oom"])[0].outcomes == {"done": 4}


def test_another_machine_runs_everything_again(tmp_path: Path) -> None:
    driven(tmp_path, QuickExecutor())
    summary, rows = driven(tmp_path, QuickExecutor(machine=other_machine()))
    assert (summary.ran, len(rows), len({row.machine for row in rows})) == (8, 16, 2)


def test_what_is_reported_says_how_far_it_is(tmp_path: Path) -> None:
    seen: list[Progress] = []
    trials: list[tuple[Slot, TrialRow]] = []
    clock = Clock()
    driven(
        tmp_path,
        QuickExecutor(wall_s=10.0, before=clock.work),
        clock=clock,
        on_progress=seen.append,
        on_trial=lambda slot, row: trials.append((slot, row)),
    )
    assert [at.done for at in seen] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert {at.of for at in seen} == {8}
    assert [at.left_s for at in seen] == [None, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0, 0.0]
    assert [len(at.running) for at in seen] == [1] * 8 + [0]
    assert [slot.key for slot, _ in trials] == [at.running[0] for at in seen[:-1]]
    assert {row.attempt for _, row in trials} == {0}


# ---------------------------------------------------------------- budget


def test_a_budget_ends_after_the_trials_that_fit(tmp_path: Path) -> None:
    clock = Clock()
    executor = QuickExecutor(wall_s=10.0, before=clock.work)
    summary, rows = driven(tmp_path, executor, budget_s=35.0, clock=clock)
    assert summary.stopped == "the next trial would not end within the budget"
    assert (summary.ran, summary.unfinished, len(rows)) == (3, 5, 3)
    assert driven(tmp_path, executor, budget_s=5.0, clock=clock)[0].ran == 0
    assert driven(tmp_path, executor, budget_s=1000.0, clock=clock)[0].unfinished == 0


def test_a_budget_that_is_spent_says_so(tmp_path: Path) -> None:
    clock = Clock()
    summary, _ = driven(tmp_path, QuickExecutor(wall_s=0.0, before=clock.work), budget_s=15.0, clock=clock)
    assert (summary.stopped, summary.ran) == ("the budget is spent", 2)


# ---------------------------------------------------------------- several at once


def test_jobs_run_side_by_side_and_no_more_than_asked(tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=20)

    def meet(_: Task) -> None:
        barrier.wait()

    executor = QuickExecutor(before=meet)
    summary, rows = driven(tmp_path, executor, jobs=2)
    assert (summary.ran, len(rows)) == (8, 8)
    assert executor.most_at_once == 2


def run_in_threads(count: int, drive: Callable[[int], Any]) -> None:
    threads = [threading.Thread(target=drive, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_drivers_of_one_file_share_its_tasks_and_its_jobs(tmp_path: Path) -> None:
    """Four drivers, each allowed one job: over all of them one trial runs at a time, and each task once."""
    stored(tmp_path)[0].close()
    at_once: list[int] = []
    running = threading.Semaphore(1)

    def work(_: Task) -> None:
        at_once.append(int(running.acquire(blocking=False)))
        time.sleep(0.01)
        running.release()

    executors = [QuickExecutor(before=work) for _ in range(4)]
    summaries: dict[int, Any] = {}

    def drive(number: int) -> None:
        summaries[number] = driven(tmp_path, executors[number], repeats=2)[0]

    run_in_threads(4, drive)
    keys = [task.key() for executor in executors for task in executor.ran]
    assert len(keys) == 16
    assert all(keys.count(key) == 2 for key in keys)
    assert sum(summary.ran for summary in summaries.values()) == 16
    assert {summary.unfinished for summary in summaries.values()} == {0}, "each waits until all have an outcome"
    assert at_once == [1] * 16


def test_drivers_that_retry_the_same_do_it_once(tmp_path: Path) -> None:
    driven(tmp_path, QuickExecutor(outcomes={8: "oom"}))
    executors = [QuickExecutor(outcomes={8: "oom"}, before=lambda _: time.sleep(0.05)) for _ in range(3)]
    barrier = threading.Barrier(3, timeout=20)

    def drive(number: int) -> None:
        store, tasks = stored(tmp_path)
        with store:
            real = store.wall_seconds

            def wall_seconds(place: Place) -> Any:
                barrier.wait()  # all have read which attempts there are before the first one retries
                return real(place)

            store.wall_seconds = wall_seconds  # type: ignore[method-assign]
            Driver(store, tasks, executors[number], jobs=3, retry=["oom"]).run()

    run_in_threads(3, drive)
    assert sum(len(executor.ran) for executor in executors) == 4


def test_a_driver_that_waits_says_for_whom(tmp_path: Path) -> None:
    store, tasks = stored(tmp_path)
    started, go_on = threading.Event(), threading.Event()

    def hold(_: Task) -> None:
        started.set()
        go_on.wait(20)

    with store:
        first = threading.Thread(target=lambda: Driver(store, tasks, QuickExecutor(before=hold)).run())
        first.start()
        started.wait(20)
        seen: list[Progress] = []

        def watch(at: Progress) -> None:
            seen.append(at)
            if at.waits_for:
                go_on.set()

        with Store(store.path) as other:
            Driver(other, tasks, QuickExecutor(), on_progress=watch).run()
        first.join(20)
    waiting = [at for at in seen if at.waits_for]
    assert waiting
    assert waiting[0].waits_for[0].owner.is_visible


# ---------------------------------------------------------------- clusters


def test_a_cluster_runs_as_many_at_once_as_it_has_nodes_and_each_task_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(4, timeout=20)
    executor = QuickCluster(4, machines=[this_machine(), other_machine()], before=lambda _: barrier.wait())
    summary, rows = driven(tmp_path, executor)
    assert (summary.ran, summary.unfinished, len(rows), executor.most_at_once) == (8, 0, 8, 4)
    assert len(executor.begun) == 8
    assert {row.machine for row in rows} == set(summary.machines)
    assert len(summary.machines) == 2


def test_what_any_node_has_run_is_done_for_the_cluster_also_when_the_node_has_left(tmp_path: Path) -> None:
    driven(tmp_path, QuickCluster(machines=[other_machine()]))
    assert driven(tmp_path, QuickCluster(machines=[this_machine()]))[0].ran == 0
    assert driven(tmp_path, QuickExecutor())[0].ran == 8, "for this machine alone nothing of it is done"


def test_what_this_machine_has_run_is_done_for_a_cluster_of_its_kind(tmp_path: Path) -> None:
    driven(tmp_path, QuickExecutor())
    assert driven(tmp_path, QuickCluster())[0].ran == 0
    assert driven(tmp_path, QuickCluster(machines=[other_machine()]))[0].ran == 8


def test_a_run_that_was_lost_with_its_node_is_recorded_and_run_again_at_most_twice(tmp_path: Path) -> None:
    summary, rows = driven(tmp_path, QuickCluster(1, losses=1))
    assert (summary.ran, summary.lost, summary.outcomes, len(rows)) == (8, 1, {"done": 8}, 9)
    (lost,) = (row for row in rows if row.outcome != "done")
    assert (lost.attempt, lost.problem) == (0, "node a was lost while it ran this")
    assert [row.attempt for row in rows if row.key == lost.key] == [0, 1]
    assert driven(tmp_path, QuickCluster(), retry=["crashed"])[0].ran == 0, "the last attempt counts"


def test_a_run_that_takes_every_node_with_it_is_given_up(tmp_path: Path) -> None:
    summary, rows = driven(tmp_path, QuickCluster(1, losses=3))
    assert (summary.lost, summary.outcomes, summary.unfinished) == (2, {"crashed": 1, "done": 7}, 0)
    assert len(rows) == 10


def test_a_driver_of_a_cluster_and_one_of_this_machine_do_not_wait_for_each_other(tmp_path: Path) -> None:
    store, tasks = stored(tmp_path)
    with store:
        store.claim([Slot(next(iter(tasks)), 0)], Cluster("node"), jobs=1, retries={})
        assert Driver(store, tasks, QuickExecutor()).run().ran == 8
        assert len(store.claims()) == 1


# ---------------------------------------------------------------- interrupts and errors


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_gives_the_claims_back_and_keeps_what_was_recorded(tmp_path: Path, jobs: int) -> None:
    store, tasks = stored(tmp_path)

    def interrupt(slot: Slot, row: TrialRow) -> None:
        if len(store.trials("small")) >= 3:
            raise Interrupted("interrupted")

    with store:
        executor = QuickExecutor()
        with pytest.raises(Interrupted):
            Driver(store, tasks, executor, jobs=jobs, on_trial=interrupt).run()
        assert executor.stopped.is_set() == (jobs > 1)
        assert store.claims() == []
        assert len(store.trials("small")) == 3
        summary = Driver(store, tasks, QuickExecutor(), jobs=jobs).run()
        assert summary.ran == 5


def test_an_interrupt_in_a_trial_gives_its_claim_back(tmp_path: Path) -> None:
    def interrupt(_: Task) -> None:
        raise Interrupted("interrupted")

    store, tasks = stored(tmp_path)
    with store:
        with pytest.raises(Interrupted):
            Driver(store, tasks, QuickExecutor(before=interrupt)).run()
        assert store.claims() == []
        assert store.trials("small") == []


def test_a_disk_that_is_full_ends_the_drive_and_the_next_one_goes_on(tmp_path: Path) -> None:
    store, tasks = stored(tmp_path)
    with store:
        pages = store._rows("PRAGMA page_count")[0][0]
        store._rows(f"PRAGMA max_page_count = {pages + 4}")
        with pytest.raises(MachineError, match="the disk is full"):
            Driver(store, tasks, QuickExecutor(), repeats=50).run()
        recorded = len(store.trials("small"))
        store._rows("PRAGMA max_page_count = 1000000")
        summary = Driver(store, tasks, QuickExecutor(), repeats=50).run()
        assert recorded > 0
        assert summary.ran == 400 - recorded
