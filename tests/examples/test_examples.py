"""Each example is profiled with the libraries that people use, and its planted bottleneck has to be found."""

import importlib.util
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import here

FOLDER = Path(__file__).parents[2] / "examples"
LONGEST = 40
"""Lines of an example."""


class Row(NamedTuple):
    """A row of the table in examples/README.md: the one place that says what has to be found."""

    file: str
    libraries: str
    planted: str
    bottleneck: str
    mode: str


def table() -> list[Row]:
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| [")]
    return [Row(re.sub(r"\[(.*?)\].*", r"\1", name), *rest) for name, *rest in cells]


def test_the_table_has_every_example() -> None:
    assert sorted(row.file for row in table()) == sorted(path.name for path in FOLDER.glob("*.py"))


def test_examples_are_short_and_say_what_is_planted() -> None:
    for row in table():
        text = (FOLDER / row.file).read_text(encoding="utf-8")
        assert len(text.splitlines()) < LONGEST, row.file
        assert "# Planted: " in text, row.file


@pytest.mark.slow
@pytest.mark.parametrize("row", table(), ids=lambda row: row.file)
def test_profile_finds_what_is_planted(row: Row) -> None:
    for library in filter(None, row.libraries.split(", ")):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; make examples installs it")
    loader = "loader=" in (FOLDER / row.file).read_text(encoding="utf-8")  # its batch size is the example's own
    size = () if loader else ("--batch-size", "8")
    extent = (*size, "--batches", "8", "--device", "cpu", "--json", "--quiet")
    done = here("profile", f"{FOLDER / row.file}:workload", *extent)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = document["verdict"]
    assert found["bottleneck"] == row.bottleneck, f"{found['sentence']} {document['total_s']}"
    assert document["workload"]["mode"] == row.mode
