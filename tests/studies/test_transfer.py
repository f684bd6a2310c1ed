"""Trials into files and out of them again."""

import json
import os
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stoker.analysis import published
from stoker.errors import InputError, StokerError
from stoker.records import Trial
from stoker.studies.store import Store
from stoker.studies.study import Study, stored_study
from stoker.studies.tables import usual_table
from stoker.studies.transfer import PUBLISHED, import_files, import_published, parse_map
from tests.studies.quick import QuickExecutor, other_machine, small_study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two machines, four cells out of memory, two of them retried."""
    made = small_study(tmp_path)
    made.run(executor=QuickExecutor(outcomes={8: "oom"}))
    made.run(executor=QuickExecutor(), retry=["oom"], only=["workload=resnet18"])
    made.run(executor=QuickExecutor(machine=other_machine()), only=["batch_size=16"])
    return made


def imported(folder: Path, *files: Path, **options: Any) -> Study:
    db = folder / "other.db"
    import_files(files, name="theirs", db=db, **options)
    return stored_study("theirs", db)


# ---------------------------------------------------------------- export


def test_a_table_has_a_row_for_each_task_repeat_and_machine(study: Study, tmp_path: Path) -> None:
    assert study.export(tmp_path / "a.csv") == 12
    study.export(tmp_path / "a.parquet")
    trials = study.trials()
    assert_frame_equal(pl.read_parquet(tmp_path / "a.parquet"), trials)
    table = pl.read_csv(tmp_path / "a.csv")
    assert table.columns == trials.columns
    assert table["seconds"].to_list() == trials["seconds"].to_list()


def test_a_document_says_what_it_is(study: Study, tmp_path: Path) -> None:
    study.export(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["kind"], document["schema"], document["study"]) == ("trials", 1, "small")
    assert (len(document["trials"]), len(document["tasks"]), len(document["machines"])) == (12, 8, 2)
    assert "record" not in document["trials"][0]


def test_raw_samples_are_records_that_can_be_read(study: Study, tmp_path: Path) -> None:
    study.export(tmp_path / "a.json", samples=True)
    for row in json.loads((tmp_path / "a.json").read_text())["trials"]:
        trial = msgspec.convert(row["record"], Trial)
        assert trial.outcome == row["outcome"]
        assert trial.setting.batch_size == row["batch_size"]


def test_samples_of_any_size_are_exported_one_trial_at_a_time(tmp_path: Path) -> None:
    study = small_study(tmp_path, repeats=5)
    study.run(executor=QuickExecutor())
    size = 1_000_000
    with Store(study.store_path) as store:
        rows = store.trials()
        for row in rows:
            document = f'{{"kind": "trial", "samples": "{os.urandom(size // 2).hex()}"}}'.encode()
            store.record(msgspec.structs.replace(row, document=document))
    tracemalloc.start()
    try:
        assert study.export(tmp_path / "a.json", samples=True) == len(rows) == 40
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "a.json").stat().st_size > 40 * size > 4 * peak_bytes
    trials = json.loads((tmp_path / "a.json").read_text())["trials"]
    assert [len(row["record"]["samples"]) for row in trials] == [size] * 40


def test_an_export_that_meets_a_damaged_trial_leaves_no_file(study: Study, tmp_path: Path) -> None:
    with sqlite3.connect(study.store_path) as db:
        db.execute("UPDATE trials SET document = x'00'")
    with pytest.raises(InputError, match="is damaged"):
        study.export(tmp_path / "a.json", samples=True)
    assert not list(tmp_path.glob("*a.json*"))
    assert study.export(tmp_path / "a.json") == 12


def test_a_study_without_trials_is_exported_as_a_document_that_can_be_read(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    with Store(study.store_path) as store:
        store.add_study(study.name, study.grid, "grid", {key: (a.task, a.values) for key, a in study.tasks.items()})
    assert study.export(tmp_path / "a.json") == 0
    assert json.loads((tmp_path / "a.json").read_text())["trials"] == []


@pytest.mark.parametrize(
    ("name", "samples", "sentence"),
    [
        ("a.txt", False, r"cannot export to a.txt: choose a name that ends in .csv, .parquet, .json"),
        ("a.csv", True, r"raw samples go into .json only"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    study: Study, tmp_path: Path, name: str, samples: bool, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        study.export(tmp_path / name, samples=samples)
    with pytest.raises(StokerError, match="cannot write"):
        study.export(tmp_path / "none" / "a.csv")
    assert {path.suffix for path in tmp_path.iterdir()} == {".db", ".db-owners"}


# ---------------------------------------------------------------- there and back


def test_a_document_comes_back_whole(study: Study, tmp_path: Path) -> None:
    study.export(tmp_path / "a.json", samples=True)
    back = imported(tmp_path, tmp_path / "a.json")
    ours, theirs = study.trials(), back.trials()
    same = [name for name in ours.columns if name not in ("study", "attempt", "attempts")]
    assert_frame_equal(theirs.select(same), ours.select(same))
    assert_frame_equal(back.regret(), study.regret())
    documents = {row.key: row.document for row in back.rows(documents=True)}
    assert all(document and msgspec.json.decode(document)["kind"] == "trial" for document in documents.values())
    with Store(back.store_path) as store, Store(study.store_path) as first:
        assert store.tasks("theirs") == {
            key: (task, cell, True) for key, (task, cell, _) in first.tasks("small").items()
        }


def test_a_table_comes_back_with_the_same_figures_and_its_machines_apart(study: Study, tmp_path: Path) -> None:
    study.export(tmp_path / "a.csv")
    back = imported(tmp_path, tmp_path / "a.csv")
    columns = ["workload", "batch_size", "num_workers", "outcome", "seconds"]
    assert_frame_equal(back.trials().select(columns).sort(columns), study.trials().select(columns).sort(columns))
    assert back.regret()["machine"].n_unique() == 2
    figures = ["batch_size", "num_workers", "regret_mean", "models", "missing"]
    assert_frame_equal(back.regret().select(figures).sort(figures), study.regret().select(figures).sort(figures))


def test_the_same_again_is_nothing_new_and_more_of_it_are_repeats(tmp_path: Path) -> None:
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("model,batch_size,seconds\na,8,1.0\na,8,1.5\n")
    second.write_text("model,batch_size,seconds\na,8,2.0\n")
    db = tmp_path / "stoker.db"
    assert import_files([first], name="theirs", db=db) == (2, 2)
    assert import_files([first], name="theirs", db=db) == (2, 0)
    assert import_files([second], name="theirs", db=db) == (1, 1)
    trials = stored_study("theirs", db).trials()
    assert trials.filter(pl.col("machine_label").str.contains("1.csv"))["repeat"].to_list() == [0, 1]


def test_a_saved_trial_is_a_trial_and_two_of_one_task_are_repeats(study: Study, tmp_path: Path) -> None:
    rows = [row for row in study.rows(documents=True) if row.outcome == "done"][:1] * 2
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file, row, seconds in zip(files, rows, (1.0, 2.0), strict=True):
        assert row.document is not None
        file.write_bytes(msgspec.json.encode({**msgspec.json.decode(row.document), "total_s": seconds}))
    back = imported(tmp_path, *files)
    trials = back.trials()
    assert trials["repeat"].to_list() == [0, 1]
    assert trials["seconds"].to_list() == [1.0, 2.0]
    assert trials["task_key"].to_list() == [rows[0].key] * 2


# ---------------------------------------------------------------- tables of other people


def test_columns_are_mapped_and_unlike_rows_are_unlike_tasks(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text(
        "net,end_to_end,bs,sleep_s,note\nresnet18,1.5,8,0,x\nresnet18,3.5,8,2,y\nresnet18,,16,0,\n",
        encoding="utf-8-sig",
    )
    columns = parse_map("workload=net, seconds=end_to_end,batch_size=bs")
    trials = imported(tmp_path, file, columns=columns).trials().sort("batch_size", "sleep_s")
    assert trials.select("workload", "batch_size", "sleep_s", "seconds", "outcome", "note").rows() == [
        ("resnet18", 8, 0.0, 1.5, "done", "x"),
        ("resnet18", 8, 2.0, 3.5, "done", "y"),
        ("resnet18", 16, 0.0, None, "failed", None),
    ]
    assert trials["task_key"].n_unique() == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model,time\na,1\n", "needs the columns seconds and workload; it has model, time. Name others with --map"),
        ("seconds\n1\n", "needs the columns seconds and workload"),
        ("", "needs the columns seconds and workload; it has none"),
        ("model,seconds\n", "has no rows"),
        ("model,seconds\na,quick\n", "line 2: seconds must be a number, got 'quick'"),
        ("model,seconds\na,0\n", "line 2: seconds must be above 0, got '0'"),
        ("model,seconds\na,nan\n", "line 2: seconds must be above 0, got 'nan'"),
        ("model,seconds\na,1,2\n", "line 2: more values than the 2 columns"),
        ("model,seconds\n,1\n", "line 2: no workload"),
        ("model,seconds,batch_size\na,1,8.5\n", "line 2: batch_size must be a whole number, got '8.5'"),
        ("model,seconds,batch_size\na,1,-8\n", "batch size must be at least 1, got -8|makes no sense"),
        ("model,seconds,outcome\na,1,fine\n", "line 2: outcome must be one of done, oom"),
        ("model,seconds,mode\na,1,dream\n", "makes no sense .*mode=dream"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=sentence):
        imported(tmp_path, file)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"not json", "this is not a JSON document"),
        (b"\xff\xfe", "this is not a JSON document"),
        (b"{}", "Stoker did not save it"),
        (b'{"kind": "machine", "schema": 1}', "this machine cannot be read"),
        (b'{"kind": "trials", "schema": 99, "study": "x", "machines": {}, "tasks": {}, "trials": []}', "schema 99"),
        (
            b'{"kind": "trials", "schema": 1, "study": "x", "machines": {}, "tasks": {}, "trials": '
            b'[{"task_key": "k", "machine": "m"}]}',
            "is incomplete: it lacks the task or the machine",
        ),
    ],
)
def test_a_document_that_cannot_be_read_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "theirs.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        imported(tmp_path, file)


def test_names_that_cannot_be_imported_to(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text("model,seconds\na,1\n")
    with pytest.raises(InputError, match="has a study 'small' that was run here; import under another name"):
        import_files([file], name="small", db=study.store_path)
    with pytest.raises(InputError, match="name a file to import"):
        import_files([], name="x", db=study.store_path)
    with pytest.raises(InputError, match="has no column 'time' for seconds; it has model, seconds"):
        import_files([file], name="x", db=study.store_path, columns={"seconds": "time"})
    with pytest.raises(InputError, match=r"cannot read .*none.csv"):
        import_files([tmp_path / "none.csv"], name="x", db=study.store_path)
    with pytest.raises(InputError, match="'seconds' maps nothing; write it like seconds=end_to_end"):
        parse_map("seconds")


# ---------------------------------------------------------------- published figures


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_a_study_like_any_other(tmp_path: Path, name: str) -> None:
    db = tmp_path / "stoker.db"
    total, new = import_published(name, db=db)
    assert total == new == PUBLISHED[name]().height
    study = stored_study(f"published-{name}", db)
    assert study.trials().height == total
    assert set(study.trials()["outcome"]) == {"done"}
    assert import_published(name, db=db) == (total, 0)
    table = "batch-limits" if name == "max-batch" else usual_table(study.grid.kind, study.trials())
    assert study.table(table).height > 0


def test_all_published_average_regrets_come_out_of_the_store(tmp_path: Path) -> None:
    import_published("batch-and-workers", db=tmp_path / "stoker.db")
    regret = stored_study("published-batch-and-workers", tmp_path / "stoker.db").regret()
    keys = ["data", "batch_size", "num_workers"]
    both = published.average_regrets().join(regret, on=keys, suffix="_ours")
    assert both.height == 90
    assert (both["regret_mean"] - both["regret_mean_ours"]).abs().max() < 1e-6  # type: ignore[operator]


def test_unknown_published_figures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no published figures called 'x'; choose batch-and-workers, "):
        import_published("x", db=tmp_path / "stoker.db")
