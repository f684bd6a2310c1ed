"""Every second of a loop is accounted for, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.measure.account import Epoch, Step, account


def step(asked: float, got: float, began: float, **ends: float) -> Step:
    return Step(asked=asked, got=got, began=began, ends=tuple(ends.items()))


def test_a_loop_in_step_with_the_host() -> None:
    steps = (step(1, 4, 4, copy=5, forward=7), step(7, 8, 8, copy=8.5, forward=10))
    epoch = Epoch(began=0, started=1, steps=steps, exhausted=10, ended=12)
    stages = {name: stage.samples_s for name, stage in account(0, [epoch], 12).items()}
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
    steps = (step(1, 4, 4, forward=9), step(5, 8, 9, forward=12))
    epoch = Epoch(began=0, started=1, steps=steps, exhausted=8.5, ended=8.6)
    stages = account(0, [epoch], 12)
    assert stages["wait"].samples_s == (3, 0)
    assert stages["forward"].samples_s == (5, 3)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(12)


def test_half_a_wait_shows_where_the_device_runs_dry_in_the_middle_of_it() -> None:
    steps = (step(1, 2, 2, forward=6), step(3, 8, 8, forward=9))
    epoch = Epoch(began=0, started=1, steps=steps, exhausted=9, ended=9)
    assert account(0, [epoch], 9)["wait"].samples_s == (1, 2)


def test_epochs_have_a_start_and_a_stop_each() -> None:
    first = Epoch(began=0, started=1, steps=(step(1, 2, 2, forward=3),), exhausted=3, ended=5)
    second = Epoch(began=5, started=7, steps=(step(7, 8, 8, forward=9),), exhausted=9, ended=10)
    stages = account(0, [first, second], 10)
    assert stages["start"].samples_s == (1, 2)
    assert stages["stop"].samples_s == (2, 1)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(10)


durations = some.floats(0, 5, allow_nan=False)


@given(some.lists(some.tuples(durations, durations, durations, durations, some.booleans()), min_size=1, max_size=8))
def test_stages_add_up_to_the_wall_clock(rows: list[tuple[float, float, float, float, bool]]) -> None:
    """Whatever the host and the device do, ahead of each other or not, their stages sum to the whole."""
    host, device = 1.0, 1.0
    steps = []
    for wait, launch, copy, forward, ahead in rows:
        asked, got = host, host + wait
        began = max(got, device)
        ends = {"copy": began + copy, "forward": began + copy + forward}
        device = ends["forward"]
        host = got + launch if ahead else device
        steps.append(step(asked, got, began, **ends))
    done = max(host, device) + 0.5
    epoch = Epoch(began=0, started=1, steps=tuple(steps), exhausted=host, ended=host + 0.5)
    stages = account(0, [epoch], done)
    assert sum(stage.total_s for stage in stages.values()) == pytest.approx(done)
    assert all(sample >= 0 for stage in stages.values() for sample in stage.samples_s)
