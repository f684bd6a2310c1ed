"""What one step of a workload asks of the device's allocator, as a function of the batch size."""

from typing import Literal

from stoker.records import Record

BUCKETS = "gradient buckets of DistributedDataParallel"
"""The operator of the buffers in which ranks exchange their gradients."""
AllocationKind = Literal["tensor", "scratch", "workspace"]


class ReductionRules(Record, frozen=True):
    """Torch's configuration of a reduction kernel."""

    block_threads: int = 512
    warp: int = 32
    least_rows: int = 16
    """Rows that a thread adds up at least."""
    most_rows: int = 256
    """Rows that a thread adds up at most, if the GPU has enough threads."""
    sum_bytes: int = 4
    """Sums are kept in full precision."""


class TailWaveRules(Record, frozen=True):
    """What was recorded of convolutions whose last tiles are split among multiprocessors."""

    tile_bytes: int = 256 * 128 * 4
    """One tile of sums."""
    few_waves: int = 8
    """Up to so many waves of tiles, most recorded convolutions kept nothing."""
    share_of_tiles: int = 3
    """Beyond them, a third of a tile for each multiprocessor is the mean of what was recorded."""


REDUCTION, TAIL_WAVE = ReductionRules(), TailWaveRules()
_MOST_ELEMENTS = 2**31
"""An index of 32 bits, one of them for the sign, can address so many elements."""


class Reduction(Record, frozen=True):
    """A sum over rows, split over the whole GPU: each block of threads leaves its part in a common buffer.

    There are `sums` of `rows` each, plus `sums_an_item` and `rows_an_item` for each item of the batch. Torch splits
    until every multiprocessor has work, so the buffer grows with the batch at first and then no more.
    """

    sums: int
    rows: int
    threads: int
    sums_an_item: int = 0
    rows_an_item: int = 0

    def at(self, batch_size: int) -> int:
        """Bytes of the buffer at a batch size, as torch's `setReduceConfig` would choose it."""
        rules = REDUCTION
        sums, rows = self.sums + self.sums_an_item * batch_size, self.rows + self.rows_an_item * batch_size
        together = next(count for count in (4, 2, 1) if sums % count == 0)
        most = rules.block_threads // together
        wide = min(_power_of_two(sums // together, most), rules.warp)
        high = min(_power_of_two(rows, most), most // wide)
        wide = min(_power_of_two(sums // together, most), most // high)
        if rows < min(high * rules.least_rows, rules.most_rows):
            return 0
        each = -(-rows // high)
        blocks = -(-(sums // together) // wide)
        target = self.threads // (wide * high)
        if each < rules.most_rows or blocks > target:
            return 0
        split = max(min(-(-target // blocks), -(-each // rules.least_rows)), -(-each // rules.most_rows))
        return rules.sum_bytes * sums * split * wide * together if split > 1 else 0


def _power_of_two(count: int, most: int) -> int:
    """The largest power of two that is not above `count`, nor above `most`."""
    return most if count >= most else 1 << (max(1, count).bit_length() - 1)


class TailWave(Record, frozen=True):
    """What a convolution keeps of its output's last tiles if they are too few for all multiprocessors: each tile is
    then split among several.

    Recorded sizes lie between nothing and one tile of 256 by 128 sums for each multiprocessor. We do not know the rule;
    this is the mean of what was recorded.
    """

    tiles_an_item: float
    multiprocessors: int

    def at(self, batch_size: int) -> int:
        waves = self.tiles_an_item * batch_size / self.multiprocessors
        tiles_bytes = self.multiprocessors * TAIL_WAVE.tile_bytes
        return tiles_bytes // TAIL_WAVE.share_of_tiles if waves > TAIL_WAVE.few_waves else 0


class Allocation(Record, frozen=True):
    """One piece of device memory: fixed bytes, bytes for each item of the batch, and bytes for each pair of items.

    `scratch` is a convolution's workspace. The convolution takes it if there is room and does without if there is not,
    unless its input (`elements_an_item`) has more elements than 32 bits can count: the plans without a workspace cannot
    address it. `workspace` is that of cuBLAS, taken at the first matrix product and never given back.
    """

    fixed_bytes: int
    item_bytes: float = 0.0
    square_bytes: float = 0.0
    kind: AllocationKind = "tensor"
    operator: str = ""
    reduction: Reduction | None = None
    elements_an_item: float = 0.0
    tail: TailWave | None = None

    def is_optional(self, batch_size: int) -> bool:
        """Whether the step runs without it if there is no room."""
        return self.kind == "scratch" and self.elements_an_item * batch_size < _MOST_ELEMENTS

    def at(self, batch_size: int) -> int:
        """Bytes at a batch size."""
        if self.reduction is not None:
            return self.reduction.at(batch_size)
        tail = self.tail.at(batch_size) if self.tail is not None else 0
        return self.fixed_bytes + tail + round(self.item_bytes * batch_size + self.square_bytes * batch_size**2)


class AllocationLog(Record, frozen=True):
    """Allocations and releases in their order: event `n` allocates number `n`, event `-n - 1` releases it.

    `init` makes the model. `first` is the first step, in which everything that lasts (optimizer state, workspaces) is
    made; with accumulation it has all batches of one update. `steady` is every later step. `validate` is a pass over
    validation data between two steps, if it was asked for. `workspace_bytes` is what cuBLAS takes for each handle on
    the simulated GPU. `unseen` names what the log cannot know.
    """

    allocations: tuple[Allocation, ...]
    init: tuple[int, ...]
    first: tuple[int, ...]
    steady: tuple[int, ...]
    batch_size: int
    validate: tuple[int, ...] = ()
    workspace_bytes: int = 32 * 2**20
    attention: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    seconds: float = 0.0
