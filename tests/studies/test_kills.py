"""Drivers that are killed, and several at once: nothing is lost, nothing is run twice, nothing stays behind."""

import random
from pathlib import Path

import pytest

from stoker.studies.study import stored_study
from tests.studies.kills import Driver, kill_at_random, leftovers, place, survivors


def killed_and_resumed(folder: Path, kills: int, *, repeats: int) -> None:
    rng = random.Random(kills)
    drivers = [kill_at_random(folder, rng) for _ in range(kills)]
    last = Driver(folder)
    assert last.wait() == 0, last.errors
    assert last.lines, "all of them were killed before the study was finished"
    reported = [line for driver in (*drivers, last) for line in driver.lines]
    study = stored_study("killed", folder / "stoker.db")
    rows = {(row.key, row.repeat): row for row in study.rows()}
    assert len(study.rows()) == len(rows) == 6 * repeats, "every task and repeat once"
    assert {row.attempt for row in rows.values()} == {0}, "none was run again after it had been recorded"
    assert {row.outcome for row in rows.values()} == {"done"}
    assert len(reported) <= len(rows)
    for line in reported:
        assert rows[line["key"], line["repeat"]].figures["seconds"] == line["seconds"], "none was lost or replaced"
    pids = {pid for driver in drivers for pid in driver.pids}
    assert survivors(pids) == []
    assert leftovers(folder, pids) == []


def test_a_study_survives_six_kills_of_its_driver() -> None:
    with place(repeats=6) as folder:
        killed_and_resumed(folder, 6, repeats=6)


@pytest.mark.slow
def test_a_study_survives_twenty_kills_of_its_driver() -> None:
    with place(repeats=20) as folder:
        killed_and_resumed(folder, 20, repeats=20)


def test_four_drivers_of_one_file_run_each_task_once() -> None:
    with place() as folder:
        drivers = [Driver(folder) for _ in range(4)]
        assert [driver.wait() for driver in drivers] == [0] * 4, drivers[0].errors
        keys = [(line["key"], line["repeat"], line["attempt"]) for driver in drivers for line in driver.lines]
        assert len(keys) == len(set(keys)) == 12
        rows = stored_study("killed", folder / "stoker.db").rows()
        assert {(row.key, row.repeat, row.attempt) for row in rows} == set(keys)
