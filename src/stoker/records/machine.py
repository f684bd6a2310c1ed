"""What a run happened on: processors, memory, GPUs, software, storage."""

from typing import Literal

from stoker.records.base import Record


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
    """Memory and the limits that break loaders. `limit_bytes` is the least of RAM and every cgroup limit above us.

    `limits_memory`: whether a run can be given a memory limit here; None where that was not tried. `limits_problem`
    says why not.
    """

    ram_bytes: int
    cgroup_limit_bytes: int | None
    limit_bytes: int
    available_bytes: int
    shm_bytes: int | None
    shm_free_bytes: int | None
    open_files_soft: int
    open_files_hard: int
    start_method: str
    limits_memory: bool | None = None
    limits_problem: str | None = None


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
