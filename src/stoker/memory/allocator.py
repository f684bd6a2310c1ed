"""A model of torch's CUDA caching allocator: one stream, default settings, and a cap on what it may reserve.

Requests round up to 512 bytes. Those up to 1 MiB come from segments of 2 MiB, those under 10 MiB from segments of 20
MiB, larger ones from a segment of their own, rounded up to 2 MiB. The best fit by (size, address) is taken, split where
enough would remain, and merged with free neighbours when it is given back. Where a new segment does not fit under the
cap, every cached segment that is wholly free is returned to the device, and the request is tried once more.
"""

from bisect import bisect_left, insort

_MIB = 2**20
ROUND_BYTES = 512
SMALL_BYTES = _MIB
SMALL_SEGMENT_BYTES = 2 * _MIB
MIDDLE_BYTES = 10 * _MIB
MIDDLE_SEGMENT_BYTES = 20 * _MIB
LARGE_ROUND_BYTES = 2 * _MIB
_GAP_BYTES = 512 * _MIB
"""Between the addresses of two segments, so that blocks of different ones never touch."""
_HIGHEST_ADDRESS = 2**62
"""The driver hands out addresses from above downwards, which decides between two fits of one size."""


class OutOfMemory(Exception):
    """A request does not fit under the cap, even with every cached segment returned."""


class Block:
    """A stretch of a segment, free or in use, with its neighbours in the same segment."""

    __slots__ = ("address", "after", "before", "free", "size", "small")

    def __init__(self, size: int, address: int, *, small: bool) -> None:
        self.size, self.address, self.small = size, address, small
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


def rounded(request_bytes: int) -> int:
    return max(ROUND_BYTES, -(-request_bytes // ROUND_BYTES) * ROUND_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """How much is asked of the device for a block that no cached one can serve."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MIDDLE_BYTES:
        return MIDDLE_SEGMENT_BYTES
    return -(-block_bytes // LARGE_ROUND_BYTES) * LARGE_ROUND_BYTES


class Allocator:
    """The state of one device's allocator, with the counters that torch keeps."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = self.reserved_peak_bytes = 0
        self.allocated_bytes = self.allocated_peak_bytes = 0
        self.retries = 0
        self._cached: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._lowest_address = _HIGHEST_ADDRESS

    def allocate(self, request_bytes: int) -> Block:
        size = rounded(request_bytes)
        small = size <= SMALL_BYTES
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
            kept = [entry for entry in cached if not entry[2].whole]
            self.reserved_bytes -= sum(size for size, _, _ in cached) - sum(size for size, _, _ in kept)
            self._cached[small] = kept

    def _best_fit(self, size: int, small: bool) -> Block | None:
        cached = self._cached[small]
        place = bisect_left(cached, (size,))
        return cached.pop(place)[2] if place < len(cached) else None

    def _new_segment(self, size: int, small: bool) -> Block:
        wanted = segment_bytes(size)
        if self.reserved_bytes + wanted > self.capacity_bytes:
            self.retries += 1
            self.empty_cache()
            if self.reserved_bytes + wanted > self.capacity_bytes:
                raise OutOfMemory
        self.reserved_bytes += wanted
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        self._lowest_address -= wanted + _GAP_BYTES
        return Block(wanted, self._lowest_address, small=small)

    def _split(self, block: Block, size: int) -> None:
        """Keep `size` bytes of a block and cache the rest, where the rest is worth keeping apart."""
        rest = block.size - size
        if not (rest >= ROUND_BYTES if block.small else rest > SMALL_BYTES):
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
