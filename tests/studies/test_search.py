"""A model search: its ranking, what it takes from its store, and that it survives whatever ends it."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import stoker
from stoker.errors import InputError, MachineError
from stoker.ranking.request import parse_models, search_request
from stoker.records import CandidateTrial, Ranking, ScoreSample
from stoker.studies.executors import finished_of
from stoker.studies.search import forecast, ranked_trials, search
from stoker.studies.store import Store
from stoker.studies.study import listing, stored_study
from tests.ranking.cases import NET, pictures, snapshot, workloads
from tests.studies.kills import survivors
from tests.studies.quick import QuickExecutor

SEEDS = 4


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return workloads(tmp_path)


def models_of(mine: str, count: int = SEEDS) -> str:
    return ",".join(f"{mine}:seed{number}" for number in range(count))


def order(ranking: Ranking) -> list[tuple[int, str]]:
    assert ranking.ranked is not None, ranking.failed
    return [(each.place, each.model) for each in ranking.ranked.models]


def score_values(ranking: Ranking) -> dict[str, list[float]]:
    return {each.model: [score.value for score in each.scores] for each in ranking.candidates}


class ScoresAtOnce(QuickExecutor):
    """Answers every candidate with scores that follow from its name."""

    def search(self, tasks, on_finished, *, host_memory_bytes=None, timeout_s=None, on_event=None) -> None:  # type: ignore[no-untyped-def]
        for place, task in enumerate(tasks):
            with self._guard:
                self.ran.append(task)
            on_finished(place, finished_of(trial(str(task.options["name"]), task=task)))


def trial(name: str, value: float | None = None, **changes: object) -> CandidateTrial:
    number = float(name[-1] if name[-1].isdigit() else 0) if value is None else value
    scores = tuple(ScoreSample(score=score, value=number) for score in ("nleep", "logme"))
    known: dict[str, object] = {
        "outcome": "done",
        "scores": scores,
        "labels_digest": "same",
        "items": 40,
        "total_s": 1.0,
    }
    return CandidateTrial(model=name, **{**known, **changes})  # type: ignore[arg-type]


# ---------------------------------------------------------------- a whole search


def test_a_search_ranks_and_is_taken_from_its_store_the_next_time(mine: str, tmp_path: Path) -> None:
    db = tmp_path / "stoker.db"
    first = search(f"{models_of(mine, 3)},{mine}:raises", db=db, device="cpu")
    assert len(order(first)) == 3
    assert [each.model for each in first.failed] == [f"{mine}:raises"]
    assert (first.reused, first.unfinished, first.labels) == ((), (), "classes")
    again = search(f"{models_of(mine, 4)}", db=db, device="cpu")
    assert set(again.reused) == {f"{mine}:seed{number}" for number in range(3)}
    assert len(order(again)) == 4
    assert {name: values for name, values in score_values(again).items() if name in again.reused} == {
        name: values for name, values in score_values(first).items() if not name.endswith("raises")
    }
    row = listing(db)
    assert [(each["kind"], each["source"]) for each in row] == [("search", "search")]
    with pytest.raises(InputError, match="give the command stoker search again"):
        stored_study(row[0]["name"], db).run()


def test_snapshots_of_a_pretrained_model_are_ranked_on_images(tmp_path: Path) -> None:
    data = pictures(tmp_path / "birds", each=6)
    for seed in range(2):
        snapshot(tmp_path / "snapshots" / f"{seed}.pt", seed=seed)
    pattern = f"{NET}@{tmp_path}/snapshots/*.pt"
    found = stoker.search(pattern, data=str(data), db=tmp_path / "stoker.db", device="cpu")
    assert found.ranked is not None
    assert {each.model for each in found.ranked.models} == {f"{NET}@0.pt", f"{NET}@1.pt"}
    assert not found.ranked.static_used
    assert "random weights" not in " ".join(found.notes)
    snapshot(tmp_path / "snapshots" / "1.pt", seed=7)
    asked: dict[str, Any] = {
        "data": str(data),
        "db": tmp_path / "stoker.db",
        "device": "cpu",
        "executor": ScoresAtOnce(),
    }
    again = stoker.search(pattern, **asked)
    assert again.reused == (f"{NET}@0.pt",), "the other file has new content"
    (data / "class0" / "0.jpg").unlink()
    third = stoker.search(pattern, **asked)
    assert third.reused == (), "the data are others"


def test_random_labels_give_times_and_no_ranking(tmp_path: Path) -> None:
    found = search(NET, data="tensors", items=12, classes=2, db=tmp_path / "stoker.db", executor=ScoresAtOnce())
    assert found.ranked is None
    assert [each.outcome for each in found.candidates] == ["done"]
    assert any("labels are random" in note for note in found.notes)
    assert any("random weights" in note for note in found.notes)


def test_a_study_of_candidates_runs_all_their_items(tmp_path: Path) -> None:
    """More of them than a profile has batches."""
    grid = {
        "kind": "search",
        "name": "candidates",
        "repeats": 1,
        "fixed": {"data": "tensors", "classes": 2, "labels": "random", "scores": "linear", "resamples": 0, "warmup": 1},
        "axes": {"workload": [NET], "items": [60], "batch_size": [1]},
    }
    study = stoker.study(grid, db=tmp_path / "stoker.db")
    study.run()
    (row,) = study.trials().to_dicts()
    assert (row["outcome"], row["run_items"]) == ("done", 60)


def test_failed_candidates_are_tried_again(mine: str, tmp_path: Path) -> None:
    executor = ScoresAtOnce()
    names = models_of(mine)
    assert search(names, db=tmp_path / "stoker.db", executor=executor).reused == ()
    assert len(search(names, db=tmp_path / "stoker.db", executor=executor).reused) == SEEDS
    assert len(executor.ran) == SEEDS
    with Store(tmp_path / "stoker.db") as store:
        store._rows("UPDATE trials SET outcome = 'failed' WHERE key = ?", (executor.ran[0].key(),))
    assert len(search(names, db=tmp_path / "stoker.db", executor=executor).reused) == SEEDS - 1
    assert len(executor.ran) == SEEDS + 1


def test_candidates_that_saw_other_items_are_not_compared() -> None:
    request = search_request("resnet18", data="tensors")
    request = type(request)(
        **{**{name: getattr(request, name) for name in request.__struct_fields__}, "labels": "classes"}
    )
    trials = [
        trial("a1"),
        trial("b2"),
        trial("c3", labels_digest="other", items=39),
        trial("d4", float("nan")),
        trial("e5", scores=(), score_problems={"nleep": "no"}),
    ]
    found, ranked = ranked_trials(trials, request)
    assert ranked is not None
    assert [each.model for each in ranked.models] == ["b2", "a1"]
    sentences = [each.problem.sentence for each in found if each.problem is not None]
    assert len(sentences) == 3
    assert "other items than the rest (39)" in sentences[0]
    assert "not a finite number" in sentences[1]
    assert "nleep cannot be computed: no" in sentences[2]


# ---------------------------------------------------------------- what ends a search


def test_a_spent_budget_begins_no_more_candidates(mine: str, tmp_path: Path) -> None:
    found = search(f"{mine}:seed0,{mine}:sleeps", db=tmp_path / "stoker.db", device="cpu", budget_s=0.001)
    assert found.candidates == ()
    assert found.ranked is None
    assert found.stopped == "the budget is spent"
    assert len(found.unfinished) == 2
    with pytest.raises(InputError, match="the budget must be above 0"):
        search(f"{mine}:seed0", budget_s=0)


class Search:
    """`stoker search` in a process of its own."""

    def __init__(self, folder: Path, models: str) -> None:
        command = [sys.executable, "-m", "stoker", "search", "--models", models, "--device", "cpu", "--quiet"]
        self._process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True
        )
        self._db = folder / "stoker.db"

    def await_trials(self, count: int) -> bool:
        """Whether so many candidates have been recorded before it ended."""
        while self._process.poll() is None:
            if self._db.exists():
                try:
                    with Store(self._db, create=False) as store:
                        if len(store.trials()) >= count:
                            return True
                except (InputError, MachineError):
                    pass  # its tables are not there yet
            time.sleep(0.05)
        return False

    def end(self, number: int) -> tuple[int, str, list[int]]:
        """Send a signal to it alone: its status, its output, and processes that are still there afterwards."""
        children: list[int] = []
        if self._process.poll() is None:
            children = [each.pid for each in psutil.Process(self._process.pid).children(recursive=True)]
            self._process.send_signal(number)
        output, _ = self._process.communicate(timeout=120)
        return self._process.returncode, output, survivors(children)


def test_a_killed_search_goes_on_and_ranks_as_one_that_was_not(mine: str, tmp_path: Path) -> None:
    killed = Search(tmp_path, models_of(mine))
    assert killed.await_trials(1)
    _, _, left = killed.end(signal.SIGKILL)
    assert left == []
    resumed = search(models_of(mine), db=tmp_path / "stoker.db", device="cpu")
    assert resumed.reused
    whole = search(models_of(mine), db=tmp_path / "other.db", device="cpu")
    assert order(resumed) == order(whole)
    for name, values in score_values(whole).items():
        assert score_values(resumed)[name] == pytest.approx(values, rel=1e-3)


@pytest.mark.slow
def test_a_search_survives_six_random_kills(mine: str, tmp_path: Path) -> None:
    rng = random.Random(6)
    for _ in range(6):
        one = Search(tmp_path, models_of(mine))
        time.sleep(rng.uniform(0.5, 10))
        _, _, left = one.end(signal.SIGKILL)
        assert left == []
    resumed = search(models_of(mine), db=tmp_path / "stoker.db", device="cpu")
    whole = search(models_of(mine), db=tmp_path / "other.db", device="cpu")
    assert order(resumed) == order(whole)
    with Store(tmp_path / "stoker.db") as store:
        assert len(store.trials()) == SEEDS, "no candidate was run again after it had been recorded"


def test_ctrl_c_ends_a_search_with_its_processes(mine: str, tmp_path: Path) -> None:
    one = Search(tmp_path, f"{mine}:seed0,{mine}:sleeps")
    assert one.await_trials(1)
    status, output, left = one.end(signal.SIGINT)
    assert (status, left) == (130, [])
    assert output == "stoker: interrupted\n"
    with Store(tmp_path / "stoker.db") as store:
        assert store.claims() == []
        assert len(store.trials()) == 1


def fill(path: Path) -> None:
    """Take all the room that there is on a disk."""
    with path.open("wb", buffering=0) as rest, suppress(OSError):
        while True:
            rest.write(bytes(1000))


def test_a_full_disk_ends_a_search_with_a_sentence_and_keeps_what_was_recorded(mine: str, tiny_disk: Path) -> None:
    class Fills(ScoresAtOnce):
        def search(self, tasks, on_finished, **more) -> None:  # type: ignore[no-untyped-def]
            on_finished(0, finished_of(trial("seed0", task=tasks[0])))
            fill(tiny_disk / "rest")
            notes = (os.urandom(100_000).hex(),)
            on_finished(1, finished_of(trial("seed1", task=tasks[1], notes=notes)))

    db = tiny_disk / "stoker.db"
    with pytest.raises(MachineError, match="the disk is full; what was recorded before is safe"):
        search(models_of(mine), db=db, executor=Fills())
    (tiny_disk / "rest").unlink()
    assert len(search(models_of(mine), db=db, executor=ScoresAtOnce()).reused) == 1


# ---------------------------------------------------------------- what is asked


def test_models_are_lists_with_patterns_for_weights(tmp_path: Path) -> None:
    for name in ("b.pt", "a.pt", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    specs = parse_models(f"resnet18, timm/resnet10t,resnet18@{tmp_path}/*.pt", data="jpeg")
    assert [(each.spec, each.weights and Path(each.weights).name) for each in specs] == [
        ("resnet18", None),
        ("timm/resnet10t", None),
        ("resnet18", "a.pt"),
        ("resnet18", "b.pt"),
    ]
    for text, words in {
        "": "there is no model to compare",
        " , ": "there is no model to compare",
        "resnet18,resnet18": "resnet18 is named twice",
        "resnet18@": "names no weights",
        f"resnet18@{tmp_path}/*.bin": "there is no file",
    }.items():
        with pytest.raises(InputError, match=words):
            parse_models(text, data="jpeg")
    with pytest.raises(InputError, match="name the data"):
        parse_models("resnet18")


def test_what_cannot_be_searched_is_said_before_anything_runs(tmp_path: Path) -> None:
    data = pictures(tmp_path / "birds", each=2)
    wrong: list[tuple[dict[str, object], str]] = [
        ({"models": "resnet81", "data": str(data)}, "resnet81"),
        ({"models": NET, "data": str(data / "class0")}, "no class folders"),
        ({"models": NET, "data": str(tmp_path / "nowhere")}, "there is no folder"),
        ({"models": NET, "data": str(data), "score": "magic"}, "there is no score 'magic'"),
        ({"models": NET, "data": str(data), "score": " "}, "at least one score"),
        ({"models": NET, "data": str(data), "part": "first:3"}, "first:3"),
        ({"models": NET, "data": str(data), "items": 0}, "items must be at least 1"),
        ({"models": NET, "data": str(data), "classes": 1}, "classes must be at least 2"),
        ({"models": NET, "data": str(data), "classes": 9}, "3 classes, and 9 were asked for"),
        ({"models": "maskrcnn_resnet50_fpn", "data": str(data)}, "classifiers of images and of texts"),
    ]
    for given, words in wrong:
        with pytest.raises(InputError, match=words):
            search(**given, db=tmp_path / "stoker.db")  # type: ignore[arg-type]
    assert not (tmp_path / "stoker.db").exists()


def test_a_forecast_probes_what_is_not_done_and_writes_nothing(mine: str, tmp_path: Path) -> None:
    data = pictures(tmp_path / "birds", each=6)
    db = tmp_path / "stoker.db"
    request = search_request(f"{NET},timm/test_efficientnet", data=str(data), device="cpu")
    before = forecast(request, db=db)
    assert not db.exists()
    assert [(each.is_done, each.basis) for each in before.candidates] == [(False, "a probe")] * 2
    assert before.left_s is not None
    assert before.left_s > 0
    search(NET, data=str(data), db=db, device="cpu")
    after = forecast(request, db=db)
    assert [(each.is_done, each.basis) for each in after.candidates] == [(True, "a finished trial"), (False, "a probe")]
    unknown = forecast(search_request(f"{mine}:seed0", device="cpu"), db=db)
    assert unknown.left_s is None
