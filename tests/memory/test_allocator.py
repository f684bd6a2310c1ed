"""Laws of the allocator's model, whatever the order of requests; and the rules it states, one by one."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stoker.memory.allocator import Allocator, Block, OutOfMemory, rounded, segment_bytes

MIB = 2**20
PLENTY = 2**50


@pytest.mark.parametrize(
    ("request_bytes", "block", "segment"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_sizes_round_as_torch_rounds_them(request_bytes: int, block: int, segment: int) -> None:
    assert rounded(request_bytes) == block
    assert segment_bytes(block) == segment
    allocator = Allocator(PLENTY)
    allocator.allocate(request_bytes)
    assert allocator.reserved_bytes == segment


def test_a_released_block_is_used_again_and_the_best_fit_is_taken() -> None:
    allocator = Allocator(PLENTY)
    large, larger = allocator.allocate(64 * MIB), allocator.allocate(96 * MIB)
    allocator.release(larger)
    allocator.release(large)
    assert allocator.allocate(64 * MIB).address == large.address
    assert allocator.reserved_bytes == 160 * MIB


def test_a_large_block_keeps_a_rest_of_up_to_a_mebibyte() -> None:
    allocator = Allocator(PLENTY)
    allocator.release(allocator.allocate(64 * MIB))
    assert allocator.allocate(63 * MIB).size == 64 * MIB
    allocator = Allocator(PLENTY)
    allocator.release(allocator.allocate(64 * MIB))
    assert allocator.allocate(63 * MIB - 512).size == 63 * MIB - 512


def test_neighbours_coalesce_so_that_a_segment_is_whole_again() -> None:
    allocator = Allocator(PLENTY)
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    assert allocator.reserved_bytes == 20 * MIB
    for place in (1, 3, 2, 0, 4):
        allocator.release(blocks[place])
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_a_miss_returns_whole_segments_and_tries_again() -> None:
    allocator = Allocator(100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.retries, allocator.reserved_bytes) == (1, 80 * MIB)


def test_a_split_segment_cannot_be_returned() -> None:
    allocator = Allocator(100 * MIB)
    first = allocator.allocate(60 * MIB)
    allocator.release(first)
    allocator.allocate(20 * MIB)  # carved out of the 60
    with pytest.raises(OutOfMemory):
        allocator.allocate(80 * MIB)


def test_a_block_cannot_be_released_twice() -> None:
    allocator = Allocator(PLENTY)
    block = allocator.allocate(1)
    allocator.release(block)
    with pytest.raises(ValueError, match="twice"):
        allocator.release(block)


sizes = some.one_of(some.integers(0, 2 * MIB), some.integers(MIB, 40 * MIB))
requests = some.lists(some.one_of(sizes, some.integers(-20, -1)), max_size=60)


def play(allocator: Allocator, script: list[int]) -> list[Block]:
    """A positive entry is a request; a negative one releases a block that is in use, counted from the newest."""
    live: list[Block] = []
    for entry in script:
        if entry >= 0:
            live.append(allocator.allocate(entry))
        elif len(live) >= -entry:
            allocator.release(live.pop(entry))
    return live


@given(requests)
@settings(deadline=None)
def test_counters_match_the_blocks(script: list[int]) -> None:
    allocator = Allocator(PLENTY)
    live = play(allocator, script)
    assert allocator.allocated_bytes == sum(block.size for block in live)
    assert allocator.reserved_bytes >= allocator.allocated_bytes
    assert allocator.reserved_peak_bytes >= allocator.allocated_peak_bytes >= allocator.allocated_bytes


@given(requests)
@settings(deadline=None)
def test_blocks_in_use_never_overlap(script: list[int]) -> None:
    live = sorted(play(Allocator(PLENTY), script), key=lambda block: block.address)
    for block, following in pairwise(live):
        assert block.address + block.size <= following.address


@given(requests)
@settings(deadline=None)
def test_with_everything_released_everything_can_be_returned(script: list[int]) -> None:
    allocator = Allocator(PLENTY)
    for block in play(allocator, script):
        allocator.release(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


@given(requests, some.integers(0, 400 * MIB))
@settings(deadline=None)
def test_the_cap_is_never_passed_and_what_fits_uncapped_at_its_peak_fits(script: list[int], cap: int) -> None:
    free = Allocator(PLENTY)
    play(free, script)
    capped = Allocator(cap)
    try:
        play(capped, script)
    except OutOfMemory:
        assert cap < free.reserved_peak_bytes
    assert capped.reserved_peak_bytes <= cap
