"""`stoker run` from a shell: the script's own arguments, its end, and what is answered about it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.records import Trial, read
from stoker.studies.transfer import import_files
from tests.commands import Done, apart
from tests.integrations import running

ECHO, STARVED = running.script("echo.py"), running.script("starved.py")
WORDS = ["--save", "x", "--json", "--batches", "7", "--stop", "--", "-q"]


@pytest.mark.parametrize(
    "before",
    [
        (ECHO,),
        ("--batches", "9", "--stop", "--", ECHO),
        ("--batches=9", "-m", "echo"),
        ("-q", "--set", "workers=2", sys.executable, ECHO),
    ],
)
def test_from_the_first_word_of_the_command_on_every_argument_is_the_scripts(before: tuple[str, ...]) -> None:
    done = apart("run", *before, *WORDS, cwd=running.SCRIPTS)
    assert (done.returncode, done.stdout) == (
        5,
        f"{WORDS} __main__ \n",
    )
    assert ("no DataLoader was read" in done.stderr) == ("-q" not in before)


def test_a_command_that_cannot_be_run_is_one_sentence() -> None:
    done = apart("run", "no-such-script.py")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "stoker: there is no script no-such-script.py\n")
    assert apart("run", "--stop").returncode == 2
    done = apart("run", "--set", "worker=1", ECHO)
    assert (done.returncode, done.stdout) == (1, "")
    assert "sets no loader argument" in done.stderr


def _document(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def test_a_starved_script_is_told_what_to_change_and_ends_where_it_was_asked_to(tmp_path: Path) -> None:
    saved, page = tmp_path / "run.json", tmp_path / "run.html"
    options = ("--stop", "--batches", "14", "--save", str(saved), "--report", str(page))
    done = apart("run", *options, STARVED, "--save", "mine")
    assert (done.returncode, done.stdout) == (0, "begins None mine\n")
    assert "14 batches of the loader made at " in done.stderr
    assert "Bottleneck: item" in done.stderr
    assert "add to the command: --workers " in done.stderr
    trial = read(saved)
    assert isinstance(trial, Trial)
    assert (trial.outcome, len(trial.timeline.got_s), trial.workload.mode) == ("done", 14, "train")
    document = _document(saved)
    assert (document["status"], document["command"]) == (0, [STARVED, "--save", "mine"])
    proposal, *_ = document["proposals"]
    assert proposal["arguments"][0] == "--workers"
    assert proposal["gain"] > 2
    assert "starved.py" in page.read_text()
    assert import_files([saved], db=tmp_path / "runs.db", name="runs") == (1, 1)


def test_a_perfect_loader_is_tried_with_batches_that_were_loaded(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    done = apart("run", "--headroom", "--set", "workers=1", "--batches", "12", "--save", str(saved), STARVED)
    assert (done.returncode, done.stdout) == (0, "begins None None\n")
    assert "Headroom: a perfect loader: " in done.stderr
    assert "that run trained nothing" in done.stderr
    document = _document(saved)
    trial = read(saved)
    assert isinstance(trial, Trial)
    assert (trial.setting.num_workers, len(trial.timeline.got_s)) == (1, 12)
    assert "num_workers 0 → 1" in " ".join(trial.notes)
    headroom = document["headroom"]
    assert len(headroom["step_s"]) == 8
    assert headroom["gain"] > 2


def _started(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_a_run_that_is_killed_is_saved(tmp_path: Path) -> None:
    """Twice: what was seen when there were enough batches, while the script runs on; and again at its end."""
    saved = tmp_path / "run.json"
    process = _started("--batches", "8", "--save", str(saved), STARVED, "--epochs", "90")
    try:
        while not saved.exists() and process.poll() is None:
            pass
        assert _document(saved)["status"] is None
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (128 + signal.SIGTERM, "begins None None\n")
    assert "8 batches of the loader made at " in errors
    assert "Traceback" not in errors
    assert _document(saved)["status"] == 128 + signal.SIGTERM


@pytest.mark.slow
def test_verify_measures_that_the_proposed_workers_are_faster(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    done = apart("run", "--stop", "--verify", "--batches", "16", "--save", str(saved), STARVED, "--epochs", "3")
    assert (done.returncode, done.stdout) == (0, "begins None None\n")
    first, *_ = done.stderr.splitlines()
    assert first == (
        "stoker: --verify: when the script has ended it is run up to 6 times more, for 16 batches each, with "
        "STOKER_RERUN=1 in its environment"
    )
    assert done.stderr.count("stoker: --verify: run ") == 2 * (1 + len(_verified(saved)))
    for verified in _verified(saved):
        assert verified["problem"] is None
        assert len(verified["before_s"]) == 2
        assert verified["measured_gain"] > 2
        assert 0.5 < verified["measured_gain"] / verified["predicted_gain"] < 1.5


def _verified(path: Path) -> list[dict[str, Any]]:
    found = _document(path)["verified"]
    assert isinstance(found, list)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("huggingface", "TrainingArguments(…, dataloader_num_workers=workers)` → `dataloader_num_workers="),
        ("lightning", "DataLoader(…, num_workers=workers)` → `num_workers="),
        ("accelerate", "DataLoader(…, num_workers=workers)` → `num_workers="),
    ],
)
def test_under_a_framework_the_argument_is_the_frameworks(framework: str, words: str) -> None:
    done: Done = apart("run", running.script("framework.py"), framework, "0")
    assert done.returncode == 0, done.stderr
    assert words in done.stderr
