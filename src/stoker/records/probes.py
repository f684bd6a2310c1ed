"""Raw samples of short runs, from which any setting of a workload can be predicted."""

from typing import Literal

import msgspec

from stoker.records.base import Record
from stoker.records.task import Setting
from stoker.records.trial import Subject

Kind = Literal["load", "slow", "transport", "step", "crowded", "kept", "single"]
"""What a run was for: loading alone; with a slow consumer; large batches of items kept in memory; steps alone; steps
beside busy workers; loading with a malloc that keeps what is freed; loading without workers, with one thread."""


PROBES_VERSION = 1


class Facts(Record, frozen=True):
    """What of the machine bounds a loader. `usable_cores` is the least of affinity and quota."""

    usable_cores: float
    memory_bytes: int
    available_bytes: int
    shm_free_bytes: int | None
    open_files: int
    gpu_memory_bytes: int | None = None


class Run(Record, frozen=True):
    """One short run of the loop, a sample a batch (`item_s`: one an item); moments are seconds after its start."""

    kind: Kind
    batch_size: int
    num_workers: int
    prefetch_factor: int
    pinned: bool
    total_s: float
    start_s: float
    asked_s: tuple[float, ...]
    got_s: tuple[float, ...]
    done_s: tuple[float, ...]
    items: tuple[int, ...]
    bytes: tuple[int, ...]
    worker: tuple[int, ...] = ()
    began_s: tuple[float, ...] = ()
    ended_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()
    collate_s: tuple[float, ...] = ()
    send_s: tuple[float, ...] = ()
    pin_s: tuple[float, ...] = ()
    device_s: tuple[float, ...] = ()
    copy_s: tuple[float, ...] = ()
    update_s: tuple[float, ...] = ()
    item_s: tuple[float, ...] = ()
    stages_s: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def load_s(self) -> tuple[float, ...]:
        """What each batch's items took, collating left out."""
        rows = zip(self.began_s, self.ended_s, self.collate_s, strict=True)
        return tuple(ended - began - collate for began, ended, collate in rows)


class Probes(Record, frozen=True):
    """All that a prediction needs: the machine, the workload in words, and the runs. Where a step `ran_out` of memory,
    larger ones do too."""

    subject: Subject
    machine: Facts
    setting: Setting
    runs: tuple[Run, ...]
    version: int = PROBES_VERSION
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    ran_out: bool = False

    def of(self, *kinds: Kind) -> list[Run]:
        return [run for run in self.runs if run.kind in kinds]
