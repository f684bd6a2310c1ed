"""What one step of a workload asks of the device's allocator, as a function of the batch size."""

from typing import Literal

from stoker.records import Record

Kind = Literal["tensor", "scratch", "workspace"]


class Reduction(Record, frozen=True):
    """A sum over rows, split over the whole GPU: each block of threads leaves its part in a common buffer.

    So many sums, of so many rows, each a fixed count and one for each item of the batch. Torch splits until every
    multiprocessor has work, so the buffer grows with the batch at first and then no more.
    """

    sums: int
    rows: int
    threads: int
    sums_an_item: int = 0
    rows_an_item: int = 0

    def at(self, batch_size: int) -> int:
        sums, rows = self.sums + self.sums_an_item * batch_size, self.rows + self.rows_an_item * batch_size
        together = next(count for count in (4, 2, 1) if sums % count == 0)
        most = _BLOCK_THREADS // together
        wide = min(_power_of_two(sums // together, most), _WARP)
        high = min(_power_of_two(rows, most), most // wide)
        wide = min(_power_of_two(sums // together, most), most // high)
        if rows < min(high * _LEAST_ROWS, _MOST_ROWS):
            return 0
        each = -(-rows // high)
        blocks = -(-(sums // together) // wide)
        target = self.threads // (wide * high)
        if each < _MOST_ROWS or blocks > target:
            return 0
        split = max(min(-(-target // blocks), -(-each // _LEAST_ROWS)), -(-each // _MOST_ROWS))
        return _SUM_BYTES * sums * split * wide * together if split > 1 else 0


_BLOCK_THREADS, _WARP = 512, 32
_LEAST_ROWS, _MOST_ROWS = 16, 256
"""A thread adds up at least and, where it can be had, at most so many rows."""
_SUM_BYTES = 4


_MOST_ELEMENTS = 2**31
"""What an index of 32 bits, one of them for the sign, can tell apart."""


def _power_of_two(count: int, most: int) -> int:
    """The largest power of two that is not above a count, nor above `most`."""
    return most if count >= most else 1 << (max(1, count).bit_length() - 1)


class TailWave(Record, frozen=True):
    """What a convolution keeps of its output's last tiles, where they are too few for all multiprocessors and each is
    split among several.

    On record it is between nothing and a tile of 256 by 128 sums for each multiprocessor, by a rule that we have not
    found. Beyond eight waves of tiles it is more often something than nothing, and then a third of that in the mean.
    """

    tiles_an_item: float
    multiprocessors: int

    def at(self, batch_size: int) -> int:
        waves = self.tiles_an_item * batch_size / self.multiprocessors
        return self.multiprocessors * _TILE_BYTES // 3 if waves > _FEW_WAVES else 0


_TILE_BYTES = 256 * 128 * _SUM_BYTES
_FEW_WAVES = 8


class Storage(Record, frozen=True):
    """One piece of memory: so many bytes, so many more for each item of the batch, and for each pair of items.

    `scratch` is a convolution's workspace, which it takes where there is room and does without where there is not,
    unless its input (so many elements an item) has more elements than 32 bits can count: the plans that do without
    cannot find their way in it. `workspace` is cuBLAS', taken at the first matrix product and kept.
    """

    fixed_bytes: int
    item_bytes: float = 0.0
    square_bytes: float = 0.0
    kind: Kind = "tensor"
    operator: str = ""
    reduction: Reduction | None = None
    elements_an_item: float = 0.0
    tail: TailWave | None = None

    def is_optional(self, batch_size: int) -> bool:
        return self.kind == "scratch" and self.elements_an_item * batch_size < _MOST_ELEMENTS

    def at(self, batch_size: int) -> int:
        if self.reduction is not None:
            return self.reduction.at(batch_size)
        tail = self.tail.at(batch_size) if self.tail is not None else 0
        return self.fixed_bytes + tail + round(self.item_bytes * batch_size + self.square_bytes * batch_size**2)


class AllocationLog(Record, frozen=True):
    """Births and deaths of storages in their order: `n` is the birth of storage `n`, `-n - 1` its death.

    `init` makes the model; `first` is a whole step from there, in which whatever lasts (optimizer state, workspaces) is
    made; `steady` is every later one; `validate`, where it was asked for, is a pass over validation data between two
    of them. `workspace_bytes` is what cuBLAS takes a handle on the GPU that was named. `unseen` says in words what the
    log cannot know.
    """

    storages: tuple[Storage, ...]
    init: tuple[int, ...]
    first: tuple[int, ...]
    steady: tuple[int, ...]
    batch_size: int
    validate: tuple[int, ...] = ()
    workspace_bytes: int = 32 * 2**20
    attention: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    seconds: float = 0.0
