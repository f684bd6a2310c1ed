"""Promises of the package itself: what it exports, what it loads, that every command is explained."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from tests.commands import apart

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
    assert len(stoker.__all__) <= 40
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None
    assert set(dir(stoker)) == set(stoker.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Batch'"):
        _ = stoker.Batch


def test_every_public_name_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in stoker.__all__ if f"stoker.{name}" not in text and name != "__version__"]
    assert not missing


@pytest.mark.parametrize(
    "command",
    [
        "doctor",
        "profile",
        "run",
        "limit",
        "probe",
        "predict",
        "tune",
        "prepare",
        "report",
        "converge",
        "compare",
        "search",
    ],
)
def test_every_command_is_in_the_docs_with_every_option(command: str) -> None:
    from typer.main import get_command

    from stoker.cli.main import app

    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    options = [option for parameter in parameters for option in parameter.opts if option.startswith("--")]
    assert options
    assert [option for option in options if option not in text] == []
    assert f"## `stoker {command}" in text


def test_every_command_of_a_study_is_in_its_section_of_the_docs_with_every_option() -> None:
    from typer.main import get_command

    from stoker.cli.main import app

    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = text.partition("## `stoker study`")[2].partition("\n## ")[0]
    words = set(re.findall(r"[\w-]+", section))
    commands = get_command(app).commands["study"].commands  # type: ignore[attr-defined]
    assert {"run", "presets", "list", "status", "show", "export", "import"} <= set(commands)
    for name, command in commands.items():
        assert f"`study {name}" in section, name
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if option not in words] == [], name


@pytest.mark.parametrize("script", ["tables.py", "outputs.py"])
def test_figures_in_the_docs_are_those_of_the_result_files(script: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_quick_start_of_the_readme_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.partition("<!-- quick start -->\n```python\n")[2].partition("```")[0]
    assert 10 < len(code.splitlines()) <= 25
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    extent = ("--batches", "2", "--warmup", "0", "--batch-size", "2", "--device", "cpu", "--json", "--quiet")
    done = apart("profile", "train.py:workload", *extent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workload"]["mode"] == "train"


def test_the_pages_of_the_docs_link_to_pages_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_the_contributors_page_names_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = [entry.name for entry in (ROOT / "src" / "stoker").iterdir() if (entry / "__init__.py").is_file()]
    assert [name for name in packages if f"`{name}`" not in text] == []


def test_no_command_is_left_out_of_the_test_above() -> None:
    from stoker.cli.main import app

    assert {info.callback.__name__ for info in app.registered_commands if info.callback} == {
        "doctor",
        "profile",
        "run",
        "limit",
        "probe",
        "predict",
        "tune",
        "prepare",
        "report",
        "converge",
        "compare",
        "search",
    }
