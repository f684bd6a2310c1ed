"""What users may ask of tune, and what is refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InputError
from stoker.records import Setting
from stoker.tuning.request import TuneRequest, parse_current
from stoker.tuning.space import Space


@given(st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_the_effective_batch_is_exactly_what_was_asked_for(share: int, gpus: int) -> None:
    request = TuneRequest(global_batch=share * gpus, gpus=gpus)
    for size in Space(request=request).batch_sizes(512, None):
        assert size * request.accumulation(size) * gpus == share * gpus


def test_a_global_batch_that_nothing_divides_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be split evenly over 2 GPUs"):
        TuneRequest(global_batch=257, gpus=2)
    with pytest.raises(InputError, match="does not divide 100"):
        TuneRequest(global_batch=100, batch_size=64)
    assert Space(request=TuneRequest(global_batch=257)).batch_sizes(128, None) == [1]


@pytest.mark.parametrize(
    "text", ["", "batch", "batch=x", "batch=1;workers=2", "bacth=4", "workers=4", "batch=²,workers=1"]
)
def test_a_current_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="batch=64,workers=4"):
        parse_current(text)


def test_the_current_setting_is_read() -> None:
    assert parse_current("batch=64, workers=4") == Setting(batch_size=64, num_workers=4)


def test_an_effective_batch_that_no_epoch_fills_is_refused() -> None:
    with pytest.raises(InputError, match="more than the set's 100 items"):
        TuneRequest(global_batch=128).check_epoch("train", 100)
    TuneRequest(global_batch=64).check_epoch("train", 100)
    TuneRequest(global_batch=128).check_epoch("infer", 100)
    TuneRequest(global_batch=128).check_epoch("train", None)


@pytest.mark.parametrize("name", ["items", "epochs", "batch_size", "max_batch", "global_batch", "gpus"])
def test_counts_below_one_are_refused(name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(InputError, match=f"{name.replace('_', ' ')} must be at least 1, got 0"):
        TuneRequest(**options)


@pytest.mark.parametrize("budget_s", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_that_is_none_is_refused(budget_s: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        TuneRequest(budget_s=budget_s)


def test_options_as_users_write_them() -> None:
    request = TuneRequest.of(current="batch=64,workers=4", planner="thesis", items=100)
    assert request == TuneRequest(current=Setting(batch_size=64, num_workers=4), planner="algebra", items=100)
    assert TuneRequest.of() == TuneRequest()
    with pytest.raises(InputError, match="no such option: 'item'"):
        TuneRequest.of(item=100)


def test_every_option_of_the_command_is_one_of_the_request() -> None:
    from typer.main import get_command

    from stoker.cli.main import app

    parameters = get_command(app).commands["tune"].params  # type: ignore[attr-defined]
    names = {parameter.name for parameter in parameters} - {"workload", "data", "json", "save", "report", "quiet"}
    renamed = {"host_memory": "host_memory_bytes", "budget": "budget_s"}
    assert {renamed.get(name, name) for name in names} == set(TuneRequest.__struct_fields__)


def test_ranks_and_gpus_of_a_plan_are_two_questions() -> None:
    with pytest.raises(InputError, match="--gpus 4 plans for GPUs that need not be here, and --ranks 2 runs ranks"):
        TuneRequest(gpus=4, ranks=2)
    with pytest.raises(InputError, match="ranks must be at least 1, got 0"):
        TuneRequest(ranks=0)
    with pytest.raises(InputError, match="cannot be split evenly over 3 ranks"):
        TuneRequest(ranks=3, global_batch=256)


def test_an_effective_batch_is_kept_over_ranks() -> None:
    request = TuneRequest(ranks=2, global_batch=256)
    assert request.replicas == 2
    assert {size * request.accumulation(size) * 2 for size in Space(request=request).batch_sizes(512, None)} == {256}
    with pytest.raises(InputError, match="each rank's share"):
        TuneRequest(ranks=2, global_batch=256, batch_size=100)
