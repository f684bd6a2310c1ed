"""Loads some batches again when the script was stopped: by one worker, then by as many as there are CPUs.

How much slower items become when several workers load at once cannot be known from a run with one setting. A forked
child does it, so that whatever the dataset does there, and however long it takes, is no matter of the script's.
"""

import os
import signal
import sys
import time
from itertools import islice
from typing import Any

from . import process
from .journal import Settings, report

_BATCHES, _A_WORKER, _MOST_WORKERS = 12, 4, 8
"""Batches of the first run; of the second, for each worker; a worker's first batch is cold."""
_ITERABLE = 1
_LEAST, _SECONDS, _LIMIT_S = 3, 1.5, 20.0
"""After so many seconds a run ends, if it has at least this many batches a worker; the child is given up later."""


def probe(settings: Settings, iterator: Any) -> None:
    """Load batches of this iterator's loader in a child, which writes a log of its own.

    Does nothing for a stream, which may be read once only, for one rank of several, and where workers are not forked.
    """
    count = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, _MOST_WORKERS)
    alone = process.ranks()["world_size"] in (None, 1)
    if count < 2 or not alone or iterator._dataset_kind == _ITERABLE or not process.forks(iterator._stoker_workers[0]):
        return
    pid = os.fork()
    if pid == 0:
        try:
            _load(settings, iterator, count)
        except BaseException as error:
            report(settings.directory, "contention", error)
        finally:
            os._exit(0)
    _wait(settings, pid)


def _load(settings: Settings, iterator: Any, count: int) -> None:
    """In the child."""
    from .observer import Observer

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    observer = Observer(Settings(settings.directory, 10**9), role="probe")
    observer.install()
    places = list(islice(iter(iterator._index_sampler), max(_BATCHES, _A_WORKER * count)))
    context, started = iterator._stoker_workers
    kind = sys.modules["torch.utils.data.dataloader"].DataLoader
    for workers in (1, count):
        asked = places[: _BATCHES if workers == 1 else None]
        how: Any = {"batch_sampler": asked} if iterator._auto_collation else {"sampler": asked, "batch_size": None}
        again = kind(
            iterator._dataset,
            **how,
            num_workers=workers,
            collate_fn=iterator._collate_fn,
            worker_init_fn=started,
            multiprocessing_context=context,
        )
        began = time.perf_counter()
        for count, _ in enumerate(again, 1):
            if count >= _LEAST * workers and time.perf_counter() - began > _SECONDS:
                break
    observer.close()


def _wait(settings: Settings, pid: int) -> None:
    until = time.monotonic() + _LIMIT_S
    try:
        while time.monotonic() < until:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        report(settings.directory, "contention", f"loading some batches again took more than {_LIMIT_S:.0f} s")
    except ChildProcessError:  # the script lets the system wait for its children
        return
    finally:
        _end(pid)


def _end(pid: int) -> None:
    """The child is gone, whatever ends the script meanwhile. Its workers see that, and end."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
