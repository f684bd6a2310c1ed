"""Loading a batch: in a worker of the loader, or in the loop's own process where it has none."""

import gc
import multiprocessing
import multiprocessing.util
import os
import sys
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from itertools import islice
from threading import get_ident
from time import perf_counter_ns as clock
from typing import Any

from . import libraries
from .journal import Journal, Settings, is_ours, report
from .patch import NotPatched, Patch, span, uncollected
from .stages import Stages

_SHARE = 400
"""Of the time that loading takes, a 400th may go into looking at it: batches are left out where it would be more."""
_MOST_SKIPPED = 1000
_MOST_MEMBERS = 64
_TICK_NS, _STAGE_NS = 200, 900
"""What timing an item, and a stage, takes of the time between two readings of the clock."""


class Fetches:
    """The hook of the fetchers' `fetch`. One row a batch: see `observer`."""

    def __init__(self, settings: Settings, stages: Stages, asked: Callable[[], tuple[Journal | None, int]]) -> None:
        """`asked` returns, in the loop's process, the journal and the number of the iteration that loads."""
        self.on = True
        self.stages = stages
        self._settings, self._asked = settings, asked
        self._patches: list[Patch] = []
        self._lent: list[Patch] = []
        self._code = libraries.DatasetCode(stages)
        self._sends = Sends()
        self._modules = 0
        self.forget()

    def forget(self) -> None:
        """This is a new process."""
        self.on = True
        self._journal: Journal | None = None
        self._worker: bool | None = None
        self._thread = self._fetcher = 0
        self._epoch, self._number, self._seen, self._skip = -1, 0, 0, 0
        self._marked = self._cpu = self._own = 0
        self._sends.on = False
        self._items: list[int] = []
        self._row: list[Any] | None = None

    def enter(self, fetcher: Any, index: Any) -> int | None:
        try:
            if self._thread:
                return None  # a loader inside an item, or in another thread
            if not self._count(fetcher) or not self._ready(fetcher):
                return None
            self._own = -time.thread_time_ns()
            self._thread, self._items, self._row, self._marked = get_ident(), [], None, 0
            self.stages.begin()
            self._cpu = time.thread_time_ns()
            self._own += self._cpu
            return clock()
        except Exception as error:
            self._fail(error)
            return None

    def ticks(self, _: int, index: Any) -> Iterator[Any]:
        """The indices of the batch; the next one is asked for when an item is there."""
        items = self._items
        before = clock()
        for each in index:
            yield each
            now = clock()
            items.append(now - before)
            before = now

    def mark(self, _: int) -> None:
        """The items are there; they are collated next."""
        self._marked = clock()
        self.stages.on = False

    def done(self, began: int, batch: Any) -> None:
        now = clock()
        try:
            then = time.thread_time_ns()
            cpu = then - self._cpu
            self._own -= then
            stages = self.stages.sums
            count = len(self._items) or _leading(batch)
            self._row = [self._epoch, self._number, began, self._marked, now, cpu, count, size(batch)]
            self._row += [self._items, stages]
        except Exception as error:
            self._fail(error)

    def leave(self, began: int) -> None:
        now = clock()
        try:
            if self._thread != get_ident():
                return
            self._thread = 0
            self.stages.end()
            if self._row is None or self._journal is None:
                return
            self._journal.row("fetch", self._row)
            self._seen += 1
            loaded = self._row[4] - began
            own = self._own + time.thread_time_ns()
            if self._worker and self._seen >= self._settings.batches:
                self.close()
            else:
                self._journal.flush_if_due(now)
            own += _TICK_NS * len(self._items) + _STAGE_NS * self.stages.entered
            if self._seen > 1:  # what the first one takes, it takes once
                self._skip = min(own * _SHARE // max(1, loaded), _MOST_SKIPPED)
        except Exception as error:
            self._fail(error)

    def _count(self, fetcher: Any) -> bool:
        """Which batch this is; False where it is left out."""
        self._number += 1
        if self._worker and id(fetcher) != self._fetcher:
            self._fetcher = id(fetcher)
            self._epoch, self._number = self._epoch + 1, 0
        if self._skip:
            self._skip -= 1
            return False
        return True

    def _ready(self, fetcher: Any) -> bool:
        if self._worker is None:
            information = sys.modules["torch.utils.data._utils.worker"].get_worker_info()
            self._worker = information is not None
            if information is not None:
                self._count(fetcher)
                self._open_journal(information)
            self.look_into(fetcher.dataset)
        self._patch_libraries()  # what an item imports when it is first loaded
        if not self._worker:
            self._journal, iteration = self._asked()
            if iteration != self._epoch:
                self._epoch, self._number = iteration, 0
        return self._journal is not None

    def open(self, dataset: Any) -> None:
        """An iterable dataset is about to be iterated over."""
        try:
            self.look_into(dataset)
        except Exception as error:
            self._fail(error)

    @uncollected()
    def look_into(self, dataset: Any) -> None:
        """Time the stages of a dataset's items, loaded by this process."""
        self._patch_libraries()
        for patch in self._code.patches(dataset):
            patch.apply()

    def lend(self, dataset: Any) -> None:
        """Workers are about to be forked: patch what they will need once for all of them. The user's code has its own
        form back in this process after `take_back`."""
        with uncollected():
            self._patch_libraries()
            self._lent = [patch for patch in self._code.patches(dataset) if patch.apply()]
            self._patch_sends()
        if gc.isenabled():
            gc.collect(
                0
            )  # what is garbage is the parent's: a worker that finds one of its old iterators prints an error

    def take_back(self) -> None:
        """They are there."""
        for patch in self._lent:
            patch.undo()
        self._lent = []

    @uncollected()
    def _patch_libraries(self) -> None:
        if self._modules != len(sys.modules):
            made = libraries.library_patches(self.stages)
            for patch in made:
                patch.apply()
            self._patches += made
            self._modules = len(sys.modules)

    @uncollected()
    def _patch_sends(self) -> None:
        from multiprocessing.reduction import ForkingPickler

        dumps: Any = ForkingPickler.dumps
        try:
            if self._sends.patch is None:
                self._sends.patch = Patch(dumps.__func__, span(self._sends))
            self._sends.patch.apply()
        except NotPatched as error:
            report(self._settings.directory, "send", error)

    @uncollected()
    def _open_journal(self, information: Any) -> None:
        self._journal = Journal(self._settings.directory, "worker")
        self._journal.line(
            "process",
            role="worker",
            pid=os.getpid(),
            ppid=os.getppid(),
            worker=information.id,
            num_workers=information.num_workers,
            start_method=type(multiprocessing.current_process()).__name__.replace("Process", "").lower(),
            began_ns=clock(),
        )
        multiprocessing.util.Finalize(None, self.close, exitpriority=10)
        self._patch_sends()
        self._sends.begin(self._journal)

    def close(self) -> None:
        """Write what is left, and look no more."""
        self.on = False
        self.stages.end()
        try:
            if self._worker and self._journal is not None:
                self._journal.flush()
        except OSError:
            pass

    def undo(self, *, thoroughly: bool = False) -> None:
        """Give the libraries and the dataset their code back."""
        self.close()
        own = [self._sends.patch] if self._sends.patch is not None else []
        for patch in (*self._patches, *self._code.all(), *own):
            patch.undo(thoroughly=thoroughly)
        libraries.forget()

    def _fail(self, error: Exception) -> None:
        self._thread = 0
        self.stages.end()
        if not is_ours(error):
            raise error
        self.on = False
        report(self._settings.directory, "items", error)


class Openings:
    """The hook of the constructor that iterates over an iterable dataset: a generator is as it was when it began."""

    def __init__(self, fetches: Fetches) -> None:
        self.on = True
        self._fetches = fetches

    def enter(self, dataset: Any) -> None:
        if self._fetches.on:
            self._fetches.open(dataset)


class SubsetItems:
    """The hook of `Subset.__getitems__`: its items, while a batch is looked at."""

    def __init__(self, fetches: Fetches) -> None:
        self._fetches = fetches

    @property
    def on(self) -> bool:
        return self._fetches.stages.on

    def ticks(self, _: bool, indices: Any) -> Iterator[Any]:
        return self._fetches.ticks(1, indices)


class Sends:
    """The hook of the pickler that packs a worker's batches: when it began, and how long it took."""

    def __init__(self) -> None:
        self.on = False
        self.patch: Patch | None = None
        self._journal: Journal | None = None

    def begin(self, journal: Journal) -> None:
        """This is a worker, and its journal."""
        self._journal, self.on = journal, True

    def enter(self) -> int:
        return clock()

    def leave(self, began: int) -> None:
        if self._journal is not None:
            self._journal.row("send", [began, clock() - began])


def size(batch: Any) -> int:
    """The bytes of the tensors and arrays in a batch, as far as they can be found without asking the user's objects."""
    return sum(int(each.nbytes) for each in _arrays(batch, 4))


def _leading(batch: Any) -> int:
    """How many items a batch has, by the first tensor in it."""
    for each in _arrays(batch, 4):
        return int(each.shape[0]) if len(each.shape) else 1
    return 1


def _arrays(batch: Any, depth: int) -> Iterator[Any]:
    kind = type(batch)
    if kind.__module__.partition(".")[0] in ("torch", "numpy") and hasattr(kind, "nbytes") and hasattr(kind, "shape"):
        yield batch
        return
    if isinstance(batch, (list, tuple)):
        members: Any = batch
    elif isinstance(batch, dict):
        members = dict.values(batch)
    elif isinstance(batch, UserDict):
        members = batch.data.values()
    else:
        return
    if depth:
        for each in islice(members, _MOST_MEMBERS):
            yield from _arrays(each, depth - 1)
