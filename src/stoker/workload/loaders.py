"""DataLoader objects as users have them, taken apart: the dataset, its order, the functions of the loader, its setting.

Also those of timm, PyTorch Geometric, accelerate and Lightning, which are or hold a `torch.utils.data.DataLoader`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_convert,
)
from torch.utils.data import default_collate as torch_collate

from stoker.errors import InputError
from stoker.records import Setting

if TYPE_CHECKING:
    from stoker.workload.workload import Workload


def is_loader(thing: Any) -> bool:
    """Whether this is a DataLoader, or an object around one: timm's `PrefetchLoader`, webdataset's `WebLoader`."""
    if isinstance(thing, type):
        return False
    return isinstance(thing, DataLoader) or any(isinstance(each, DataLoader) for each in _around(thing))


def _around(thing: Any) -> list[Any]:
    """What may be the DataLoader in an object around one."""
    return [vars_of(thing).get("loader"), *_pipeline(thing)[:1]]


def _pipeline(thing: Any) -> list[Any]:
    """The stages of a pipeline of webdataset; empty for other objects."""
    stages = vars_of(thing).get("pipeline")
    return stages if type(thing).__module__.startswith("webdataset.") and isinstance(stages, list) else []


def gives_batches(dataset: Any) -> bool:
    """Whether a pipeline of webdataset gives whole batches: `.batched(n)`, and no `.unbatched()` after it."""
    names = [getattr(getattr(stage, "f", None), "__name__", "") for stage in _pipeline(dataset)]
    return next((name == "_batched" for name in reversed(names) if name in ("_batched", "_unbatched")), False)


def vars_of(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def parts_beside(workload: "Workload") -> dict[str, Any]:
    """What replaces the parts of a workload whose dataset or validation set is a DataLoader. Parts given beside the
    loader win. Empty if there is no loader."""
    parts: dict[str, Any] = {}
    if is_loader(workload.dataset):
        own = parts_of(workload.dataset)
        ordered = workload.sampler is not None or workload.batch_sampler is not None or workload.shuffle is not None
        if ordered:
            own = {name: value for name, value in own.items() if name not in ("sampler", "batch_sampler", "shuffle")}
        parts = {
            name: value
            for name, value in own.items()
            if name == "dataset" or getattr(workload, name) is None or getattr(workload, name) is False
        }
        parts = {name: value for name, value in parts.items() if value is not None}
    if is_loader(workload.validation):
        inner = _inner(workload.validation)
        if workload.collate_fn is None and "collate_fn" not in parts:
            collate_fn = _collate_fn(inner)
            parts |= {} if collate_fn is None else {"collate_fn": collate_fn}
        parts["validation"] = inner.dataset
    return parts


def parts_of(loader: Any) -> dict[str, Any]:
    """The parts of a workload that a loader stands for, and its setting as `current`."""
    inner = _inner(loader)
    batch_sampler = _plain(inner.batch_sampler)
    size = inner.batch_size
    parts: dict[str, Any] = {
        "dataset": inner.dataset,
        "collate_fn": _collate_fn(inner),
        "worker_init_fn": inner.worker_init_fn,
        "drop_last": bool(inner.drop_last),
        "forward": _forward_of(loader),
    }
    if inner.batch_size is None and inner.batch_sampler is None:
        parts["batched"] = True
        parts |= {} if isinstance(inner.dataset, IterableDataset) else _order(inner.sampler)
    elif isinstance(inner.dataset, IterableDataset):
        pass  # it has no order but its own
    elif type(batch_sampler) is BatchSampler:
        size, parts["drop_last"] = batch_sampler.batch_size, batch_sampler.drop_last
        parts |= _order(batch_sampler.sampler)
    else:
        parts["batch_sampler"] = batch_sampler
        size = getattr(batch_sampler, "batch_size", None)
    return {**parts, "current": setting_of(inner, size)}


def setting_of(loader: "DataLoader[Any]", batch_size: Any) -> Setting:
    """The setting of a loader. Its batch size counts only if the loader forms batches of one size."""
    values: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "in_order": bool(getattr(loader, "in_order", True)),
    }
    if isinstance(batch_size, int) and batch_size > 0:
        values["batch_size"] = batch_size
    if loader.prefetch_factor is not None:
        values["prefetch_factor"] = loader.prefetch_factor
    context: Any = loader.multiprocessing_context
    if context is not None:
        values["multiprocessing_context"] = context if isinstance(context, str) else context.get_start_method()
    return Setting(**{name: value for name, value in values.items() if name in Setting.__struct_fields__})


def first_items(loader: Any, items: int) -> "DataLoader[Any]":
    """The same loader over the first items of its dataset. Raises InputError if it has an order of its own."""
    inner = _inner(loader)
    parts = parts_of(loader)
    dataset: Any = parts["dataset"]
    if parts.get("batched") or parts.get("sampler") is not None or parts.get("batch_sampler") is not None:
        raise InputError("--items cannot bound a loader that brings its own sampler or batches; bound it there")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            "--items can only bound a dataset that knows its length; bound an iterable one where it is made"
        )
    current: Setting = parts["current"]
    workers: dict[str, Any] = {}
    if current.num_workers:
        workers = {"prefetch_factor": current.prefetch_factor, "persistent_workers": current.persistent_workers}
    return DataLoader(
        Subset(dataset, range(min(items, len(dataset)))),
        batch_size=current.batch_size,
        shuffle=bool(parts.get("shuffle")),
        drop_last=parts["drop_last"],
        collate_fn=_collate_fn(inner),
        worker_init_fn=inner.worker_init_fn,
        num_workers=current.num_workers,
        pin_memory=bool(current.pin_memory),
        **workers,
    )


# ---------------------------------------------------------------- the libraries' own


def _inner(loader: Any) -> "DataLoader[Any]":
    """The DataLoader itself, from inside timm's `PrefetchLoader` or webdataset's `WebLoader`. Raises InputError if a
    `WebLoader` does more than load."""
    if isinstance(loader, DataLoader):
        return loader
    if further := _pipeline(loader)[1:]:
        names = ", ".join(getattr(getattr(stage, "f", None), "__name__", "?").lstrip("_") for stage in further)
        raise InputError(
            f"a WebLoader with stages behind its loader ({names}) cannot be taken apart: give the DataLoader alone, "
            "with these stages in its dataset"
        )
    return next(each for each in _around(loader) if isinstance(each, DataLoader))


def _plain(batch_sampler: Any) -> Any:
    """The batch sampler of one epoch: timm's `MultiEpochsDataLoader` repeats it without end."""
    while type(batch_sampler).__name__ == "_RepeatSampler" and hasattr(batch_sampler, "sampler"):
        batch_sampler = batch_sampler.sampler
    return batch_sampler


def _order(sampler: Any) -> dict[str, Any]:
    """The plain orders as `shuffle`, so that trials of any length can be made; others as they are."""
    if (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    ):
        return {"shuffle": True}
    return {"shuffle": False} if type(sampler) is SequentialSampler else {"sampler": sampler}


def _collate_fn(loader: "DataLoader[Any]") -> Callable[[list[Any]], Any] | None:
    """The function that completes a batch; None for torch's own.

    PyTorch Geometric's loaders of neighbours sample in `collate_fn`, and fetch features in `filter_fn`, which runs in
    the loop's process unless `filter_per_worker`.
    """
    own: Any = loader.collate_fn
    if own in (torch_collate, default_convert):
        return None
    filters = getattr(loader, "filter_fn", None)
    if callable(filters) and hasattr(loader, "filter_per_worker") and not loader.filter_per_worker:
        return Chain(own, filters)
    return own  # type: ignore[no-any-return]


class Chain:
    """One function after another."""

    def __init__(self, first: Callable[[Any], Any], then: Callable[[Any], Any]) -> None:
        self._first, self._then = first, then

    def __call__(self, values: Any) -> Any:
        return self._then(self._first(values))


def _forward_of(loader: Any) -> "DeviceTransform | None":
    """What timm's `PrefetchLoader` does on the device, in front of the model."""
    values = vars_of(loader)
    if isinstance(loader, DataLoader) or not {"mean", "std", "img_dtype"} <= values.keys():
        return None
    return DeviceTransform(values["mean"], values["std"], values["img_dtype"], values.get("random_erasing"))


class DeviceTransform:
    """Calls the model on images that are normalised on the device, and erased in part if `erase` is given."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor, dtype: torch.dtype, erase: Any) -> None:
        self._mean, self._std, self._dtype, self._erase = mean, std, dtype, erase

    def __call__(self, model: Any, images: torch.Tensor) -> Any:
        mean, std = (each.to(images.device, non_blocking=True) for each in (self._mean, self._std))
        images = images.to(self._dtype, copy=True).sub_(mean).div_(std)
        return model(images if self._erase is None else self._erase(images))
