"""Looks into the loader's workers on stock PyTorch: wrappers around dataset, transforms and collate function.

What they see rides along with each batch in a `Parcel`; the loop takes the batch out of it. A dataset's own marks
(`stoker.stage`), the members of its transforms and well-known readers and decoders are told apart; whatever is left of
an item's time is the stage `item`.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from time import perf_counter, thread_time
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from stoker import marks
from stoker.measure.spy import decoders
from stoker.measure.spy.transforms import spy_transforms


class Stamp:
    """What one batch saw before the loop had it. Times are of the system-wide monotonic clock."""

    __slots__ = ("began", "cpu_s", "ended", "item_s", "sums", "worker")

    def __init__(self, began: float, ended: float, cpu_s: float, sums: dict[str, float], item_s: list[float]) -> None:
        info = get_worker_info()
        self.worker = info.id if info else -1
        self.began, self.ended, self.cpu_s = began, ended, cpu_s
        self.sums, self.item_s = sums, item_s

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.worker, self.began, self.ended, self.cpu_s, self.sums, self.item_s)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.worker, self.began, self.ended, self.cpu_s, self.sums, self.item_s = state


class Ledger:
    """The sums of the batch that this process is loading now."""

    def __init__(self) -> None:
        self.recorder = marks.Recorder()
        self._began: float | None = None
        self._cpu_began = 0.0
        self._item_s: list[float] = []

    def open_item(self) -> None:
        if self._began is None:
            self._cpu_began = thread_time()
            self._began = perf_counter()
        self.recorder.enter("item")

    def close_item(self) -> None:
        self._item_s.append(self.recorder.leave())

    def drop_item(self) -> None:
        """The stream had no more: what it took to say so belongs to no batch, where none was begun."""
        self.recorder.leave()
        if not self._item_s:
            self.recorder.take()
            self._began = None

    def close_batch(self) -> Stamp:
        now = perf_counter()
        began = now if self._began is None else self._began
        stamp = Stamp(began, now, thread_time() - self._cpu_began, self.recorder.take(), self._item_s)
        self._began, self._item_s = None, []
        return stamp


_ledger: Ledger | None = None


def install() -> None:
    """Start looking in this process: the loop's own, or a worker's."""
    global _ledger
    _ledger = Ledger()
    marks.record_into(_ledger.recorder)
    decoders.install()


@contextmanager
def paused() -> Iterator[None]:
    """Look away: what is loaded meanwhile belongs to no batch of the loop."""
    marks.record_into(None)
    try:
        yield
    finally:
        marks.record_into(ledger().recorder)


def ledger() -> Ledger:
    assert _ledger is not None, "install() runs first in every process"
    return _ledger


class Parcel:
    """A batch with what was seen of it. Pickling and unpickling, which is how it travels, time themselves."""

    __slots__ = ("batch", "stamp")

    def __init__(self, batch: Any, stamp: Stamp) -> None:
        self.batch, self.stamp = batch, stamp

    def __reduce__(self) -> tuple[Any, ...]:
        began = perf_counter()
        payload = bytes(ForkingPickler.dumps(self.batch))
        return _unpack, (payload, self.stamp, perf_counter() - began)

    def pin_memory(self, device: str | None = None) -> "Parcel":
        """Called by the loader's pin thread, in place of its own walk over the batch."""
        began = perf_counter()
        self.batch = _pinned(self.batch, device) if device else _pinned(self.batch)
        self.stamp.sums["pin"] = perf_counter() - began
        return self


def _pinned(batch: Any, *device: str) -> Any:
    """The loader's own walk; a private name that has kept its place and its meaning since torch 1.0."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch, *device)


def _unpack(payload: bytes, stamp: Stamp, packing_s: float) -> Parcel:
    began = perf_counter()
    batch = pickle.loads(payload)  # made by our own worker, over the loader's own queue
    stamp.sums["send"] = packing_s + perf_counter() - began
    return Parcel(batch, stamp)


class SpiedCollate:
    """The collate function, timed; it closes the batch."""

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
    """Runs first in each worker, then the person's own `worker_init_fn`."""

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker: int) -> None:
        install()
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SpiedItems | SpiedStream):
            # Their code finds its own dataset there, as it would without us; the attribute refuses plain assignment.
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


def spied(dataset: Any) -> Any:
    """The dataset behind a wrapper that times its items, with its transforms timed by name."""
    spy_transforms(dataset, set())
    if isinstance(dataset, IterableDataset):
        return SpiedStreamWithLength(dataset) if hasattr(dataset, "__len__") else SpiedStream(dataset)
    return SpiedBatches(dataset) if _loads_batches(dataset) else SpiedItems(dataset)


def _loads_batches(dataset: Any) -> bool:
    """Whether it has its own way to load a whole batch; a Subset only passes the question on."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return hasattr(dataset, "__getitems__")
