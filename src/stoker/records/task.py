"""What is asked of a run: a workload, a setting, an extent."""

import json
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import field

from stoker.errors import InputError
from stoker.records.base import Record

Mode = Literal["train", "infer"]
Precision = Literal["fp32", "bf16", "fp16"]
OptimizerName = Literal["sgd", "momentum", "adam", "adamw"]
StartMethod = Literal["fork", "spawn", "forkserver"]
Parallel = Literal["ddp", "dp"]
"""How a model runs on several devices: DistributedDataParallel with a process for each, or DataParallel in one."""


class Setting(Record, frozen=True):
    """What can be set about a run. None leaves the choice to the device: pinned memory where there is a GPU. Out of
    order, batches come as they are ready: a slow one holds back no other. `multiprocessing_context` is how workers are
    started, None as Python does. `worker_threads` are torch's threads in each worker, None as PyTorch sets them: one.
    `threads` are those of the loop's process, None as PyTorch and the workload's code set them.
    In training there is one update for `accumulate` batches.

    There are `ranks` processes that train one model together (`ddp`), each with its own loader: batch size, workers and
    threads are those of one rank. With `dp` one process has one loader, and splits each batch over `ranks` GPUs."""

    batch_size: int = 32
    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool | None = None
    persistent_workers: bool = False
    in_order: bool = True
    multiprocessing_context: StartMethod | None = None
    worker_threads: int | None = None
    threads: int | None = None
    accumulate: int = 1
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: bool = False
    cudnn_benchmark: bool = False
    ranks: int = 1
    parallel: Parallel = "ddp"

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "num_workers": 0, "prefetch_factor": 1, "accumulate": 1, "ranks": 1}
        least |= {"worker_threads": 1, "threads": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise InputError(f"{name.replace('_', ' ')} must be at least {lowest}, got {value}")
        if self.multiprocessing_context not in (None, *get_args(StartMethod)):
            known = ", ".join(get_args(StartMethod))
            raise InputError(f"no such start method: {self.multiprocessing_context!r}; choose from {known}")
        if self.parallel not in get_args(Parallel):
            raise InputError(f"no such way to use several devices: {self.parallel!r}; choose ddp or dp")

    @property
    def processes(self) -> int:
        """How many processes have a loader and a loop."""
        return self.ranks if self.parallel == "ddp" else 1

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

    With `memory_limit_bytes` the kernel limits the run, its workers and the page cache that they fill to so much
    memory.
    """

    batches: int | None = 50
    warmup: int | None = None
    epochs: int = 1
    source: Literal["files", "cached", "cold", "memory"] = "files"
    validate: bool = False
    seed: int = 0
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("warmup", 0), ("epochs", 1), ("memory_limit_bytes", 1)):
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

    @property
    def from_function(self) -> bool:
        """Whether `spec` is the user's own function or file; otherwise it is a model's name."""
        return ":" in self.spec or self.spec.endswith(".py")


TaskKind = Literal["profile", "probe", "limit", "tune", "search", "run", "converge"]


class Task(Record, frozen=True):
    """What was asked. Two tasks with the same `key()` ask the same thing, on whatever machine.

    `workload` is None for a live `Workload` object, which has no name that another process could use. `options` holds
    what only one kind of task has, such as the `method` and `gpu_memory` of a limit.
    """

    kind: TaskKind = "profile"
    workload: WorkloadSpec | None = None
    mode: Mode | None = None
    device: str = "auto"
    setting: Setting = Setting()
    extent: Extent = Extent()
    options: dict[str, str | int | float | bool] = field(default_factory=dict)

    def key(self) -> str:
        """A stable hash of what was asked, the same from the command line and from Python, in every process.

        Fields at their default are left out, so that a field added later changes no old key. For `file.py:function`
        the file's content is part of the key; modules that it imports and the content of data folders are not. Raises
        InputError for a live `Workload` object and for a file that cannot be read.
        """
        if self.workload is None:
            raise InputError(
                "a live Workload object has no key; name it as file.py:function, so that other processes find it"
            )
        asked = {**_without_defaults(self), "kind": self.kind, "workload": _identity(self.workload)}
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


_KEY_LENGTH = 20
"""Hexadecimal digits of a key: 80 bits, enough for any number of tasks that a store can hold."""


def _identity(spec: WorkloadSpec) -> dict[str, Any]:
    """What identifies a workload: a user's file by its name and content, paths in their absolute form."""
    identity = _without_defaults(spec)
    path, colon, function = spec.spec.rpartition(":")
    if colon and path.endswith(".py"):
        file = Path(path).expanduser()
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        identity["spec"] = f"{file.name}:{function}#{sha256(content).hexdigest()[:_KEY_LENGTH]}"
    for name in ("data", "weights"):
        if name in identity and Path(identity[name]).expanduser().exists():
            identity[name] = str(Path(identity[name]).expanduser().resolve())
    return identity


def _without_defaults(record: msgspec.Struct) -> dict[str, Any]:
    """The fields that differ from their defaults, records inside records likewise."""
    found: dict[str, Any] = {}
    for name, default in _defaults(type(record)):
        value = getattr(record, name)
        if value != default:
            found[name] = _without_defaults(value) if isinstance(value, msgspec.Struct) else value
    return found


@cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Every field of a record with its default: to look them up costs more than all the rest of a key."""
    return [
        (each.name, each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory())
        for each in msgspec.structs.fields(kind)
    ]
