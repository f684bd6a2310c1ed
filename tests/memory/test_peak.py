"""What is alive at the peak of a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.memory.limit import limit
from stoker.memory.peak import alive_at_peak
from stoker.memory.trace.log import Allocation, AllocationLog
from stoker.records import AliveBytes


def a_log() -> AllocationLog:
    """Weights (0); in the first step an activation (1), a gradient (2) and optimizer state (3); later steps are smaller
    by the state that is there already, and reach their peak where the workspace of the convolution (5) is taken."""
    return AllocationLog(
        allocations=(
            Allocation(fixed_bytes=1000, operator="init"),
            Allocation(fixed_bytes=0, item_bytes=100, operator="aten.relu.default"),
            Allocation(fixed_bytes=1000, operator="aten.mm.default"),
            Allocation(fixed_bytes=2000, operator="aten.zeros_like.default"),
            Allocation(fixed_bytes=0, item_bytes=100, operator="aten.relu.default"),
            Allocation(fixed_bytes=50, kind="scratch", operator="aten.convolution.default"),
        ),
        init=(0,),
        first=(1, 2, -2, 3, -3),
        steady=(4, 5, -6, -5),
        batch_size=13,
    )


def test_the_peak_is_that_of_the_larger_step() -> None:
    small, large = alive_at_peak(a_log(), 1, 2**40), alive_at_peak(a_log(), 40, 2**40)
    assert sum(each.bytes for each in small) == 1000 + 1000 + 2000  # the first step, at its end
    assert large == (
        AliveBytes(operator="relu", since="step", bytes=4000, tensors=1),
        AliveBytes(operator="zeros_like", since="earlier_step", bytes=2000, tensors=1),
        AliveBytes(operator="parameters and buffers", since="init", bytes=1000, tensors=1),
        AliveBytes(operator="convolution workspace", since="step", bytes=50, tensors=1),
    )


def test_a_workspace_that_does_not_fit_is_left_out() -> None:
    found = alive_at_peak(a_log(), 40, 7000)
    assert sum(each.bytes for each in found) == 7000
    assert "convolution workspace" not in {each.operator for each in found}


def test_small_operators_are_one_line() -> None:
    allocations = tuple(Allocation(fixed_bytes=size, operator=f"aten.op{size}.default") for size in range(1, 21))
    log = AllocationLog(allocations=allocations, init=(), first=tuple(range(20)), steady=(), batch_size=13)
    found = alive_at_peak(log, 1, 2**40, listed=5)
    assert [each.operator for each in found] == ["op20", "op19", "op18", "op17", "op16", "other operators"]
    assert sum(each.bytes for each in found) == sum(range(1, 21))
    assert found[-1].tensors == 15


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 20)), min_size=1, max_size=30), st.integers(1, 64))
def test_the_sum_is_the_highest_sum_of_live_bytes(pieces: list[tuple[int, int]], batch_size: int) -> None:
    """Against a plain walk: each piece lives for some events."""
    allocations = tuple(
        Allocation(fixed_bytes=size, item_bytes=size % 7, operator=f"aten.op{size % 3}.default") for size, _ in pieces
    )
    events: list[int] = []
    ends: dict[int, list[int]] = {}
    for number, (_, life) in enumerate(pieces):
        events.append(number)
        ends.setdefault(number + life, []).append(number)
        events += [-each - 1 for each in ends.pop(number, [])]
    log = AllocationLog(allocations=allocations, init=(), first=tuple(events), steady=(), batch_size=13)
    alive, highest = 0, 0
    for event in events:
        size = allocations[event if event >= 0 else -event - 1].at(batch_size)
        alive += size if event >= 0 else -size
        highest = max(highest, alive)
    assert sum(each.bytes for each in alive_at_peak(log, batch_size, 2**40)) == highest


def test_a_traced_limit_says_what_is_alive() -> None:
    found = limit("resnet18", gpu_memory="2GiB", optimizer="adam")
    names = {each.operator: each for each in found.alive}
    total = sum(each.bytes for each in found.alive)
    assert names["parameters and buffers"].bytes == pytest.approx(11.7e6 * 4, rel=0.01)
    assert total == pytest.approx(found.peak_bytes_at_max, rel=0.02)  # the allocator rounds
    assert found.alive[0].since == "step"
    assert found.software is not None
    assert found.when is not None
