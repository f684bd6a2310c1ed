"""The largest batch that fits a GPU, told without one: a step is logged on a fake device, and replayed."""

import traceback
from time import perf_counter
from typing import Any

from stoker.errors import InputError, StokerError
from stoker.measure import isolate
from stoker.measure.allocation_log import AllocationLog
from stoker.measure.outcomes import own_place
from stoker.measure.trial import Named, OnEvent, opened
from stoker.predict.memory import largest, replay
from stoker.records import Mode, Precision, Record
from stoker.units import format_bytes, parse_bytes
from stoker.workload.definition import Workload

_UNLIMITED = 2**60
_MARGIN_BELOW, _MARGIN_ABOVE = 0.04, 0.01
"""How far the truth lay from the replay on the models whose maxima we have measured, outside its own two cases."""


class Limit(Record, frozen=True):
    """A batch size that should fit. `interval` is where we expect the true maximum; nothing here has been run."""

    max_batch: int
    interval: tuple[int, int]
    comfortable_batch: int
    method: str
    gpu_memory_bytes: int
    peak_bytes_at_max: int
    bytes_per_item: int
    fixed_bytes: int
    workload: str
    mode: Mode
    precision: Precision
    optimizer: str | None
    attention: tuple[str, ...]
    unseen: tuple[str, ...]
    seconds: float


def limit(
    source: Workload | Named | str,
    *,
    gpu_memory: int | str,
    mode: Mode | None = None,
    precision: Precision = "fp32",
    optimizer: str | None = None,
    on_event: OnEvent | None = None,
) -> Limit:
    """The largest batch for a GPU on which tensors may take `gpu_memory` (bytes, or `16GiB`). None is needed or used.

    `optimizer` (sgd, momentum, adam, adamw) stands in for the workload's own.
    """
    began = perf_counter()
    gpu_memory_bytes = parse_bytes(gpu_memory) if isinstance(gpu_memory, str) else gpu_memory
    if gpu_memory_bytes < 1:
        raise InputError(f"GPU memory must be at least 1 byte, got {gpu_memory_bytes}")
    source = Named(spec=source) if isinstance(source, str) else source
    ended = isolate.run(
        _record, (source, mode, precision, optimizer), kind=tuple[Mode, AllocationLog], on_event=on_event, stall_s=300
    )
    mode, log = isolate.value(ended)
    likely, without = (_largest(log, gpu_memory_bytes, scratch=scratch) for scratch in (True, False))
    if likely == 0:
        raise InputError(_too_large(log, gpu_memory_bytes))
    at_most, half = (replay(log, batch, _UNLIMITED) for batch in (likely, max(1, likely // 2)))
    items = at_most.batch_size - half.batch_size
    per_item = (at_most.allocated_peak_bytes - half.allocated_peak_bytes) // items if items else 0
    return Limit(
        max_batch=likely,
        interval=_interval(likely, without),
        comfortable_batch=largest(lambda batch: _calm(log, batch, gpu_memory_bytes)),
        method="trace",
        gpu_memory_bytes=gpu_memory_bytes,
        peak_bytes_at_max=at_most.allocated_peak_bytes,
        bytes_per_item=per_item,
        fixed_bytes=max(0, at_most.allocated_peak_bytes - per_item * likely),
        workload=source.spec if isinstance(source, Named) else source.name,
        mode=mode,
        precision=precision,
        optimizer=optimizer,
        attention=log.attention,
        unseen=log.unseen,
        seconds=perf_counter() - began,
    )


def _largest(log: AllocationLog, gpu_memory_bytes: int, *, scratch: bool) -> int:
    return largest(lambda batch: replay(log, batch, gpu_memory_bytes, scratch=scratch).fits)


def _calm(log: AllocationLog, batch_size: int, gpu_memory_bytes: int) -> bool:
    """Whether it fits without the allocator ever having to return its cache and try again."""
    found = replay(log, batch_size, gpu_memory_bytes)
    return found.fits and not found.retries


def _interval(likely: int, without: int) -> tuple[int, int]:
    low, high = sorted((likely, without))
    return max(1, int(low * (1 - _MARGIN_BELOW))), -int(-high * (1 + _MARGIN_ABOVE) // 1)


def _too_large(log: AllocationLog, gpu_memory_bytes: int) -> str:
    needed = replay(log, 1, _UNLIMITED, scratch=False).reserved_peak_bytes
    return (
        f"not even a batch of 1 fits in {format_bytes(gpu_memory_bytes)}: it needs about {format_bytes(needed)}; "
        "bf16, an optimizer with less state, activation checkpointing or a larger GPU would help"
    )


def _record(
    source: Workload | Named, mode: Mode | None, precision: Precision, optimizer: str | None, emit: isolate.Emit
) -> tuple[Mode, AllocationLog]:
    from stoker.measure import allocations

    workload = opened(source, mode, emit)
    chosen = mode or workload.default_mode()
    try:
        return chosen, allocations.record(workload, chosen, precision, optimizer)
    except StokerError:
        raise
    except Exception as error:
        raise InputError(_cannot_follow(error)) from error


def _cannot_follow(error: Exception) -> str:
    """A step that depends on values, or on kernels that only a GPU has, cannot be logged: said, never guessed."""
    from torch._subclasses import fake_tensor

    names = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException")
    kinds: Any = tuple(getattr(fake_tensor, name) for name in names if hasattr(fake_tensor, name))
    if isinstance(error, kinds):
        return f"this step cannot be followed without a GPU: {error} depends on values that only a run has"
    why = next(iter(str(error).splitlines()), "")
    place = own_place("".join(traceback.format_exception(error)))
    where = f", at {place}" if place else ""
    return f"this step cannot be followed without a GPU: {type(error).__name__}: {why}{where}"
