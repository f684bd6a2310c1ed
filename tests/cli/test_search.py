"""`stoker search` as people give it: tables that fit, documents that can be read back, sentences for what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.ranking.combine import ModelScores, rank
from stoker.records import CandidateStages, CandidateTrial, Problem, Ranking, ScoreSample, StaticFigure, read
from tests.commands import Done, here
from tests.ranking.cases import workloads


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    workloads(tmp_path)
    return tmp_path


def search(*arguments: str, status: int = 0) -> Done:
    done = here("search", *arguments)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "Traceback" not in done.stdout or done.stdout.startswith("{"), "a document has the trace of a user's error"
    return done


MODELS = ("--models", "mine.py:seed0,mine.py:seed1,mine.py:raises", "--device", "cpu")


def test_the_ranking_is_printed_saved_and_read_back(folder: Path) -> None:
    done = search(*MODELS, "--save", "ranking.json", "--quiet")
    assert done.stderr == ""
    for words in ("mean rank", "nleep", "logme", "Where the time went", "mine.py:raises failed", "no such thing"):
        assert words in done.stdout
    found = read(folder / "ranking.json")
    assert isinstance(found, Ranking)
    assert found.ranked is not None
    assert str(found).strip() == done.stdout.strip()
    document = json.loads(search(*MODELS, "--json", "--quiet").stdout)
    assert document["reused"] == ["mine.py:seed0", "mine.py:seed1"]
    assert set(document["candidates"][0]["stages"]["groups_s"]) == {"prepare", "load data", "inference", "score"}
    assert document["kind"] == "ranking"


def test_no_ranked_candidate_is_status_1(folder: Path) -> None:
    done = search("--models", "mine.py:raises", "--device", "cpu", status=1)
    assert "no such thing" in done.stdout
    assert search("--models", "resnet81", "--data", "jpeg", status=1).stderr.startswith("stoker: no model is called")
    assert "there is no model to compare" in search("--models", ",", "--data", "jpeg", status=1).stderr
    assert "name the candidates" in search(status=1).stderr
    assert "is not a time" in search(*MODELS, "--budget", "soon", status=1).stderr
    assert "is not a size" in search(*MODELS, "--host-memory", "much", status=1).stderr


def test_a_dry_run_says_what_would_run(folder: Path) -> None:
    document = json.loads(search(*MODELS, "--dry-run", "--json", "--items", "20", "--quiet").stdout)
    assert [each["model"] for each in document["candidates"]] == ["mine.py:seed0", "mine.py:seed1", "mine.py:raises"]
    assert document["candidates"][2]["problem"] == "ValueError: no such thing"
    assert document["left_s"] > 0
    assert not (folder / "stoker.db").exists()
    assert "mine.py:raises would fail" in search(*MODELS, "--dry-run", "--items", "20", "--quiet").stdout


def test_the_blocks_of_a_model_are_shown_with_its_parts() -> None:
    done = search("--blocks", "mine.py:seed0", "--device", "cpu")
    assert "part that begins here" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    document = json.loads(search("--blocks", "mine.py:seed0", "--part", "last:1", "--device", "cpu", "--json").stdout)
    assert [row["begins"] for row in document["blocks"]][-1] == ["last:1"]
    assert len(document["blocks"]) > 1
    assert sum(row["parameters"] for row in document["blocks"]) == document["parameters"]
    assert "no model is called" in search("--blocks", "resnet81", status=1).stderr
    assert "first:2" in search("--blocks", "mine.py:seed0", "--part", "first:2", status=1).stderr


# ---------------------------------------------------------------- the table


def ranking(names: int = 3, scores: tuple[str, ...] = ("nleep", "logme"), **more: Any) -> Ranking:
    trials = []
    for number in range(names):
        values = tuple(ScoreSample(score=score, value=number / 7 - 0.2, resampled=(0.1, 0.2) * 10) for score in scores)
        stages = CandidateStages(
            read_s=(0.5,), read_resident=float(number % 2), read_wait_s=0.5 * (number % 2), build_s=1.0, infer_s=(2.0,)
        )
        trials.append(
            CandidateTrial(
                model=f"timm/a_model_with_a_long_name_{number}@snapshot-{number}.safetensors",
                outcome="done",
                items=1000,
                classes=10,
                batch_size=32,
                num_workers=2,
                stages=stages,
                scores=values,
                static=StaticFigure(accuracy=70.0 + number, dataset="ImageNet-1K", parameters=25_000_000),
                total_s=4.0,
            )
        )
    ranked = rank([ModelScores(model=each.model, scores=each.scores, static=each.static) for each in trials])
    known: dict[str, Any] = {"data": "birds", "device": "cpu", "part": "full", "scores": scores, "labels": "classes"}
    return Ranking(**{**known, "ranked": ranked, "candidates": tuple(trials), **more})


@pytest.mark.parametrize("scores", [("nleep", "logme"), ("nleep", "logme", "leep", "knn", "linear")])
@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_the_terminal_with_every_figure(
    width: int, scores: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = str(ranking(scores=scores))
    assert max(map(len, text.splitlines())) <= min(width, 100)
    assert re.findall(r"\S…", text) == [], "nothing is cut"
    assert all(len(re.findall(rf"\b{score}\b", text)) == 1 for score in scores), "each has its column"
    for word in ("place", "mean rank", "70.0 %", "25.0 M", "0.086", "read", "cold, hidden", "warm", "workers"):
        assert word in text


def test_what_went_wrong_and_what_was_not_run_is_said() -> None:
    failed = CandidateTrial(model="net", outcome="oom", problem=Problem(sentence="out of host memory"))
    found = ranking(1, unfinished=("later",), stopped="the budget is spent", notes=("mind this",))
    found = msgspec.structs.replace(found, candidates=(*found.candidates, failed))
    text = str(found)
    assert "is the only candidate that could be scored" in text.replace("\n", " ")
    assert "net out of memory: out of host memory" in text
    assert "not run: the budget is spent: later" in text
    assert "note: mind this" in text


def test_scores_that_add_nothing_are_said_to() -> None:
    assert "The scores add nothing to the static order" in str(ranking())
