"""What is asked of `tune`: one record for the command line and Python, which checks itself."""

import math
from typing import Any, get_args

import msgspec

from stoker.errors import InputError
from stoker.records import Mode, Objective, Planner, Precision, Record, RuledOut, Setting


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
    batch_size: int | None = None
    """Fixed: only the workers are chosen."""
    max_batch: int | None = None
    """No batch above this."""
    global_batch: int | None = None
    """Keep this effective batch: batch × accumulation × GPUs."""
    gpus: int = 1
    """GPUs that share the CPUs, memory and /dev/shm of this machine."""
    current: Setting | None = None
    """The current setting. It is run beside the others, and the gain is relative to it."""
    gpu_memory: int | str | None = None
    """What tensors may take on the GPU, in bytes or as `11GiB`."""
    host_memory_bytes: int | None = None
    """What batches may take in host memory."""
    mode: Mode | None = None
    device: str = "auto"
    precision: Precision = "fp32"
    budget_s: float = 60.0
    """About how long tuning may take."""
    planner: Planner = "simulate"

    def __post_init__(self) -> None:
        for name in ("items", "epochs", "batch_size", "max_batch", "global_batch", "gpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name.replace('_', ' ')} must be at least 1, got {value}")
        if not 0 < self.budget_s < math.inf:
            raise InputError(f"the budget must be above 0 s, got {self.budget_s:g}")
        if self.planner not in get_args(Planner):
            raise InputError(f"no such planner: {self.planner!r}; choose {', '.join(get_args(Planner))}")
        if self.global_batch is not None and self.global_batch % self.gpus:
            raise InputError(f"a global batch of {self.global_batch} cannot be split evenly over {self.gpus} GPUs")
        if self.global_batch is not None and self.batch_size is not None:
            self.accumulation(self.batch_size)

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
    def bounds_the_batch(self) -> bool:
        """Whether the request says anything about the batch size."""
        return (self.batch_size, self.max_batch, self.global_batch) != (None, None, None)

    @property
    def global_share(self) -> int | None:
        """Each GPU's share of the effective batch."""
        return None if self.global_batch is None else self.global_batch // self.gpus

    def accumulation(self, batch_size: int) -> int:
        """How many batches make one update, so that the effective batch is exactly what was asked for.

        Raises InputError if the batch does not divide it.
        """
        share = self.global_share
        if share is None:
            return 1
        if share % batch_size:
            raise InputError(f"a batch of {batch_size} does not divide {share}, each GPU's share of the global batch")
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
        return isinstance(setting, RuledOut) or now.prefetch_factor == setting.prefetch_factor or not now.num_workers


def parse_current(text: str) -> Setting:
    """The setting in `batch=64,workers=4` or `batch=64,workers=4,prefetch=2`. Raises InputError for anything else."""
    names = {"batch": "batch_size", "workers": "num_workers", "prefetch": "prefetch_factor"}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in names or not value.strip().isdecimal():
            raise InputError(f"{text!r} is no setting; write it like batch=64,workers=4")
        values[names[name]] = int(value)
    if not {"batch_size", "num_workers"} <= values.keys():
        raise InputError(f"{text!r} is half a setting; write it like batch=64,workers=4")
    return Setting(**values)
