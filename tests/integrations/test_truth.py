"""What is observed is what happened: planted delays, by the script's own clock."""

from pathlib import Path
from statistics import median

import pytest

from tests.integrations import running

_NEAR, _SHORT_S = 0.03, 0.0004
"""Both clocks read the same moments, a few microseconds apart: medians differ by less than this."""


def test_wait_step_and_item_are_those_of_the_script(tmp_path: Path) -> None:
    settings = ["0", "1", "2:fork", "4", "2:spawn", "2:forkserver"]
    done = running.observed(tmp_path / "logs", running.script("planted.py"), *settings)
    assert done.status == 0, done.errors
    log = done.log
    assert not log.problems
    (process,) = log.processes
    assert [loader.arguments["num_workers"] for loader in process.loaders] == [0, 1, 2, 4, 2, 2]
    for loader, own in zip(process.loaders, done.json(), strict=True):
        assert len(loader.steps) == 24
        waits = [step.wait_s for step in loader.steps[2:]]
        steps = [step.step_s for step in loader.steps[2:] if step.step_s is not None]
        items = [seconds for fetch in loader.fetches for seconds in fetch.item_s]
        assert median(waits) == pytest.approx(own["wait"], rel=_NEAR, abs=_SHORT_S)
        assert median(steps) == pytest.approx(own["step"], rel=_NEAR, abs=_SHORT_S)
        assert median(items) == pytest.approx(own["item"], rel=_NEAR, abs=_SHORT_S)
        assert len(loader.fetches) >= 20
        assert {fetch.items for fetch in loader.fetches} == {4}
        assert {fetch.bytes for fetch in loader.fetches} == {4 * 8}
        assert loader.trains
        assert all(step.updates == 1 for step in loader.steps[:-1])
        assert {fetch.worker for fetch in loader.fetches} == set(range(loader.arguments["num_workers"]) or [None])


def test_losses_are_bit_for_bit_those_of_the_bare_script(tmp_path: Path) -> None:
    command = (running.script("planted.py"), "0", "2")
    before = running.bare(*command).json()
    after = running.observed(tmp_path / "logs", *command).json()
    assert [each["losses"] for each in after] == [each["losses"] for each in before]
