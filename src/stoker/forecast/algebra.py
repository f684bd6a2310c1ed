"""The algebra of A. Tripathi's thesis (UT Austin, 2019; equations 4.10-4.17), to compare with the simulation.

Maximise the batch B, subject to W·B·I < DRAM (4.10), t_d <= (t_g / N)·W (4.17) and B <= B_m (4.16); then take the
fewest workers W. Here t_d is the time to load a batch and t_g the time to compute it, both averaged over iterations
with 0 workers; I is the size of one input and N counts the GPUs. The algebra takes t_d / t_g to be the same at every
batch and uses the larger of two measured ratios; `ratio_spread` says how far apart the two were.
"""

import math
from collections.abc import Sequence

from stoker.errors import InputError
from stoker.records import AlgebraAnswer, AlgebraTiming, Record


class AlgebraRules(Record, frozen=True):
    """How the algebra measures."""

    iterations: int = 50
    """Times are averages over this many iterations, as in the thesis."""


RULES = AlgebraRules()


def largest_ratio(timings: Sequence[AlgebraTiming]) -> float:
    """The larger t_d / t_g of the batch sizes that were timed. Raises InputError if there are none."""
    if not timings:
        raise InputError("the algebra needs the times of at least one batch size with 0 workers")
    return max(timing.ratio for timing in timings)


def ratio_spread(timings: Sequence[AlgebraTiming]) -> float | None:
    """How far apart t_d / t_g is over the batch sizes, relative to the least: 0 where the algebra's assumption holds.

    None if a ratio is 0 or infinite.
    """
    ratios = [timing.ratio for timing in timings]
    return max(ratios) / min(ratios) - 1 if min(ratios) > 0 and math.isfinite(max(ratios)) else None


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


def batch_for(num_workers: int, *, item_bytes: int, memory_bytes: int) -> int:
    """The largest batch that memory allows with a given number of workers (4.14)."""
    return max(0, math.ceil(memory_bytes / (num_workers * item_bytes)) - 1)


def workers_for(batch_size: int, *, item_bytes: int, memory_bytes: int) -> int:
    """The corollary (4.14): the most workers that memory allows at a given batch."""
    if batch_size < 1 or item_bytes < 1:
        raise InputError(f"a batch and an item must be at least 1, got {batch_size} and {item_bytes}")
    return max(0, math.ceil(memory_bytes / (batch_size * item_bytes)) - 1)


def solve(
    timings: Sequence[AlgebraTiming], *, max_batch: int, item_bytes: int, memory_bytes: int, gpus: int = 1
) -> AlgebraAnswer:
    """The largest batch that meets all constraints, then the fewest workers.

    Raises InputError where the algebra has no answer: no timings, a step that takes no time, or too little memory.
    """
    ratio = largest_ratio(timings)
    workers = workers_needed(ratio, gpus=gpus)
    if max_batch < 1:
        raise InputError(f"the largest batch must be at least 1, got {max_batch}")
    item_bytes = max(1, item_bytes)
    if not fits_memory(1, workers, item_bytes=item_bytes, memory_bytes=memory_bytes):
        raise InputError(f"{workers} workers of one item each do not fit in {memory_bytes} bytes of memory")
    fits = fits_memory(max_batch, workers, item_bytes=item_bytes, memory_bytes=memory_bytes)
    batch = max_batch if fits else batch_for(workers, item_bytes=item_bytes, memory_bytes=memory_bytes)
    return AlgebraAnswer(
        batch_size=batch,
        num_workers=workers,
        ratio=ratio,
        ratio_spread=ratio_spread(timings),
        bound_by="max_batch" if fits else "host_memory",
        most_workers=workers_for(batch, item_bytes=item_bytes, memory_bytes=memory_bytes),
        item_bytes=item_bytes,
        memory_bytes=memory_bytes,
        timings=tuple(timings),
    )
