"""The one door to a workload: a model's name, or `train.py:workload`, a function of the person's own."""

import functools
from pathlib import Path
from typing import Any

from stoker.errors import InputError
from stoker.events import OnProgress, silent
from stoker.records import Mode
from stoker.workload.functions import load_function as load_function
from stoker.workload.named import load_named
from stoker.workload.workload import Workload


def load(
    spec: str,
    *,
    data: str | None = None,
    mode: Mode | None = None,
    items: int | None = None,
    weights: Path | None = None,
    progress: OnProgress = silent,
) -> Workload:
    """The workload that `spec` names. `data` and `weights` go with a model's name; `items` bounds either kind."""
    if items is not None and items < 1:
        raise InputError(f"items must be at least 1, got {items}")
    if ":" not in spec and not spec.endswith(".py"):
        return load_named(spec, data=data, mode=mode, items=items, weights=weights, progress=progress)
    for flag, value in (("--data", data), ("--weights", weights)):
        if value is not None:
            raise InputError(f"{flag} goes with a model's name; {spec} brings its own, so change it there")
    workload = load_function(spec)
    return workload if items is None else bounded(workload, items)


def bounded(workload: Workload, items: int) -> Workload:
    """The same workload on its first `items` items."""
    if workload.sampler is not None or workload.batch_sampler is not None:
        raise InputError("--items cannot bound a workload that brings its own sampler; bound it there")
    return workload.with_(dataset=functools.partial(_first, workload.dataset, items))


def _first(dataset: Any, items: int) -> Any:
    from torch.utils.data import IterableDataset, Subset

    from stoker.workload import calls

    made = calls.make(dataset)
    if isinstance(made, IterableDataset) or not hasattr(made, "__len__"):
        raise InputError(
            "--items can only bound a dataset that knows its length; bound an iterable one where it is made"
        )
    return Subset(made, range(min(items, len(made))))
