"""Every method's way through sizes, on a card that stands in for one: it has so much free, and items take so much."""

from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import TensorDataset

import stoker
from stoker.errors import InputError
from stoker.memory import ahead, methods, search
from stoker.memory.limit import LimitRequest
from stoker.memory.replay import Estimate, Replays
from stoker.memory.trace.log import AllocationLog
from stoker.memory.tries import DeviceMemory, TryOrder
from stoker.process.wire import Failure
from stoker.records import Attempt, Gpu, Limit, Method, Problem
from stoker.workload.example import worst_example

MIB = 2**20
FIXED, ITEM = 100 * MIB, 10 * MIB
TOTAL = 1000 * MIB
GPU = Gpu(
    index=0,
    name="a card",
    uuid="GPU-0",
    memory_total_bytes=TOTAL,
    memory_free_bytes=TOTAL,
    compute_capability="9.0",
    utilisation=None,
)


class Given:
    """A call that is over."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class Begun:
    """A try that was begun; it is made when somebody asks for what came of it."""

    def __init__(self, card: "Card", order: TryOrder) -> None:
        self._card, self._order = card, order
        Card.begun.append(order.batch_size)
        Card.under_way += 1
        Card.most_at_once = max(Card.most_at_once, Card.under_way)

    def result(self) -> Attempt:
        Card.under_way -= 1
        return self._card.attempt(self._order)

    def stop(self) -> None:
        Card.under_way -= 1
        Card.stopped.append(self._order.batch_size)


class Card:
    """Stands in for the process that tries are forked from, and for the card that they run on."""

    free_bytes = TOTAL - 60 * MIB
    retries_above = 10**9
    filled_after: int | None = None
    broken_from: int | None = None
    tried: list[int]
    begun: list[int]
    stopped: list[int]
    standing_by = under_way = most_at_once = most_there = 0

    def __init__(self, workload: stoker.Workload, job: Any, *, lazy: bool = False) -> None:
        self.job, self.example, self.model = job, worst_example(workload), torch.nn.Linear(2, 2)
        Card.tried, Card.begun, Card.stopped = [], [], []
        Card.under_way = Card.most_at_once = Card.most_there = Card.standing_by = 0

    def look(self) -> Given:
        total = max(TOTAL, self.free_bytes)
        return Given(DeviceMemory(device="a card", total_bytes=total, free_bytes=self.free_bytes))

    def attempt(self, order: TryOrder) -> Attempt:
        batch_size, steps = order.batch_size, order.steps
        Card.tried.append(batch_size)
        free = self.free_bytes
        if self.filled_after is not None and len(Card.tried) > self.filled_after:
            free -= 300 * MIB
        if self.broken_from is not None and batch_size >= self.broken_from:
            return Attempt(batch_size=batch_size, outcome="failed", problem=Problem(sentence="an index is too large"))
        budget = min(free, self.job.budget_bytes or free) + (50 * MIB if order.primed or order.expandable else 0)
        memory = FIXED + ITEM * batch_size
        return Attempt(
            batch_size=batch_size,
            outcome="done" if memory <= budget else "oom",
            peak_bytes=memory,
            reserved_bytes=memory,
            retries=int(batch_size > self.retries_above),
            free_bytes=free,
            step_s=(0.1,) * steps,
            reserved_samples=(0,) * 5 + (memory,) * (steps - 5),
            input_bytes=batch_size * MIB,
            output_bytes=batch_size * MIB,
        )


class StandingBy:
    """Stands in for the tries that wait at the card."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def begin(self, order: TryOrder) -> Begun:
        Card.standing_by = max(0, Card.standing_by - 1)
        return Begun(self._card, order)

    def wait_for(self, count: int) -> None:
        Card.standing_by = max(count, Card.standing_by)
        Card.most_there = max(Card.most_there, Card.standing_by + Card.under_way)

    def end(self) -> None:
        Card.standing_by = 0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> type[Card]:
    """A fresh card, on which steps cannot be followed unless a test says so."""
    fresh = type("FreshCard", (Card,), {})
    monkeypatch.setattr(search, "TryFactory", fresh)
    monkeypatch.setattr(ahead, "StandBy", StandingBy)
    monkeypatch.setattr(methods, "_card", lambda request: GPU)
    failure = Failure(kind="InputError", sentence="this step cannot be followed", trace="")
    monkeypatch.setattr(search.ForkedSearch, "_trace", lambda self: Given(failure))
    return fresh


def follows(monkeypatch: pytest.MonkeyPatch, likely: int, without_retry: int, most: int | None = None) -> None:
    """Let the trace say so much."""
    log = AllocationLog(allocations=(), init=(), first=(), steady=(), batch_size=251)
    said = Estimate(
        likely=likely,
        most=most or likely,
        interval=(1, 10**6),
        without_retry=without_retry,
        peak_bytes=1,
        bytes_per_item=ITEM,
        fixed_bytes=FIXED,
    )
    monkeypatch.setattr(search.ForkedSearch, "_trace", lambda self: Given(log))
    monkeypatch.setattr(Replays, "likely", likely)
    monkeypatch.setattr(Replays, "estimate", lambda self: said)
    monkeypatch.setattr(Replays, "primed", lambda self: likely + 4)


def ask(method: Method = "auto", **options: Any) -> Limit:
    workload = stoker.Workload(model=torch.nn.Linear(4, 4), dataset=TensorDataset(torch.zeros(5000, 4)))
    return methods.answer(workload, LimitRequest(method=method, **options), lambda _: None)


@pytest.mark.parametrize("guess", [84, 70, 200, 1])
def test_auto_runs_what_it_answers_whatever_the_trace_said(
    card: type[Card], monkeypatch: pytest.MonkeyPatch, guess: int
) -> None:
    follows(monkeypatch, likely=guess, without_retry=guess)
    found = ask()
    assert (found.max_batch, found.ran, found.predicted_batch) == (84, True, guess)
    assert 85 in Card.tried, "the next size up was seen to fail"


def test_a_good_guess_takes_two_tries(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=84)
    assert ask().max_batch == 84
    assert Card.tried == [84, 85]


@pytest.mark.parametrize(("total", "side_by_side"), [(20_000, True), (1_100, False)])
def test_where_the_card_has_room_what_a_good_guess_needs_is_begun_at_once(
    card: type[Card], monkeypatch: pytest.MonkeyPatch, total: int, side_by_side: bool
) -> None:
    follows(monkeypatch, likely=84, without_retry=70)
    monkeypatch.setattr(card, "retries_above", 75)
    monkeypatch.setattr(card, "free_bytes", total * MIB)
    found = ask(gpu_memory=940 * MIB)
    assert (found.max_batch, found.comfortable_batch) == (84, 70)
    assert Card.tried == [84, 85, 70]
    assert Card.begun == ([84, 85, 86, 70] if side_by_side else [84, 85, 70]), "and what comes next if they hold"
    assert Card.stopped == ([86] if side_by_side else [])
    assert Card.standing_by == 0, "none is left waiting"


@pytest.mark.parametrize(("total", "sizes"), [(20_000, [80, 81, 83, 84, 85]), (1_100, [80, 82, 83, 84, 85])])
def test_what_is_the_most_likely_shows_the_way_where_one_try_goes_at_a_time(
    card: type[Card], monkeypatch: pytest.MonkeyPatch, total: int, sizes: list[int]
) -> None:
    """Where several do, the next size has begun when it is known."""
    follows(monkeypatch, likely=80, without_retry=80, most=84)
    monkeypatch.setattr(card, "free_bytes", total * MIB)
    assert ask(gpu_memory=940 * MIB).max_batch == 84
    assert Card.tried == sizes


def test_where_many_retries_are_told_one_size_is_begun_ahead(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=70)
    monkeypatch.setattr(Replays, "retries", 9)
    monkeypatch.setattr(card, "retries_above", 75)
    monkeypatch.setattr(card, "free_bytes", 20_000 * MIB)
    assert ask(gpu_memory=940 * MIB).max_batch == 84
    assert (Card.begun, Card.stopped) == ([84, 85, 70], [])


@pytest.mark.parametrize(
    ("by_driver", "found", "early", "budget"),
    [(20_000, 20_000, 3, 940), (5_000, 20_000, 0, 940), (20_000, 900, 3, 900)],
)
def test_tries_come_to_the_device_at_once_where_the_driver_says_that_there_is_room(
    card: type[Card], monkeypatch: pytest.MonkeyPatch, by_driver: int, found: int, early: int, budget: int
) -> None:
    there: list[int] = []

    class Looked(Given):
        def result(self) -> Any:
            there.append(Card.standing_by)
            return super().result()

    def look(self: Card) -> Given:
        return Looked(DeviceMemory(device="a card", total_bytes=TOTAL, free_bytes=found * MIB))

    follows(monkeypatch, likely=84, without_retry=84)
    monkeypatch.setattr(card, "free_bytes", found * MIB)
    monkeypatch.setattr(card, "look", look)
    monkeypatch.setattr(methods, "_card", lambda _: msgspec.structs.replace(GPU, memory_free_bytes=by_driver * MIB))
    limit = ask(gpu_memory=940 * MIB)
    assert (there, limit.gpu_memory_bytes) == ([early], budget * MIB)
    assert limit.max_batch == (budget * MIB - FIXED) // ITEM


def test_tries_that_nobody_needs_are_ended(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=70)
    monkeypatch.setattr(card, "free_bytes", 20_000 * MIB)
    found = ask(gpu_memory=940 * MIB)
    assert (found.max_batch, found.comfortable_batch) == (84, 84)
    assert set(Card.begun) - set(Card.stopped) == {84, 85}


def test_a_card_with_room_for_two_tries_two_at_once(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=86, without_retry=70)
    monkeypatch.setattr(card, "free_bytes", 4000 * MIB)
    assert ask(gpu_memory=940 * MIB).max_batch == 84
    assert Card.tried == [86, 85, 84]
    assert Card.begun[:2] == [86, 87]


@pytest.mark.parametrize(("free", "there"), [(3_000, 2), (2_900, 1)])
def test_the_next_try_waits_at_the_device_where_it_has_room_beside_the_one_under_way(
    card: type[Card], monkeypatch: pytest.MonkeyPatch, free: int, there: int
) -> None:
    follows(monkeypatch, likely=84, without_retry=70)
    monkeypatch.setattr(card, "free_bytes", free * MIB)
    assert ask(gpu_memory=940 * MIB).max_batch == 84
    assert (Card.most_at_once, Card.most_there, Card.standing_by) == (1, there, 0)


def test_a_card_that_takes_one_process_at_a_time_gets_one(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=70)
    monkeypatch.setattr(card, "free_bytes", 20_000 * MIB)
    monkeypatch.setattr(methods, "_card", lambda request: msgspec.structs.replace(GPU, exclusive=True))
    assert ask(gpu_memory=940 * MIB).max_batch == 84
    assert Card.tried == [84, 85]
    assert (Card.most_at_once, Card.most_there) == (1, 1)


def test_a_whole_card_is_never_shared(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=70)
    assert ask().max_batch == 84
    assert Card.tried == [84, 85]
    assert (Card.most_at_once, Card.most_there) == (1, 1)


def test_cudnn_benchmark_gets_one_more_try_for_comfort(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=80)
    monkeypatch.setattr(card, "retries_above", 10)
    assert ask(cudnn_benchmark=True).comfortable_batch is None
    assert Card.tried == [84, 85, 80]


def test_auto_finds_it_by_trying_alone_where_a_step_cannot_be_followed(card: type[Card]) -> None:
    found = ask()
    assert found.max_batch == 84
    assert any("found by trying alone: this step cannot be followed" in note for note in found.notes)


def test_search_is_exact_and_doubling_is_a_power_of_two(card: type[Card]) -> None:
    assert ask("search").max_batch == 84
    found = ask("doubling")
    assert found.max_batch == 64
    assert any("equation 5.2" in note for note in found.notes)


def test_two_points_lie_on_a_line(card: type[Card]) -> None:
    found = ask("two-point")
    assert (found.max_batch, found.ran, Card.tried) == (84, False, [10, 50])
    assert found.bytes_per_item == ITEM
    assert found.fixed_bytes == FIXED
    assert ask("two-point", gpus=3).max_batch == 3 * 84
    assert ask("two-point", reserve=100 * MIB).max_batch == 74


def test_two_points_warn_of_recurrent_nets(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    def recurrent(self: Any, workload: Any, job: Any, *, lazy: bool = False) -> None:
        Card.__init__(self, workload, job)
        self.model = torch.nn.LSTM(2, 2)

    monkeypatch.setattr(card, "__init__", recurrent)
    assert any("recurrent" in note for note in ask("two-point").notes)


def test_the_comfortable_batch_ran_without_a_retry(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    card.retries_above = 60
    follows(monkeypatch, likely=84, without_retry=62)
    found = ask()
    assert found.max_batch == 84
    assert found.comfortable_batch == 58, "62 needed one; five per cent below it did not"
    card.retries_above = 0
    assert ask().comfortable_batch is None, "none was found in a few tries, and none is claimed"


def test_advice_is_run(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=84, without_retry=84)
    primed, expandable = ask(gpu_memory=900 * MIB, advise=True).remedies
    assert (primed.max_batch, primed.predicted_batch) == (85, 88)
    assert (expandable.max_batch, expandable.predicted_batch) == (85, None)


def test_what_others_hold_is_taken_off_and_said(card: type[Card]) -> None:
    found = ask()
    assert found.gpu_memory_bytes == 940 * MIB
    assert any("60 MiB of 1000 MiB is held" in note for note in found.notes)
    found = ask(gpu_memory=990 * MIB)
    assert found.gpu_memory_bytes == 940 * MIB
    assert any("only 940 MiB of the 990 MiB asked for is free" in note for note in found.notes)


def test_someone_who_fills_the_card_meanwhile_is_noticed(card: type[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    follows(monkeypatch, likely=80, without_retry=80)
    card.filled_after = 1
    found = ask()
    assert any("another process took 300 MiB during the search" in note for note in found.notes)


def test_a_budget_beyond_the_card_is_refused(card: type[Card]) -> None:
    with pytest.raises(InputError, match=r"a card has 1000 MiB, and 1.95 GiB was asked for"):
        ask(gpu_memory=2000 * MIB)


def test_a_model_that_does_not_fit_at_one_says_by_how_much(card: type[Card]) -> None:
    with pytest.raises(InputError, match=r"not even a batch of 1 fits in 50 MiB: it needs about 110 MiB, 60 MiB more"):
        ask("search", gpu_memory=50 * MIB)


def test_a_step_that_always_fails_is_not_out_of_memory(card: type[Card]) -> None:
    card.broken_from = 0
    with pytest.raises(InputError, match="not for want of memory: an index is too large"):
        ask("search")


def test_a_step_that_fails_only_when_large_bounds_the_batch(card: type[Card]) -> None:
    card.broken_from = 50
    found = ask("search")
    assert found.max_batch == 49
    assert any("for another reason than memory: an index is too large" in note for note in found.notes)


def test_a_set_smaller_than_the_batch_is_said(card: type[Card]) -> None:
    workload = stoker.Workload(model=torch.nn.Linear(4, 4), dataset=TensorDataset(torch.zeros(20, 4)))
    found = methods.answer(workload, LimitRequest(method="search"), lambda _: None)
    assert any("the set has only 20 items" in note for note in found.notes)


def test_cudnn_benchmark_is_said_to_make_memory_vary(card: type[Card]) -> None:
    assert any("cudnn.benchmark" in note for note in ask("search", cudnn_benchmark=True).notes)
