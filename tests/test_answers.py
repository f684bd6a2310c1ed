"""What Stoker answers is what it answered when `answers/record.py` last stored it.

A new answer may have more fields than the stored one. Largest batches are traced in the slow group: `pytest -m slow`.
"""

import math
from importlib import import_module
from typing import Any

import pytest

from tests.answers.record import ANSWERS, TRACED, stored, versions

RELATIVE = 1e-9
ABSOLUTE = 1e-12
"""For shares that are zero but for rounding."""


def assert_contains(new: Any, recorded: Any, at: str = "answer") -> None:
    """Every recorded key is there with its recorded value; further keys are allowed, further list entries are not."""
    if isinstance(recorded, dict):
        assert isinstance(new, dict), f"{at}: {new!r} is no object"
        for key, value in recorded.items():
            assert key in new, f"{at}.{key} is missing"
            assert_contains(new[key], value, f"{at}.{key}")
    elif isinstance(recorded, list):
        assert isinstance(new, list), f"{at}: {new!r} is no list"
        assert len(new) == len(recorded), f"{at}: {len(new)} entries, recorded were {len(recorded)}"
        for index, (ours, value) in enumerate(zip(new, recorded, strict=True)):
            assert_contains(ours, value, f"{at}[{index}]")
    elif isinstance(recorded, float):
        assert isinstance(new, int | float), f"{at}: {new!r} is no number"
        assert math.isclose(new, recorded, rel_tol=RELATIVE, abs_tol=ABSOLUTE), f"{at}: {new}, recorded was {recorded}"
    else:
        assert new == recorded, f"{at}: {new!r}, recorded was {recorded!r}"


@pytest.mark.parametrize("kind", ["predictions", "verdicts", "machines"])
def test_the_answers_are_the_recorded_ones(kind: str) -> None:
    new, recorded = ANSWERS[kind](), stored(kind)
    assert new.keys() == recorded.keys()
    assert_contains(new, recorded, kind)


def test_as_many_answers_are_recorded_as_should_be() -> None:
    assert stored("limits")["answers"].keys() == TRACED.keys()
    assert len(TRACED) == 36
    assert sum(len(settings) for settings in stored("predictions").values()) == 60
    assert len(stored("verdicts")) == 5
    assert {verdict["verdict"]["bottleneck"] for verdict in stored("verdicts").values()} >= {
        "backward",
        "pin",
        "transform",
    }
    assert len(stored("machines")) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_the_traced_limit_is_the_recorded_one(name: str) -> None:
    skip_where_a_trace_may_differ(name)
    assert_contains(TRACED[name].answer(), stored("limits")["answers"][name], name)


def skip_where_a_trace_may_differ(name: str) -> None:
    """With other versions of the traced packages, or where transformers itself cannot be imported."""
    recorded, here = stored("limits")["versions"], versions()
    others = [
        f"{package} {recorded[package]}, here is {here[package]}"
        for package in recorded
        if recorded[package] != here[package]
    ]
    if others:
        pytest.skip(f"recorded with {'; '.join(others)}")
    if name.startswith("hf/"):
        try:
            import_module("transformers.modeling_layers")
        except Exception as error:
            root = error.__cause__ or error
            pytest.skip(f"transformers cannot be imported: {root}")


# ---------------------------------------------------------------- the comparison itself

ANSWER = {"batch": 64, "total_s": 1.5, "span": [1.0, 2.0], "hints": [{"what": "a"}], "none": None}


def test_further_keys_and_the_last_digits_may_differ() -> None:
    assert_contains({**ANSWER, "schema": 1, "total_s": 1.5 * (1 + 1e-10), "hints": [{"what": "a", "id": 3}]}, ANSWER)


@pytest.mark.parametrize(
    "changed",
    [
        {"batch": 65},
        {"total_s": 1.5 * (1 + 1e-8)},
        {"total_s": None},
        {"span": [1.0]},
        {"span": [1.0, 2.0, 3.0]},
        {"span": None},
        {"hints": [{"what": "b"}]},
        {"hints": [{}]},
        {"none": 0},
    ],
)
def test_a_change_is_found(changed: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=rf"answer\.{next(iter(changed))}"):
        assert_contains({**ANSWER, **changed}, ANSWER)


def test_a_missing_key_is_found() -> None:
    with pytest.raises(AssertionError, match=r"answer\.batch is missing"):
        assert_contains({"total_s": 1.5}, {"batch": 64})
