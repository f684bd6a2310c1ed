"""Raw samples of short runs, from which any setting of a workload can be predicted.

A `Run` is not a `Trial`: a probes file holds about twenty runs, and a trial repeats the machine, the gauges and every
stage for each of them.
"""

from typing import Literal

import msgspec

from stoker.records.base import Record
from stoker.records.task import Setting
from stoker.records.trial import Subject

Kind = Literal["load", "slow", "transport", "step", "crowded", "kept", "single", "started", "threaded"]
"""What a run was for.

`load`: loading alone. `slow`: with a consumer that lets batches wait. `transport`: large batches of a few items that
are loaded once. `step`: steps alone. `crowded`: steps beside a worker that loads. `kept`: loading with a malloc that
keeps freed memory. `single`: loading without workers, with one thread. `started`: loading with another start method.
`threaded`: loading with another number of threads in each worker.
"""


PROBES_VERSION = 1


class Facts(Record, frozen=True):
    """What bounds a loader on this machine. `usable_cores` is the least of CPU affinity and quota."""

    usable_cores: float
    available_bytes: int
    shm_free_bytes: int | None
    open_files: int


class Run(Record, frozen=True):
    """One short run of the loop, with a sample for each batch (`item_s`: each item). Moments count from its start."""

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
    update_s: tuple[float, ...] = ()
    item_s: tuple[float, ...] = ()
    stages_s: dict[str, float] = msgspec.field(default_factory=dict)
    delay_s: tuple[float, ...] = ()
    output_bytes: dict[str, float] = msgspec.field(default_factory=dict)
    start_method: str | None = None
    worker_threads: int | None = None

    @property
    def load_s(self) -> tuple[float, ...]:
        """Seconds of each batch in its worker, without collating."""
        rows = zip(self.began_s, self.ended_s, self.collate_s, strict=True)
        return tuple(ended - began - collate for began, ended, collate in rows)


class Probes(Record, frozen=True):
    """All that a prediction needs: the machine, a description of the workload, and the runs.

    `ran_out`: a step ran out of device memory, so larger ones do too. `exchange_s` are times of an exchange of
    gradients among ranks; empty where none was seen.
    """

    subject: Subject
    machine: Facts
    setting: Setting
    runs: tuple[Run, ...]
    version: int = PROBES_VERSION
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    ran_out: bool = False
    exchange_s: tuple[float, ...] = ()

    def of(self, *kinds: Kind) -> list[Run]:
        return [run for run in self.runs if run.kind in kinds]
