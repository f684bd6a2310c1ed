"""A live model's search in this process: the GPU's counters are stood in for, the steps are real, on the host."""

from typing import Any

import pytest
import torch

import stoker
from stoker.errors import InputError
from stoker.memory import live
from stoker.memory.limit import LimitRequest
from stoker.records import Limit

MIB = 2**20
FIXED, ITEM, TOTAL = 100 * MIB, 10 * MIB, 1000 * MIB


class Card:
    """A GPU whose memory goes by the batch that was last seen."""

    def __init__(self) -> None:
        self.batch_size = self.retries = 0
        self.retries_above = 10**9
        self.broken_from = 10**9
        self.tried: list[int] = []

    def peak(self, device: Any) -> int:
        return FIXED + ITEM * self.batch_size

    def look(self, model: Any, inputs: Any) -> Any:
        """In place of the forward pass: fails as a GPU would."""
        self.batch_size = len(inputs)
        if not self.tried or self.tried[-1] != self.batch_size:
            self.tried.append(self.batch_size)
            self.retries += self.batch_size > self.retries_above
        if self.batch_size >= self.broken_from:
            raise ValueError("an index is too large")
        if self.peak(None) > TOTAL:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return model(inputs)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card()
    for name, answer in {
        "empty_cache": lambda: None,
        "synchronize": lambda device: None,
        "mem_get_info": lambda device: (TOTAL - 60 * MIB, TOTAL),
        "memory_reserved": lambda device: 60 * MIB,
        "memory_allocated": lambda device: 50 * MIB,
        "get_device_name": lambda device: "a card",
        "get_device_capability": lambda device: (9, 0),
        "reset_peak_memory_stats": lambda device: None,
        "max_memory_allocated": found.peak,
        "max_memory_reserved": found.peak,
        "memory_stats": lambda device: {"num_alloc_retries": found.retries},
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(live, "_device", lambda model: torch.device("cpu"))
    return found


def search(card: Card, monkeypatch: pytest.MonkeyPatch, guess: int | None, **options: Any) -> Limit:
    model = torch.nn.Linear(4, 4)
    example = torch.zeros(3, 4)
    workload = live._workload(model, example, None, None).with_(forward=card.look)
    request = LimitRequest(mode="infer", **options)
    found = live.LiveSearch(workload, model, example, request, torch.device("cpu"), None, lambda _: None)
    monkeypatch.setattr(found, "_guess", lambda: guess)
    return found.answer()


@pytest.mark.parametrize("guess", [90, 70, 200, None])
def test_it_answers_what_ran_whatever_the_guess(card: Card, monkeypatch: pytest.MonkeyPatch, guess: int | None) -> None:
    found = search(card, monkeypatch, guess)
    assert (found.max_batch, found.ran, found.comfortable_batch) == (90, True, 90)
    assert 91 in card.tried, "the next size up was seen to fail"
    assert found.gpu_memory_bytes == TOTAL
    assert found.bytes_per_item == (0 if guess == 90 else ITEM), "one size that ran does not tell"
    assert any("run in this process" in note for note in found.notes)


def test_what_ran_without_a_retry_is_said(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.retries_above = 80
    found = search(card, monkeypatch, 70)
    assert found.max_batch == 90
    assert found.comfortable_batch is not None
    assert found.comfortable_batch <= 80


def test_a_step_that_fails_at_any_size_is_no_question_of_memory(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.broken_from = 1
    with pytest.raises(InputError, match="not for want of memory: ValueError: an index is too large"):
        search(card, monkeypatch, 90)


def test_a_step_that_fails_only_when_large_bounds_the_batch(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.broken_from = 50
    found = search(card, monkeypatch, 45)
    assert found.max_batch == 49
    assert any("for another reason than memory" in note for note in found.notes)


def test_the_guess_is_that_of_a_trace_for_what_this_process_leaves(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = torch.nn.Linear(256, 256), torch.zeros(3, 256)
    workload = live._workload(model, example, None, None)
    found = live.LiveSearch(
        workload, model, example, LimitRequest(mode="infer"), torch.device("cpu"), None, lambda _: None
    )
    found.budget_bytes = TOTAL
    guess = found._guess()
    assert guess is not None, found.notes
    traced = stoker.limit(model, example, gpu_memory=TOTAL, method="trace", mode="infer", gpu="9.0")
    assert 0.9 * traced.max_batch < guess < traced.max_batch, "50 MiB are taken off"
