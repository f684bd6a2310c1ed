"""Where the loop's batches come from: a DataLoader that ends after what the trial runs, or batches in memory."""

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler, default_convert

from stoker.errors import InputError
from stoker.measure.spy import Watched
from stoker.records import Extent, Mode, Record, Setting
from stoker.units import format_count
from stoker.workload.calls import make_batch_sampler
from stoker.workload.streams import duplicate_notes, rank_duplicate_notes, shard_notes, shards_of
from stoker.workload.workload import Workload


class FeedRules(Record, frozen=True):
    """How many batches stand for a set when batches are loaded before the run."""

    memory_batches: int = 8
    """They are given in turn: enough that no cache holds them all, few enough for any memory."""
    alike_batches: int = 2
    """Of batches that are all alike. Two, because a loop has one while it asks for the next."""
    stream_batches: int = 50
    """For an epoch of a stream whose length nobody knows."""


RULES = FeedRules()
NO_ITEMS = "the dataset gives no items: there is nothing to measure"


class Share(NamedTuple):
    """Which part of the items a rank has: every `of`-th, from number `rank` on, as `DistributedSampler` shares them
    out. The first ones are given again where they are needed for shares of one size."""

    rank: int = 0
    of: int = 1

    def size(self, items: int) -> int:
        """How many of these items are the rank's."""
        return -(-items // self.of)

    def places(self, items: int, most: int) -> torch.Tensor:
        """Which of these items are the rank's: the first `most` of them."""
        return torch.arange(self.rank, min(self.size(items), most) * self.of, self.of) % items


class Order(Sampler[int]):
    """The first `count` indices of a set, or of a rank's share of it: in order, or of a fresh permutation each epoch,
    the same in every trial."""

    def __init__(self, size: int, count: int, *, shuffle: bool, seed: int, share: Share | None = None) -> None:
        self._size, self._count, self._shuffle, self._share = size, count, shuffle, share or Share()
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        places = self._share.places(self._size, self._count)
        if self._shuffle:
            places = torch.randperm(self._size, generator=self._generator)[places]
        return iter(places.tolist())

    def __len__(self) -> int:
        return self._count


class Bounded(Sampler[Any]):
    """The first `count` entries of the user's own sampler or batch sampler, each epoch."""

    def __init__(self, inner: Iterable[Any], count: int) -> None:
        self._inner, self._count = inner, count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._inner), self._count)

    def __len__(self) -> int:
        return min(self._count, len(self._inner)) if isinstance(self._inner, Sized) else self._count


class Shared(Sampler[Any]):
    """A rank's share of what the user's own sampler or batch sampler gives. Every rank has the same sampler, drawing
    from the same seed."""

    def __init__(self, inner: Iterable[Any], share: Share) -> None:
        self._inner, self._share = inner, share

    def __iter__(self) -> Iterator[Any]:
        first: list[Any] = []
        count = 0
        for entry in self._inner:
            if count < self._share.of:
                first.append(entry)
            if count % self._share.of == self._share.rank:
                yield entry
            count += 1
        missing = -count % self._share.of  # every rank has as many
        for place in range(count, count + missing):
            if place % self._share.of == self._share.rank:
                yield first[(place - count) % len(first)]


class SizedShare(Shared):
    """A rank's share of a sampler that knows its length."""

    def __init__(self, inner: Any, share: Share) -> None:
        super().__init__(inner, share)
        self._size = share.size(len(inner))

    def __len__(self) -> int:
        return self._size


def shared(sampler: Any, share: Share) -> Any:
    """A rank's share of a sampler. One that shares items out itself is made anew for the rank."""
    if share.of == 1:
        return sampler
    if isinstance(sampler, DistributedSampler):
        return DistributedSampler(
            sampler.dataset,
            num_replicas=share.of,
            rank=share.rank,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            drop_last=sampler.drop_last,
        )
    return (SizedShare if isinstance(sampler, Sized) else Shared)(sampler, share)


class Feed:
    """Gives an iterator for each epoch. With `cut` the iterator goes on after `batches`, and the loop has to stop.
    `notes` say what is not as it was asked for."""

    def __init__(
        self,
        source: Iterable[Any],
        batches: int | None,
        notes: list[str],
        *,
        cut: bool = False,
        items_a_batch: int | None = None,
    ) -> None:
        self.source, self.batches, self.notes, self.cut = source, batches, notes, cut
        self.items_a_batch = items_a_batch
        """How many items the loader puts in a batch, as far as it decides that."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


class ThreadsSetting:
    """A `worker_init_fn` that lets torch use this many threads in the worker, then calls the user's own."""

    def __init__(self, threads: int, inner: Callable[[int], None] | None) -> None:
        self._threads, self._inner = threads, inner

    def __call__(self, worker: int) -> None:
        torch.set_num_threads(self._threads)
        if self._inner:
            self._inner(worker)


def make_feed(
    workload: Workload,
    dataset: Any,
    mode: Mode,
    setting: Setting,
    extent: Extent,
    *,
    pinned: bool,
    watched: Watched | None = None,
    in_turn: bool = False,
    share: Share | None = None,
) -> Feed:
    """A DataLoader under `setting` that ends by itself after what `extent` asks for; `watched` looks into `dataset`.
    One of several ranks loads its `share`.

    With `in_turn` the caller keeps its batches and gives them in turn: a set may be smaller than what is asked for, and
    its short last batch is left out. Raises InputError if there is nothing to load, or no way to know how much.
    """
    wanted = None if extent.batches is None else extent.warm_batches(setting.num_workers) + extent.batches
    options: dict[str, Any] = {"num_workers": setting.num_workers, "pin_memory": pinned}
    if setting.num_workers:
        options |= {"prefetch_factor": setting.prefetch_factor, "persistent_workers": setting.persistent_workers}
        options["in_order"] = setting.in_order
        options["multiprocessing_context"] = setting.multiprocessing_context
    notes: list[str] = []
    share = share or Share()
    streams = isinstance(dataset, IterableDataset)
    if workload.batched:
        notes.append("the dataset gives whole batches; the setting's batch size is not used")
    if streams:
        options["batch_size"] = None if workload.batched else setting.batch_size
        options["drop_last"] = workload.drop_last and not workload.batched
        batches = wanted
        notes += duplicate_notes(dataset, setting.num_workers, workload.worker_init_fn)
        notes += shard_notes(shards_of(dataset), setting.num_workers)
        notes += rank_duplicate_notes(dataset, share.of)
    else:
        batches = _bound(workload, dataset, mode, setting, wanted, extent.seed, share, options, notes, in_turn=in_turn)
    init = workload.worker_init_fn
    if setting.worker_threads is not None:
        init = ThreadsSetting(setting.worker_threads, init)
    collate_fn = workload.collate_fn or (default_convert if workload.batched else None)
    options["collate_fn"], options["worker_init_fn"] = collate_fn, init
    if watched is not None:
        options["collate_fn"] = watched.collate_fn(collate_fn)
        options["worker_init_fn"] = watched.worker_init_fn(init)
    loader: DataLoader[Any] = DataLoader(watched.dataset if watched else dataset, **options)
    items_a_batch = None if workload.sets_batches else setting.batch_size
    return Feed(loader, batches, notes, cut=streams and batches is not None, items_a_batch=items_a_batch)


def _bound(
    workload: Workload,
    dataset: Any,
    mode: Mode,
    setting: Setting,
    wanted: int | None,
    seed: int,
    share: Share,
    options: dict[str, Any],
    notes: list[str],
    *,
    in_turn: bool,
) -> int | None:
    """Choose the sampler so that the loader ends by itself; how many batches the loop gets, if it can be known."""
    if workload.batch_sampler is not None:
        if workload.sets_batches:
            notes.append("the workload's batch_sampler sets the batch sizes; the setting's batch size is not used")
        batch_sampler = shared(make_batch_sampler(workload, setting.batch_size), share)
        options["batch_sampler"] = Bounded(batch_sampler, wanted) if wanted else batch_sampler
        size = len(options["batch_sampler"]) if isinstance(options["batch_sampler"], Sized) else None
        return size if size is not None else wanted
    batch_size = 1 if workload.batched else setting.batch_size
    options["batch_size"] = None if workload.batched else batch_size
    sampler = None if workload.sampler is None else shared(workload.sampler, share)
    source = dataset if sampler is None else sampler
    count = len(source) if isinstance(source, Sized) else None
    if count == 0:
        raise InputError(f"{type(source).__name__} is empty: there is nothing to load")
    size = share.size(count) if sampler is None and count is not None else count
    whole = None if size is None else -(-size // batch_size)
    if (workload.drop_last or (in_turn and wanted)) and size is not None and size > batch_size:
        whole = size // batch_size
    if size is not None and whole is not None and not workload.batched:
        _note_small_set(size, whole, batch_size, None if in_turn else wanted, notes)
    batches = min(whole, wanted) if whole is not None and wanted is not None else whole or wanted
    most = min(size or batches * batch_size, batches * batch_size) if batches else None
    if sampler is not None:
        options["sampler"] = Bounded(sampler, most) if most else sampler
    else:
        shuffles = mode == "train" if workload.shuffle is None else workload.shuffle
        if count is None or most is None:
            raise InputError(f"{type(dataset).__name__} has no length; give it __len__, or a sampler beside it")
        options["sampler"] = Order(count, most, shuffle=shuffles, seed=seed, share=share)
    return wanted if in_turn and wanted else batches


def _note_small_set(size: int, whole: int, batch_size: int, wanted: int | None, notes: list[str]) -> None:
    if batch_size > size:
        notes.append(f"the batch of {batch_size} is larger than the set: its one batch has {size} items")
    elif wanted is not None and whole < wanted:
        batches = format_count(whole, "batch", "batches")
        notes.append(f"the set of {size} items ends after {batches} of {batch_size}; {wanted} were asked for")


def load_into_memory(feed: Feed, batches: int, *, most: int = RULES.memory_batches) -> Feed:
    """The feed's first batches, `most` of them, loaded now and given in turn: the loop then waits for no loading."""
    loaded = list(islice(iter(feed), min(most, batches)))
    if not loaded:
        raise InputError(NO_ITEMS)
    source = [loaded[index % len(loaded)] for index in range(batches)]
    notes = [*feed.notes, f"{len(loaded)} batches kept in memory, given in turn"]
    return Feed(source, batches, notes, items_a_batch=feed.items_a_batch)
