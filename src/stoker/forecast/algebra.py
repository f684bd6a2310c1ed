"""The algebra of the thesis (4.10-4.17), as a planner to stand beside the simulation.

Maximise the batch B, subject to W·B·I < DRAM, t_d <= (t_g / N)·W and B <= B_m, then take the fewest workers W. Here t_d
is the time to load a batch and t_g the time to compute it, both averaged over iterations with 0 workers; I is the size
of one input and N counts the GPUs. The thesis takes t_d / t_g to be the same at every batch, and the larger of two
measured ratios as the constraint; `ratio_spread` says how far apart the two were.
"""

import math

from stoker.errors import InputError
from stoker.records import Record

ITERATIONS = 50
"""Over how many iterations the thesis averages."""


class Timing(Record, frozen=True):
    """What a batch costs with 0 workers: loading it, and computing it on one GPU."""

    batch_size: int
    load_s: float
    compute_s: float

    @property
    def ratio(self) -> float:
        return self.load_s / self.compute_s if self.compute_s > 0 else math.inf


class ThesisPlan(Record, frozen=True):
    """The answer of the algebra, and the constraint that stopped it from growing."""

    batch_size: int
    num_workers: int
    ratio: float
    ratio_spread: float
    bound_by: str


def largest_ratio(timings: list[Timing]) -> float:
    """The larger t_d / t_g of the batch sizes that were timed."""
    if not timings:
        raise InputError("the thesis' planner needs the times of at least one batch size with 0 workers")
    return max(timing.ratio for timing in timings)


def ratio_spread(timings: list[Timing]) -> float:
    """How far apart t_d / t_g lies over the batch sizes, relative to the least: 0 where the thesis' claim holds."""
    ratios = [timing.ratio for timing in timings]
    return max(ratios) / min(ratios) - 1 if min(ratios) > 0 and math.isfinite(max(ratios)) else math.inf


def workers_needed(ratio: float, *, gpus: int = 1) -> int:
    """The fewest workers with t_d <= (t_g / N)·W (4.17), and at least one."""
    if gpus < 1:
        raise InputError(f"gpus must be at least 1, got {gpus}")
    if not math.isfinite(ratio):
        raise InputError("the step takes no time, so no number of workers keeps up with it; the algebra has no answer")
    return max(1, math.ceil(ratio * gpus - 1e-9))


def fits_memory(batch_size: int, num_workers: int, *, item_bytes: int, memory_bytes: int) -> bool:
    """W·B·I < DRAM (4.10)."""
    return num_workers * batch_size * item_bytes < memory_bytes


def workers_for(batch_size: int, *, item_bytes: int, memory_bytes: int) -> int:
    """The corollary: the most workers that memory allows at a given batch (4.14)."""
    if batch_size < 1 or item_bytes < 1:
        raise InputError(f"a batch and an item must be at least 1, got {batch_size} and {item_bytes}")
    return max(0, math.ceil(memory_bytes / (batch_size * item_bytes)) - 1)


def solve(timings: list[Timing], *, max_batch: int, item_bytes: int, memory_bytes: int, gpus: int = 1) -> ThesisPlan:
    """The largest batch that meets all constraints, then the fewest workers."""
    ratio = largest_ratio(timings)
    workers = workers_needed(ratio, gpus=gpus)
    if max_batch < 1:
        raise InputError(f"the largest batch must be at least 1, got {max_batch}")
    by_memory = math.ceil(memory_bytes / (workers * max(1, item_bytes))) - 1
    if by_memory < 1:
        raise InputError(f"{workers} workers of one item each do not fit in {memory_bytes} bytes of memory")
    batch = min(max_batch, by_memory)
    bound = "the largest batch (4.16)" if batch == max_batch else "host memory (4.14)"
    return ThesisPlan(
        batch_size=batch, num_workers=workers, ratio=ratio, ratio_spread=ratio_spread(timings), bound_by=bound
    )
