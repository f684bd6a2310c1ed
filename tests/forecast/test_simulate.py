"""The simulated DataLoader: laws that hold for any costs, and cases whose answer can be worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.errors import InputError
from stoker.forecast.cores import PinnedMemory
from stoker.forecast.costs import Costs, FirstSends, StepCosts, Table, faster, slowed
from stoker.forecast.loader import Amount
from stoker.forecast.simulate import SimulationRules, simulate
from stoker.records import Setting


def costs(
    *,
    item_s: float = 0.003,
    spread: tuple[float, ...] = (1.0,),
    cores: float = 4,
    step: StepCosts | None = None,
    slow: float = 1.0,
    overhead_s: float = 0.0,
    waiting: float = 0.0,
) -> Costs:
    """Costs of a loader that does nothing but load, with every other cost at `overhead_s`."""
    other = Table((1.0, 2.0), (overhead_s, overhead_s), True)
    return Costs(
        cores=cores,
        spread=np.asarray(spread) / np.mean(spread),
        unevenness=0.0,
        lasting=0.0,
        by_batch=False,
        inline_item_s=Table((1.0,), (item_s,), True),
        inline_between_s=other,
        inline_cold_s=other,
        worker_item_s=Table((1.0,), (item_s,), True),
        waiting_share=waiting,
        collate_s=other,
        cold_s=other,
        gap_s=other,
        flight_s=other,
        first_flight_s=other,
        first_sends=FirstSends(),
        receive_s=other,
        blocked_s=other,
        pin_s=other,
        pin_anew_s=Table(),
        between_s=other,
        fork_s=overhead_s,
        hand_s=overhead_s,
        init_s=overhead_s,
        stop_s=(overhead_s, overhead_s),
        slowdown=Table((1.0, max(2.0, cores)), (1.0, slow), True),
        step=step or StepCosts(),
        shares={"decode": 0.75, "read": 0.25},
    )


def sleeping(seconds: float) -> StepCosts:
    return StepCosts(host_s=Table((1.0,), (seconds,), True))


def total(found: Costs, batch: int, workers: int, items: int = 64, seed: int = 0, **options: Any) -> float:
    epochs = options.pop("epochs", 1)
    setting = Setting(batch_size=batch, num_workers=workers, **options)
    return simulate(found, setting, Amount(items=items, epochs=epochs), seed=seed).total_s


def test_without_workers_it_is_load_plus_step() -> None:
    found = costs(item_s=0.002, step=sleeping(0.01))
    assert total(found, 8, 0) == pytest.approx(64 * 0.002 + 8 * 0.01)


def test_one_worker_hides_the_shorter_of_load_and_step() -> None:
    # Eight batches of 16 ms and steps of 10 ms: the last step comes after the last load.
    assert total(costs(item_s=0.002, step=sleeping(0.01)), 8, 1) == pytest.approx(8 * 0.016 + 0.01)
    # Steps of 30 ms: the first load, then eight steps.
    assert total(costs(item_s=0.002, step=sleeping(0.03)), 8, 1) == pytest.approx(0.016 + 8 * 0.03)


def test_workers_load_side_by_side_up_to_the_cores() -> None:
    assert total(costs(item_s=0.01, cores=4), 8, 4) == pytest.approx(64 * 0.01 / 4)
    assert total(costs(item_s=0.01, cores=2), 8, 4) == pytest.approx(64 * 0.01 / 2)
    assert total(costs(item_s=0.01, cores=2, waiting=1.0), 8, 4) == pytest.approx(64 * 0.01 / 4)


def test_the_first_batch_takes_as_long_as_one_worker_takes_for_it() -> None:
    seen = simulate(costs(item_s=0.01), Setting(batch_size=16, num_workers=4), Amount(items=64))
    assert seen.first_batch_s == pytest.approx(0.16)


def test_a_slow_batch_holds_back_those_behind_it_only_in_order() -> None:
    found = replace(costs(item_s=0.01, cores=8, step=sleeping(0.05)), spread=np.asarray([0.1, 0.1, 0.1, 3.7]))
    later = [total(found, 1, 4, items=48, seed=seed) for seed in range(8)]
    sooner = [total(found, 1, 4, items=48, seed=seed, in_order=False) for seed in range(8)]
    assert sum(sooner) <= sum(later)


def test_what_was_probed_may_have_been_lucky() -> None:
    found = replace(costs(spread=(0.5, 0.5, 2.0)), sampled=9)
    totals = [total(found, 800, 0, items=80_000, seed=seed) for seed in range(15)]
    sure = [total(replace(found, sampled=90_000), 800, 0, items=80_000, seed=seed) for seed in range(15)]
    assert max(totals) / min(totals) > 1.5, "nine items tell little of the mean"
    assert max(sure) / min(sure) < 1.05
    assert sorted(totals)[7] == pytest.approx(totals[0]), "the middle one has them as they were seen"
    assert totals[0] == pytest.approx(80_000 * 0.003, rel=0.05)


def test_a_gpu_works_while_the_host_goes_on() -> None:
    step = StepCosts(host_s=Table((1.0,), (0.001,), True), device_s=Table((1.0,), (0.02,), True), asynchronous=True)
    # Eight loads of 16 ms and launches; the device needs 20 ms each and is never waited for until the end.
    assert total(costs(item_s=0.002, step=step), 8, 0) == pytest.approx(0.016 + 0.001 + 8 * 0.02)
    blocked = replace(step, ahead=1)
    assert total(costs(item_s=0.0, step=blocked), 8, 0) == pytest.approx(0.001 + 8 * 0.02)


def test_a_step_on_the_cpu_takes_cores_from_the_workers() -> None:
    step = StepCosts(host_s=Table((1.0,), (0.05,), True), threads=2, crowded=2.0)
    shared = total(costs(item_s=0.005, cores=2, step=step), 8, 2)
    alone = total(costs(item_s=0.005, cores=2, step=sleeping(0.05)), 8, 2)
    assert shared > alone


def test_epochs_start_workers_again_unless_they_persist() -> None:
    found = costs(overhead_s=0.01)
    once, fresh = total(found, 8, 2), total(found, 8, 2, epochs=3)
    kept = total(found, 8, 2, epochs=3, persistent_workers=True)
    assert fresh == pytest.approx(3 * once)
    assert kept < fresh


def test_a_short_last_batch_counts() -> None:
    assert Amount(items=10).sizes(4) == [4, 4, 2]
    assert Amount(items=21).sizes(8) == [8, 8, 5]
    assert Amount(items=21).sizes(8, 2) == [8, 5]
    assert (Amount(items=21).batches(8), Amount(items=21).last(8)) == (3, 5)


def test_pinning_costs_a_thread_of_its_own() -> None:
    found = replace(costs(item_s=0.001), pin_s=Table((1.0,), (0.05,), True))
    assert total(found, 8, 2, pin_memory=True) > total(found, 8, 2)


def test_pinned_memory_is_made_as_often_as_batches_wait_and_then_used_again() -> None:
    found = replace(costs(item_s=0.001, step=sleeping(0.1)), pin_anew_s=Table((1.0,), (0.01,), True))
    without = replace(found, pin_anew_s=Table())
    added = total(found, 8, 2, items=800, pin_memory=True) - total(without, 8, 2, items=800, pin_memory=True)
    assert 0.005 < added < 0.1, "a few blocks, most of them made while the device is busy; not one for each batch"
    alone = total(found, 8, 0, items=800, pin_memory=True) - total(without, 8, 0, items=800, pin_memory=True)
    assert alone == pytest.approx(0.02)
    once, twice = (total(found, 8, 0, items=80, epochs=epochs, pin_memory=True) for epochs in (1, 2))
    assert twice < 2 * once, "the second epoch finds it pinned"


def test_a_slow_first_send_puts_the_first_batch_behind_those_of_all_workers() -> None:
    pinned = replace(costs(item_s=0.001, cores=16), pin_s=Table((1.0,), (0.05,), True))
    late = replace(pinned, first_sends=FirstSends(first=0.03))
    always = replace(pinned, first_sends=FirstSends(first=0.03, late_at_its_end=True))

    def first(found: Costs, items: int) -> float:
        setting = Setting(batch_size=8, num_workers=8, pin_memory=True)
        return simulate(found, setting, Amount(items=items)).first_batch_s

    assert first(pinned, 640) == pytest.approx(0.008 + 0.05)
    assert first(late, 640) >= 0.008 + 8 * 0.05, "it waits until all that came before it are pinned"
    assert first(late, 64) == pytest.approx(0.008 + 0.05), "where each worker has one batch alone it need not be late"
    assert first(always, 64) == pytest.approx(0.008 + 8 * 0.05)


def test_whose_first_batch_is_late() -> None:
    sends = FirstSends(alone=1.0, first=2.0, second=3.0, others=4.0)
    assert sends.of(0, 1, goes_on=False) == 1.0
    assert [sends.of(worker, 4, goes_on=True) for worker in range(4)] == [2.0, 3.0, 4.0, 4.0]
    slow = sends._replace(first=6.0)
    assert [slow.of(worker, 4, goes_on=False) for worker in range(4)] == [4.0, 3.0, 4.0, 4.0], "as any other"
    assert slow._replace(late_at_its_end=True).of(0, 4, goes_on=False) == 6.0
    seen_with_many = sends._replace(crowd=9)
    assert [seen_with_many.of(worker, 5, goes_on=True) for worker in range(3)] == [1.5, 3.5, 4.0], "half as late"
    assert seen_with_many.of(0, 1, goes_on=True) == 1.0
    assert seen_with_many.of(1, 12, goes_on=True) == 3.0


def test_who_is_late_differs_from_run_to_run_as_it_did_in_the_probes() -> None:
    rng = np.random.default_rng(0)
    drawn = [FirstSends(seen=(0.005, 0.040)).drawn(rng) for _ in range(60)]
    assert len({(each.first, each.second) for each in drawn}) == 4, "both, one, the other, and none of them"
    assert 0 < sum(each.late_at_its_end for each in drawn) < 30, "less often than not"
    assert FirstSends(first=0.03).drawn(rng) == FirstSends(first=0.03), "nothing was seen to draw from"
    pinned = replace(costs(item_s=0.001, cores=16), pin_s=Table((1.0,), (0.05,), True))
    seen = replace(pinned, first_sends=FirstSends(seen=(0.0, 0.03)))
    setting = Setting(batch_size=8, num_workers=8, pin_memory=True)
    firsts = {round(simulate(seen, setting, Amount(items=640), seed=seed).first_batch_s, 2) for seed in range(20)}
    assert min(firsts) == 0.06, "first in the queue"
    assert max(firsts) > 0.4, "behind all others"


@given(slow=st.floats(1, 8), busy=st.floats(1, 7))
def test_one_more_busy_core_never_brings_less_work(slow: float, busy: float) -> None:
    levels = Table((1.0, 8.0), (1.0, slow))
    assert slowed(levels, 1.0) == pytest.approx(1.0)
    assert slowed(levels, 8.0) == pytest.approx(slow)
    one, two = slowed(levels, busy), slowed(levels, busy + 1)
    assert one <= two * (1 + 1e-9)
    assert busy / one <= (busy + 1) / two * (1 + 1e-9)


def test_pinned_memory_is_free_again_when_the_device_is_done_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PinnedMemory] = []
    really = PinnedMemory._made

    def counted(memory: PinnedMemory, then: Any) -> None:
        made.append(memory)
        really(memory, then)

    monkeypatch.setattr(PinnedMemory, "_made", counted)

    def blocks(device_s: float) -> int:
        made.clear()
        step = StepCosts(
            host_s=Table((1.0,), (0.0001,), True), device_s=Table((1.0,), (device_s,), True), asynchronous=True
        )
        quick, slow = (Table((1.0,), (seconds,), True) for seconds in (0.0001, 0.1))
        found = replace(costs(item_s=0.001, step=step), pin_s=quick, pin_anew_s=slow)
        simulate(found, Setting(batch_size=8, num_workers=1, pin_memory=True), Amount(items=160))
        return len(made)

    assert blocks(0.001) < 4, "a few go round"
    assert blocks(1.0) > 10, "the host runs ahead of the device, and what it has read is still in use"


def test_nothing_is_launched_while_pinned_memory_is_made() -> None:
    step = StepCosts(host_s=Table((1.0,), (0.001,), True), device_s=Table((1.0,), (0.002,), True), asynchronous=True)
    found = replace(costs(item_s=0.001, step=step), pin_s=Table((1.0,), (0.001,), True))
    slow = replace(found, pin_anew_s=Table((1.0,), (0.2,), True))
    setting = Setting(batch_size=8, num_workers=2, pin_memory=True)
    seen = simulate(slow, setting, Amount(items=32))
    assert seen.first_batch_s == pytest.approx(0.008 + 0.2 + 0.001, rel=0.05)
    assert seen.step_ends_s[0] > seen.first_batch_s + 0.15, "the second batch's memory is made meanwhile"


def test_what_pinned_memory_is_made_meanwhile_holds_up_a_step_of_many_launches() -> None:
    step = StepCosts(host_s=Table((1.0,), (0.05,), True), device_s=Table((1.0,), (0.001,), True), asynchronous=True)
    found = replace(costs(item_s=0.001, step=step), pin_s=Table((1.0,), (0.001,), True))
    setting = Setting(batch_size=8, num_workers=1, pin_memory=True)
    quick, slow = (
        simulate(replace(found, pin_anew_s=Table((1.0,), (seconds,), True)), setting, Amount(items=16))
        for seconds in (0.0, 0.02)
    )
    assert quick.step_ends_s[0] - quick.first_batch_s == pytest.approx(0.05 + 0.001)
    assert slow.step_ends_s[0] - quick.step_ends_s[0] == pytest.approx(2 * 0.02), "its own, and the second's"


def test_uneven_cores_scatter_what_batches_take() -> None:
    found = costs(spread=(1.0, 1.0))
    even = [total(found, 8, 2, seed=seed) for seed in range(8)]
    uneven = [total(replace(found, unevenness=0.2), 8, 2, seed=seed) for seed in range(8)]
    assert np.ptp(even) < 1e-9 < np.ptp(uneven)
    assert np.mean(uneven) == pytest.approx(np.mean(even), rel=0.2)
    lasting = [total(replace(found, unevenness=0.2, lasting=1.0), 8, 4, seed=seed) for seed in range(20)]
    passing = [total(replace(found, unevenness=0.2), 8, 4, seed=seed) for seed in range(20)]
    assert np.mean(lasting) > np.mean(passing), "batches are yielded in order: the slowest worker holds up the rest"


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_long_run_is_continued_at_the_steady_rate(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = costs(item_s=0.002, spread=(0.5, 1.0, 1.5), step=sleeping(0.01), overhead_s=0.0002)
    continued = total(found, 8, workers, items=12_003)
    monkeypatch.setattr("stoker.forecast.simulate.RULES", SimulationRules(batches=10_000))
    assert continued == pytest.approx(total(found, 8, workers, items=12_003), rel=0.03)


def test_stages_can_be_made_faster() -> None:
    found = faster(costs(item_s=0.004, step=sleeping(0.02)), {"decode": 3, "step": 2})
    assert found.worker_item_s.at(1) == pytest.approx(0.004 * 0.5)
    assert found.step.host_s.at(1) == pytest.approx(0.01)
    with pytest.raises(InputError, match="no stage named 'dekode'"):
        faster(found, {"dekode": 2})
    with pytest.raises(InputError, match="above 0"):
        faster(found, {"decode": 0})


@pytest.mark.parametrize(("size", "expected"), [(4, 3.0), (1, 2.25), (8, 4.0), (12, 5.0), (16, 6.0), (32, 10.0)])
def test_tables_interpolate_and_extend(size: int, expected: float) -> None:
    assert Table((8.0, 16.0), (4.0, 6.0)).at(size) == pytest.approx(expected)


def test_a_table_below_its_first_size_is_never_less_than_in_proportion() -> None:
    assert Table((8.0, 16.0), (4.0, 40.0)).at(4) == pytest.approx(2.0)
    assert Table((8.0, 16.0), (4.0, 4.0), True).at(100) == pytest.approx(4.0)


# ---------------------------------------------------------------- laws

small = st.floats(min_value=0, max_value=0.05)
some = st.fixed_dictionaries(
    {
        "item_s": st.floats(min_value=1e-5, max_value=0.02),
        "spread": st.lists(st.floats(min_value=0.1, max_value=10), min_size=1, max_size=8).map(tuple),
        "cores": st.integers(min_value=1, max_value=16),
        "overhead_s": st.floats(min_value=0, max_value=0.01),
        "slow": st.floats(min_value=1, max_value=1.5),
        "step": small.map(sleeping),
    }
)
batch, workers, prefetch = st.integers(1, 40), st.integers(0, 12), st.integers(1, 4)


@settings(deadline=None, max_examples=150)
@given(some, batch, workers, prefetch, st.integers(1, 200))
def test_never_faster_than_the_work_allows(
    parts: dict[str, Any], size: int, count: int, ahead: int, items: int
) -> None:
    found = costs(**parts)
    amount = Amount(items=items)
    seen = simulate(found, Setting(batch_size=size, num_workers=count, prefetch_factor=ahead), amount)
    batches = math.ceil(items / size)
    least = found.spread.min() * found.worker_item_s.at(1)
    step = found.step.host_s.at(1)
    assert seen.total_s >= items * least / max(1.0, min(count or 1, found.cores)) - 1e-9
    assert seen.total_s >= batches * step - 1e-9
    assert seen.total_s >= min(size, items) * least + step - 1e-9
    assert seen.first_batch_s <= seen.total_s + 1e-9
    assert 0 <= seen.waited_s <= seen.total_s + 1e-9


@settings(deadline=None, max_examples=60)
@given(batch, workers, st.booleans(), st.integers(1, 40_000), st.floats(0.0001, 0.01), st.integers(1, 2))
def test_never_faster_than_the_device_however_far_the_host_is_ahead(
    size: int, count: int, pinned: bool, items: int, device_s: float, epochs: int
) -> None:
    step = StepCosts(
        host_s=Table((1.0,), (0.0001,), True), device_s=Table((1.0,), (device_s,), True), asynchronous=True
    )
    found = costs(item_s=0.00001, step=step)
    setting = Setting(batch_size=size, num_workers=count, pin_memory=pinned)
    seen = simulate(found, setting, Amount(items=items, epochs=epochs))
    batches = epochs * math.ceil(items / size)
    assert seen.total_s >= batches * device_s * (1 - 1e-6)
    assert seen.total_s <= batches * device_s + items * epochs * 0.0001 + batches * 0.001 + 0.1 * (1 + count), (
        "nor waits"
    )


@settings(deadline=None, max_examples=150)
@given(some, batch, workers, prefetch, st.integers(1, 200), st.integers(1, 16))
def test_more_cores_are_never_slower(
    parts: dict[str, Any], size: int, count: int, ahead: int, items: int, more: int
) -> None:
    found = replace(costs(**parts), receive_s=Table(flat=True), blocked_s=Table(flat=True))
    slower, quicker = _with_more_cores(found, more, size, count, items, prefetch_factor=ahead)
    assert quicker <= slower * (1 + 1e-9) + 1e-9


LATE = {"item_s": 1 / 64, "spread": (2.0, 1.0, 2.0), "cores": 3, "overhead_s": 0.0088, "slow": 1.0}


@settings(deadline=None, max_examples=150)
@given(some, batch, workers, prefetch, st.integers(1, 200), st.integers(1, 16))
@example(parts={**LATE, "step": sleeping(0.0)}, size=1, count=3, ahead=1, items=3, more=1)
def test_more_cores_are_slower_by_no_more_than_receiving_in_another_order(
    parts: dict[str, Any], size: int, count: int, ahead: int, items: int, more: int
) -> None:
    """A batch that comes sooner may come before one that the loop wants first, or while others still load, and the loop
    then receives it first, or is held up: once a batch, for as long as that takes. A real loader does so too."""
    slower, quicker = _with_more_cores(costs(**parts), more, size, count, items, prefetch_factor=ahead)
    assert quicker <= slower * (1 + 1e-9) + 1e-9 + 2 * parts["overhead_s"] * math.ceil(items / size)


def _with_more_cores(few: Costs, more: int, size: int, workers: int, items: int, **options: Any) -> tuple[float, float]:
    many = replace(few, cores=few.cores + more)
    return total(few, size, workers, items=items, **options), total(many, size, workers, items=items, **options)


@settings(deadline=None, max_examples=60)
@given(some, batch, workers, st.integers(1, 200), st.integers(0, 5))
def test_equal_seeds_give_equal_answers(parts: dict[str, Any], size: int, count: int, items: int, seed: int) -> None:
    found = costs(**parts)
    assert total(found, size, count, items=items, seed=seed) == total(found, size, count, items=items, seed=seed)


@settings(deadline=None, max_examples=60)
@given(some, batch, st.integers(1, 200))
def test_without_workers_it_is_the_sum_of_its_parts(parts: dict[str, Any], size: int, items: int) -> None:
    found = costs(**{**parts, "spread": (1.0,)})
    batches = math.ceil(items / size)
    parts_s = items * found.inline_item_s.at(1) + batches * (found.step.host_s.at(1) + found.inline_between_s.at(1))
    assert total(found, size, 0, items=items) == pytest.approx(parts_s + found.inline_cold_s.at(1))
    assert total(found, size, 0, items=items, epochs=3) == pytest.approx(3 * parts_s + found.inline_cold_s.at(1))


@settings(deadline=None, max_examples=60)
@given(some, batch, workers, prefetch, st.booleans(), st.booleans(), st.integers(1, 3), st.integers(1, 100))
def test_every_kind_of_loader_comes_to_an_end(
    parts: dict[str, Any], size: int, count: int, ahead: int, pinned: bool, ordered: bool, epochs: int, items: int
) -> None:
    found = costs(**parts)
    setting = Setting(
        batch_size=size,
        num_workers=count,
        prefetch_factor=ahead,
        pin_memory=pinned,
        persistent_workers=pinned,
        in_order=ordered,
    )
    seen = simulate(found, setting, Amount(items=items, epochs=epochs))
    assert math.isfinite(seen.total_s)
    assert len(seen.step_ends_s) == math.ceil(items / size)


# ---------------------------------------------------------------- ranks


def ranked(ranks: int, workers: int, **options: Any) -> float:
    """The seconds of 40 batches of 4 items in each rank."""
    exchange_s = options.pop("exchange_s", 0.0)
    setting = Setting(batch_size=4, num_workers=workers, ranks=ranks)
    return simulate(replace(costs(**options), exchange_s=exchange_s), setting, Amount(items=160)).total_s


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_alike_ranks_with_cores_to_spare_take_as_long_as_one(workers: int) -> None:
    step = StepCosts(host_s=Table((4.0,), (0.02,), True))
    assert ranked(3, workers, cores=16, step=step) == pytest.approx(ranked(1, workers, cores=16, step=step))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_step_takes_an_exchange_longer(workers: int) -> None:
    step = StepCosts(host_s=Table((4.0,), (0.05,), True))  # longer than loading: nothing hides behind it
    alone, both = (ranked(2, workers, cores=16, step=step, exchange_s=seconds) for seconds in (0.0, 0.01))
    assert both - alone == pytest.approx(40 * 0.01, rel=0.03)


def test_loaders_of_ranks_share_the_cores() -> None:
    """Two workers on two cores load as fast as they can; those of two ranks have half of that each."""
    assert ranked(2, 2, cores=2) == pytest.approx(2 * ranked(1, 2, cores=2), rel=0.05)


@pytest.mark.parametrize(("workers", "factor"), [(0, 1.1), (1, 1.0), (2, 1.0)])
def test_uneven_items_cost_ranks_that_wait_for_each_other(workers: int, factor: float) -> None:
    """The slowest of several draws is slower than one: ranks that only infer do not wait for it. What workers have
    loaded ahead makes up for it."""
    uneven = {"cores": 32, "spread": (0.2, 0.2, 0.2, 4.0)}
    waiting, free = (ranked(4, workers, exchange_s=seconds, **uneven) for seconds in (0.0, None))
    assert waiting >= factor * free * (1 - 1e-9)


@pytest.mark.parametrize("ahead", [1, 4])
def test_ranks_on_gpus_end_each_step_together(ahead: int) -> None:
    step = StepCosts(device_s=Table((4.0,), (0.05,), True), asynchronous=True, ahead=ahead)
    alone, both = (ranked(2, 2, cores=16, step=step, exchange_s=seconds) for seconds in (0.0, 0.01))
    assert both - alone == pytest.approx(40 * 0.01, rel=0.05)


def test_teams_of_ranks_slow_each_other() -> None:
    """Steps of two ranks with a thread each, on one core, take turns; on two, they are slowed as cores are."""
    step = StepCosts(host_s=Table((4.0,), (0.05,), True), threads=1)
    one = ranked(1, 1, cores=8, step=step)
    assert ranked(2, 1, cores=8, step=step) == pytest.approx(one, rel=0.02)
    assert ranked(2, 1, cores=1, item_s=1e-6, step=step) == pytest.approx(2 * one, rel=0.1)
