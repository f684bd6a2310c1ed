"""Presets: each can be run as it is, and says what it reproduces."""

import pytest

from stoker.errors import InputError
from stoker.studies.presets import ABOUT, SCALES, describe, preset_names, read_preset

NAMES = [
    "batch-and-workers",
    "batch-impact",
    "data-loading",
    "inference-times",
    "max-batch",
    "pinning",
    "search-bottlenecks",
    "short-runs",
    "thesis-batch",
    "thesis-convergence",
    "thesis-dram",
    "thesis-epochs",
    "thesis-gpus",
    "thesis-limit",
    "thesis-pairs",
    "thesis-search-time",
    "thesis-workers",
    "thesis-workers-batch",
]
THESIS = [name for name in NAMES if name.startswith("thesis-")]


def test_the_experiments_of_the_seeds_are_there() -> None:
    assert preset_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_preset_has_tasks_with_keys_and_says_what_it_is(name: str, scale: str) -> None:
    grid = read_preset(name, scale)
    assert grid.name == (name if scale == "full" else f"{name}-small")
    assert len(grid.tasks()) == len(grid.cells()) or grid.generator == "search-time"  # which asks two methods
    assert set(grid.about) == set(ABOUT)
    assert all(text.strip() and text.isprintable() for text in (grid.title, *grid.about.values()))


def test_full_presets_have_the_published_sizes() -> None:
    sizes = {name: len(read_preset(name).tasks()) for name in NAMES}
    assert sizes["batch-and-workers"] == 12 * 2 * 5 * 9
    assert sizes["short-runs"] == 3 * sizes["batch-and-workers"]
    assert sizes["data-loading"] == 2 * (2 * 2 * 5 * 7)
    assert sizes["inference-times"] == 12 * 5
    assert sizes["max-batch"] == 12 * 2
    assert sizes["batch-impact"] == 12 * 4


def test_the_model_search_has_its_base_case_and_one_thing_at_a_time_from_there() -> None:
    cells = read_preset("search-bottlenecks").cells()
    vision, texts, parts, lengths = 8, 2, 9, 3
    one_at_a_time = vision * (2 + 3 + 2 + 1)  # classes, batch sizes, items on the CPU, cold weights
    assert len(cells) == (vision + texts) * parts * lengths + vision * lengths + one_at_a_time
    base = [cell for cell in cells if cell["data"] == "tensors" and cell.get("items") == 9216]
    assert {cell["batch_size"] for cell in base} == {128}
    assert {cell["part"] for cell in base} >= {"full", "last:25%", "last:1", "joint:8:last:50%", "joint:2:last:3"}
    assert {cell["classes"] for cell in cells} == {2, 100, 1000}
    assert {cell.get("device") for cell in cells} == {None, "cpu"}


def test_the_presets_of_the_thesis_are_those_with_its_figures() -> None:
    from stoker.analysis import thesis

    assert sorted(thesis.PRESETS) == THESIS
    for name in THESIS:
        full, small = read_preset(name), read_preset(name, "small")
        assert full.fixed["device"] == "cuda", "what needs a GPU fails at once where there is none"
        assert "GPU" in full.about["devices"]
        assert "the thesis: " in full.about["devices"]
        assert "the thesis: " in small.about["devices"]
        assert small.kind == full.kind
        assert small.generator == full.generator
        assert str(small.fixed.get("device", "auto")).startswith(("sleep:", "cpu", "auto"))


def test_full_presets_have_the_settings_of_the_thesis() -> None:
    from stoker.analysis.thesis import published

    pairs = {(cell["num_workers"], cell["batch_size"]) for cell in read_preset("thesis-pairs").cells()}
    assert {(row["num_workers"], row["batch_size"]) for row in published()["best_batch"]} <= pairs
    models = {cell["workload"] for cell in read_preset("thesis-limit").cells()}
    assert {row["model"] for row in published()["limits"]} == models
    compared = {
        (cell["workload"], cell["batch_size"], cell["against"]) for cell in read_preset("thesis-convergence").cells()
    }
    rows = published()["convergence"]
    assert compared == {
        (a["model"], a["batch_size"], b["batch_size"]) for a, b in zip(rows[::2], rows[1::2], strict=True)
    }
    estimates = {(cell["workload"], cell["host_memory"]) for cell in read_preset("thesis-workers-batch").cells()}
    assert {(row["model"], row["memory"]) for row in published()["by_memory"]} <= estimates


def test_published_figures_have_the_settings_of_their_preset() -> None:
    from stoker.analysis import published

    columns = ["workload", "data", "items", "batch_size", "num_workers"]
    for name, frame in (("batch-and-workers", published.grid()), ("batch-impact", published.batch_impact())):
        cells = {tuple(cell.get(column) for column in columns) for cell in read_preset(name).cells()}
        assert set(frame.select(columns).iter_rows()) == cells
    columns = ["data", "batches", "batch_size", "num_workers"]
    loading = [
        cell for cell in read_preset("data-loading").cells() if cell["device"] == "sleep:0s" and "batches" in cell
    ]
    cells = {tuple(cell[column] for column in columns) for cell in loading}
    assert set(published.loader_runs().select(columns).iter_rows()) == cells


def test_cnns_and_transformers_are_apart() -> None:
    for scale in SCALES:
        families = {cell["workload"]: cell["family"] for cell in read_preset("inference-times", scale).cells()}
        assert families["vit_b_32"] == "transformer"
        assert families["resnet18"] == "cnn"


def test_the_description_has_both_sizes() -> None:
    rows = {row["name"]: row for row in describe()}
    assert list(rows) == NAMES
    assert rows["batch-and-workers"]["full"]["runs"] == 1080
    assert rows["batch-and-workers"]["small"]["runs"] == 2 * rows["batch-and-workers"]["small"]["tasks"]
    assert all(row[scale][part] for row in rows.values() for scale in SCALES for part in ABOUT[1:])


def test_what_is_no_preset_is_refused() -> None:
    with pytest.raises(InputError, match="no such preset: 'pining'; choose"):
        read_preset("pining")
    with pytest.raises(InputError, match="no such scale: 'tiny'; choose full, small"):
        read_preset("pinning", "tiny")
