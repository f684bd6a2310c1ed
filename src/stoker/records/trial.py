"""One measured run. A `Trial` keeps raw samples; every statistic is derived from them when it is asked for."""

from datetime import datetime
from typing import Literal

from msgspec import field

from stoker.records.base import Record
from stoker.records.machine import Machine
from stoker.records.task import Extent, Mode, Setting, Task
from stoker.units import format_seconds, format_workers

Outcome = Literal["done", "oom", "crashed", "timed_out", "failed"]
Clock = Literal["loop", "worker"]

WORKER_STAGES = ("read", "decode", "transform", "item", "collate", "send", "pin")

OWN_UPDATES = "the workload's own step makes its updates itself: Stoker cannot gather several batches into one"
"""What is said of a trial whose setting accumulates, where it cannot."""


Batching = Literal["size", "sampler", "function", "dataset"]
"""What makes batches: the loader from items, a batch sampler, a function that makes one for a size, or the dataset."""


class Subject(Record, frozen=True):
    """What was run, in words and counts. `items` are an epoch's; with `batch_sampler` the workload itself sets its
    batches. `mode_reason` says why it is in this mode; `current` is the setting of the DataLoader that was given.
    `repeats`: a stream that does not share its items out, so that each of several workers gives all of them;
    `shards`: how many workers a stream can be shared out to, if it says so."""

    name: str
    model: str
    data: str
    mode: Mode
    device: str
    items: int | None
    parameters: int | None = None
    stream: bool = False
    batch_sampler: bool = False
    batching: Batching = "size"
    mode_reason: str = ""
    current: Setting | None = None
    repeats: bool = False
    shards: int | None = None


class Stage(Record, frozen=True):
    """Seconds of one stage, a sample a batch (`start`, `stop`, `score`: one an epoch; `other`: one more, for the end).

    `loop` stages share the wall clock of the run; `worker` stages share the time of the worker processes.
    """

    clock: Clock
    samples_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        return sum(self.samples_s)


class Gauge(Record, frozen=True):
    """Readings taken beside the run, at `times_s` after its start."""

    times_s: tuple[float, ...]
    samples: tuple[float, ...]

    @property
    def average(self) -> float:
        return sum(self.samples) / len(self.samples) if self.samples else 0.0

    @property
    def maximum(self) -> float:
        return max(self.samples, default=0.0)


class Timeline(Record, frozen=True):
    """When the loop asked for each batch, had it, and had handed its step to the device; seconds after the run's start.

    `items` counts each batch; `batches` and `epoch_s` each epoch.
    """

    asked_s: tuple[float, ...] = ()
    got_s: tuple[float, ...] = ()
    done_s: tuple[float, ...] = ()
    items: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    epoch_s: tuple[float, ...] = ()


class WorkerLog(Record, frozen=True):
    """What each batch saw in its worker: which worker, when it began and ended it, its CPU time, each item's time.

    `delay_s` is how long the worker was ready to run and got no CPU; empty where the system does not say.
    `output_bytes` are the mean bytes of what decoding and each transform returned for an item.
    """

    worker: tuple[int, ...] = ()
    began_s: tuple[float, ...] = ()
    ended_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()
    item_s: tuple[float, ...] = ()
    batch_bytes: tuple[int, ...] = ()
    delay_s: tuple[float, ...] = ()
    output_bytes: dict[str, float] = field(default_factory=dict)

    @property
    def waiting_share(self) -> float:
        """The share of the workers' time in which they used no CPU and wanted none: they read or slept."""
        span_s = sum(self.ended_s) - sum(self.began_s)
        return max(0.0, 1 - (sum(self.cpu_s) + sum(self.delay_s)) / span_s) if span_s > 0 else 0.0


class RankLog(Record, frozen=True):
    """What one of several ranks did, as a trial of one process would keep it. Moments count from the start of the whole
    run. `items` are this rank's alone."""

    rank: int
    items: int
    total_s: float
    start_s: float
    stages: dict[str, Stage]
    timeline: Timeline = Timeline()
    workers: WorkerLog = WorkerLog()
    peaks: dict[str, int] = field(default_factory=dict)


class Problem(Record, frozen=True):
    """Why a trial did not end well: one sentence, the user's own file and line where there is one, what to do. `rank`
    is the rank that it happened in, where there are several."""

    sentence: str
    where: str | None = None
    remedy: str | None = None
    detail: str | None = None
    rank: int | None = None


class Trial(Record, frozen=True):
    """One measured run of a workload under a setting.

    `task` says what was asked and `when` the run began. `interference` is how many CPUs other processes used meanwhile,
    and `idle_cpus` how many nobody used; None where the system does not say. `run_delay` is how many of the run's own
    threads were ready to run and got no CPU, on average: None where it was not read. `threads` are torch's in the
    loop's process. `reference_s` are times of a fixed short job right before the run: they tell how fast the machine
    was at that moment. `updates_itself`: the setting accumulates, but the workload's own step makes its updates itself.
    `fits_workers`: the run reached its memory limit, and with so many workers it still ran; None where that is unknown.
    `started` are short loadings of the same items with workers, right after a run without: they tell what workers take
    to start, and what it takes to receive their batches.

    With several ranks, `items` are those of all ranks. Stages, timeline and workers are those of rank `pace_rank`,
    which has the most work of its own, and `rank_logs` has every one's.
    """

    outcome: Outcome
    workload: Subject
    setting: Setting
    extent: Extent
    machine: Machine | None = None
    items: int = 0
    total_s: float = 0.0
    start_s: float = 0.0
    stages: dict[str, Stage] = field(default_factory=dict)
    timeline: Timeline = Timeline()
    workers: WorkerLog = WorkerLog()
    gauges: dict[str, Gauge] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: Problem | None = None
    scores: tuple[float | None, ...] = ()
    peaks: dict[str, int] = field(default_factory=dict)
    interference: float | None = None
    idle_cpus: float | None = None
    run_delay: float | None = None
    threads: int | None = None
    task: Task | None = None
    when: datetime | None = None
    reference_s: tuple[float, ...] = ()
    updates_itself: bool = False
    fits_workers: int | None = None
    started: "tuple[Trial, ...]" = ()
    rank_logs: tuple[RankLog, ...] = ()
    pace_rank: int | None = None

    def __repr__(self) -> str:
        """One line: raw samples would fill pages."""
        ran, setting = self.workload, self.setting
        took = f", {self.items} items in {format_seconds(self.total_s)}" if self.items else ""
        batch = "its own batches" if ran.batch_sampler else f"batch {setting.batch_size}"
        return f"<Trial {self.outcome}: {ran.name}, {ran.mode}, {batch}, {format_workers(setting.num_workers)}{took}>"

    @property
    def first_batch_s(self) -> float | None:
        """How long the loop waited for its first batch, once the workers had been started."""
        wait = self.stages.get("wait")
        return wait.samples_s[0] if wait and wait.samples_s else None

    @property
    def items_per_s(self) -> float | None:
        """Over the whole run, start and first batch included."""
        return self.items / self.total_s if self.total_s > 0 and self.items else None
