"""What gives each worker a part of the items, in a module of its own: that it does so is seen in its text."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info


def part(items: Iterable[Any]) -> Iterator[Any]:
    """Those that are this worker's."""
    worker = get_worker_info()
    return islice(items, worker.id, None, worker.num_workers) if worker else iter(items)


def begin(worker: int) -> None:
    """Stands for a `worker_init_fn` that gives the worker its part."""
