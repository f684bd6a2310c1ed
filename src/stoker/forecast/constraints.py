"""What the machine allows. A setting that would break it, or that it cannot serve, is ruled out by a named bound."""

import math

from stoker.machine.hints import LOADER_FILES
from stoker.records import Bound, Facts, Record, RuledOut, Setting
from stoker.units import format_bytes, format_workers

WORKER_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of workers that are considered: every small one, then steps of a third to a half."""


class ConstraintRules(Record, frozen=True):
    """What is taken for granted about a machine."""

    least_computing: float = 0.05
    """At least this share of a worker's time counts as computing, so that the number of workers that pays is finite."""


RULES = ConstraintRules()


class Bounds(Record, frozen=True):
    """The limits of a machine. None means no limit."""

    usable_cores: float
    memory_bytes: int
    shm_bytes: int | None
    open_files: int
    max_batch: int | None = None
    max_accumulating_batch: int | None = None
    """The largest batch if gradients are kept from one batch to the next."""
    waiting_share: float = 0.0
    shards: int | None = None
    """How many workers a stream can be shared out to."""


def bounds_of(
    facts: Facts,
    *,
    host_memory_bytes: int | None = None,
    max_batch: int | None = None,
    max_accumulating_batch: int | None = None,
    waiting_share: float = 0.0,
    gpus: int = 1,
    shards: int | None = None,
) -> Bounds:
    """The bounds of one training process on a machine.

    `host_memory_bytes` replaces what is free now. The processes of several GPUs share everything but open files, which
    are limited for each process.
    """
    return Bounds(
        usable_cores=facts.usable_cores / gpus,
        memory_bytes=(facts.available_bytes if host_memory_bytes is None else host_memory_bytes) // gpus,
        shm_bytes=None if facts.shm_free_bytes is None else facts.shm_free_bytes // gpus,
        open_files=facts.open_files,
        max_batch=max_batch,
        max_accumulating_batch=max_accumulating_batch,
        waiting_share=waiting_share,
        shards=shards,
    )


def ruled_out(setting: Setting, item_bytes: float, bounds: Bounds) -> RuledOut | None:
    """The first bound that the setting breaks, or None."""
    checks: tuple[tuple[Bound, str | None], ...] = (
        ("device_memory", _device(setting, bounds)),
        ("shm", _shared_memory(setting, item_bytes, bounds)),
        ("host_memory", _host_memory(setting, item_bytes, bounds)),
        ("open_files", _files(setting, bounds)),
        ("cpus", _cpus(setting, bounds)),
        ("shards", _shards(setting, bounds)),
    )
    for bound, sentence in checks:
        if sentence is not None:
            return RuledOut(
                batch_size=setting.batch_size, num_workers=setting.num_workers, bound=bound, sentence=sentence
            )
    return None


def workers_that_pay(bounds: Bounds) -> int:
    """How many workers keep the usable CPUs busy, given the share of their time in which they wait for storage."""
    return max(1, math.ceil(bounds.usable_cores / max(1 - bounds.waiting_share, RULES.least_computing) - 1e-9))


def _device(setting: Setting, bounds: Bounds) -> str | None:
    most, with_gradients = bounds.max_batch, ""
    if setting.accumulate > 1 and bounds.max_accumulating_batch is not None:
        most, with_gradients = bounds.max_accumulating_batch, " with accumulated gradients"
    if most is None or setting.batch_size <= most:
        return None
    return f"a batch of {setting.batch_size} is above the largest of {most}{with_gradients} (device memory)"


def _shared_memory(setting: Setting, item_bytes: float, bounds: Bounds) -> str | None:
    needed = setting.in_flight_batches * setting.batch_size * item_bytes if setting.num_workers else 0
    if bounds.shm_bytes is None or needed <= bounds.shm_bytes:
        return None
    return f"needs {format_bytes(needed)} of /dev/shm, {format_bytes(bounds.shm_bytes)} are free"


def _host_memory(setting: Setting, item_bytes: float, bounds: Bounds) -> str | None:
    needed = (setting.in_flight_batches + setting.num_workers) * setting.batch_size * item_bytes
    if needed <= bounds.memory_bytes:
        return None
    return f"needs {format_bytes(needed)} of host memory for batches, {format_bytes(bounds.memory_bytes)} may be used"


def _files(setting: Setting, bounds: Bounds) -> str | None:
    needed = LOADER_FILES.needed(setting)
    if needed <= bounds.open_files:
        return None
    return f"needs about {needed} open files, {bounds.open_files} are allowed"


def _cpus(setting: Setting, bounds: Bounds) -> str | None:
    if setting.num_workers <= workers_that_pay(bounds):
        return None
    return f"{format_workers(setting.num_workers)} on {bounds.usable_cores:g} usable CPUs only take turns"


def _shards(setting: Setting, bounds: Bounds) -> str | None:
    if bounds.shards is None or setting.num_workers <= max(1, bounds.shards):
        return None
    return f"{bounds.shards} of {format_workers(setting.num_workers)} have items: the stream has no more shards"
