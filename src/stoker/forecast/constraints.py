"""What the machine allows: a setting that would break it, or that it cannot serve, is ruled out, and the bound said."""

import math

from stoker.records import Facts, Record, RuledOut, Setting
from stoker.units import format_bytes, format_workers

_TENSORS_A_BATCH = 2
"""Each tensor on its way through shared memory holds a file open: inputs and target, where nothing else is known."""
_FILES_A_WORKER, _FILES_OF_OURS = 6, 64


class Bounds(Record, frozen=True):
    """The limits that a setting must keep. None is no limit. `max_accumulating_batch` is the largest batch if gradients
    are kept from one batch to the next."""

    usable_cores: float
    memory_bytes: int
    shm_bytes: int | None
    open_files: int
    max_batch: int | None = None
    max_accumulating_batch: int | None = None
    waiting_share: float = 0.0


def bounds_of(
    facts: Facts,
    *,
    host_memory_bytes: int | None = None,
    max_batch: int | None = None,
    max_accumulating_batch: int | None = None,
    waiting_share: float = 0.0,
    gpus: int = 1,
) -> Bounds:
    """The bounds of a machine; `host_memory_bytes` in place of what is free now. The loops of several GPUs share all
    but the files that each may open."""
    return Bounds(
        usable_cores=facts.usable_cores / gpus,
        memory_bytes=(facts.available_bytes if host_memory_bytes is None else host_memory_bytes) // gpus,
        shm_bytes=None if facts.shm_free_bytes is None else facts.shm_free_bytes // gpus,
        open_files=facts.open_files,
        max_batch=max_batch,
        max_accumulating_batch=max_accumulating_batch,
        waiting_share=waiting_share,
    )


def ruled_out(setting: Setting, item_bytes: float, bounds: Bounds) -> RuledOut | None:
    """The first bound that the setting breaks, or None."""
    for bound, sentence in (
        _device(setting, bounds),
        _shared_memory(setting, item_bytes, bounds),
        _host_memory(setting, item_bytes, bounds),
        _files(setting, bounds),
        _cpus(setting, bounds),
    ):
        if sentence:
            return RuledOut(
                batch_size=setting.batch_size, num_workers=setting.num_workers, bound=bound, sentence=sentence
            )
    return None


def workers_that_pay(bounds: Bounds) -> int:
    """How many workers keep the usable CPUs busy, given how much of their time they wait for storage."""
    return max(1, math.ceil(bounds.usable_cores / max(1 - bounds.waiting_share, 0.05) - 1e-9))


def _device(setting: Setting, bounds: Bounds) -> tuple[str, str]:
    most, kept = bounds.max_batch, ""
    if setting.accumulate > 1 and bounds.max_accumulating_batch is not None:
        most, kept = bounds.max_accumulating_batch, " where gradients are kept for the next batch"
    if most is None or setting.batch_size <= most:
        return "", ""
    return "device memory", f"a batch of {setting.batch_size} is above the largest of {most}{kept} (device memory)"


def _shared_memory(setting: Setting, item_bytes: float, bounds: Bounds) -> tuple[str, str]:
    needed = setting.in_flight_batches * setting.batch_size * item_bytes if setting.num_workers else 0
    if bounds.shm_bytes is None or needed <= bounds.shm_bytes:
        return "", ""
    return "/dev/shm", f"needs {format_bytes(needed)} of /dev/shm, {format_bytes(bounds.shm_bytes)} are free"


def _host_memory(setting: Setting, item_bytes: float, bounds: Bounds) -> tuple[str, str]:
    needed = (setting.in_flight_batches + setting.num_workers) * setting.batch_size * item_bytes
    if needed <= bounds.memory_bytes:
        return "", ""
    have = format_bytes(bounds.memory_bytes)
    return "host memory", f"needs {format_bytes(needed)} of host memory for batches, {have} may be used"


def _files(setting: Setting, bounds: Bounds) -> tuple[str, str]:
    needed = (
        _TENSORS_A_BATCH * setting.in_flight_batches + _FILES_A_WORKER * setting.num_workers + _FILES_OF_OURS
        if setting.num_workers
        else 0
    )
    if needed <= bounds.open_files:
        return "", ""
    return "file descriptors", f"needs about {needed} open files, {bounds.open_files} are allowed"


def _cpus(setting: Setting, bounds: Bounds) -> tuple[str, str]:
    most = workers_that_pay(bounds)
    if setting.num_workers <= most:
        return "", ""
    return "CPUs", f"{format_workers(setting.num_workers)} on {bounds.usable_cores:g} usable CPUs only take turns"
