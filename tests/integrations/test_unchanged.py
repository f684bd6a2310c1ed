"""An observed script runs as it would without: the same output, the same errors, the same end."""

import re
from pathlib import Path

from tests.integrations import running


def _comparable(errors: str) -> str:
    """What a run prints as errors, without the numbers of its processes."""
    return re.sub(r"pid\(?s?\)? [\d, ]+|0x[0-9a-f]+", "#", errors)


def test_everything_that_scripts_do_stays_as_it_is(tmp_path: Path) -> None:
    command = (running.script("unusual.py"), "--save", "--batches", "-x", "a b")
    before = running.bare(*command)
    after = running.observed(tmp_path / "logs", *command)
    assert before.status == after.status == 7
    assert after.out.splitlines() == before.out.splitlines()
    assert _comparable(after.errors).splitlines() == _comparable(before.errors).splitlines()
    assert "item 5 is broken" in before.errors
    assert not after.log.problems
    (process,) = after.log.processes  # the subprocess with a loader of its own is not observed
    assert process.ended == "exit"
    assert len(process.loaders) > 15


def test_a_loop_may_end_in_any_way(tmp_path: Path) -> None:
    before = running.bare(running.script("endings.py"))
    after = running.observed(tmp_path / "logs", running.script("endings.py"))
    ends = {way: (int(pid), status) for way, pid, status in map(str.split, after.out.splitlines())}
    assert {way: status for way, (_, status) in ends.items()} == {
        way: status for way, _, status in map(str.split, before.out.splitlines())
    }
    statuses = [ends[way][1] for way in ("exit", "words", "error", "now", "interrupt", "terminate", "kill")]
    assert statuses == ["3", "1", "1", "4", "-2", "-15", "-9"]
    assert _without_place(after.errors) == _without_place(before.errors)
    logs = {process.pid: process for process in after.log.processes}
    for way, (pid, _) in ends.items():
        (loader,) = logs[pid].loaders
        gentle = way not in ("now", "terminate", "kill")
        assert len(loader.steps) >= (12 if gentle else 2), way
        assert logs[pid].ended == ("exit" if gentle else None), way


def _without_place(errors: str) -> list[str]:
    """A signal comes anywhere: what its traceback shows is left out."""
    lines = _comparable(errors).splitlines()
    kept = [line for line in lines if line.startswith(("LookupError", "ArithmeticError", "Timeout", "Keyboard", "end"))]
    return [*kept, *[line for line in lines if "stoker" in line or "bootstrap" in line]]
