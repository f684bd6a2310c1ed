"""Marks nest, and a stage's time is its own."""

import threading
from collections.abc import Iterator

import pytest

from stoker import marks


class Ticks:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ticks]:
    clock = Ticks()
    monkeypatch.setattr(marks, "perf_counter", clock)
    yield clock
    marks.record_into(None)


def test_an_inner_stage_is_taken_off_the_outer_one(ticks: Ticks) -> None:
    recorder = marks.Recorder()
    marks.record_into(recorder)
    with marks.stage("item"):
        ticks.now += 1
        with marks.stage("read"):
            ticks.now += 4
        ticks.now += 2
    assert recorder.take() == {"read": 4.0, "item": 3.0}
    assert recorder.take() == {}


def test_a_stage_that_raises_is_still_closed(ticks: Ticks) -> None:
    recorder = marks.Recorder()
    marks.record_into(recorder)

    def read() -> None:
        with marks.stage("read"):
            ticks.now += 1
            raise ValueError

    with pytest.raises(ValueError):
        read()
    assert recorder.names == []
    assert recorder.take() == {"read": 1.0}


def test_marks_do_nothing_without_a_recorder() -> None:
    marks.record_into(None)
    with marks.stage("read"):
        assert marks.recorder() is None


def test_marks_of_another_thread_are_not_counted(ticks: Ticks) -> None:
    recorder = marks.Recorder()
    marks.record_into(recorder)

    def elsewhere() -> None:
        with marks.stage("read"):
            ticks.now += 1

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert recorder.take() == {}
