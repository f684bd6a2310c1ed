"""How a command is started, and what it returns."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import InputError
from stoker.integrations import launch
from tests.integrations import running

ECHO = running.script("echo.py")


def test_a_script_gets_every_argument_after_its_name(tmp_path: Path) -> None:
    arguments = ["--save", "x", "--", "-m", "--batches=3", "a b"]
    done = running.observed(tmp_path / "logs", ECHO, *arguments)
    assert (done.status, done.out) == (5, f"{arguments} __main__ \n")


def test_a_module_and_interpreter_options(tmp_path: Path) -> None:
    done = running.observed(tmp_path / "logs", "-u", "-m", "echo", "-x", cwd=running.SCRIPTS)
    assert (done.status, done.out) == (5, "['-x'] __main__ \n")


def test_a_program_is_run_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.write_text(f"#!/bin/sh\necho $0 $1\nexec {sys.executable} {ECHO} inner\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = running.observed(tmp_path / "logs", "train", "-y", PATH=path)
    assert (done.status, done.out) == (5, f"{program} -y\n['inner'] __main__ \n")


def test_the_words_of_a_command() -> None:
    assert launch.command_line([ECHO, "-m"]) == (sys.executable, [sys.executable, ECHO, "-m"])
    assert launch.command_line(["-m", "x"]) == (sys.executable, [sys.executable, "-m", "x"])
    program, words = launch.command_line(["sh", "-c", "true"])
    assert Path(program).name == "sh"
    assert words == ["sh", "-c", "true"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ([], "there is nothing to run"),
        (["no-such.py"], "there is no script no-such.py"),
        (["no-such-program"], "there is no command no-such-program"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(command: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        launch.command_line(command)


def test_a_file_that_is_no_program_is_one_sentence(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text("no program")
    odd.chmod(0o755)
    with pytest.raises(InputError, match=r"odd cannot be run: Exec format error"):
        launch.launch([str(odd)], tmp_path)


def test_the_active_environment_gives_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert launch.user_python() == str(python)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert launch.user_python() == sys.executable


def test_a_signal_that_ends_the_script_is_its_status(tmp_path: Path) -> None:
    assert running.observed(tmp_path / "logs", ECHO, "die").status == 128 + signal.SIGKILL


def test_signals_to_the_launcher_reach_the_script(tmp_path: Path) -> None:
    process = running.start(tmp_path / "logs", ECHO, "wait")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)][-1] == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 33
    process.communicate()


def test_interrupt_from_another_process_reaches_the_script_once(tmp_path: Path) -> None:
    process = running.start(tmp_path / "logs", ECHO, "wait")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)][-1] == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1


def test_stdin_is_the_scripts(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from stoker.integrations.launch import launch\n"
    code += f"sys.exit(launch([{ECHO!r}, 'stdin'], Path({str(tmp_path)!r})).status)"
    done = subprocess.run([sys.executable, "-c", code], input="typed", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "['stdin'] __main__ typed\n")


def test_a_sitecustomize_that_was_there_still_runs(tmp_path: Path) -> None:
    code = "import sys, sitecustomize; print(customised, sitecustomize.__file__, [p for p in sys.path if 'boot' in p])"
    own = running.SCRIPTS / "site"
    before = running.bare("-c", code, PYTHONPATH=str(own))
    after = running.observed(tmp_path / "logs", "-c", code, PYTHONPATH=str(own))
    assert after.out == before.out
    assert "by the user's own sitecustomize" in after.out
    assert (after.errors, after.status) == (before.errors, 0)


def test_a_sitecustomize_that_fails_fails_as_before(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import no_such_module\n")
    before = running.bare("-c", "print(1)", PYTHONPATH=str(own))
    after = running.observed(tmp_path / "logs", "-c", "print(1)", PYTHONPATH=str(own))
    assert (after.out, after.errors, after.status) == (before.out, before.errors, before.status)
    assert "no_such_module" in after.errors


def test_isolated_python_is_left_alone(tmp_path: Path) -> None:
    done = running.observed(tmp_path / "logs", "-I", ECHO)
    assert (done.status, done.log.processes) == (5, ())


def test_overrides_are_read_by_their_short_names() -> None:
    text = "workers=8, prefetch=4,persistent=yes,pin=0,batch=64,in_order=false,method=spawn"
    assert launch.overrides_from(text) == {
        "num_workers": 8,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "pin_memory": False,
        "batch_size": 64,
        "in_order": False,
        "multiprocessing_context": "spawn",
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("worker=8", "'worker=8' sets no loader argument"),
        ("workers", "'workers' sets no loader argument"),
        ("workers=-1", "num_workers must be a whole number of at least 0, got -1"),
        ("prefetch=0", "prefetch_factor must be a whole number of at least 1, got 0"),
        ("pin=maybe", "pin_memory must be true or false, got maybe"),
        ("method=thread", "a start method must be fork, spawn or forkserver, got thread"),
    ],
)
def test_overrides_that_make_no_sense(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        launch.overrides_from(text)
