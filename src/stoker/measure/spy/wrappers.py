"""Looks into the loader's workers on stock PyTorch: wrappers around dataset, transforms and collate function.

```python
with spy.installed(dataset) as watched:
    loader = DataLoader(
        watched.dataset, collate_fn=watched.collate_fn(None), worker_init_fn=watched.worker_init_fn(None), num_workers=2
    )
    for parcel in loader:
        parcel.batch, parcel.stamp
```

What they see travels with each batch in a `Parcel`. A dataset's own marks (`stoker.stage`), the members of its
transforms and well-known readers and decoders are timed one by one; the rest of an item's time is the stage `item`.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.reduction import ForkingPickler
from time import perf_counter, thread_time
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from stoker import marks
from stoker.measure.rundelay import RunDelay
from stoker.measure.spy import decoders
from stoker.measure.spy.transforms import spy_transforms


class Stamp:
    """What happened to one batch before the loop had it: a `log.WorkerStamp`, small to pickle."""

    __slots__ = ("began", "cpu_s", "delay_s", "ended", "item_s", "outputs", "sums", "worker")

    def __init__(
        self,
        began: float,
        ended: float,
        cpu_s: float,
        sums: dict[str, float],
        item_s: list[float],
        *,
        delay_s: float | None = None,
        outputs: dict[str, tuple[int, int]] | None = None,
    ) -> None:
        info = get_worker_info()
        self.worker = info.id if info else -1
        self.began, self.ended, self.cpu_s, self.delay_s = began, ended, cpu_s, delay_s
        self.sums, self.item_s, self.outputs = sums, item_s, outputs or {}

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            setattr(self, name, value)


class Ledger:
    """Adds up the stages of the batch that this process is loading now."""

    def __init__(self) -> None:
        self.recorder = marks.Recorder()
        self._began: float | None = None
        self._cpu_began = 0.0
        self._delay = RunDelay()
        self._delay_began: float | None = None
        self._item_s: list[float] = []

    def open_item(self) -> None:
        if self._began is None:
            self._cpu_began, self._delay_began = thread_time(), self._delay.seconds()
            self._began = perf_counter()
        self.recorder.enter("item")

    def close_item(self) -> None:
        self._item_s.append(self.recorder.leave())

    def drop_item(self) -> None:
        """The stream has ended. The time that this took belongs to no batch, unless one was begun."""
        self.recorder.leave()
        if not self._item_s:
            self.recorder.take()
            self._began = None

    def close_batch(self) -> Stamp:
        now = perf_counter()
        began = now if self._began is None else self._began
        delayed, before = self._delay.seconds(), self._delay_began
        stamp = Stamp(
            began,
            now,
            thread_time() - self._cpu_began,
            self.recorder.take(),
            self._item_s,
            delay_s=None if delayed is None or before is None else delayed - before,
            outputs=self.recorder.take_outputs(),
        )
        self._began, self._item_s = None, []
        return stamp


_ledger: Ledger | None = None


@contextmanager
def installed(dataset: Any) -> Iterator["Watched"]:
    """Look into the loading of `dataset` in this process, and in the workers of loaders made meanwhile.

    At the end the dataset, its transforms, the patched decoders and the process' marks are as they were, whatever
    happened. One thread of a process can look at a time.
    """
    with ExitStack() as undo:
        _install(undo)
        yield Watched(_spied(dataset, undo))


class Watched:
    """What a loader is made of to be looked into: a dataset that times its items, and functions that time batches."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def collate_fn(self, inner: Callable[[list[Any]], Any] | None) -> "SpiedCollate":
        """Calls `inner`, or torch's own if it is None, and gives a `Parcel`."""
        return SpiedCollate(inner)

    def worker_init_fn(self, inner: Callable[[int], None] | None) -> "SpiedInit":
        """Starts looking in each worker, then calls `inner`."""
        return SpiedInit(inner)


def _install(undo: ExitStack) -> None:
    """Start looking in this process: the loop's own, or a worker's."""
    global _ledger
    undo.callback(_set_ledger, _ledger)
    _ledger = Ledger()
    undo.callback(marks.record_into, marks.record_into(_ledger.recorder))
    decoders.patch(undo)


def _set_ledger(before: Ledger | None) -> None:
    global _ledger
    _ledger = before


@contextmanager
def paused() -> Iterator[None]:
    """Look away: what is loaded meanwhile belongs to no batch of the loop."""
    before = marks.record_into(None)
    try:
        yield
    finally:
        marks.record_into(before)


def ledger() -> Ledger:
    """The ledger of this process, which is being looked into."""
    assert _ledger is not None, "a spied dataset is used in a process that nobody looks into"
    return _ledger


class Parcel:
    """A batch and its stamp. It times its own pickling and unpickling, by which it travels."""

    __slots__ = ("batch", "stamp")

    def __init__(self, batch: Any, stamp: Stamp) -> None:
        self.batch, self.stamp = batch, stamp

    def __reduce__(self) -> tuple[Any, ...]:
        began = perf_counter()
        payload = bytes(ForkingPickler.dumps(self.batch))
        return _unpack, (payload, self.stamp, perf_counter() - began)

    def pin_memory(self, device: str | None = None) -> "Parcel":
        """Called by the loader's pin thread instead of its own walk over the batch."""
        began = perf_counter()
        self.batch = _pinned(self.batch, device) if device else _pinned(self.batch)
        self.stamp.sums["pin"] = perf_counter() - began
        return self


def _pinned(batch: Any, *device: str) -> Any:
    """The loader's own walk. The name is private; it has had this place and meaning since torch 1.0."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch, *device)


def _unpack(payload: bytes, stamp: Stamp, packing_s: float) -> Parcel:
    began = perf_counter()
    batch = pickle.loads(payload)  # made by our own worker, over the loader's own queue
    stamp.sums["send"] = packing_s + perf_counter() - began
    return Parcel(batch, stamp)


class SpiedCollate:
    """Times the collate function, which completes the batch."""

    def __init__(self, inner: Callable[[list[Any]], Any] | None) -> None:
        self._inner = inner or default_collate

    def __call__(self, samples: list[Any]) -> Parcel:
        book = ledger()
        book.recorder.enter("collate")
        try:
            batch = self._inner(samples)
        finally:
            book.recorder.leave()
        return Parcel(batch, book.close_batch())


class SpiedInit:
    """Runs first in each worker, then calls the user's own `worker_init_fn`."""

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker: int) -> None:
        _install(ExitStack())  # for as long as the worker lives
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SpiedItems | SpiedStream):
            # The user's code finds its own dataset there, as without a spy; the attribute refuses plain assignment.
            object.__setattr__(info, "dataset", info.dataset.inner)
        if self._inner:
            self._inner(worker)


class SpiedItems(Dataset[Any]):
    """A map-style dataset, each item timed."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        book = ledger()
        book.open_item()
        try:
            return self.inner[index]
        except Exception as error:
            error.add_note(f"Stoker: while loading item {index!r} of {type(self.inner).__name__}.")
            raise
        finally:
            book.close_item()


class SpiedBatches(SpiedItems):
    """A map-style dataset that loads a whole batch at once (`__getitems__`); its items cannot be told apart."""

    def __getitems__(self, indices: list[Any]) -> Any:
        book = ledger()
        book.open_item()
        try:
            return self.inner.__getitems__(indices)
        finally:
            book.close_item()


class SpiedStream(IterableDataset[Any]):
    """An iterable dataset, each item timed."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        book, source = ledger(), iter(self.inner)
        while True:
            book.open_item()
            try:
                item = next(source)
            except StopIteration:
                book.drop_item()
                return
            except BaseException:
                book.close_item()
                raise
            book.close_item()
            yield item


class SpiedStreamWithLength(SpiedStream):
    def __len__(self) -> int:
        return len(self.inner)


def _spied(dataset: Any, undo: ExitStack) -> Any:
    """The dataset in a wrapper that times its items, with its transforms timed by name until `undo`."""
    spy_transforms(dataset, undo)
    if isinstance(dataset, IterableDataset):
        return SpiedStreamWithLength(dataset) if hasattr(dataset, "__len__") else SpiedStream(dataset)
    return SpiedBatches(dataset) if _loads_batches(dataset) else SpiedItems(dataset)


def _loads_batches(dataset: Any) -> bool:
    """Whether the dataset has its own way to load a whole batch. A Subset has if the dataset inside it has."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return hasattr(dataset, "__getitems__")
