"""`print(record)` shows the table of the command line; `repr(record)` fits one line."""

import gzip
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import stoker
from stoker.records import Record, Trial, parse
from stoker.records.base import RENDERERS
from tests.commands import here
from tests.records.test_documents import COMPARISON, DOCUMENTS, LIMIT, PLAN, PREDICTION, PROBES, STALLS

ANSWERS = Path(__file__).parents[1] / "answers"


@pytest.fixture(scope="module")
def trial() -> Trial:
    line = gzip.decompress((ANSWERS / "trials.jsonl.gz").read_bytes()).splitlines()[0]
    found = parse(line)
    assert isinstance(found, Trial)
    return found


def test_every_record_of_a_command_has_a_text() -> None:
    assert set(RENDERERS) == {type(record).__name__ for record, _ in DOCUMENTS.values()} - {"InterruptedTune"} | {
        "Machine",
        "ScriptAnswer",
    }


def test_a_trial_prints_as_the_profile_does_with_verdict_and_remedies(trial: Trial) -> None:
    text = str(trial)
    assert text.splitlines()[0] == "resnet18 · jpeg · infer on cuda:0"
    judged = stoker.verdict(trial)
    assert judged is not None
    assert f"Bottleneck: {judged.bottleneck}" in text
    assert stoker.advise(trial)[0].change in " ".join(text.split())


def test_a_prediction_prints_the_rows_of_the_command(tmp_path: Path) -> None:
    path = next((ANSWERS / "probes").iterdir())
    saved = tmp_path / "probes.json"
    saved.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    probes = stoker.read(saved)
    assert isinstance(probes, stoker.Probes)
    found = stoker.predict(probes, stoker.Setting(batch_size=32, num_workers=2))
    shown = here("predict", "--probes", str(saved), "--batch-size", "32", "--workers", "2").stdout
    rows = [line.rstrip() for line in shown.splitlines()]
    assert str(found).splitlines()[1:] == rows[1 : len(str(found).splitlines())]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (PLAN, "DataLoader(dataset, batch_size=4, num_workers=0, pin_memory=False)"),
        (LIMIT, "largest batch          8"),
        (COMPARISON, "largest batch"),
        (PREDICTION, "limited by         decode"),
        (PROBES, "probed in"),
    ],
)
def test_other_answers_print_as_tables(record: Record, words: str) -> None:
    assert words in str(record)


def test_stalls_and_a_machine_print(trial: Trial) -> None:
    stalls = msgspec.structs.replace(STALLS, memory=trial, cached=trial, cold=trial)
    assert "files cold" in str(stalls)
    assert "CPUs to use" in str(stoker.doctor())


def test_a_record_without_a_table_prints_its_repr() -> None:
    setting = stoker.Setting(batch_size=7)
    assert str(setting) == repr(setting)
    assert "batch_size=7" in str(setting)


def test_reprs_of_large_records_fit_one_line(trial: Trial) -> None:
    for record in (trial, PLAN, LIMIT):
        assert "\n" not in repr(record)
        assert len(repr(record)) < 120
    assert "batch 128, 1 worker" in repr(trial)
    assert "batch 4, 0 workers" in repr(PLAN)
    assert "batch 8, predicted, 8 to 9" in repr(LIMIT)


def test_tables_are_at_most_as_wide_as_the_terminal(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(len(line) for line in str(trial).splitlines()) <= 60


def test_records_alone_import_nothing_that_draws() -> None:
    heavy = ("rich", "torch", "stoker.report")
    code = f"import sys, stoker.records; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
