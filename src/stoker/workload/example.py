"""The largest item of a dataset, and batches made of it: the worst case for memory."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.data import IterableDataset, default_collate

from stoker.errors import InputError
from stoker.workload import calls
from stoker.workload.batch import mapped
from stoker.workload.workload import Workload

EXAMPLE_ITEMS = 3
_MORE_ITEMS = 5
_ALIKE_ITEMS = 64
"""If this many items have one size, we assume that all have it."""


class Example(NamedTuple):
    """A small batch of the largest item among the first `seen` of a set of `of` items (None: of unknown size)."""

    batch: Any
    item: Any
    workload: Workload
    grows: bool
    seen: int
    of: int | None

    def sized(self, batch_size: int, device: torch.device, *, channels_last: bool = False) -> Any:
        """A batch of that size on the device, which takes as much memory there as a real one."""
        if not self.grows:
            return calls.to_device(collated(self.workload, [self.item] * batch_size), device)
        return grown(self.batch, EXAMPLE_ITEMS, batch_size, device, channels_last=channels_last)

    @property
    def note(self) -> str | None:
        """A note for the user if a larger item may exist than the ones seen; otherwise None."""
        if self.seen <= _ALIKE_ITEMS or self.seen == self.of:
            return None
        of = f" of {self.of}" if self.of is not None else ""
        return f"items differ in size; the largest of the first {self.seen}{of} stands for the worst"


def worst_example(
    workload: Workload, part: Literal["train", "validation"] = "train", *, within_s: float = 1.0
) -> Example:
    """Look for the largest item: among a few if all have one size, otherwise among as many as `within_s` allows."""
    dataset = calls.make_dataset(workload, part)
    deadline = perf_counter() + within_s
    worst, seen = None, 0
    sizes: set[int] = set()
    for item in _items(dataset, workload if part == "train" else None):
        size = calls.batch_bytes(item)
        if not sizes or size > max(sizes):
            worst = item
        sizes.add(size)
        seen += 1
        alike = len(sizes) == 1
        if (alike and seen >= _ALIKE_ITEMS) or perf_counter() > deadline:
            break
    if worst is None:
        raise InputError(f"{type(dataset).__name__} is empty: there is no item to see the shapes of")
    if workload.batched and part == "train":
        few, more = (_resized(worst, count) for count in (EXAMPLE_ITEMS, _MORE_ITEMS))
    else:
        few, more = (collated(workload, [worst] * count) for count in (EXAMPLE_ITEMS, _MORE_ITEMS))
    size_of = getattr(dataset, "__len__", None)
    of = size_of() if size_of is not None and not isinstance(dataset, IterableDataset) else None
    return Example(few, worst, workload, _grows(few, more), seen, of)


def _resized(batch: Any, items: int) -> Any:
    """A batch that the dataset made, with its first items, or its items repeated."""
    return grown(batch, calls.count_items(batch), items, torch.device("cpu"))


def collated(workload: Workload, items: list[Any]) -> Any:
    return (workload.collate_fn or default_collate)(items)


def grown(batch: Any, items: int, batch_size: int, device: torch.device, *, channels_last: bool = False) -> Any:
    """A batch of `items` enlarged to `batch_size` on the device by repeating its items.

    Repeated items stay valid, random values would not: a loss may need values between 0 and 1, an index its table.
    """

    def grow(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != items:
            return tensor.to(device, copy=True)
        images = channels_last and tensor.is_floating_point() and tensor.dim() in (4, 5)
        order = (torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d) if images else None
        layout = order or torch.contiguous_format
        made = torch.empty((batch_size, *tensor.shape[1:]), dtype=tensor.dtype, device=device, memory_format=layout)
        return _filled(made, tensor if tensor.device == made.device else tensor.contiguous(memory_format=layout))

    return mapped(batch, grow)


@torch.no_grad()
def _filled(made: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Fill in place by doubling, so that nothing else is allocated on the device."""
    there = min(len(rows), len(made))
    made[:there].copy_(rows[:there])
    while 0 < there < len(made):
        more = min(there, len(made) - there)
        made[there : there + more].copy_(made[:more])
        there += more
    return made


def _items(dataset: Any, workload: Workload | None) -> Iterator[Any]:
    """Items in the order of the workload's own sampler if it has one, because its keys need not be numbers."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return iter(dataset)
    if workload is not None and workload.batch_sampler is not None:
        batches = calls.make_batch_sampler(workload, _ALIKE_ITEMS)
        return (dataset[index] for batch in batches for index in batch)
    if workload is not None and workload.sampler is not None:
        return (dataset[index] for index in workload.sampler)
    if not hasattr(dataset, "__len__"):
        raise InputError(f"{type(dataset).__name__} has no length; give it __len__, or a sampler beside it")
    return (dataset[index] for index in range(len(dataset)))


def _grows(few: Any, more: Any) -> bool:
    """Whether two batches of different sizes differ only in the first dimension of their tensors."""
    shapes: list[list[torch.Size]] = []
    for batch in (few, more):
        found: list[torch.Size] = []
        mapped(batch, lambda tensor, found=found: found.append(tensor.shape) or tensor)  # type: ignore[misc]
        shapes.append(found)
    first, second = shapes
    if not first or len(first) != len(second):
        return False
    pairs = list(zip(first, second, strict=True))
    fixed = [before == after and before[:1] != (EXAMPLE_ITEMS,) for before, after in pairs]
    grows = [
        before[:1] == (EXAMPLE_ITEMS,) and after[:1] == (_MORE_ITEMS,) and before[1:] == after[1:]
        for before, after in pairs
    ]
    return any(grows) and all(one or other for one, other in zip(fixed, grows, strict=True))
