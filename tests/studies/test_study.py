"""Studies from Python: where they come from, what a changed grid says, how far they are."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stoker
from stoker.errors import InputError
from stoker.studies.models import Misfit
from stoker.studies.store import Slot, Store
from stoker.studies.study import Change, Study, listing, stored_study
from stoker.studies.study import study as make
from stoker.studies.tables import TABLES
from stoker.studies.transfer import import_published
from tests.studies.quick import GRID, QuickCluster, QuickExecutor, other_machine, small_study, this_machine


def ran(folder: Path, executor: QuickExecutor | None = None, **changes: Any) -> Study:
    study = small_study(folder, **changes)
    study.run(executor=executor or QuickExecutor())
    return study


# ---------------------------------------------------------------- where a study comes from


def test_a_study_comes_from_a_file_a_mapping_a_preset_or_the_store(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text('[axes]\nworkload = ["resnet18"]\nbatch_size = [8, 16]\n')
    db = tmp_path / "stoker.db"
    assert stoker.study(file).name == "night"
    assert stoker.study(str(file), db=db).grid.axis_names == ["workload", "batch_size"]
    assert stoker.study("pinning", scale="small").name == "pinning-small"
    ran(tmp_path)
    again = stoker.study("small", db=db)
    assert (again.source, len(again.grid.tasks())) == ("grid", 8)
    assert repr(again) == f"Study('small', '{db}')"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nothing", "nothing is no grid file, no preset and no study in .*; presets: batch-and-workers, "),
        ("nothing.toml", "cannot read nothing.toml: No such file"),
        (7, "a study needs a grid file or a preset's name, got int; a live Workload object has no key"),
        ({"axes": {"workload": [3]}}, "workload must be a text"),
        ({"axes": {"workload": [object()]}}, "a live Workload object has no key, and a study needs one: name it as"),
        ({"axes": {"workload": "resnet18"}}, "an axis is a list"),
    ],
)
def test_what_is_no_study_is_refused_in_a_sentence(tmp_path: Path, source: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make(source, db=tmp_path / "stoker.db")


def test_a_model_that_cannot_be_run_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file, db = tmp_path / "night.toml", tmp_path / "stoker.db"
    text = '[fixed]\ndevice = "sleep:0s"\nitems = 2\n[axes]\nbatch_size = [2]\nworkload = ["resnet18", "resnet81"]\n'
    file.write_text(text)
    for ask in (Study.run, Study.forecast):
        with pytest.raises(InputError, match=r"night.toml, line 6: no model is called 'resnet81'; did you mean"):
            ask(make(file, db=db))
    assert not db.exists()
    file.write_text(text.replace("resnet81", "vit_b_16").replace("items", 'data = "text"\nitems'))
    with pytest.raises(InputError, match="line 7: resnet18 takes image data"):
        make(file, db=db).run()


def test_models_that_have_run_are_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = ran(tmp_path)
    asked: list[Any] = []

    def look(tasks: Any) -> Misfit:
        asked.extend(tasks)
        return Misfit()

    monkeypatch.setattr("stoker.studies.models.first_misfit", look)
    study.forecast()
    assert asked == []
    small_study(tmp_path, name="new").forecast()
    assert len(asked) == 8


def test_a_live_workload_is_refused_as_it_has_no_key() -> None:
    import torch

    workload = stoker.Workload(model=torch.nn.Identity(), dataset=[1, 2, 3])
    with pytest.raises(InputError, match="a live Workload object has no key: name it as"):
        make(workload)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a live Workload object has no key"):
        make({"axes": {"workload": [workload]}})


def test_a_study_that_is_not_in_the_store_is_named_beside_those_that_are(tmp_path: Path) -> None:
    study = ran(tmp_path)
    with pytest.raises(InputError, match="has no study 'large'; it has small"):
        stored_study("large", study.store_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"budget_s": 0.0}, "the budget must be above 0 s, got 0"),
        ({"retry": ["oops"]}, "no such outcome: 'oops'; choose failed, oom"),
        ({"only": ["batch_size=9"]}, "batch_size is never '9' in this grid"),
    ],
)
def test_a_run_refuses_what_makes_no_sense_before_it_writes(tmp_path: Path, options: Any, sentence: str) -> None:
    study = small_study(tmp_path)
    with pytest.raises(InputError, match=sentence):
        study.run(executor=QuickExecutor(), **options)
    assert not study.store_path.exists()


# ---------------------------------------------------------------- a changed grid


def change_of(folder: Path, **changes: Any) -> Change:
    seen: list[Change] = []
    small_study(folder, **changes).run(executor=QuickExecutor(), on_change=seen.append)
    return seen[0]


def axes(**changes: Any) -> dict[str, Any]:
    return {**GRID["axes"], **changes}


def test_the_first_run_and_the_same_grid_again_change_nothing(tmp_path: Path) -> None:
    first = change_of(tmp_path)
    assert (first.new, first.first, first.sentence) == (8, True, None)
    again = change_of(tmp_path)
    assert (again.same, again.sentence) == (8, None)
    assert change_of(tmp_path, title="another", seed=9).sentence is None


def test_a_changed_grid_says_what_is_new_and_what_is_no_longer_asked_for(tmp_path: Path) -> None:
    ran(tmp_path)
    change = change_of(tmp_path, axes=axes(num_workers=[2, 4]))
    assert (change.new, change.gone, change.same, change.renewed) == (4, 4, 4, 0)
    assert change.new_cells[0] == {"workload": "resnet18", "batch_size": 8, "num_workers": 4}
    sentence = change.sentence
    assert sentence is not None
    assert sentence.startswith(
        "the grid has changed since the last run: 4 tasks new (workload=resnet18, batch_size=8, num_workers=4; "
    )
    assert "4 tasks no longer asked for (workload=resnet18, batch_size=8, num_workers=1; " in sentence
    assert sentence.endswith("; …); trials stay")
    study = small_study(tmp_path)
    assert len(Store(study.store_path).trials("small")) == 12


def test_one_task_is_no_tasks(tmp_path: Path) -> None:
    ran(tmp_path)
    change = change_of(tmp_path, include=[{"workload": "resnet50"}])
    assert change.sentence is not None
    assert "1 task new (workload=resnet50)" in change.sentence


def test_another_number_of_repeats_is_said(tmp_path: Path) -> None:
    ran(tmp_path)
    change = change_of(tmp_path, repeats=3)
    assert change.sentence == "the grid has changed since the last run: the number of repeats was 1"


def test_a_users_file_that_changed_is_named_as_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def workload(): ...\n")
    grid: dict[str, Any] = {"axes": {"workload": [f"{file}:workload"], "batch_size": [8, 16]}, "fixed": {}}
    ran(tmp_path, **grid)
    file.write_text("def workload(): return 1\n")
    change = change_of(tmp_path, **grid)
    assert (change.new, change.gone, change.renewed) == (2, 2, 2)
    assert change.sentence is not None
    assert "for 2 of them the file of the workload has changed" in change.sentence


def test_a_study_of_another_kind_or_an_imported_one_is_not_overwritten(tmp_path: Path) -> None:
    study = ran(tmp_path)
    with pytest.raises(InputError, match="has a study 'small' of kind profile, not limit; give this grid another name"):
        small_study(tmp_path, kind="limit", fixed={}, axes={"workload": ["resnet18"]}).run(executor=QuickExecutor())
    import_published("max-batch", db=study.store_path, name="theirs")
    with pytest.raises(InputError, match="study 'theirs' was imported; give this grid another name"):
        small_study(tmp_path, name="theirs").run(executor=QuickExecutor())
    with pytest.raises(InputError, match="its trials came from elsewhere and cannot be run here"):
        stored_study("theirs", study.store_path).run(executor=QuickExecutor())


def test_studies_of_one_file_share_the_trials_of_the_tasks_that_they_share(tmp_path: Path) -> None:
    ran(tmp_path)
    executor = QuickExecutor()
    ran(tmp_path, executor, name="larger", axes=axes(batch_size=[8, 16, 32]))
    assert {task.setting.batch_size for task in executor.ran} == {32}
    assert stored_study("larger", tmp_path / "stoker.db").trials().height == 12


# ---------------------------------------------------------------- how far it is


def test_a_forecast_writes_nothing_and_estimates_from_what_has_finished(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    forecast = study.forecast(executor=QuickExecutor())
    assert (forecast.tasks, forecast.slots, forecast.done, forecast.left_s) == (8, 8, 0, None)
    assert not study.store_path.exists()
    study.run(executor=QuickExecutor(wall_s=2.0), only=["batch_size=8"])
    before = study.store_path.read_bytes()
    forecast = small_study(tmp_path).forecast(executor=QuickExecutor(), repeats=2)
    assert (forecast.tasks, forecast.slots, forecast.done, forecast.left_s) == (8, 16, 4, 24.0)
    assert forecast.cells[0]["workload"] == "resnet18"
    assert study.store_path.read_bytes() == before


def test_the_status_counts_by_machine(tmp_path: Path) -> None:
    study = ran(tmp_path, QuickExecutor(outcomes={8: "oom"}))
    study.run(executor=QuickExecutor(outcomes={8: "crashed"}), retry=["oom"], only=["workload=resnet18"])
    study.run(executor=QuickExecutor(machine=other_machine()), only=["batch_size=16"])
    status = study.status()
    assert (status.tasks, status.repeats, status.slots, status.running) == (8, 1, 8, ())
    here, there = sorted(status.machines, key=lambda machine: machine.missing)
    assert (here.outcomes, here.missing, here.attempts) == ({"done": 4, "crashed": 2, "oom": 2}, 0, 10)
    assert (there.outcomes, there.missing, there.attempts) == ({"done": 4}, 4, 4)
    assert "another CPU" in there.label


def test_more_repeats_than_the_grid_has_become_the_studys_own(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    study.run(executor=QuickExecutor(), repeats=3, only=["batch_size=8"])
    status = stored_study("small", study.store_path).status()
    assert (status.repeats, status.slots, status.machines[0].missing) == (3, 24, 12)


def test_nodes_of_a_cluster_are_missing_together_what_none_of_them_has_run(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    with pytest.raises(InputError, match="a cluster runs as many trials at once as it has room for"):
        study.run(executor=QuickCluster(), jobs=2)
    study.run(executor=QuickCluster(machines=[this_machine(), other_machine()]), only=["workload=resnet18"])
    status = study.status()
    assert [machine.missing for machine in status.machines] == [4, 4]
    assert status.missing == 4
    study.run(executor=QuickCluster(machines=[other_machine()]))
    assert study.status().missing == 0
    assert set(study.trials()["per"]) == {"node"}


def test_trials_that_run_now_are_in_the_status(tmp_path: Path) -> None:
    study = ran(tmp_path)
    (key, task), *_ = study.selected().items()
    with Store(study.store_path) as store:
        machine = next(iter(store.machines()))
        store.claim([Slot(key, 5)], machine, jobs=1, retries={})
        (running,) = study.status().running
    assert task.workload is not None
    assert (running.values["workload"], running.repeat) == (task.workload.spec, 5)


def test_a_store_lists_its_studies(tmp_path: Path) -> None:
    study = ran(tmp_path)
    import_published("max-batch", db=study.store_path)
    rows = [(row["name"], row["kind"], row["source"], row["tasks"], row["trials"]) for row in listing(study.store_path)]
    assert rows == [("small", "profile", "grid", 8, 8), ("published-max-batch", "limit", "import", 12, 12)]


# ---------------------------------------------------------------- tables


def test_a_row_of_the_trials_is_the_last_attempt(tmp_path: Path) -> None:
    study = ran(tmp_path, QuickExecutor(outcomes={8: "oom"}))
    study.run(executor=QuickExecutor(), retry=["oom"], only=["workload=resnet18"])
    trials = study.trials()
    assert trials.height == 8
    counts = trials.group_by("outcome", "attempts").len().sort("outcome", "attempts").rows()
    assert counts == [("done", 1, 4), ("done", 2, 2), ("oom", 1, 2)]
    assert trials.filter(pl.col("outcome") == "oom")["seconds"].to_list() == [None, None]


def test_the_best_setting_over_all_models_and_by_how_much(tmp_path: Path) -> None:
    """seconds = (1 + 1 / (1 + workers)) · 1.5 for batch 8, and twice that for vit_b_16."""
    best, *others = ran(tmp_path).regret().to_dicts()
    assert (best["batch_size"], best["num_workers"], best["regret_mean"], best["missing"]) == (16, 2, 0.0, 0)
    assert others[0]["regret_mean"] == pytest.approx(1.5 / (4 / 3) - 1)
    assert others[-1]["regret_worst"] == pytest.approx(1.5 * 1.5 / (4 / 3) - 1)


def test_every_table_can_be_had_by_its_name_or_says_what_it_lacks(tmp_path: Path) -> None:
    study = ran(tmp_path)
    lacking = set()
    for name in TABLES:
        try:
            assert study.table(name).height > 0, name
        except InputError:
            lacking.add(name)
    assert lacking == {"stages", "utilisation", "accuracy", "breakdown", "convergence", "published"}
    with pytest.raises(InputError, match=r"no such table: 'regrets' \(did you mean regret\?\); choose regret, "):
        study.table("regrets")


def test_methods_are_tables(tmp_path: Path) -> None:
    study = ran(tmp_path)
    assert study.top(1).to_dicts() == study.table("top", n=1).to_dicts()
    assert study.best(by=["precision"] if "precision" in study.trials().columns else []).height == 2
    assert study.effects()["axis"].unique().sort().to_list() == ["batch_size", "num_workers"]
    assert set(study.ties()["tie"]) == {"best", "unknown"}
    assert study.largest_batch()["all_models"].to_list() == [16]


def test_unlike_machines_never_meet_in_one_figure(tmp_path: Path) -> None:
    study = ran(tmp_path)
    study.run(executor=QuickExecutor(machine=other_machine()))
    assert study.regret()["machine"].n_unique() == 2
    assert study.regret().height == 8


def test_a_study_without_trials_has_empty_tables(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    study.run(executor=QuickExecutor(), budget_s=1e-9)
    assert study.trials().height == 0
    for name in ("regret", "top", "best", "one-for-all", "summary", "largest-batch"):
        assert study.table(name).height == 0


def test_a_study_in_which_nothing_was_done_has_no_times(tmp_path: Path) -> None:
    study = ran(tmp_path, QuickExecutor(outcomes={8: "oom", 16: "failed"}))
    assert study.regret()["regret_mean"].to_list() == [None] * 4
    assert study.table("summary").select("oom", "failed", "done").rows() == [(4, 4, 0)]
    assert study.table("one-for-all").height == 0


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of docs/studies.md, with a quick executor in place of hours of runs."""
    text = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    grid = text.split("```toml\n")[1].split("```")[0]
    assert len(grid.strip().splitlines()) <= 10, "a grid in ten lines"
    code = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("night.toml").write_text(grid)
    monkeypatch.setattr("stoker.studies.study.LocalExecutor", QuickExecutor)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["study"].status().machines[0].missing == 0
    assert Path("night.csv").exists()
