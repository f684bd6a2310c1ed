"""What is asked of a run: a workload, a setting, an extent."""

from typing import Literal

from stoker.errors import InputError
from stoker.records.base import Record

Mode = Literal["train", "infer"]
Precision = Literal["fp32", "bf16", "fp16"]


class Setting(Record, frozen=True):
    """What can be set about a run. None leaves the choice to the device: pinned memory where there is a GPU. Out of
    order, batches come as they are ready: a slow one holds back no other. In training there is one update for
    `accumulate` batches."""

    batch_size: int = 32
    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool | None = None
    persistent_workers: bool = False
    in_order: bool = True
    accumulate: int = 1
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: bool = False
    cudnn_benchmark: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_workers", 0), ("prefetch_factor", 1), ("accumulate", 1)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name.replace('_', ' ')} must be at least {least}, got {value}")

    @property
    def in_flight_batches(self) -> int:
        """How many batches exist at once: those prefetched, one at the loop, one on its way."""
        return self.prefetch_factor * self.num_workers + 2


class Extent(Record, frozen=True):
    """How much of the workload a trial runs, and from where.

    Without a `warmup` it is as many batches as there are workers, and at least 3.

    Each epoch has `warmup` + `batches` batches, or the whole set where `batches` is None. `source` says where the data
    lies when the run begins: `files` as they are, evicted from the page cache (`cold`), brought into it (`cached`), or
    as batches already in memory (`memory`), which leaves the loader out.
    """

    batches: int | None = 50
    warmup: int | None = None
    epochs: int = 1
    source: Literal["files", "cached", "cold", "memory"] = "files"
    validate: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("warmup", 0), ("epochs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")

    def warm_batches(self, num_workers: int) -> int:
        """How many batches of each epoch are not counted as steady."""
        return max(3, num_workers) if self.warmup is None else self.warmup


class WorkloadSpec(Record, frozen=True):
    """A workload by name, to be made where it runs: a model's name with data, or `train.py:workload`."""

    spec: str
    data: str | None = None
    items: int | None = None
    weights: str | None = None
