"""The largest batch without running one: a step is logged on a fake device, and replayed at any size."""

import traceback
from functools import cache, cached_property
from typing import Any

from stoker.errors import InputError, StokerError
from stoker.memory.limit import Question
from stoker.memory.replay import Replay, largest, most_alive, replay, sturdy
from stoker.memory.trace.log import AllocationLog
from stoker.process.failures import own_place
from stoker.records import Mode, Record
from stoker.units import format_bytes
from stoker.workload.example import Example
from stoker.workload.workload import Workload

_UNLIMITED = 2**60
_MARGIN_BELOW, _MARGIN_ABOVE = 0.04, 0.01
"""How far the truth lay from the replay on the models whose maxima we have measured, outside its own two cases."""


class Estimate(Record, frozen=True):
    """What the replay says of one budget. `most` is what fits with convolutions' workspaces or without, the larger."""

    likely: int
    most: int
    interval: tuple[int, int]
    calm: int
    peak_bytes: int
    bytes_per_item: int
    fixed_bytes: int


def record(
    workload: Workload, mode: Mode, question: Question, gpu: str | None, example: Example | None = None
) -> AllocationLog:
    """Log a step; what cannot be followed is said, never guessed. Changes torch for good in this process."""
    from stoker.memory.trace import follow
    from stoker.memory.trace.gpus import DEFAULT_GPU

    try:
        return follow.record(
            workload,
            mode,
            question.precision,
            question.optimizer,
            gpu=gpu or DEFAULT_GPU,
            validate=question.validate,
            example=example,
        )
    except StokerError:
        raise
    except Exception as error:
        raise InputError(_cannot_follow(error)) from error


class Replays:
    """What the replay says of one log and one budget; each size is replayed once."""

    def __init__(self, log: AllocationLog, budget_bytes: int) -> None:
        self._log, self._budget_bytes = log, budget_bytes
        self._bound = most_alive(log, budget_bytes)
        self._at = cache(self._replayed)

    @cached_property
    def likely(self) -> int:
        """The largest batch that fits, convolutions taking the workspaces there is room for."""
        found = sturdy(self._fits, near=self._bound)
        if found == 0:
            needed = replay(self._log, 1, _UNLIMITED, scratch=False).reserved_peak_bytes
            raise InputError(too_large(needed, self._budget_bytes))
        return found

    @property
    def retries(self) -> int:
        """How often the allocator will have to return its cache at the likely size."""
        return self._at(self.likely, True).retries

    def estimate(self) -> Estimate:
        """All that it says."""
        likely = self.likely
        without = sturdy(lambda batch: self._fits(batch, scratch=False), near=self._bound)
        peak_bytes = self._at(likely, True).allocated_peak_bytes
        whole, half = (replay(self._log, batch, _UNLIMITED, scratch=False) for batch in (likely, max(1, likely // 2)))
        items = whole.batch_size - half.batch_size
        growth = (whole.allocated_peak_bytes - half.allocated_peak_bytes) / items if items else 0.0
        fixed = min(max(0.0, whole.allocated_peak_bytes - growth * likely), peak_bytes)
        per_item = int((peak_bytes - fixed) / likely)  # with its share of what convolutions find room for
        return Estimate(
            likely=likely,
            most=max(likely, without),
            interval=_interval(likely, without),
            calm=largest(self._calm, near=self._bound),
            peak_bytes=peak_bytes,
            bytes_per_item=per_item,
            fixed_bytes=max(0, peak_bytes - per_item * likely),
        )

    def primed(self) -> int:
        """The largest batch where a tiny one went first, and the workspaces lie apart from what it leaves."""
        return largest(lambda batch: replay(self._log, batch, self._budget_bytes, primed=2).fits, near=self._bound)

    def _fits(self, batch_size: int, scratch: bool = True) -> bool:
        return batch_size <= self._bound and self._at(batch_size, scratch).fits

    def _calm(self, batch_size: int) -> bool:
        """Whether it fits without the allocator ever having to return its cache and try again."""
        return self._fits(batch_size) and not self._at(batch_size, True).retries

    def _replayed(self, batch_size: int, scratch: bool) -> Replay:
        return replay(self._log, batch_size, self._budget_bytes, scratch=scratch)


def _interval(most: int, without: int) -> tuple[int, int]:
    low, high = sorted((most, without))
    return max(1, int(low * (1 - _MARGIN_BELOW))), -int(-high * (1 + _MARGIN_ABOVE) // 1)


def too_large(needed_bytes: int, budget_bytes: int) -> str:
    over = needed_bytes - budget_bytes
    return (
        f"not even a batch of 1 fits in {format_bytes(budget_bytes)}: it needs about {format_bytes(needed_bytes)}"
        + (f", {format_bytes(over)} more" if over > 0 else "")
        + "; bf16, an optimizer with less state, activation checkpointing or a larger GPU would help"
    )


def _cannot_follow(error: Exception) -> str:
    """A step that depends on values, or on kernels that only a GPU has, cannot be logged."""
    from torch._subclasses import fake_tensor

    names = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException")
    kinds: Any = tuple(getattr(fake_tensor, name) for name in names if hasattr(fake_tensor, name))
    why = next(iter(str(error).splitlines()), "")
    place = own_place("".join(traceback.format_exception(error)))
    where = f", at {place}" if place else ""
    if isinstance(error, kinds):
        return f"this step cannot be followed without a GPU: {why} depends on values that only a run has{where}"
    what = f"{type(error).__name__}: {why}" if why else type(error).__name__
    return f"the step fails where it is followed without a GPU: {what}{where}"
