"""Every second of a loop is accounted for, once, whoever wrote its log."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from torch.utils.data import DataLoader

from stoker.measure.assemble import account, assemble
from stoker.measure.log import LoopLog
from stoker.records import Extent, Setting, Subject, Trial

SUBJECT = Subject(name="mine", model="mine", data="mine", mode="train", device="cpu", items=None)


def step(log: LoopLog, asked: float, got: float, began: float | None = None, **ends: float) -> None:
    """Write a batch; `began` is when its step began, if the device was busy when the loop had the batch."""
    log.ask(asked)
    log.got(at=got)
    log.epochs[-1].batches[-1].began = got if began is None else began
    for name, end in ends.items():
        log.stage(name, at=end)
    log.done(at=max(ends.values()))


def epoch(log: LoopLog, began: float, ready: float) -> None:
    log.epoch_began(began)
    log.loader_ready(ready)


def test_a_loop_in_step_with_the_host() -> None:
    log = LoopLog()
    log.run_began(0)
    epoch(log, 0, 1)
    step(log, 1, 4, copy=5, forward=7)
    step(log, 7, 8, copy=8.5, forward=10)
    log.ask(10)
    log.epoch_ended(12)
    log.run_ended(12)
    stages = {name: stage.samples_s for name, stage in account(log).items()}
    assert stages == {
        "start": (1,),
        "wait": (3, 1),
        "copy": (1, 0.5),
        "forward": (2, 1.5),
        "stop": (2,),
        "other": (0, 0, 0),
    }


def test_a_wait_that_the_device_does_not_feel_is_no_wait() -> None:
    # The device works on the first batch until 9; the host has waited for the second from 5 to 8 meanwhile.
    log = LoopLog()
    log.run_began(0)
    epoch(log, 0, 1)
    step(log, 1, 4, forward=9)
    step(log, 5, 8, began=9, forward=12)
    log.ask(8.5)
    log.epoch_ended(8.6)
    log.run_ended(12)
    stages = account(log)
    assert stages["wait"].samples_s == (3, 0)
    assert stages["forward"].samples_s == (5, 3)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(12)


def test_half_a_wait_shows_where_the_device_runs_dry_in_the_middle_of_it() -> None:
    log = LoopLog()
    log.run_began(0)
    epoch(log, 0, 1)
    step(log, 1, 2, forward=6)
    step(log, 3, 8, forward=9)
    log.run_ended(9)
    assert account(log)["wait"].samples_s == (1, 2)


def test_epochs_have_a_start_and_a_stop_each() -> None:
    log = LoopLog()
    log.run_began(0)
    for began, ready, got, done, ended in ((0, 1, 2, 3, 5), (5, 7, 8, 9, 10)):
        epoch(log, began, ready)
        step(log, ready, got, forward=done)
        log.ask(done)
        log.epoch_ended(ended)
    log.run_ended(10)
    stages = account(log)
    assert stages["start"].samples_s == (1, 2)
    assert stages["stop"].samples_s == (2, 1)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(10)


def test_a_writer_may_leave_out_what_it_cannot_see() -> None:
    """A patched loader sees when a batch is asked for and there, and no more."""
    log = LoopLog()
    log.run_began(0)
    for asked, got in ((1, 4), (7, 8), (10, 11)):
        log.ask(asked)
        log.got(at=got)
    log.run_ended(12)
    assert [(batch.asked, batch.got, batch.done) for batch in log.epochs[0].batches] == [
        (1, 4, 7),
        (7, 8, 10),
        (10, 11, 12),
    ]
    stages = account(log)
    assert stages["wait"].samples_s == (3, 1, 1)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(12)


def test_a_loop_of_ones_own_becomes_a_trial() -> None:
    loader: DataLoader[Any] = DataLoader(list(range(12)), batch_size=4)  # type: ignore[arg-type]
    log = LoopLog()
    log.run_began()
    for _ in range(2):
        log.epoch_began()
        batches = iter(loader)
        log.loader_ready()
        while True:
            log.ask()
            batch = next(batches, None)
            if batch is None:
                break
            log.got()
            time.sleep(0.002)
            log.stage("step")
            log.done(items=len(batch))
        log.epoch_ended()
    began = time.perf_counter()
    time.sleep(0.002)
    log.scored(time.perf_counter() - began, 0.5)
    log.run_ended()
    trial = assemble(Trial(outcome="done", workload=SUBJECT, setting=Setting(batch_size=4), extent=Extent()), log)
    assert trial.items == 24
    assert trial.timeline.batches == (3, 3)
    assert all(sample >= 0.002 for sample in trial.stages["step"].samples_s)
    assert trial.scores == (0.5,)
    loop_s = sum(stage.total_s for stage in trial.stages.values())
    assert loop_s == pytest.approx(trial.total_s, rel=0.01)


durations = some.floats(0, 5, allow_nan=False)


@given(some.lists(some.tuples(durations, durations, durations, durations, some.booleans()), min_size=1, max_size=8))
def test_stages_add_up_to_the_wall_clock(rows: list[tuple[float, float, float, float, bool]]) -> None:
    """Whatever the host and the device do, ahead of each other or not, their stages sum to the whole."""
    host, device = 1.0, 1.0
    log = LoopLog()
    log.run_began(0)
    epoch(log, 0, 1)
    for wait, launch, copy, forward, ahead in rows:
        asked, got = host, host + wait
        began = max(got, device)
        ends = {"copy": began + copy, "forward": began + copy + forward}
        device = ends["forward"]
        host = got + launch if ahead else device
        step(log, asked, got, began, **ends)
    done = max(host, device) + 0.5
    log.ask(host)
    log.epoch_ended(host + 0.5)
    log.run_ended(done)
    stages = account(log)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(done)
    assert all(sample >= 0 for stage in stages.values() for sample in stage.samples_s)
