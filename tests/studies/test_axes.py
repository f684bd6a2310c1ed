"""Names and values that a grid may use."""

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InputError
from stoker.records import Extent, Setting
from stoker.studies.axes import NAMES, checked, nearest


def test_all_that_can_be_set_is_an_axis() -> None:
    asked = "workload data mode device source items batch_size num_workers prefetch_factor pin_memory "
    asked += "persistent_workers in_order multiprocessing_context precision"
    assert set(asked.split()) <= set(NAMES["profile"])
    assert set(Setting.__struct_fields__) <= set(NAMES["profile"])
    assert {"optimizer", "gpu_memory", "method"} <= set(NAMES["limit"])
    assert set(Extent.__struct_fields__) - set(NAMES["profile"]) == {"seed", "memory_limit_bytes"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 8),
        ("pin_memory", False),
        ("mode", "train"),
        ("device", "sleep:2ms/item"),
        ("device", "cuda:1"),
        ("gpu_memory", "16GiB"),
        ("gpu_memory", 10_000_000_000),
        ("budget", "2min"),
        ("budget", 90.5),
        ("data", "jpeg"),
        ("multiprocessing_context", "spawn"),
        ("current", "batch=8,workers=2"),
        ("gpu", "a5000"),
    ],
)
def test_valid_values_stay_as_they_are(name: str, value: Any) -> None:
    assert checked(name, value) == value
    assert type(checked(name, value)) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("batch_size", "8", "batch_size must be a whole number, got '8'"),
        ("batch_size", True, "batch_size must be a whole number, got True"),
        ("items", 10**30, "items must be a whole number"),
        ("pin_memory", 1, "pin_memory must be true or false, got 1"),
        ("mode", "infre", r"mode must be one of train, infer, got 'infre' \(did you mean infer\?\)"),
        ("source", 3, "source must be one of files, cached, cold, memory, got 3"),
        ("device", "cudo", r"'cudo' is no device \(did you mean cuda\?\)"),
        ("data", "jpg", r"'jpg' is no folder and none of jpeg, .*\(did you mean jpeg\?\)"),
        ("workload", 3, "workload must be a text, got 3"),
        ("workload", " ", "it must name a model or a function"),
        ("weights", "no.pt", "there is no file 'no.pt'"),
        ("gpu_memory", "12 gallons", "gpu_memory: '12 gallons' has the unknown unit"),
        ("gpu_memory", float("nan"), "gpu_memory must be a text or a number, got nan"),
        ("budget", [1], r"budget must be a text or a number, got \[1\]"),
        ("optimizer", "adma", r"did you mean adam\?"),
        ("current", "batch=8", "half a setting"),
    ],
)
def test_a_wrong_value_is_one_sentence(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked(name, value)


def test_a_folder_is_data(tmp_path: Path) -> None:
    assert checked("data", str(tmp_path)) == str(tmp_path)


def test_the_nearest_name_is_offered_only_if_it_is_near() -> None:
    assert nearest("batchsize", ["batch_size", "num_workers"]) == " (did you mean batch_size?)"
    assert nearest("colour", ["batch_size", "num_workers"]) == ""
