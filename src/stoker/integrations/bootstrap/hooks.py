"""What the patched functions of torch call: making a loader, reading it, and the parts of a step.

Each hook is `on` while its calls are to be timed. `enter` returns a token, or None where the call is left out. `mark`
and `done` come before and after what a function returns is made; `leave` comes last, also after an error.
"""

import multiprocessing
import os
import sys
import threading
from threading import get_ident
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from . import process
from .contention import probe
from .loaders import Loader

if TYPE_CHECKING:
    from .observer import Observer

# The columns of a row.
ITERATION, ASKED, GOT, OUTCOME, FORWARD_AT, COPY, FORWARD, BACKWARD, UPDATE = range(9)
FORWARDS, BACKWARDS, UPDATES, UNPACKED = range(9, 13)
BATCH, END, ERROR = 1, 2, 3

_MOST_FORWARDS = 64
"""Outermost modules that a step may call; those after it are left out. A loop of small calls would cost too much."""


class Iteration:
    """One `iter(loader)`."""

    __slots__ = ("loader", "number")

    def __init__(self, number: int, loader: Loader) -> None:
        self.number, self.loader = number, loader


class _Hook:
    def __init__(self, observer: "Observer") -> None:
        self.on = False
        self._observer = observer

    def mark(self, token: Any) -> None:
        pass

    def leave(self, token: Any) -> None:
        pass


class Made(_Hook):
    """`DataLoader.__init__`."""

    def made(self, loader: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return self._observer.loaders.made(loader, arguments)
        except Exception as error:
            self._observer.fail("loader", error)
            return None


class Iterated(_Hook):
    """`DataLoader.__iter__`."""

    def enter(self, loader: Any) -> list[Any] | None:
        observer = self._observer
        try:
            if not observer.reads():
                return None
            observer.loaders.override(loader)
            if loader.num_workers and process.forks(loader.multiprocessing_context):
                observer.fetches.lend(loader.dataset)
            observer.patch_copies()
            return [clock(), loader]
        except Exception as error:
            observer.fail("iteration", error)
            return None

    def done(self, token: list[Any], iterator: Any) -> None:
        now = clock()
        try:
            began, loader = token
            self._begin(iterator, loader, began, now)
        except Exception as error:
            self._observer.fail("iteration", error)

    def leave(self, token: list[Any]) -> None:
        self._observer.fetches.take_back()

    def _begin(self, iterator: Any, loader: Any, began: int, ended: int) -> None:
        observer = self._observer
        journal = observer.journal
        if journal is None:
            return
        for known in observer.loaders.new(observer.loaders.of(loader)):
            journal.line("loader", **known.facts())
        iteration = Iteration(len(observer.iterations), observer.loaders.of(loader))
        observer.iterations.append(iteration)
        iterator._stoker = iteration
        iterator._stoker_workers = (loader.multiprocessing_context, loader.worker_init_fn)
        journal.line(
            "iteration",
            iteration=iteration.number,
            loader=iteration.loader.number,
            began_ns=began,
            ended_ns=ended,
            workers=[each.pid for each in getattr(iterator, "_workers", ())],
            grad=bool(sys.modules["torch"].is_grad_enabled()),
            main_thread=threading.current_thread() is threading.main_thread(),
        )


class Nexts(_Hook):
    """`__next__` of a loader's iterator: the end of a step, the wait for a batch, the beginning of the next step."""

    def enter(self, iterator: Any) -> list[int] | None:
        now = clock()
        observer = self._observer
        try:
            iteration = getattr(iterator, "_stoker", None)
            if iteration is None or get_ident() != observer.thread:
                return None
            if observer.row:
                self._close()
            enough = iteration.loader.batches >= observer.settings.batches and observer.is_enough(iteration)
            if enough and not (observer.replay and observer.replay.begin(iteration.loader.number, iterator)):
                self._end(iterator)
                return None
            observer.disarm()
            self.on = False  # a loader that is read inside an item is part of the item
            observer.iteration = iteration
            observer.unpack.begin()
            return [iteration.number, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        except Exception as error:
            observer.fail("batch", error)
            return None

    def done(self, row: list[int], batch: Any) -> None:
        row[GOT], row[OUTCOME] = clock(), BATCH
        replay = self._observer.replay
        if replay is not None:
            loader = self._observer.iterations[row[ITERATION]].loader
            replay.hold(loader.number, loader.batches, batch)

    def leave(self, row: list[int]) -> None:
        observer = self._observer
        try:
            observer.iteration = None
            row[UNPACKED] = observer.unpack.end()
            if observer.over:
                return
            self.on = True
            iteration, opened = observer.iterations[row[ITERATION]], observer.open
            if not opened or opened[-1] is not iteration or row[OUTCOME] != BATCH:
                if iteration in opened:
                    opened.remove(iteration)
                if row[OUTCOME] == BATCH:
                    opened.append(iteration)
                else:
                    row[GOT] = clock()
                    row[OUTCOME] = END if sys.exc_info()[0] is StopIteration else ERROR
            iteration.loader.batches += row[OUTCOME] == BATCH
            observer.row, observer.last = row, row[GOT]
            observer.write_if_due(row[GOT])
            observer.gpu.begin(row[ASKED])
            observer.arm()
        except Exception as error:
            observer.fail("batch", error)

    def _close(self) -> None:
        """The step of the last row is over."""
        observer = self._observer
        row, observer.row = observer.row, []
        loader = observer.iterations[row[ITERATION]].loader
        if observer.journal is None:
            return
        if row[OUTCOME] != BATCH or loader.batches <= observer.settings.batches:
            observer.journal.row("row", row)
        elif observer.replay is not None and observer.replay.began:
            observer.journal.row("replay", row)
        for sample in observer.gpu.ready():
            observer.journal.row("gpu", sample)

    def _end(self, iterator: Any) -> None:
        """As many batches were seen as were asked for."""
        settings = self._observer.settings
        stop = settings.stop
        self._observer.finish("batches")
        if settings.probes:
            probe(settings, iterator)
        if stop and threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        if stop:
            for child in multiprocessing.active_children():
                child.terminate()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


class Forward(_Hook):
    """`Module.__call__`. The outermost call counts."""

    def enter(self, module: Any) -> int | None:
        observer = self._observer
        row = observer.row
        if not row or get_ident() != observer.thread:
            return None
        self.on = False
        now = clock()
        if not row[FORWARD_AT]:
            row[FORWARD_AT] = now
            observer.gpu.end("before")
        observer.gpu.start("forward")
        return now

    def leave(self, token: int) -> None:
        observer = self._observer
        row = observer.row
        observer.last = now = clock()
        if row:
            row[FORWARD] += now - token
            row[FORWARDS] += 1
            observer.gpu.end("forward")
            self.on = observer.backward.on and row[FORWARDS] < _MOST_FORWARDS


class Backward(_Hook):
    """`torch.autograd.backward`. What a checkpoint computes again inside it is part of it."""

    def enter(self) -> int | None:
        observer = self._observer
        if not observer.row or get_ident() != observer.thread:
            return None
        self.on = observer.forward.on = False
        observer.gpu.start("backward")
        return clock()

    def leave(self, token: int) -> None:
        observer = self._observer
        row = observer.row
        observer.last = now = clock()
        if row:
            row[BACKWARD] += now - token
            row[BACKWARDS] += 1
            observer.gpu.end("backward")
            self.on = observer.forward.on = True


class Copy(_Hook):
    """The frameworks' functions that move a batch to the device.

    A plain loop's own `tensor.to(device)` is a method of C that `torch.compile` and `__torch_function__` know by its
    identity; it is left alone. On a GPU that copy is the stage `before`, from the batch to the forward pass.
    """

    def enter(self) -> int | None:
        if get_ident() != self._observer.thread:
            return None
        self.on = False
        return clock()

    def leave(self, token: int) -> None:
        row = self._observer.row
        if row:
            row[COPY] += clock() - token
            self.on = True


class Unpack(_Hook):
    """`Queue.get`, where it unpickles: while the loop waits for a batch."""

    _spent = _began = 0

    def begin(self) -> None:
        self._spent, self.on = 0, True

    def end(self) -> int:
        self.on = False
        return self._spent

    def enter(self) -> bool:
        return get_ident() == self._observer.thread

    def mark(self, token: Any) -> None:
        self._began = clock()

    def done(self, token: Any, value: Any) -> None:
        self._spent += clock() - self._began


class Updates:
    """What optimizers call before and after each step. `torch.compile` leaves it out."""

    def __init__(self, observer: "Observer") -> None:
        self._observer, self._began = observer, 0
        self._is_compiling: Any = None

    def before(self, *_: Any) -> None:
        if sys.modules["torch"].compiler.is_compiling() or get_ident() != self._observer.thread:
            return
        self._began = clock()
        self._observer.gpu.start("update")

    def after(self, *_: Any) -> None:
        observer = self._observer
        if sys.modules["torch"].compiler.is_compiling() or get_ident() != observer.thread or not observer.row:
            return
        try:
            # A closure runs forward and backward inside the step; they are not the update's.
            observer.row[UPDATE] += clock() - max(self._began, observer.last)
            observer.row[UPDATES] += 1
            observer.gpu.end("update")
            observer.owner().loader.trains = True
        except Exception as error:
            observer.fail("update", error)
