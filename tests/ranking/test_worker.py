"""Candidates in a process of their own: one that dies or hangs costs itself alone."""

import os
from pathlib import Path

import pytest

from stoker.events import AnyEvent, CandidateStarted
from stoker.ranking.reader import Reader, read
from stoker.ranking.worker import check_candidates, run_candidates
from stoker.records import CandidateTrial, Task, WorkloadSpec
from tests.ranking.cases import NET, asked, pictures, snapshot, workloads


def ran(tasks: list[Task], **more: object) -> tuple[list[CandidateTrial], list[AnyEvent]]:
    found: dict[int, CandidateTrial] = {}
    events: list[AnyEvent] = []
    run_candidates(tasks, found.__setitem__, on_event=events.append, **more)  # type: ignore[arg-type]
    return [found[place] for place in range(len(tasks))], events


def test_a_candidate_whose_process_dies_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    mine = workloads(tmp_path)
    names = ("plain", "dies", "stream", "raises")
    trials, events = ran([asked(f"{mine}:{name}", None) for name in names])
    assert [each.outcome for each in trials] == ["done", "crashed", "done", "failed"]
    assert trials[1].problem is not None
    assert "ended" in trials[1].problem.sentence
    assert trials[2].scores
    assert all(each.machine is not None for each in trials)
    started = [each for each in events if isinstance(each, CandidateStarted)]
    assert len(started) == 4


def test_a_candidate_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    mine = workloads(tmp_path)
    trials, _ = ran([asked(f"{mine}:{name}", None) for name in ("sleeps", "plain")], timeout_s=8)
    assert [each.outcome for each in trials] == ["timed_out", "done"]
    assert trials[0].total_s >= 8


def test_what_a_listener_raises_ends_the_search(tmp_path: Path) -> None:
    def stop(event: AnyEvent) -> None:
        if isinstance(event, CandidateStarted) and event.index == 1:
            raise KeyboardInterrupt

    found: list[int] = []
    mine = workloads(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_candidates(
            [asked(f"{mine}:{name}", None) for name in ("plain", "stream")],
            lambda place, _: found.append(place),
            on_event=stop,
        )
    assert found == [0]


def test_snapshots_of_one_model_share_their_items_and_are_read_ahead(tmp_path: Path) -> None:
    data = pictures(tmp_path / "birds", each=4)
    files = [snapshot(tmp_path / f"{seed}.safetensors", seed=seed) for seed in range(3)]
    trials, _ = ran([asked(NET, data, weights=file) for file in files])
    assert [each.outcome for each in trials] == ["done"] * 3, [each.problem for each in trials]
    assert [each.items_from for each in trials] == ["files", "prepared", "prepared"]
    assert len({each.labels_digest for each in trials}) == 1
    assert all(each.stages.read_s[0] > 0 for each in trials)
    scattered, _ = ran([asked(NET, data, weights=file) for file in files[:2]], host_memory_bytes=0)
    assert [each.items_from for each in scattered] == ["files", "files"]
    for kept, loaded in zip(trials, scattered, strict=False):
        assert kept.scores[0].value == pytest.approx(loaded.scores[0].value, rel=1e-3)


def test_a_file_that_is_read_ahead_gives_the_same_tensors_or_the_same_error(tmp_path: Path) -> None:
    path, bad = snapshot(tmp_path / "one.pt"), tmp_path / "bad.pt"
    bad.write_bytes(os.urandom(100))
    reader = Reader()
    reader.start(path)
    ahead = reader.get(path)
    assert ahead.state.keys() == read(path).state.keys()
    reader.start(bad)
    with pytest.raises(Exception, match="damaged"):
        reader.get(bad)
    assert reader.get(path).state.keys() == ahead.state.keys(), "a file that was not read ahead is read now"


def test_names_are_checked_before_anything_runs(tmp_path: Path) -> None:
    checked = check_candidates(
        [WorkloadSpec(spec=name) for name in ("resnet18", "resnet81", "timm/no_such_net", "raft_small", "r3d_18")]
    )
    assert [each.problem is None for each in checked] == [True, False, False, False, False]
    assert "resnet18" in str(checked[1].problem)
    assert "classifiers of images and of texts" in str(checked[3].problem)
