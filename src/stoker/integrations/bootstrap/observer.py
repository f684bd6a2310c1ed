"""Observes the loops of a process: each batch that it asks its loaders for, and what it does with it.

The files (version 1)
---------------------
One file a process, in the folder that the settings name; a process that only forks or computes writes none. Each line
is a JSON object with a `kind`. Lines are appended whole while the process runs, so that a process that is killed loses
the last 50 ms at most; a line that was cut off is the last one, and is to be left out. Times are nanoseconds of
`time.perf_counter_ns()`, on Linux one clock for all processes of a machine. Only samples are written: no means.

`loop-PID-NS.jsonl`: a process that reads a loader, one a rank.

  process    once, first: `version`, `role` "loop", `pid`, `ppid`, `argv`, `executable`, `cwd`, `python`, `torch`,
             `script` (path) and `sha256` of that file, `rank`, `local_rank` and `world_size` (null where the
             environment does not say), `clock_ns` and `unix_s` (one moment on both clocks), `host`
  loader     once for each place that makes one: `loader` (its number), `class`, `site` (the user's frames, innermost
             first: [file, line, function]), `made_by` (the packages between the user's code and `DataLoader`),
             `arguments` (by name; objects as their class), `batch_size` (that of its batch sampler where it has
             none), `dataset` (class, file, `items`, `iterable`, `streams`: module and file of a stream, of what it
             holds and of what begins a worker, `shards`: in how many parts it can be shared out among workers),
             `source` (the number of an earlier loader over the same dataset object, which a framework replaced by this
             one), `read_at` (of a loader that was made before the observer was there: the user's frames where it is
             read), `overridden` (arguments that were set from outside: [before, after]). A loader that is made anew for
             each epoch is one loader
  iteration  each `iter(loader)`: `iteration` (its number), `loader`, `began_ns`, `ended_ns` (of `__iter__`),
             `workers` (process ids), `grad` (whether gradients are on), `main_thread`
  row        `rows`: one each time the loop asks for a batch, in that order. See `ROW`
  fetch      `rows`: one each batch that was loaded in this process. See `FETCH`
  gpu        `rows`: [asked_ns of the row, stage, ns on the GPU]; of one row in four; stage is `before` (from the
             batch to the forward pass: the copy), `forward`, `backward`, `update`
  replay     `rows` as of `row`: batches that the training loader handed out again, without loading
  gauge      now and then: `ns`, `cpu_ns` of the process, `rss_bytes`, `cuda_bytes`
  end        once, last: `reason` is "batches" (as many as were asked for) or "exit" (of the process), `ns`

`worker-PID-NS.jsonl`: a worker process. `process` (`role` "worker", `pid`, `ppid`, `worker`, `num_workers`,
`start_method`, `began_ns`); `fetch` as above; `send` with `rows` of [began_ns, ns]: packing one batch for the loop.

`probe-PID-NS.jsonl`: a child that loads batches of a script that was stopped again, as a loop that does nothing with
them. See `contention`. Like `loop`, with `role` "probe".

`problem-PID-NS.jsonl`: what could not be observed: `pid`, `what`, `error`. The run itself went on.

ROW: [iteration, asked_ns, got_ns, outcome, forward_at_ns, copy, forward, backward, update, forwards, backwards,
updates, unpacked]. `outcome` is 1 for a batch, 2 for the end of the iteration, 3 for an error. `forward_at_ns` is when
the first forward pass began, 0 where there was none; copy, forward, backward, update are nanoseconds in calls between
got_ns and the next row's asked_ns, by the clock of the loop; `forward` is the outermost modules' calls, `copy` those
of the frameworks that move a batch. `unpacked` is how long unpickling the batch took, inside the wait.

FETCH: [iteration, number, began_ns, loaded_ns, ended_ns, cpu_ns, items, bytes, [ns of each item], {stage: ns}].
Collating took ended_ns - loaded_ns. In a worker, `iteration` counts the times it began anew, from 0. `number` counts
its batches from 0: those that would have cost too much to look at are missing. The list is empty where the dataset
loads a whole batch at once. Stages are own times: `read`, `decode`, `transform.NAME`, and `item.CALL@LINE` for a call
in the dataset's own code that could not be named; what is left of the items' time is `item`.
"""

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
import time
import weakref
from collections.abc import Callable
from threading import enumerate as threads
from threading import get_ident
from time import perf_counter_ns as clock
from typing import Any

from . import hooks, process
from .fetch import Fetches, Openings, SubsetItems
from .gpu import GpuTimes
from .hooks import BATCH, ITERATION, OUTCOME, Iteration
from .journal import Journal, Settings, is_ours, report
from .libraries import function_of
from .loaders import REBOUND, Loaders
from .patch import Edit, NotPatched, Patch, rebound, span, ticks, uncollected
from .replay import Replay
from .stages import Stages

_GAUGE_NS = 500_000_000
_COPIES = (
    ("accelerate.utils.operations", "send_to_device"),
    ("lightning.fabric.utilities.apply_func", "move_data_to_device"),
    ("lightning_fabric.utilities.apply_func", "move_data_to_device"),
    ("torch_geometric.data.data", "BaseData.to"),
    ("ignite.utils", "convert_tensor"),
)


class Observer:
    """Observes this process. `install` patches torch, `uninstall` takes that back."""

    def __init__(self, settings: Settings, role: str = "loop") -> None:
        self.settings, self._role = settings, role
        self.stages = Stages()
        self.fetches = Fetches(settings, self.stages, self._asked)
        self._openings, self._subset_items = Openings(self.fetches), SubsetItems(self.fetches)
        self.made, self.iterated, self.nexts = hooks.Made(self), hooks.Iterated(self), hooks.Nexts(self)
        self.forward, self.backward, self.copy = hooks.Forward(self), hooks.Backward(self), hooks.Copy(self)
        self.unpack = hooks.Unpack(self)
        self.updates = hooks.Updates(self)
        self._patches: list[Patch] = []
        self._optimizer_hooks: list[Any] = []
        self._modules = -1
        self.finished: list[Callable[[], None]] = []
        self.forget()
        _observers.add(self)

    def forget(self) -> None:
        """This is a new process: what was seen so far belongs to another."""
        self.journal: Journal | None = None
        self.loaders = Loaders(self.settings)
        self.iterations: list[Iteration] = []
        self.open: list[Iteration] = []
        self.iteration: Iteration | None = None
        self.row: list[int] = []
        self.thread = self.last = self._gauged = 0
        self.over = False
        self.gpu = GpuTimes()
        self.replay = Replay(self.settings.batches) if self.settings.headroom else None
        self.fetches.forget()
        self.made.on = self.iterated.on = True
        self.nexts.on = self.unpack.on = False
        self.disarm()

    # ------------------------------------------------------------ patches

    @uncollected()
    def install(self) -> None:
        """Patch the loader. Raises nothing: what cannot be patched is reported, and not observed."""
        data = sys.modules["torch.utils.data.dataloader"]
        fetch = sys.modules["torch.utils.data._utils.fetch"]
        index = "possibly_batched_index"
        fetched = span(self.fetches, f"self, {index}", value=True, ticked=index)
        self._patch(data.DataLoader.__init__, rebound(self.made, REBOUND))
        self._patch(data.DataLoader.__iter__, span(self.iterated, "self", value=True))
        self._patch(data._BaseDataLoaderIter.__next__, span(self.nexts, "self", value=True))
        self._patch(fetch._MapDatasetFetcher.fetch, fetched)
        self._patch(fetch._IterableDatasetFetcher.fetch, fetched)
        self._patch(fetch._IterableDatasetFetcher.__init__, span(self._openings, "dataset"))
        subset = sys.modules["torch.utils.data.dataset"].Subset
        if hasattr(subset, "__getitems__"):
            self._patch(subset.__getitems__, ticks(self._subset_items, "indices"))

    def _patch(self, function: Any, edit: Edit) -> None:
        try:
            patch = Patch(function, edit)
            patch.apply()
            self._patches.append(patch)
        except NotPatched as error:
            report(self.settings.directory, "patch", error)

    def _patch_step(self) -> None:
        """Patch what a step calls, once there is a loop."""
        torch = sys.modules["torch"]
        self._patch(torch.nn.Module._wrapped_call_impl, span(self.forward, "self", compilable=True))
        self._patch(torch.autograd.backward, span(self.backward, compilable=True))
        if "multiprocessing.queues" in sys.modules:
            self._patch(sys.modules["multiprocessing.queues"].Queue.get, span(self.unpack, value=True))
        optimizer = sys.modules["torch.optim.optimizer"]
        self._optimizer_hooks = [
            optimizer.register_optimizer_step_pre_hook(self.updates.before),
            optimizer.register_optimizer_step_post_hook(self.updates.after),
        ]

    @uncollected()
    def patch_copies(self) -> None:
        """Patch the frameworks' functions that move a batch, where those are imported."""
        if self._modules == len(sys.modules):
            return
        self._modules = len(sys.modules)
        for module, path in _COPIES:
            function = function_of(module, path)
            if function is not None and all(each.function is not function for each in self._patches):
                self._patch(function, span(self.copy))

    def uninstall(self, *, thoroughly: bool = False) -> None:
        """Take back every patch."""
        self.over = True
        self.made.on = self.iterated.on = self.nexts.on = self.unpack.on = False
        self.disarm()
        for patch in self._patches:
            patch.undo(thoroughly=thoroughly)
        for hook in self._optimizer_hooks:
            hook.remove()
        self._optimizer_hooks = []
        atexit.unregister(self.close)
        self.fetches.undo(thoroughly=thoroughly)

    # ------------------------------------------------------------ the loop

    def reads(self) -> bool:
        """This thread reads a loader; whether it is the one to be observed."""
        if self.thread and get_ident() != self.thread and all(each.ident != self.thread for each in threads()):
            self.thread = get_ident()  # the one before has ended
        return self._begin() if not self.thread else get_ident() == self.thread

    @uncollected()
    def _begin(self) -> bool:
        self.thread = get_ident()
        nested = self._role == "loop" and process.is_nested(self.settings.directory)
        if process.is_worker() or nested:
            self.made.on = self.iterated.on = False
            return False
        journal = Journal(self.settings.directory, self._role)
        journal.line("process", **process.describe_process(clock()), role=self._role)
        journal.flush()
        self.journal = journal
        self._patch_step()
        self.nexts.on = True
        if multiprocessing.parent_process() is None:
            atexit.register(self.close, os.getpid())
        else:
            multiprocessing.util.Finalize(None, self.close, args=(os.getpid(),), exitpriority=1000)
        return True

    def _asked(self) -> Any:
        """What a batch that is loaded in this process is for: the journal, and the iteration's number."""
        return self.journal, self.iteration.number if self.iteration is not None else -1

    def arm(self) -> None:
        """A step begins."""
        self.forward.on = self.backward.on = self.copy.on = True

    def disarm(self) -> None:
        """The loop asks for a batch: what an item computes is not part of a step."""
        self.forward.on = self.backward.on = self.copy.on = False

    def owner(self) -> Iteration:
        """The iteration whose step this is: after the end of one inside another, the outer one."""
        if self.row[OUTCOME] != BATCH and self.open:
            return self.open[-1]
        return self.iterations[self.row[ITERATION]]

    def is_enough(self, iteration: Iteration) -> bool:
        """Whether as many batches were seen as were asked for: of the training loader, or of any where nothing
        trains."""
        loader = iteration.loader
        return loader.batches >= self.settings.batches and (loader.trains or not _has_optimizer())

    def write_if_due(self, now: int) -> None:
        assert self.journal is not None
        if now - self._gauged > _GAUGE_NS:
            self._gauged = now
            self.journal.line("gauge", ns=now, cpu_ns=time.process_time_ns(), **process.memory())
        self.journal.flush_if_due(now)

    def finish(self, reason: str) -> None:
        """Write the end, and look no more."""
        if self.over:
            return
        self.over = True
        if self.journal is not None:
            if self.row:
                self.journal.row("replay" if self.replay is not None and self.replay.began else "row", self.row)
            for sample in self.gpu.ready():
                self.journal.row("gpu", sample)
            self.journal.line("end", reason=reason, ns=clock())
            self.journal.flush()
        self.uninstall()
        for call in self.finished:
            call()

    def close(self, pid: int | None = None) -> None:
        """The process ends, or whoever watches has seen enough. A process that was forked from `pid` is another."""
        if pid is None or os.getpid() == pid:
            try:
                self.finish("exit")
            except Exception as error:
                report(self.settings.directory, "end", error)

    def fail(self, what: str, error: Exception) -> None:
        """Something of ours went wrong: look no more, and write that down. An error of the script's own, from a
        signal handler that ran meanwhile, goes its way."""
        if not is_ours(error):
            self.row, self.iteration = [], None
            self.disarm()
            self.nexts.on = self.journal is not None and not self.over
            raise error
        self.uninstall()
        report(self.settings.directory, what, error)


_observers: weakref.WeakSet[Observer] = weakref.WeakSet()


def _forget_all() -> None:
    for observer in list(_observers):
        observer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _has_optimizer() -> bool:
    """Whether the process has ever made an optimizer: then a loader that does not train is for validation."""
    rest = list(sys.modules["torch.optim.optimizer"].Optimizer.__subclasses__())
    for kind in rest:
        if getattr(kind.step, "hooked", None):
            return True
        rest += kind.__subclasses__()
    return False
