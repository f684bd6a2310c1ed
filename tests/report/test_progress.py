"""Outside a terminal, progress is one line a phase with its counts and elapsed time."""

import pytest

from stoker.events import AnyEvent, BatchDone, Phase, Progress, RunStarted
from stoker.records import Setting
from stoker.report.progress import Show

PREPARING, RUNNING, OVER = Phase(name="preparing"), Phase(name="running"), Phase(name="over")


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(
    capsys: pytest.CaptureFixture[str], *steps: AnyEvent | float | str, quiet: bool = False, title: str = ""
) -> list[str]:
    """The lines after these events (a number lets seconds pass, a text is a new title)."""
    clock = Clock()
    with Show(quiet=quiet, title=title, clock=clock) as progress:
        for step in steps:
            if isinstance(step, float):
                clock.now_s += step
            elif isinstance(step, str):
                progress.title(step)
            else:
                progress.event(step)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def probe(size: int) -> RunStarted:
    return RunStarted(setting=Setting(batch_size=size), purpose="probe", text=f"probing batch {size}")


def candidate(size: int) -> RunStarted:
    return RunStarted(setting=Setting(batch_size=size), purpose="candidate", text=f"trying batch {size}")


def test_a_profile_has_a_line_for_making_and_one_for_running(capsys: pytest.CaptureFixture[str]) -> None:
    steps = (PREPARING, 2.0, RUNNING, 1.0, BatchDone(done=8, of=53), 3.0, BatchDone(done=50, of=53), 0.5, OVER)
    assert shown(capsys, *steps) == ["preparing the workload: 2 s", "running: 53 batches, 4.5 s"]


def test_a_run_that_breaks_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, RUNNING, 1.0, BatchDone(done=8, of=53), 0.5) == ["running: 8 batches, 1.5 s"]


def test_many_runs_of_one_purpose_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    run = (RUNNING, 0.5, OVER)
    steps = (PREPARING, 1.0, *run, probe(8), *run, *run, probe(32), *run, PREPARING, *run, candidate(32), *run)
    assert shown(capsys, *steps) == [
        "preparing the workload: 1 s",
        "probing: 5 runs, 2.5 s",
        "trying candidates: 1 run, 500 ms",
    ]


def test_work_that_counts_shows_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    steps = (Progress(what="building set", of=1100), 3.0, Progress(what="building set", done=688, of=1100), 1.0)
    done = Progress(what="building set", done=1100, of=1100)
    lines = shown(capsys, *steps, done, Progress(what="reading"), 2.0)
    assert lines == ["building set: 1100 of 1100, 4 s", "reading: 2 s"]


def test_tries_of_a_batch_size_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tries = [Phase(name="trying_batch", text=f"trying a batch of {size}") for size in (64, 96)]
    tracing = Phase(name="tracing", text="tracing one step")
    assert shown(capsys, tracing, 0.5, *tries, 4.0) == ["tracing one step: 500 ms", "trying batch sizes: 2 tries, 4 s"]


def test_a_title_comes_first_and_a_new_one_is_a_new_phase(capsys: pytest.CaptureFixture[str]) -> None:
    steps = ("cached: ", RUNNING, 1.0, OVER, "cold: ", RUNNING, 2.0, OVER)
    assert shown(capsys, *steps) == ["cached: running: 1 s", "cold: running: 2 s"]


def test_a_long_phase_shows_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    run = (RUNNING, 20.0, OVER)
    assert shown(capsys, probe(8), *run, *run, *run) == ["probing: 1 run so far, 40 s", "probing: 3 runs, 60 s"]


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, PREPARING, 1.0, RUNNING, OVER, quiet=True) == []
