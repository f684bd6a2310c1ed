"""The user's description of what to run: model, data, and the training or inference step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stoker.errors import InputError
from stoker.records import Mode


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

    `on_device` says that batches lie on the device already, `from_example` that the dataset repeats an example batch.

    Raises InputError for a missing model or dataset, and for a part that cannot be called.
    """

    model: Any
    dataset: Any
    loss: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    validation: Any = None
    metric: Callable[[Any, Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    sampler: Any = None
    batch_sampler: Any = None
    worker_init_fn: Callable[[int], None] | None = None
    step: Callable[[Any, Any], Any] | None = None
    forward: Callable[[Any, Any], Any] | None = None
    files: Callable[[], Iterable[str | Path]] | Sequence[str | Path] | None = None
    name: str = "workload"
    data_name: str | None = None
    on_device: bool = False
    from_example: bool = False

    def __post_init__(self) -> None:
        if self.model is None or self.dataset is None:
            raise InputError("a workload needs a model and a dataset, as objects or as functions that make them")
        for name in ("loss", "optimizer", "metric", "collate_fn", "worker_init_fn", "step", "forward"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                remedy = "; give its class, or a functools.partial of it" if name == "optimizer" else ""
                raise InputError(f"a workload's {name} must be something to call, got {type(value).__name__}{remedy}")
        for name in ("name", "data_name"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "data_name" and value is None):
                raise InputError(f"a workload's {name} must be a text, got {type(value).__name__}")
        if self.sampler is not None and self.batch_sampler is not None:
            raise InputError("a workload takes a sampler or a batch_sampler, not both")

    def default_mode(self) -> Mode:
        """`train` with a loss, or with its own step and an optimizer; otherwise `infer`."""
        return "train" if self.loss is not None or (self.step is not None and self.optimizer is not None) else "infer"

    def with_(self, **changes: Any) -> "Workload":
        """A copy with some parts replaced."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return Workload(**{**values, **changes})
