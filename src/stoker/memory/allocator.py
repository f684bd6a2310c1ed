"""A model of torch's CUDA caching allocator: one stream, default settings, and a cap on what it may reserve.

Requests round up to 512 bytes. Those up to 1 MiB come from segments of 2 MiB, those under 10 MiB from segments of 20
MiB, larger ones from a segment of their own, rounded up to 2 MiB. The allocator takes the best fit by (size, address),
splits it if enough would remain, and merges it with free neighbours on release. If a new segment does not fit under the
cap, it returns every cached segment that is wholly free to the device, and tries the request once more.
"""

from bisect import bisect_left, insort

from stoker.records import Record

_MIB = 2**20


class AllocatorRules(Record, frozen=True):
    """Torch's own sizes, and two choices of this model."""

    round_bytes: int = 512
    """Requests round up to a multiple of this."""
    small_bytes: int = _MIB
    """Requests up to this size come from small segments."""
    small_segment_bytes: int = 2 * _MIB
    middle_bytes: int = 10 * _MIB
    """Requests below this size come from middle segments, larger ones from a segment of their own."""
    middle_segment_bytes: int = 20 * _MIB
    large_round_bytes: int = 2 * _MIB
    """Segments of their own round up to a multiple of this."""
    gap_bytes: int = 512 * _MIB
    """Between the addresses of two segments, so that blocks of different ones never touch."""
    highest_address: int = 2**62
    """The driver hands out addresses from above downwards, which decides between two fits of one size."""


RULES = AllocatorRules()
_ROUND_BYTES, _SMALL_BYTES = RULES.round_bytes, RULES.small_bytes
"""Looked up for every request."""


class OutOfMemory(Exception):
    """A request does not fit under the cap, even with every cached segment returned."""


class Block:
    """A part of a segment, free or in use, with its neighbours in the same segment."""

    __slots__ = ("address", "after", "before", "free", "size", "small")

    def __init__(self, size: int, address: int, *, small: bool) -> None:
        self.size, self.address, self.small = size, address, small
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether the block is all of its segment."""
        return self.before is None and self.after is None


def rounded(request_bytes: int) -> int:
    return max(_ROUND_BYTES, -(-request_bytes // _ROUND_BYTES) * _ROUND_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """The size of the segment that a block needs if no cached block can serve it."""
    if block_bytes <= _SMALL_BYTES:
        return RULES.small_segment_bytes
    if block_bytes < RULES.middle_bytes:
        return RULES.middle_segment_bytes
    return -(-block_bytes // RULES.large_round_bytes) * RULES.large_round_bytes


class Allocator:
    """The state of one device's allocator, with the counters that torch keeps."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = self.reserved_peak_bytes = 0
        self.allocated_bytes = self.allocated_peak_bytes = 0
        self.retries = 0
        self._cached: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._lowest_address = RULES.highest_address

    def allocate(self, request_bytes: int) -> Block:
        size = rounded(request_bytes)
        small = size <= _SMALL_BYTES
        block = self._best_fit(size, small) or self._new_segment(size, small)
        self._split(block, size)
        block.free = False
        self.allocated_bytes += block.size
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)
        return block

    def release(self, block: Block) -> None:
        """Give a block back to the cache, merged with free neighbours."""
        if block.free:
            raise ValueError("a block was released twice")
        self.allocated_bytes -= block.size
        block.free = True
        if block.before is not None and block.before.free:
            block = self._merge(block.before, block)
        if block.after is not None and block.after.free:
            self._forget(block.after)
            block = self._join(block, block.after)
        insort(self._cached[block.small], (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Return every cached segment that is wholly free to the device."""
        for small, cached in self._cached.items():
            held = [entry for entry in cached if not entry[2].whole]
            self.reserved_bytes -= sum(size for size, _, _ in cached) - sum(size for size, _, _ in held)
            self._cached[small] = held

    def _best_fit(self, size: int, small: bool) -> Block | None:
        cached = self._cached[small]
        place = bisect_left(cached, (size,))
        return cached.pop(place)[2] if place < len(cached) else None

    def _new_segment(self, size: int, small: bool) -> Block:
        needed = segment_bytes(size)
        if self.reserved_bytes + needed > self.capacity_bytes:
            self.retries += 1
            self.empty_cache()
            if self.reserved_bytes + needed > self.capacity_bytes:
                raise OutOfMemory
        self.reserved_bytes += needed
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        self._lowest_address -= needed + RULES.gap_bytes
        return Block(needed, self._lowest_address, small=small)

    def _split(self, block: Block, size: int) -> None:
        """Keep `size` bytes of a block and cache the rest, if torch would keep such a rest apart."""
        rest = block.size - size
        if not (rest >= _ROUND_BYTES if block.small else rest > _SMALL_BYTES):
            return
        left = Block(rest, block.address + size, small=block.small)
        left.free = True
        left.before, left.after = block, block.after
        if block.after is not None:
            block.after.before = left
        block.after = left
        block.size = size
        insort(self._cached[block.small], (left.size, left.address, left))

    def _merge(self, before: Block, block: Block) -> Block:
        self._forget(before)
        return self._join(before, block)

    def _join(self, first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _forget(self, block: Block) -> None:
        cached = self._cached[block.small]
        cached.pop(bisect_left(cached, (block.size, block.address)))
