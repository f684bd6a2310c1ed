"""`stoker study` as people give it: output, exit status, one document or lines, and sentences for what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.study import PROMISE
from stoker.studies.grid import grid_from
from stoker.studies.store import Store, TrialRow
from tests.commands import Done, here
from tests.studies.quick import QuickExecutor

GRID = """\
name = "night"
[fixed]
mode = "infer"
items = 64
[axes]
workload = ["resnet18", "vit_b_16"]
batch_size = [8, 16]
num_workers = [1, 2]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a grid, and runs that take no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night.toml").write_text(GRID)
    answering(monkeypatch)
    return tmp_path


def answering(monkeypatch: pytest.MonkeyPatch, **outcomes: Any) -> None:
    by_size = {int(size.removeprefix("b")): outcome for size, outcome in outcomes.items()}
    monkeypatch.setattr("stoker.studies.study.LocalExecutor", lambda: QuickExecutor(outcomes=by_size))


def study(*arguments: str, status: int = 0) -> Done:
    done = here("study", *arguments)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines()), default=0) <= 80 or done.stdout.startswith(("{", "["))
    return done


def document(*arguments: str, status: int = 0) -> Any:
    return json.loads(study(*arguments, "--json", status=status).stdout)


# ---------------------------------------------------------------- run


def test_a_grid_runs_goes_on_and_says_what_to_do_next() -> None:
    first = study("run", "night.toml", "--only", "batch_size=8", "--quiet")
    assert first.stdout.startswith("ran 4 trials in ")
    assert "next: stoker study show night" in first.stdout
    assert study("run", "night.toml").stdout.startswith("ran 4 trials in ")
    again = study("run", "night.toml", "--quiet")
    assert again.stdout.startswith("nothing was left to run")
    assert again.stderr == ""
    assert study("run", "night").stdout.startswith("nothing was left to run"), "by its name, from the store"


def test_progress_is_on_stderr() -> None:
    done = study("run", "night.toml")
    assert "workload=" in done.stderr
    assert "batch_size=" in done.stderr


def test_json_is_one_document_and_events_are_a_line_a_trial() -> None:
    found = document("run", "night.toml", "--only", "workload=vit_b_16")
    assert (found["study"], found["db"], found["slots"], found["ran"]) == ("night", "stoker.db", 4, 4)
    assert found["outcomes"] == {"done": 4}
    assert found["change"]["first"] is True
    lines = [json.loads(line) for line in study("run", "night.toml", "--events", "--quiet").stdout.splitlines()]
    assert len(lines) == 4
    assert {line["workload"] for line in lines} == {"resnet18"}
    assert {"key", "repeat", "attempt", "outcome", "batch_size", "seconds", "problem"} <= set(lines[0])


def test_what_is_unfinished_is_status_1_and_what_failed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, b8="oom")
    assert document("run", "night.toml", "--budget", "1ns", status=1)["unfinished"] == 8
    assert study("run", "night.toml", "--budget", "1ns", status=1).stdout.splitlines()[1:3] == [
        "stopped: the budget is spent",
        "8 of 8 runs still to do: the same command goes on",
    ]
    assert document("run", "night.toml")["outcomes"] == {"done": 4, "oom": 4}


def test_a_retry_is_counted_beside_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, b8="crashed")
    study("run", "night.toml")
    answering(monkeypatch)
    assert document("run", "night.toml", "--retry", "crashed", "--retry", "oom")["outcomes"] == {"done": 4}
    assert "8 done (4 earlier attempts beside them)" in study("status", "night").stdout


def test_a_changed_grid_is_reported(folder: Path) -> None:
    study("run", "night.toml")
    (folder / "night.toml").write_text(GRID.replace("[1, 2]", "[2, 4]"))
    done = study("run", "night.toml")
    assert "the grid has changed since the last run: 4 tasks new (workload=resnet18, " in done.stderr
    assert "4 tasks no longer asked for" in done.stderr
    assert "4 tasks are no longer asked for; trials stay" in study("status").stdout
    (folder / "night.toml").write_text(GRID)
    assert document("run", "night.toml")["change"]["gone"] == 4


def test_a_dry_run_prints_tasks_and_an_estimate_and_runs_nothing(folder: Path) -> None:
    done = study("run", "night.toml", "--dry-run")
    assert "8 tasks, 8 runs: 0 done, 8 to run" in done.stdout
    assert "time left: unknown" in done.stdout
    assert "vit_b_16" in done.stdout
    assert not (folder / "stoker.db").exists()
    study("run", "night.toml", "--only", "batch_size=8")
    found = document("run", "night.toml", "--dry-run", "--repeats", "2")
    assert (found["slots"], found["done"], found["left_s"], len(found["cells"])) == (16, 4, 6.0, 8)
    study("run", "night.toml")
    assert "time left: none" in study("run", "night.toml", "--dry-run").stdout


def test_repeats_jobs_and_another_file() -> None:
    done = study("run", "night.toml", "--repeats", "2", "--jobs", "2", "--db", "mine.db", "--quiet")
    assert "next: stoker study show night --db mine.db" in done.stdout
    assert "night · 8 tasks × 2 repeats" in study("status", "--db", "mine.db").stdout
    assert document("list", "--db", "mine.db")[0]["trials"] == 16


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("run", "none.toml"), 1, "cannot read none.toml: No such file or directory"),
        (("run", "night.toml", "--only", "batch_size=9"), 1, "batch_size is never '9' in this grid; it is 16, 8"),
        (("run", "night.toml", "--budget", "soon"), 1, "'soon' is not a time"),
        (("run", "night.toml", "--retry", "oops"), 1, "no such outcome: 'oops'"),
        (("run", "night.toml", "--jobs", "0"), 1, "jobs must be at least 1, got 0"),
        (("run", "night.toml", "--events", "--json"), 1, "choose one"),
        (("run", "night.toml", "--db", "none/stoker.db"), 1, "cannot create none/stoker.db: none is not a folder"),
        (("run", "pinning", "--scale", "tiny"), 2, "tiny"),
        (("run",), 2, "Missing argument"),
        (("runn", "night.toml"), 2, "No such command"),
        (("show", "night"), 1, "there is no stoker.db; run a study first, or name its file with --db"),
        (("status",), 1, "there is no stoker.db"),
        (("export", "night", "-o", "a.csv"), 1, "there is no stoker.db"),
        (("import",), 1, "name a file to import, or --published batch-and-workers"),
        (("import", "night.toml"), 1, "name the study: --name NAME"),
        (("import", "night.toml", "--published", "max-batch"), 1, "leave out files and --map"),
        (("import", "--published", "x"), 1, "no published figures called 'x'"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], status: int, sentence: str) -> None:
    done = study(*arguments, status=status)
    assert sentence in done.stderr
    if status == 1:
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith("stoker: ")


def test_a_file_that_is_no_database_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "stoker.db").write_text("mine")
    for command in (("run", "night.toml"), ("status",), ("show", "night"), ("list",)):
        assert "stoker.db is not a database; choose another file with --db" in study(*command, status=1).stderr
    assert (folder / "stoker.db").read_text() == "mine"


def test_the_promise_is_printed() -> None:
    shown = " ".join(here("study", "run", "--help").stdout.split())
    assert PROMISE in shown


# ---------------------------------------------------------------- presets, list, status


def test_presets_have_sizes_and_times() -> None:
    shown = study("presets").stdout
    assert "batch-and-workers — Batch size and workers together" in shown
    assert "full: 1,080 runs on one GPU" in shown
    rows = {row["name"]: row for row in document("presets")}
    assert rows["max-batch"]["small"]["runs"] == 36


def test_a_store_without_studies_says_so(folder: Path) -> None:
    Store(folder / "stoker.db").close()
    assert study("list").stdout == "stoker.db has no studies\n"
    assert document("status") == []


def test_an_imported_study_has_no_repeats_of_its_own() -> None:
    assert study("import", "--published", "max-batch").stdout == ("12 trials, 12 new, in study published-max-batch\n")
    assert study("status").stdout.startswith("published-max-batch · 12 tasks, imported\n")
    assert "missing" not in study("status").stdout


def test_one_task_is_not_tasks(folder: Path) -> None:
    (folder / "one.toml").write_text('[axes]\nworkload = ["resnet18"]\n')
    assert study("run", "one.toml", "--quiet").stdout.startswith("ran 1 trial in ")
    assert study("status", "one").stdout.startswith("one · 1 task\n")


# ---------------------------------------------------------------- show


def test_show_says_which_setting_is_best_and_by_how_much() -> None:
    study("run", "night.toml")
    lines = study("show", "night").stdout.splitlines()
    assert lines[0] == "batch 16, 2 workers is best: regret 0.0%, worst 0.0% (resnet18)"
    assert lines[1] == "mode infer · items 64 · models 2 · missing 0"
    assert lines[2].split() == ["batch", "workers", "mean", "regret", "worst", "regret"]
    assert lines[4].split() == ["16", "2", "0.0%", "0.0%"]


def test_rows_of_regret_and_of_counts_have_their_names() -> None:
    study("run", "night.toml")
    regret = document("show", "night", "--regret")
    assert {"batch_size", "num_workers", "regret_mean", "regret_worst", "models", "missing"} <= set(regret[0])
    assert "machine" not in regret[0]
    assert document("show", "night", "--top", "1") == [
        {"mode": "infer", "items": 64, "batch_size": 16, "num_workers": 2, "count": 2}
    ]
    assert document("show", "night") == regret


def test_cells_that_failed_or_are_missing_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, b8="oom")
    study("run", "night.toml", "--only", "workload=vit_b_16")
    lines = study("show", "night").stdout.splitlines()
    assert lines[1:3] == ["2 of 4 cells have no time: 2 oom", "4 runs of the grid are missing"]


@pytest.mark.parametrize("option", ["--best", "--effects", "--ties", "--table=item-times", "--table=first-batches"])
def test_every_table_can_be_shown_and_had_as_json(option: str) -> None:
    study("run", "night.toml", "--repeats", "2")
    assert len(study("show", "night", option).stdout.splitlines()) > 4
    rows = document("show", "night", option)
    assert rows
    assert all(isinstance(row, dict) for row in rows)


def test_published_figures_are_shown_as_a_table_that_fits() -> None:
    study("import", "--published", "batch-and-workers")
    study("import", "--published", "batch-impact")
    study("import", "--published", "max-batch")
    first = study("show", "published-batch-and-workers").stdout.splitlines()
    assert first[0] == "jpeg: batch 128, 12 workers is best: regret 2.0%, worst 5.9% (vit_l_32)"
    assert "efficientnet_v2_l" in study("show", "published-batch-impact", "--table", "item-times").stdout
    assert "batch 1,024 works for all 12 workloads" in study("show", "published-max-batch").stdout
    stages = study("show", "published-batch-impact", "--table", "stages").stdout
    assert "shares of the run" in stages
    assert "50 rows more: --json or export" in study("show", "published-batch-and-workers").stdout
    study("import", "--published", "stage-times")
    lines = study("show", "published-stage-times", "--table", "breakdown").stdout.splitlines()
    assert any("vit_l_32" in line and "6.29" in line and "…" not in line for line in lines)


def test_a_study_of_a_search_says_which_stage_dominates_and_shows_the_spread() -> None:
    fixed = {"data": "tensors", "part": "full", "batch_size": 32}
    cells: list[dict[str, Any]] = [{"workload": "resnet18", "items": items, **fixed} for items in (96, 9216)]
    grid = grid_from({"name": "costs", "kind": "search", "repeats": 2, "include": cells})
    with Store(Path("stoker.db")) as store:
        store.add_machine("m", {"label": "here"})
        store.add_study("costs", grid, "grid", {key: (each.task, each.values) for key, each in grid.tasks().items()})
        for repeat in range(2):
            for key, each in grid.tasks().items():
                stages = {"prepare_model_s": 2.0 + repeat, "prepare_data_s": 0.1, "score_s": 0.1}
                stages["forward_s"] = float(str(each.values["items"])) / 100
                figures = {**stages, "seconds": sum(stages.values())}
                store.record(TrialRow(key=key, repeat=repeat, machine="m", outcome="done", figures=figures))
    said = " ".join(study("show", "costs").stdout.split())
    assert "at 96 items preparing the model takes the most time in the only model, 68% at the median" in said
    assert "at 9,216 items inference takes the most time in the only model" in said
    assert "prepare model 2.5 s 2 s 3 s" in said
    rows = document("show", "costs")
    first = next(row for row in rows if row["stage"] == "prepare_model")
    assert (first["low_s"], first["stage_s"], first["high_s"]) == (2.0, 2.5, 3.0)


def test_a_study_of_a_search_in_which_everything_failed_says_so() -> None:
    grid = grid_from({"name": "none", "kind": "search", "include": [{"workload": "resnet18", "items": 96}]})
    with Store(Path("stoker.db")) as store:
        store.add_machine("m", {"label": "here"})
        store.add_study("none", grid, "grid", {key: (each.task, each.values) for key, each in grid.tasks().items()})
        for key in grid.tasks():
            store.record(TrialRow(key=key, repeat=0, machine="m", outcome="failed", problem="it does not load"))
    assert "1 of 1 cell has no time: 1 failed" in study("show", "none").stdout


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (("--best", "--ties"), 1, "choose one of --top, --regret, --best, --effects, --ties and --table"),
        (("--top", "0"), 1, "--top must be at least 1, got 0"),
        (("--by", "colour"), 1, "the trials have no column colour"),
        (("--table", "utilisation"), 1, "utilisation needs a column of computing seconds"),
        (("--table", "costs"), 2, "costs"),
    ],
)
def test_tables_that_cannot_be_had(options: tuple[str, ...], status: int, sentence: str) -> None:
    study("run", "night.toml")
    assert sentence in study("show", "night", *options, status=status).stderr


# ---------------------------------------------------------------- export and import


def test_export_and_import_there_and_back(folder: Path) -> None:
    study("run", "night.toml")
    assert study("export", "night", "-o", "a.csv").stdout == "8 trials in a.csv\n"
    assert document("export", "night", "--output", "a.json", "--samples") == {"file": "a.json", "trials": 8}
    exported = json.loads((folder / "a.json").read_text())
    assert (exported["kind"], len(exported["trials"])) == ("trials", 8)
    assert document("import", "a.json", "--name", "back", "--db", "b.db") == {"study": "back", "trials": 8, "new": 8}
    ours, theirs = document("show", "night"), document("show", "back", "--db", "b.db")
    assert ours == theirs
    (folder / "their.csv").write_text("net,end_to_end\nresnet18,1.5\n")
    mapping = "workload=net,seconds=end_to_end"
    assert document("import", "their.csv", "--name", "theirs", "--map", mapping)["new"] == 1
