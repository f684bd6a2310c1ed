"""Predictions from probes: rates, long runs, wrong numbers, the landscape."""

import sys
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from stoker.errors import InputError
from stoker.forecast.predictor import Predictor, landscape, predict
from stoker.records import Probes, Setting
from stoker.report.views.prediction import grid_view
from tests.forecast.test_fit import eight_cores


@pytest.fixture(scope="module")
def probed() -> Probes:
    """Items of 1 ms, no step; eight cores."""
    return eight_cores()


@pytest.mark.parametrize("workers", [0, 2, 8])
def test_the_steady_rate_does_not_depend_on_how_many_batches_there_are(workers: int, probed: Probes) -> None:
    setting = Setting(batch_size=128, num_workers=workers)
    few, many = (predict(probed, setting, items=items).steady_items_per_s for items in (200, 100_000))
    assert few == pytest.approx(many, rel=0.25)


def test_a_very_long_run_is_extrapolated_from_a_short_one(probed: Probes) -> None:
    rates = [predict(probed, Setting(batch_size=8, num_workers=2), items=n).total_s / n for n in (10**5, 10**12)]
    assert rates[0] == pytest.approx(rates[1], rel=0.05)
    huge = predict(probed, Setting(batch_size=10**8, num_workers=2), items=10**10)
    assert huge.total_s == pytest.approx(10**10 * 0.002 / 2, rel=0.2), (
        "an item and its share of collating take 1 ms each"
    )


def test_a_landscape_of_many_workers_fits_a_terminal(probed: Probes, capsys: pytest.CaptureFixture[str]) -> None:
    wide = replace(probed, runs=(*probed.runs, replace(probed.runs[0], batch_size=512)))
    predictor = Predictor(wide, cores=32)
    Console(width=80, file=sys.stdout).print(grid_view(landscape(predictor, 600), wide))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "batch 4" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cores": float("nan")}, "cores must be above 0"),
        ({"cores": float("inf")}, "cores must be above 0"),
        ({"faster": {"step": float("nan")}}, "factor above 0"),
        ({"items": 0}, "items must be at least 1"),
    ],
)
def test_numbers_that_are_none_are_refused(options: dict[str, Any], words: str, probed: Probes) -> None:
    with pytest.raises(InputError, match=words):
        predict(probed, Setting(), **{"items": 100, **options})


@pytest.mark.parametrize("setting", [{"num_workers": 10**9}, {"num_workers": 1, "prefetch_factor": 10**9}])
def test_what_would_take_for_ever_to_simulate_is_refused(setting: dict[str, Any], probed: Probes) -> None:
    with pytest.raises(InputError, match="can be simulated up to 1024"):
        predict(probed, Setting(**setting), items=100)
