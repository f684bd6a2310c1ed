"""Pages: the answer first, findings that are true of the rows, everything that was measured, and what was left out."""

import msgspec
import polars as pl
import pytest

from stoker.analysis import published
from stoker.integrations.reports import plan_page as plan_page_with
from stoker.integrations.reports import published_beside
from stoker.records import InterruptedTune, Machine, Problem, Stalls
from stoker.report.html import Page
from stoker.report.pages import (
    interrupted_page,
    machine_page,
    plan_page,
    prediction_page,
    ranking_page,
    stalls_page,
    study_page,
    trial_page,
)
from stoker.report.pages.parts import RULES, counted, short_names
from stoker.report.pages.study import Against, StudyAbout
from tests.report.samples import HOSTILE, a_limit, a_plan, a_ranking, a_trial, all_pages, grid_page, probes, rows


def titles(page: Page) -> str:
    return "\n".join(figure.title for figure in page.figures)


def study(*workloads: str, **options: object) -> Page:
    frame = pl.DataFrame(rows(workloads, **options), infer_schema_length=None)  # type: ignore[arg-type]
    return study_page(frame, StudyAbout(name="s"))


def test_the_published_grid_answers_as_its_authors_do() -> None:
    page = grid_page()
    assert [card.answer for card in page.cards] == ["Batch 128, 12 workers", "Batch 256, 2 workers"]
    assert page.cards[0].detail.startswith("2.0 % slower than each workload's own best on average, 5.9 % at worst")
    assert "Twelve workloads have nine different best settings on jpeg" in titles(page)
    assert page.facts["outcomes"] == "1,080 done"
    maps = [figure for figure in page.figures if "different best settings" in figure.title]
    assert [len(figure.rows) for figure in maps] == [540, 540]


def test_each_workload_has_one_ring_in_each_map() -> None:
    for figure in grid_page().figures[:2]:
        best = [row["workload"] for row in figure.rows if row["regret"] == 0]
        assert sorted(best) == sorted({row["workload"] for row in figure.rows})


def test_failed_runs_are_cells_and_have_their_reasons() -> None:
    page = study("net", "other")
    cells = [row for row in page.figures[0].rows if row["outcome"] == "oom"]
    assert len(cells) == 2
    assert "M out of memory" in page.figures[0].note
    assert page.facts["outcomes"] == "10 done, 2 oom"
    failures = page.sections[-1]
    assert failures.title == "What failed"
    assert failures.tables[0].rows[0] == ["1", "oom", "out of memory in net"]


def test_a_setting_that_was_never_run_is_a_missing_cell() -> None:
    frame = pl.DataFrame([row for row in rows(("a", "b")) if not (row["workload"] == "b" and row["num_workers"] == 2)])
    page = study_page(frame, StudyAbout(name="s"))
    assert {row["outcome"] for row in page.figures[0].rows} == {"done", "oom", "missing"}
    assert "2 missing" in page.facts["outcomes"]


def test_one_model_and_one_trial_have_pages_too() -> None:
    assert "net is fastest with batch 8, 4 workers" in titles(study("net"))
    page = study_page(pl.DataFrame(rows(("net",))[:1]), StudyAbout(name="s"))
    assert page.cards[0].answer == "Batch 8, 0 workers"


def test_a_study_without_trials_says_so() -> None:
    frame = pl.DataFrame(schema={"study": pl.String, "task_key": pl.String, "outcome": pl.String})
    assert study_page(frame, StudyAbout(name="s")).notes == ["No trial has finished yet."]


def test_a_study_where_everything_failed_says_why() -> None:
    failed = [{**row, "outcome": "crashed", "seconds": None, "problem": "bus error"} for row in rows(("net",))]
    page = study_page(pl.DataFrame(failed, infer_schema_length=None), StudyAbout(name="s"))
    assert page.facts["outcomes"] == "6 crashed"
    assert page.sections[-1].tables[0].rows == [["6", "crashed", "bus error"]]


def test_many_workloads_are_cut_and_the_page_says_so() -> None:
    page = study(*(f"net{number}" for number in range(RULES.panels + 6)))
    assert any(f"show the {RULES.panels} whose settings differ most" in note for note in page.notes)
    for figure in page.figures:
        assert len({row.get("workload") for row in figure.rows}) <= RULES.panels or figure.title.startswith(
            "Prediction"
        )


def test_predictions_stand_beside_what_was_measured() -> None:
    assert "Predictions are 10 % off at the median, 10 % at the 90th percentile" in titles(study("net", "other"))


def test_a_running_study_reloads_itself_and_says_how_far_it_is() -> None:
    frame = pl.DataFrame(rows(("net",)), infer_schema_length=None)
    page = study_page(frame, StudyAbout(name="s", done=6, of=20, left_s=90.0), reload_s=60)
    assert page.reload_s == 60
    assert page.notes[0].startswith("The study is running: 6 of 20 runs have an outcome, about 90 s left.")


def test_published_figures_stand_beside_ours() -> None:
    ours = published.grid().with_columns(pl.col("seconds") * 2, pl.lit("here").alias("machine"))
    other = Against(name="published", frame=published.grid(), about=published.MACHINE)
    page = study_page(ours, StudyAbout(name="s"), against=[other])
    section = next(section for section in page.sections if section.title == "Beside published")
    assert section.text == published.MACHINE
    assert section.figures[0].title.startswith("The same 1,080 settings take 2 times as long here, at the median")
    assert len(section.figures[0].rows) == 1080


def test_studies_that_share_nothing_say_so() -> None:
    page = study_page(
        pl.DataFrame(rows(("net",)), infer_schema_length=None),
        StudyAbout(name="s"),
        against=[Against(name="published", frame=published.grid())],
    )
    section = next(section for section in page.sections if section.title == "Beside published")
    assert section.tables[0].rows == [["The two share no setting of a workload."]]


def test_a_trial_shows_its_stages_batches_and_gauges() -> None:
    trial = a_trial()
    page = trial_page(trial)
    kinds = [figure.alt.partition(".")[0] for figure in page.figures]
    assert {"Wait of each batch in order", "Timeline of workers and loop", "Gauges over time"} <= set(kinds)
    timeline = next(figure for figure in page.figures if figure.alt.startswith("Timeline"))
    loads = [row for row in timeline.rows if row["does"] == "load"]
    assert len(loads) == len(trial.workers.worker)
    waits = next(figure for figure in page.figures if figure.alt.startswith("Wait"))
    assert [row["wait_s"] for row in waits.rows] == pytest.approx(trial.stages["wait"].samples_s, rel=1e-6)


def test_a_run_that_failed_says_why() -> None:
    problem = Problem(sentence="the GPU ran out of memory", remedy="use a smaller batch")
    trial = msgspec.structs.replace(a_trial(), outcome="oom", stages={}, problem=problem, items=0)
    card = trial_page(trial).cards[0]
    assert (card.answer, card.detail) == ("Oom", "the GPU ran out of memory use a smaller batch")


def test_three_runs_of_stalls_are_compared() -> None:
    trial = a_trial()
    page = stalls_page(Stalls(memory=trial, cached=trial, cold=trial))
    assert page.figures[0].title.startswith("The loop takes")
    assert {row["source"] for row in page.figures[0].rows} == {"memory", "cached", "cold"}


def test_a_plan_shows_predicted_measured_and_ruled_out_settings() -> None:
    plan = a_plan()
    page = plan_page(plan)
    assert page.cards[0].answer == f"Batch {plan.batch_size}, {plan.num_workers} workers"
    outcomes = [row["outcome"] for row in page.figures[0].rows]
    assert outcomes.count("ruled out") == len(plan.ruled_out)
    assert sum(row["measured_s"] is not None for row in page.figures[0].rows) == len(plan.candidates)


def test_a_plan_with_its_probes_has_every_prediction() -> None:
    plan, found = a_plan(), probes()
    rows_ = plan_page_with(plan, found).figures[0].rows
    alone = plan_page(plan).figures[0].rows
    assert len(rows_) > len(alone)
    assert sum(row["outcome"] == "ruled out" for row in rows_) == len(plan.ruled_out)


def test_a_preset_stands_beside_what_was_published() -> None:
    small = [{**row, "workload": "resnet18", "mode": "infer"} for row in rows(("a",))]
    frame = pl.DataFrame([{**row, "batch_size": row["batch_size"] * 4} for row in small], infer_schema_length=None)
    names = [each.name for each in published_beside("batch-and-workers-small", frame)]
    assert names == ["the published batch-and-workers"]
    assert published_beside("my-grid", frame) == []


def test_a_limit_shows_its_line_and_its_budget() -> None:
    limit = a_limit()
    figure = all_pages()["limit"].figures[0]
    model = [row for row in figure.rows if row["what"] == "model"]
    assert model[0]["bytes"] == limit.fixed_bytes
    assert {"bytes": limit.gpu_memory_bytes, "what": "budget"} in figure.spec["layer"][2]["data"]["values"]


def test_predictions_have_a_map() -> None:
    from stoker.forecast.predictor import Predictor, items_of, landscape

    found = probes()
    cells = landscape(Predictor(found), items_of(found))
    page = prediction_page(found, cells, cells[0])
    assert [card.about for card in page.cards] == ["this setting", "least predicted time", "gain"]
    assert len(page.figures[0].rows) == len(cells)


def test_machines_and_interrupted_tunings_have_pages() -> None:
    trial = a_trial()
    assert isinstance(trial.machine, Machine)
    assert machine_page(trial.machine).cards[0].about == "CPUs"
    page = interrupted_page(InterruptedTune(interrupted=True, trials=(trial,)))
    assert page.notes[0].startswith("This tuning was interrupted. It had made no probes and one run.")


def test_a_ranking_answers_first_and_says_who_is_tied() -> None:
    page = ranking_page(a_ranking())
    assert [card.about for card in page.cards] == ["best candidate", "ranked by", "most of the time", "failed"]
    assert page.cards[0].answer == "resnet18"
    assert "It cannot be told apart from resnet50" in page.cards[0].detail
    assert page.cards[1].answer == "Static order, NLEEP and LogME"
    assert "The scores add nothing" in page.cards[1].detail
    assert page.cards[2].answer.startswith("Inference: ")
    assert page.cards[3].answer == "1 of five candidates"
    ranks = page.figures[0]
    assert ranks.title == "Two candidates of 4 share the first place"
    assert [row["model"] for row in ranks.rows] == ["resnet18", "resnet50", "mobilenet_v2", "vit_b_16"]
    assert all(row["low"] <= row["mean_rank"] <= row["high"] for row in ranks.rows)


def test_a_ranking_shows_what_each_candidate_spent_and_which_one_failed() -> None:
    found = a_ranking()
    page = ranking_page(found)
    stacked = next(figure for figure in page.figures if figure.alt.startswith("Stages stacked"))
    for trial in found.candidates[:-1]:
        seconds = sum(row["seconds"] for row in stacked.rows if row["model"] == trial.model)
        assert seconds == pytest.approx(trial.total_s, rel=1e-5)
    failures = page.sections[-1]
    assert failures.title == "What failed"
    assert failures.tables[0].rows[0] == [
        "resnet18@other.pt",
        "failed",
        "the weights file does not fit",
        "name the model that it was saved from",
    ]


def test_a_ranking_without_static_figures_says_so() -> None:
    page = ranking_page(a_ranking(static=False))
    assert page.cards[1].answer == "NLEEP and LogME"
    assert page.cards[1].detail.startswith("Without the static order: ")


def test_a_search_without_any_result_has_a_page() -> None:
    found = a_ranking()
    failed = msgspec.structs.replace(found, ranked=None, candidates=found.candidates[-1:], stopped="interrupted")
    page = ranking_page(failed)
    assert [card.about for card in page.cards] == ["failed"]
    assert page.notes == ["The search is not complete: interrupted."]
    assert not page.figures


def test_a_study_of_a_search_says_which_stage_dominates() -> None:
    page = all_pages()["stages"]
    assert [card.answer for card in page.cards] == [
        "Preparing the model: 71 % of the time",
        "Preparing the model: 40 % of the time",
        "Inference: 78 % of the time",
    ]
    parts = next(figure for figure in page.figures if figure.title.startswith("9,216 items"))
    published_parts = ["full", "last:75%", "last:50%", "last:25%", "last:3", "last:1"]
    assert list(dict.fromkeys(row["part"] for row in parts.rows)) == published_parts


def test_published_stages_stand_beside_those_of_the_preset() -> None:
    frame = published.stage_trials()
    ours = frame.with_columns(*(pl.col(f"{name}_s") * 3 for name in ("prepare_model", "forward")), machine=pl.lit("m"))
    others = published_beside("search-bottlenecks-small", ours)
    assert [each.name for each in others] == ["the published search-bottlenecks"]
    assert published.MACHINE in others[0].about
    page = study_page(ours, StudyAbout(name="s", kind="search"), against=others)
    section = next(section for section in page.sections if section.title.startswith("Beside"))
    assert "Here, at 96 items preparing the model" in section.text
    assert "There, at 96 items preparing the model" in section.text
    points = section.figures[1]
    assert {round(row["ours_s"] / row["theirs_s"]) for row in points.rows} == {1, 3}
    mine = ours.with_columns(pl.concat_str(pl.lit("my-"), name).alias(name) for name in ("model", "workload"))
    assert published_beside("search-bottlenecks", mine) == []


def test_names_are_short_and_stay_different() -> None:
    names = short_names([*HOSTILE, "n" * 10_001])
    assert len(set(names.values())) == len(HOSTILE) + 1
    assert all(len(name) <= RULES.name_length + 6 for name in names.values())
    assert all(each.isprintable() or each == "\u200d" for name in names.values() for each in name)


def test_counts_are_words_up_to_twelve() -> None:
    assert [counted(1, "model"), counted(12, "model"), counted(1300, "model")] == [
        "one model",
        "twelve models",
        "1,300 models",
    ]


def test_the_three_fastest_are_counted_over_the_workloads_of_their_part() -> None:
    table = [*rows(("a", "b", "c")), *rows(("d", "e", "f"), data=("tensors",))]
    page = study_page(pl.DataFrame(table, infer_schema_length=None), StudyAbout(name="s"))
    counts = [figure.title for figure in page.figures if "among the three fastest" in figure.title]
    assert [title.rpartition(" for ")[2] for title in counts] == ["3 of 3 workloads", "3 of 3 workloads"]


def test_runs_of_unequal_items_are_answered_by_item() -> None:
    table = [
        {"workload": "net", "batch_size": size, "num_workers": workers, "batches": 4, "run_items": 4 * size}
        | {"outcome": "done", "seconds": 1.0 + 0.01 * size + 0.1 * workers}
        for size in (2, 32)
        for workers in (0, 2)
    ]
    page = study_page(pl.DataFrame(table), StudyAbout(name="s"))
    assert page.cards[0].answer == "Batch 32, 0 workers"
    assert page.cards[0].detail.startswith("10.3 ms an item")
    assert "Time an item" in page.figures[0].note
    assert page.sections[0].tables[0].columns[-1] == "time an item"


def test_an_exported_table_names_its_machine() -> None:
    frame = pl.DataFrame(rows(("net",)), infer_schema_length=None)
    frame = frame.with_columns(machine=pl.lit("8af0"), machine_label=pl.lit("2 CPUs, no GPU"))
    assert study_page(frame, StudyAbout(name="s")).facts["machine"] == "2 CPUs, no GPU"


def test_a_small_preset_stands_beside_the_published_figures_of_its_settings() -> None:
    ours = published.loader_runs().filter(pl.col("batch_size") == 32)
    assert [each.name for each in published_beside("data-loading-small", ours)] == ["the published data-loading"]


def test_times_of_computing_alone_are_answered_without_whole_runs() -> None:
    page = study_page(published.inference_trials(), StudyAbout(name="s"))
    assert [(card.about, card.answer) for card in page.cards] == [
        ("cnn", "199 µs an item"),
        ("transformer", "753 µs an item"),
    ]
    assert page.sections[0].text.startswith("Without the batches that warm up")
    assert [figure.title.partition(":")[0] for figure in page.figures] == ["CNNs", "Transformers"]
