"""Promises of the package itself: what it exports, what it loads, that every command is explained."""

import subprocess
import sys
from pathlib import Path

import pytest

import stoker

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "code", ["import stoker", "import stoker.cli.main; stoker.cli.main.app(['--help'], standalone_mode=False)"]
)
def test_neither_the_package_nor_its_help_loads_torch(code: str) -> None:
    heavy = {"torch", "torchvision", "altair", "vl_convert", "polars", "numpy"}
    check = f"import sys\n{code}\nassert not {heavy} & set(sys.modules), 'too much is loaded'"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_few_and_all_there() -> None:
    assert len(stoker.__all__) <= 30
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None
    assert set(dir(stoker)) == set(stoker.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Batch'"):
        _ = stoker.Batch


def test_every_public_name_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in stoker.__all__ if f"stoker.{name}" not in text and name != "__version__"]
    assert not missing


@pytest.mark.parametrize("command", ["doctor", "profile", "limit", "probe", "predict", "tune", "prepare", "report"])
def test_every_command_is_in_the_docs_with_every_option(command: str) -> None:
    from typer.main import get_command

    from stoker.cli.main import app

    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    options = [option for parameter in parameters for option in parameter.opts if option.startswith("--")]
    assert options
    assert [option for option in options if option not in text] == []
    assert f"## `stoker {command}" in text


def test_figures_in_the_docs_are_those_of_the_result_files() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_command_is_left_out_of_the_test_above() -> None:
    from stoker.cli.main import app

    assert {info.callback.__name__ for info in app.registered_commands if info.callback} == {
        "doctor",
        "profile",
        "limit",
        "probe",
        "predict",
        "tune",
        "prepare",
        "report",
    }
