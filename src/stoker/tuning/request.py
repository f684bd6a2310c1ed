"""What is asked of `tune`: one record for the command line and Python, which checks itself."""

import math
from typing import Any, Literal, get_args

import msgspec

from stoker.errors import InputError
from stoker.records import Mode, Objective, Planner, Precision, Record, RuledOut, Setting, StartMethod


class TuneRequest(Record, frozen=True):
    """The options of `tune`. Raises InputError for values that make no sense.

    None leaves a choice open: `items` to the length of the data set, sizes and workers to the planner, `mode` to the
    workload, memory to what is free.
    """

    items: int | None = None
    """Finish this many items soonest..."""
    epochs: int = 1
    """... this many times. Workers then persist."""
    throughput: bool = False
    """Find the highest steady rate instead; starting up does not count."""
    batch_size: int | Literal["free"] | None = None
    """Fixed: only the loader is tuned. `free` searches it. By default training keeps the batch of `current`, because it
    changes what is learned, and a batch that nobody named is searched."""
    max_batch: int | None = None
    """No batch above this."""
    global_batch: int | None = None
    """Keep this effective batch: batch × accumulation × GPUs or ranks."""
    gpus: int = 1
    """GPUs that share the CPUs, memory and /dev/shm of this machine. They need not be here: nothing runs on more than
    one of them."""
    ranks: int = 1
    """Processes that train together here, each with its own loader. They share the same, and are run."""
    current: Setting | None = None
    """The current setting. It is run beside the others, and the gain is relative to it."""
    gpu_memory: int | str | None = None
    """What tensors may take on the GPU, in bytes or as `11GiB`."""
    host_memory_bytes: int | None = None
    """What batches may take in host memory."""
    mode: Mode | None = None
    device: str = "auto"
    precision: Precision = "fp32"
    start_methods: tuple[StartMethod, ...] = ()
    """Ways to start workers to choose from, beside the current one."""
    worker_threads: tuple[int, ...] = ()
    """Numbers of torch's threads in each worker to choose from, beside the current one."""
    verify: bool = False
    """Run the first two remedies that are settings beside the plan."""
    budget_s: float = 60.0
    """About how long tuning may take."""
    planner: Planner = "simulate"

    def __post_init__(self) -> None:
        for name in ("items", "epochs", "fixed_batch", "max_batch", "global_batch", "gpus", "ranks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                name = "batch size" if name == "fixed_batch" else name.replace("_", " ")
                raise InputError(f"{name} must be at least 1, got {value}")
        if isinstance(self.batch_size, str) and self.batch_size != "free":
            raise InputError(f"a batch size is a number or free, got {self.batch_size!r}")
        if self.worker_threads and min(self.worker_threads) < 1:
            raise InputError(f"worker threads must be at least 1, got {min(self.worker_threads)}")
        for method in self.start_methods:
            if method not in get_args(StartMethod):
                raise InputError(f"no such start method: {method!r}; choose from {', '.join(get_args(StartMethod))}")
        if not 0 < self.budget_s < math.inf:
            raise InputError(f"the budget must be above 0 s, got {self.budget_s:g}")
        if self.planner not in get_args(Planner):
            raise InputError(f"no such planner: {self.planner!r}; choose {', '.join(get_args(Planner))}")
        if self.ranks > 1 and self.gpus > 1:
            raise InputError(
                f"--gpus {self.gpus} plans for GPUs that need not be here, and --ranks {self.ranks} runs ranks that "
                "are: give one of them"
            )
        if self.global_batch is not None and self.global_batch % self.replicas:
            raise InputError(f"a global batch of {self.global_batch} cannot be split evenly over {self.replicas_text}")
        if self.global_batch is not None and self.fixed_batch is not None:
            self.accumulation(self.fixed_batch)

    @classmethod
    def of(cls, **options: Any) -> "TuneRequest":
        """A request from options as users write them.

        `current` may be text like `batch=64,workers=4`. The planner `algebra` may go by its old name, `thesis`. Raises
        InputError for an unknown option.
        """
        unknown = [name for name in options if name not in cls.__struct_fields__]
        if unknown:
            raise InputError(f"no such option: {unknown[0]!r}; choose from {', '.join(cls.__struct_fields__)}")
        if isinstance(options.get("current"), str):
            options["current"] = parse_current(options["current"])
        if options.get("planner") == "thesis":
            options["planner"] = "algebra"
        return cls(**options)

    def objective(self, items: int) -> Objective:
        """What is minimised, for epochs of `items` items."""
        return Objective(items=items, epochs=self.epochs, kind="throughput" if self.throughput else "time")

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that was asked for."""
        return None if isinstance(self.batch_size, str) else self.batch_size

    def kept_batch(self, mode: Mode) -> int | None:
        """The batch size that tuning keeps: the one that was asked for, and in training the current one if nothing asks
        for another."""
        if self.fixed_batch is not None:
            return self.fixed_batch
        searched = self.batch_size == "free" or self.max_batch is not None or self.global_batch is not None
        if mode != "train" or self.current is None or searched:
            return None
        return self.current.batch_size

    @property
    def replicas(self) -> int:
        """How many processes share the machine: the GPUs that are planned for, or the ranks that run."""
        return self.gpus if self.gpus > 1 else self.ranks

    @property
    def replicas_text(self) -> str:
        return f"{self.ranks} ranks" if self.ranks > 1 else f"{self.gpus} GPUs"

    @property
    def bounds_the_batch(self) -> bool:
        """Whether the request says anything about the batch size."""
        return (self.fixed_batch, self.max_batch, self.global_batch) != (None, None, None)

    @property
    def global_share(self) -> int | None:
        """The share of the effective batch that each GPU or rank has."""
        return None if self.global_batch is None else self.global_batch // self.replicas

    def accumulation(self, batch_size: int) -> int:
        """How many batches make one update, so that the effective batch is exactly what was asked for.

        Raises InputError if the batch does not divide it.
        """
        share = self.global_share
        if share is None:
            return 1
        if share % batch_size:
            whose = "rank" if self.ranks > 1 else "GPU"
            raise InputError(
                f"a batch of {batch_size} does not divide {share}, each {whose}'s share of the global batch"
            )
        return share // batch_size

    def accumulating(self, setting: Setting, *, asked_for: bool) -> Setting:
        """The setting with its number of batches to an update. A size that was not asked for stays as it is."""
        return msgspec.structs.replace(
            setting, accumulate=self.accumulation(setting.batch_size) if asked_for else setting.accumulate
        )

    def with_batch(self, batch_size: int) -> "TuneRequest":
        """The request for a workload whose own sampler sets its batches."""
        current = self.current and msgspec.structs.replace(self.current, batch_size=batch_size)
        return msgspec.structs.replace(self, batch_size=batch_size, current=current)

    def check_epoch(self, mode: Mode, items: int | None) -> None:
        """Raises InputError for a global batch that no epoch fills."""
        if self.global_batch is None or mode != "train" or items is None or self.global_batch <= items:
            return
        raise InputError(
            f"a global batch of {self.global_batch} is more than the set's {items} items: no epoch has an update"
        )

    def is_current(self, setting: Setting | RuledOut) -> bool:
        """Whether this is the current setting. Of what was ruled out, only batch and workers are known."""
        now = self.current
        if now is None or (now.batch_size, now.num_workers) != (setting.batch_size, setting.num_workers):
            return False
        if isinstance(setting, RuledOut) or not now.num_workers:
            return True
        return all(getattr(now, name) == getattr(setting, name) for name in _OF_WORKERS)


_OF_WORKERS = ("prefetch_factor", "multiprocessing_context", "worker_threads")
"""Fields that say nothing without workers."""


def parse_current(text: str) -> Setting:
    """The setting in `batch=64,workers=4`, to which `prefetch=2`, `threads=2` (in each worker) and `start=spawn` may be
    added. Raises InputError for anything else."""
    names = {
        "batch": "batch_size",
        "workers": "num_workers",
        "prefetch": "prefetch_factor",
        "threads": "worker_threads",
        "start": "multiprocessing_context",
    }
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in names or not (name == "start" or value.isdecimal()):
            raise InputError(f"{text!r} is no setting; write it like batch=64,workers=4")
        values[names[name]] = value if name == "start" else int(value)
    if not {"batch_size", "num_workers"} <= values.keys():
        raise InputError(f"{text!r} is half a setting; write it like batch=64,workers=4")
    return Setting(**values)
