"""What crosses layers: frozen records, checked where they are made, with JSON for free.

A `Trial` keeps raw samples; every statistic is derived from them when it is asked for.
"""

from typing import Any, Literal, TypeVar

import msgspec

from stoker.errors import InputError

Outcome = Literal["done", "oom", "crashed", "timed_out", "failed"]
Mode = Literal["train", "infer"]
Precision = Literal["fp32", "bf16", "fp16"]
Clock = Literal["loop", "worker"]

WORKER_STAGES = ("read", "decode", "transform", "item", "collate", "send", "pin")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record."""


# ---------------------------------------------------------------- the machine


class Throttling(Record, frozen=True):
    """How often and how long the cgroup's quota held this group back since it was made."""

    periods: int
    throttled_periods: int
    throttled_s: float


class Cpu(Record, frozen=True):
    model: str
    logical: int
    physical: int | None
    affinity: int
    quota: float | None
    usable: float
    throttling: Throttling | None = None


class Host(Record, frozen=True):
    """Memory and the limits that break loaders. `limit_bytes` is the least of RAM and every cgroup limit above us."""

    ram_bytes: int
    cgroup_limit_bytes: int | None
    limit_bytes: int
    available_bytes: int
    shm_bytes: int | None
    shm_free_bytes: int | None
    open_files_soft: int
    open_files_hard: int
    start_method: str


class GpuProcess(Record, frozen=True):
    pid: int
    name: str | None
    used_bytes: int | None


class Gpu(Record, frozen=True):
    """`exclusive`: the driver lets one process at a time compute on it."""

    index: int
    name: str
    uuid: str
    memory_total_bytes: int
    memory_free_bytes: int
    compute_capability: str | None
    utilisation: float | None
    processes: tuple[GpuProcess, ...] = ()
    exclusive: bool = False


class Cuda(Record, frozen=True):
    """The stack between torch and the GPUs. `problem` says in one sentence why there is none, or what is broken.

    `cuda`, `cudnn` and `usable` are torch's own word: known only where it was asked (`torch_asked`).
    """

    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    usable: bool = False
    torch_asked: bool = False
    allocator: str | None = None
    visible_devices: str | None = None
    problem: str | None = None


class Software(Record, frozen=True):
    stoker: str
    python: str
    torch: str | None
    torchvision: str | None
    numpy: str | None
    pillow: str | None
    system: str


class Storage(Record, frozen=True):
    """What lies behind a path."""

    path: str
    mount: str
    filesystem: str
    device: str
    kind: Literal["nvme", "ssd", "hdd", "memory", "network", "virtual", "unknown"]


class ReadSpeed(Record, frozen=True):
    """One way of reading: raw seconds for each chunk or file, and how many bytes each had."""

    samples_s: tuple[float, ...]
    samples_bytes: tuple[int, ...]

    @property
    def bytes_per_s(self) -> float:
        return sum(self.samples_bytes) / max(sum(self.samples_s), 1e-12)

    @property
    def reads_per_s(self) -> float:
        return len(self.samples_s) / max(sum(self.samples_s), 1e-12)


class Disk(Record, frozen=True):
    """Measured reads of real files. `evicted` is the share of their pages that had left the page cache for `cold`."""

    storage: Storage
    files: int
    evicted: float
    sequential_cold: ReadSpeed | None
    sequential_cached: ReadSpeed | None
    small_cold: ReadSpeed | None
    small_cached: ReadSpeed | None


class Hint(Record, frozen=True):
    """Something that breaks people's runs, and what to do about it."""

    what: str
    remedy: str


class Machine(Record, frozen=True):
    cpu: Cpu
    host: Host
    gpus: tuple[Gpu, ...]
    cuda: Cuda
    software: Software
    storage: Storage | None = None
    disk: Disk | None = None
    hints: tuple[Hint, ...] = ()


# ---------------------------------------------------------------- a trial


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


OWN_UPDATES = "the workload's own step makes its updates itself: Stoker cannot gather several batches into one"
"""What is said of a trial whose setting accumulates, where it cannot."""


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


class Subject(Record, frozen=True):
    """What was run, in words and counts. `items` are an epoch's; a `batch_sampler` of its own sets its batches."""

    name: str
    model: str
    data: str
    mode: Mode
    device: str
    items: int | None
    parameters: int | None = None
    stream: bool = False
    batch_sampler: bool = False


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
    """What each batch saw in its worker: which worker, when it began and ended it, its CPU time, each item's time."""

    worker: tuple[int, ...] = ()
    began_s: tuple[float, ...] = ()
    ended_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()
    item_s: tuple[float, ...] = ()
    batch_bytes: tuple[int, ...] = ()


class Verdict(Record, frozen=True):
    bottleneck: str
    share: float
    sentence: str


class Problem(Record, frozen=True):
    """Why a trial did not end well: one sentence, the person's own file and line where there is one, what to do."""

    sentence: str
    where: str | None = None
    remedy: str | None = None
    detail: str | None = None


class Trial(Record, frozen=True):
    """One measured run of a workload under a setting."""

    outcome: Outcome
    workload: Subject
    setting: Setting
    extent: Extent
    machine: Machine | None = None
    items: int = 0
    total_s: float = 0.0
    start_s: float = 0.0
    stages: dict[str, Stage] = {}
    timeline: Timeline = Timeline()
    workers: WorkerLog = WorkerLog()
    gauges: dict[str, Gauge] = {}
    notes: tuple[str, ...] = ()
    problem: Problem | None = None
    scores: tuple[float, ...] = ()
    peaks: dict[str, int] = {}

    @property
    def first_batch_s(self) -> float | None:
        """How long the loop waited for its first batch, once the workers had been started."""
        wait = self.stages.get("wait")
        return wait.samples_s[0] if wait and wait.samples_s else None

    @property
    def items_per_s(self) -> float | None:
        """Over the whole run, start and first batch included."""
        return self.items / self.total_s if self.total_s > 0 and self.items else None


T = TypeVar("T")


def encode(record: Any) -> bytes:
    """As JSON. A file's name may be no text that JSON can hold: a question mark stands for what it cannot."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(record)))


def _as_text(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode(errors="replace").decode()
    if isinstance(data, dict):
        return {_as_text(name): _as_text(value) for name, value in data.items()}
    return [_as_text(each) for each in data] if isinstance(data, list | tuple) else data


def decode(data: bytes, kind: type[T]) -> T:
    """Read a record back; what does not fit is the reader's to see, in one sentence."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InputError(f"no {kind.__name__.lower()} that this version can read: {error}") from None
