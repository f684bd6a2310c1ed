"""The user's description of what to run: model, data, and the training or inference step."""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stoker.errors import InputError
from stoker.records import Batching, Mode, Setting


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What to run.

    `model`, `dataset` and `validation` are objects, or functions that make them. A function is called in the run's own
    process.

    A batch is what the loader yields: `(inputs, target)` (of several values the last is the target), inputs alone, or a
    mapping of keyword arguments (with `labels`). A loss from `torch.nn` receives the logits, your own loss what the
    model returned. Without a loss, a model that returns its loss (as those of transformers do) trains on that.

    `optimizer` is called with the parameters to train, as `torch.optim.AdamW` is. `step(model, batch)` replaces the
    forward pass and the loss. If it returns a loss, backward and update follow; if it returns None, it did them itself.
    `forward(model, inputs)` replaces only the call of the model. `metric(output, target)` scores a validation batch.
    `files` lists the files that the dataset reads, so that a cold run can evict them from the page cache.

    A `torch.utils.data.DataLoader`, or a function that makes one, may stand in place of a dataset, as `dataset` or as
    `loader`: its dataset, order, functions and setting are used, except for the parts that are given beside it.
    `batch_sampler` may be a function that makes one for a batch size. `batched`: the dataset gives whole batches.
    `shuffle` is None for a random order in training only. `current` is the present setting, by default the loader's.

    `ddp` has arguments of `DistributedDataParallel`, for runs of several ranks, such as `find_unused_parameters`.

    `on_device` says that batches lie on the device already, `from_example` that the dataset repeats an example batch.

    Raises InputError for a missing model or dataset, and for a part that cannot be called.
    """

    model: Any
    dataset: Any = None
    loader: Any = None
    loss: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    validation: Any = None
    metric: Callable[[Any, Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    sampler: Any = None
    batch_sampler: Any = None
    batched: bool = False
    shuffle: bool | None = None
    drop_last: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    step: Callable[[Any, Any], Any] | None = None
    forward: Callable[[Any, Any], Any] | None = None
    files: Callable[[], Iterable[str | Path]] | Sequence[str | Path] | None = None
    name: str = "workload"
    data_name: str | None = None
    on_device: bool = False
    from_example: bool = False
    current: Setting | None = None
    ddp: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.loader is not None:
            if self.dataset is not None:
                raise InputError("a workload takes a dataset or a loader, not both: a loader has its dataset")
            object.__setattr__(self, "dataset", self.loader)
            object.__setattr__(self, "loader", None)
        if self.model is None or self.dataset is None:
            raise InputError(
                "a workload needs a model, and a dataset or a loader, as objects or as functions that make them"
            )
        for name in ("loss", "optimizer", "metric", "collate_fn", "worker_init_fn", "step", "forward"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                remedy = "; give its class, or a functools.partial of it" if name == "optimizer" else ""
                raise InputError(f"a workload's {name} must be something to call, got {type(value).__name__}{remedy}")
        for name in ("name", "data_name"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "data_name" and value is None):
                raise InputError(f"a workload's {name} must be a text, got {type(value).__name__}")
        if self.ddp is not None and not isinstance(self.ddp, Mapping):
            raise InputError(f"a workload's ddp must be a mapping of arguments, got {type(self.ddp).__name__}")
        if self.sampler is not None and self.batch_sampler is not None:
            raise InputError("a workload takes a sampler or a batch_sampler, not both")
        if self.batched and self.batch_sampler is not None:
            raise InputError("a dataset that gives whole batches takes no batch_sampler")
        self._take_loaders_apart()

    def _take_loaders_apart(self) -> None:
        """Put the parts of a DataLoader in its place. One that a function makes is taken apart where it is made."""
        if "torch.utils.data" not in sys.modules:  # then no object is a DataLoader
            return
        from stoker.workload.loaders import parts_beside

        for name, value in parts_beside(self).items():
            object.__setattr__(self, name, value)

    def mode_choice(self, asked: Mode | None = None) -> tuple[Mode, str]:
        """The mode, and why: asked for, `train` if something shows that it trains, otherwise `infer`."""
        if asked is not None:
            return asked, "as asked"
        if self.loss is not None:
            return "train", "it has a loss"
        if self.optimizer is not None:
            return "train", "it has an optimizer"
        if self.step is not None and _calls_backward(self.step):
            return "train", "its step calls backward"
        return "infer", "no loss, no optimizer"

    def default_mode(self) -> Mode:
        """`train` with a loss, an optimizer, or a step that calls `backward`; otherwise `infer`."""
        return self.mode_choice()[0]

    @property
    def batching(self) -> Batching:
        """Who sets the batch size: the setting, directly or through a function, or else the workload itself."""
        if self.batched:
            return "dataset"
        if self.batch_sampler is None:
            return "size"
        is_function = callable(self.batch_sampler) and (
            isinstance(self.batch_sampler, type) or not hasattr(self.batch_sampler, "__iter__")
        )
        return "function" if is_function else "sampler"

    @property
    def sets_batches(self) -> bool:
        """Whether the batch size of a setting is not used."""
        return self.batching in ("sampler", "dataset")

    def with_(self, **changes: Any) -> "Workload":
        """A copy with some parts replaced."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return Workload(**{**values, **changes})


def _calls_backward(step: Callable[..., Any]) -> bool:
    """Whether a step's own code calls `backward`, as far as its names show."""
    while isinstance(step, functools.partial):
        step = step.func
    function = getattr(step, "__func__", step)
    code = getattr(function, "__code__", None) or getattr(vars(type(step)).get("__call__"), "__code__", None)
    return code is not None and bool({"backward", "manual_backward"} & set(code.co_names))
