"""Many trials in one child: what one leaves to the next, and what becomes of the rest when one breaks."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import stoker
from stoker import Extent, Setting, Trial
from stoker.analysis.interference import disturbance_note, disturbed
from stoker.errors import InputError
from stoker.measure import reference
from stoker.measure.session import Job, Repeats, Script, ending_at, run_script
from stoker.process.fork import Forked
from stoker.process.wire import Failure

HERE = Path(__file__).parents[1] / "workloads" / "planted.py"
ODD = HERE.parent / "odd.py"
FEW = Extent(batches=3, warmup=0)


def jobs(*settings: Setting, **options: Any) -> Script[list[Trial]]:
    trials: list[Trial] = []
    for setting in settings:
        trial = yield Job(setting=setting, extent=FEW, **options)
        trials.append(trial)
    return trials


def test_trials_run_one_after_another_with_the_model_made_once(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def model() -> Any:
        with made.open("a") as file:
            file.write("x")
        return torch.nn.Linear(8, 2)

    data = torch.utils.data.TensorDataset(torch.zeros(64, 8), torch.zeros(64, dtype=torch.long))
    workload = stoker.Workload(model=model, dataset=data, loss=torch.nn.CrossEntropyLoss())
    settings = (Setting(batch_size=4), Setting(batch_size=8), Setting(batch_size=2, num_workers=1))
    found = run_script(workload, jobs(*settings), device="cpu")
    assert [trial.outcome for trial in found] == ["done"] * 3
    assert [trial.items for trial in found] == [12, 24, 6]
    assert made.read_text() == "x"


@pytest.mark.parametrize("breaks", [False, True])
def test_a_fresh_job_goes_to_a_child_that_has_run_nothing(breaks: bool, tmp_path: Path) -> None:
    made, broken = tmp_path / "made", tmp_path / "broken"

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            if broken.exists():
                raise ValueError("broken")
            return torch.zeros(8)

    def model() -> Any:
        with made.open("a") as file:
            file.write("x")
        return torch.nn.Linear(8, 2)

    def script() -> Script[list[str]]:
        outcomes: list[str] = []
        for number, fresh in enumerate((True, False, True, False)):
            if breaks and number == 1:
                broken.touch()
            trial = yield Job(setting=Setting(batch_size=2), extent=FEW, fresh=fresh)
            broken.unlink(missing_ok=True)
            outcomes.append(trial.outcome)
        return outcomes

    found = run_script(stoker.Workload(model=model, dataset=Data()), script(), device="cpu")
    assert found == ["done", "failed" if breaks else "done", "done", "done"]
    assert made.read_text() == "xx"


def test_each_job_can_depend_on_the_trials_before_it() -> None:
    def script() -> Script[int]:
        first = yield Job(setting=Setting(batch_size=2), extent=FEW)
        second = yield Job(setting=Setting(batch_size=first.items), extent=FEW)
        return second.items

    assert run_script(f"{HERE}:plain", script(), device="cpu") == 18


@pytest.mark.parametrize("name", ["raises", "dies", "out_of_memory"])
def test_a_trial_that_breaks_costs_itself_alone(name: str) -> None:
    whole = (Setting(batch_size=2, num_workers=1), Setting(batch_size=16, num_workers=1), Setting(batch_size=2))
    found = run_script(f"{HERE}:{name}", jobs(*whole), mode="infer", device="cpu")
    ended = {"raises": "failed", "dies": "crashed", "out_of_memory": "oom"}[name]
    expected = ["oom"] * 3 if name == "out_of_memory" else ["done", ended, "done"]
    assert [trial.outcome for trial in found] == expected
    assert all(trial.problem is not None for trial in found if trial.outcome != "done")


def test_the_process_itself_may_die_and_the_rest_go_on() -> None:
    found = run_script(f"{HERE}:dies", jobs(Setting(batch_size=16), Setting(batch_size=2)), mode="infer", device="cpu")
    assert [trial.outcome for trial in found] == ["crashed", "done"]
    assert found[0].problem is not None
    assert "SIGKILL" in found[0].problem.sentence


def test_a_child_that_cannot_open_the_data_again_costs_one_trial_and_shifts_none(tmp_path: Path) -> None:
    opened = tmp_path / "opened"

    def data() -> Any:
        with opened.open("a") as file:
            file.write("x")
        if opened.read_text() == "xx":
            raise OSError("the share is away")
        return [torch.zeros(8)] * 512

    settings = [Setting(batch_size=size) for size in (2, 4, 8, 16)]

    def script() -> Script[list[Trial]]:
        found: list[Trial] = []
        for number, setting in enumerate(settings):
            found.append((yield Job(setting=setting, extent=FEW, fresh=number == 1)))
        return found

    found = run_script(stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=data), script(), device="cpu")
    assert [trial.outcome for trial in found] == ["done", "failed", "done", "done"]
    assert [trial.setting.batch_size for trial in found] == [2, 4, 8, 16]
    assert found[1].problem is not None
    assert "the share is away" in found[1].problem.sentence


@pytest.mark.parametrize("fresh", [False, True])
def test_a_child_that_dies_between_two_jobs_costs_none_of_them(fresh: bool) -> None:
    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(8)

        def __del__(self) -> None:
            os.abort()

    def script() -> Script[list[str]]:
        first = yield Job(setting=Setting(batch_size=2), extent=FEW)
        second = yield Job(setting=Setting(batch_size=4), extent=FEW, fresh=fresh)
        return [first.outcome, second.outcome]

    workload = stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=Data)
    assert run_script(workload, script(), device="cpu") == ["done", "done"]


def test_a_hang_is_ended_and_the_rest_go_on() -> None:
    settings = (Setting(batch_size=16), Setting(batch_size=2))
    found = run_script(f"{HERE}:hangs", jobs(*settings), mode="infer", device="cpu", stall_s=4)
    assert [trial.outcome for trial in found] == ["timed_out", "done"]


def test_a_job_ends_at_its_own_limit() -> None:
    def script() -> Script[Trial]:
        return (yield Job(setting=Setting(batch_size=4), extent=Extent(batches=5000, warmup=0), limit_s=0.5))

    trial = run_script(f"{HERE}:planted", script(), device="cpu")
    assert trial.outcome == "timed_out"


def test_an_error_in_what_was_given_is_raised() -> None:
    with pytest.raises(InputError, match="no function"):
        run_script(f"{HERE}:wrkload", jobs(Setting()), device="cpu")
    with pytest.raises(InputError, match="empty"):
        run_script(f"{HERE}:empty", jobs(Setting()), device="cpu")


def test_sleep_replaces_the_step_and_repeated_items_the_data() -> None:
    (slept,) = run_script(f"{HERE}:plain", jobs(Setting(batch_size=4), sleep_s=0.02), device="cpu")
    assert all(sample >= 0.02 for sample in slept.stages["forward"].samples_s)
    (repeated,) = run_script(f"{HERE}:planted", jobs(Setting(batch_size=64), sleep_s=0.0, repeats=2), device="cpu")
    assert repeated.outcome == "done"
    assert repeated.items == 192


def test_repeated_items_are_the_first_ones() -> None:
    repeats = Repeats(list("abc"), 2)
    assert [repeats[place] for place in range(5)] == list("ababa")
    assert [Repeats(iter("abcdef"), 3)[place] for place in (0, 3, 4)] == list("aab")


def test_a_run_beside_busy_processes_is_disturbed_and_says_so() -> None:
    spin = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        trial = stoker.profile(
            f"{HERE}:plain", Setting(batch_size=4), Extent(batches=20, warmup=0), device="sleep:20ms"
        )
    finally:
        for process in spin:
            process.kill()
            process.wait()
    assert disturbed(trial)
    assert "other processes used" in (disturbance_note(trial) or "")


class Long(torch.utils.data.Dataset[Any]):
    """Items of text, which go through a pipe and fill it."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        return "a long item " * 1000


def broken_step(model: Any, batch: Any) -> None:
    raise ValueError("broken")


def test_a_failed_run_takes_its_workers_along(tmp_path: Path) -> None:
    """Else they would hold the pipe open by which its result comes, and wait for someone to read their own."""

    def note(worker: int) -> None:
        (tmp_path / str(os.getpid())).touch()

    def script() -> Script[list[str]]:
        trial = yield Job(setting=Setting(batch_size=64, num_workers=2), extent=Extent(batches=20, warmup=0))
        assert trial.outcome == "failed"
        yield Job(setting=Setting(batch_size=8), extent=FEW, sleep_s=0.0)
        workers = [path.name for path in tmp_path.iterdir()]
        assert len(workers) == 2
        return [pid for pid in workers if psutil.pid_exists(int(pid)) and not _is_over(int(pid))]

    workload = stoker.Workload(
        model=torch.nn.Linear(8, 2), dataset=Long(), step=broken_step, collate_fn=list, worker_init_fn=note
    )
    assert run_script(workload, script(), mode="infer", device="cpu") == []


def _is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_that_ends_without_a_result_is_noticed_though_others_hold_the_pipe() -> None:
    held, let_go = os.pipe()

    def function() -> str:
        if os.fork() == 0:
            os.close(let_go)
            os.read(held, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    forked, found = Forked(function, str), list[Any]()
    waiting = threading.Thread(target=lambda: found.append(forked.result()), daemon=True)
    waiting.start()
    waiting.join(60)
    os.close(let_go)
    assert found, "it still waits"
    assert isinstance(found[0], Failure)
    assert forked.signal == signal.SIGKILL


def test_threads_of_the_users_own_are_there_in_every_run() -> None:
    found = run_script(f"{ODD}:pooled", jobs(Setting(batch_size=4), Setting(batch_size=8)), device="cpu")
    assert [trial.outcome for trial in found] == ["done"] * 2


def test_a_run_that_ends_itself_costs_itself_alone() -> None:
    settings = (Setting(batch_size=2), Setting(batch_size=8), Setting(batch_size=4))
    found = run_script(f"{ODD}:leaves", jobs(*settings), mode="infer", device="cpu")
    assert [trial.outcome for trial in found] == ["done", "crashed", "done"]


def test_processes_that_were_there_before_a_run_are_there_after_it() -> None:
    def wait(end: Any) -> None:
        end.poll(60)

    held, given = multiprocessing.Pipe()
    helper = multiprocessing.get_context("fork").Process(target=wait, args=(given,), daemon=True)
    helper.start()
    assert Forked(lambda: "done", str).result() == "done"
    assert helper.is_alive()
    held.send("end")
    helper.join()


def test_the_task_of_a_job_says_what_makes_it_another_run() -> None:
    def script() -> Script[list[Trial]]:
        setting = Setting(batch_size=4)
        plain = yield Job(setting=setting, extent=FEW, limit_s=60)
        other = yield Job(setting=setting, extent=FEW, sleep_s=0.0, repeats=2, threads=1, keeps_memory=True)
        return [plain, other]

    plain, other = run_script(f"{HERE}:plain", script(), kind="probe", device="cpu")
    assert plain.task is not None
    assert other.task is not None
    assert (plain.task.kind, plain.task.options) == ("probe", {})
    assert other.task.options == {"sleep_s": 0.0, "repeats": 2, "threads": 1, "keeps_memory": True}
    assert plain.task.key() != other.task.key()
    assert plain.when is not None
    assert other.when is not None
    assert plain.when < other.when


def test_the_reference_job_is_timed_a_few_times_and_not_for_long() -> None:
    reference.prepare()
    began = time.process_time()
    samples = reference.reference_s()
    assert 1 <= len(samples) <= reference.RULES.samples
    assert sum(samples[:-1]) <= reference.RULES.limit_s
    assert time.process_time() - began <= sum(samples) + reference.RULES.limit_s


def stuck_from(place: int) -> stoker.Workload:
    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            if index >= place:
                time.sleep(60)
            return torch.zeros(8)

    return stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=Data())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_ends_at_its_moment_wherever_it_stands_and_no_later_one_begins(workers: int) -> None:
    began = time.perf_counter()
    three = jobs(*[Setting(batch_size=2, num_workers=workers)] * 3)
    found = run_script(stuck_from(3), ending_at(three, began + 6), device="cpu")
    assert time.perf_counter() - began < 40, "not the minute that an item takes"
    assert [trial.outcome for trial in found] == ["timed_out"] * 3
    said = [trial.problem.sentence for trial in found if trial.problem]
    assert "not over when its time was up" in said[0]
    assert said[1:] == ["its time was up before it began"] * 2


def test_opening_the_workload_counts_for_the_moment_at_which_a_job_ends() -> None:
    def data() -> Any:
        time.sleep(60)
        return [torch.zeros(8)] * 8

    workload = stoker.Workload(model=lambda: torch.nn.Linear(8, 2), dataset=data)
    began = time.perf_counter()
    [found] = run_script(workload, ending_at(jobs(Setting(batch_size=2)), began + 3), device="cpu")
    assert time.perf_counter() - began < 40
    assert found.outcome == "timed_out"


def test_a_script_that_ends_in_time_loses_nothing_by_its_moment() -> None:
    script = ending_at(jobs(Setting(batch_size=2), Setting(batch_size=4)), time.perf_counter() + 120)
    assert [trial.outcome for trial in run_script(f"{HERE}:plain", script, device="cpu")] == ["done"] * 2
