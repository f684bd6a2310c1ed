"""What an iterable dataset gives several workers: each of them a part of its items, or all of them.

Streams are known by their class's name: this is also asked about logs, where torch is not imported. The observer of
`stoker run` looks into streams in the same way, and cannot import this: a test has both answer for the same streams.
"""

import inspect
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

SHARING_PACKAGES = ("datasets", "webdataset", "torchdata", "streaming", "litdata", "torch_geometric")
"""Their streams give each worker a part of the items."""
SHARING_MODULE = "torch.utils.data.datapipes.iter.sharding"
WORKER_WORD = "get_worker_info"
"""A stream that shares its items out itself asks torch by this name which worker it is in."""
_TORCH = "torch.utils.data.dataset"
_PLAIN = {*sys.stdlib_module_names, "torch", "numpy", "stoker"}
_DEEPEST, _MOST, _MOST_OF_A_LIST = 4, 100, 20


def repeats_items(dataset: Any, worker_init_fn: Any = None) -> bool:
    """Whether each of several workers would give all items of a dataset: it is a stream, and neither it nor what it
    holds, nor what begins a worker, seems to share them out."""
    if not is_stream(dataset):
        return False
    return not any(module_shares_out(module, _source(module)) for module in _modules(dataset, worker_init_fn))


def shards_of(dataset: Any) -> int | None:
    """How many parts a stream can be shared out in at most, or None if it does not say so."""
    streams = (part for part in parts_of(dataset) if is_stream(part))
    return next((count for stream in streams if (count := _shards(stream)) is not None), None)


def is_stream(value: Any) -> bool:
    """Whether it is one of torch's iterable datasets."""
    return any(kind.__name__ == "IterableDataset" and kind.__module__ == _TORCH for kind in type(value).__mro__)


def parts_of(*values: Any) -> list[Any]:
    """The values and the objects and functions that they hold, as far as attributes show them."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting = deque((value, 0) for value in values)
    while waiting and len(found) < _MOST:
        value, depth = waiting.popleft()
        value = getattr(value, "func", value) if type(value).__module__ == "functools" else value
        if id(value) in seen or depth > _DEEPEST:
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple, dict)):
            held: Iterable[Any] = value.values() if isinstance(value, dict) else value
        elif is_stream(value) or _module(value).partition(".")[0] not in _PLAIN:
            found.append(value)
            held = getattr(value, "__dict__", {}).values()
        else:
            continue
        waiting.extend((each, depth + 1) for each in islice(held, _MOST_OF_A_LIST))
    return found


def _module(value: Any) -> str:
    """Where a function, or the class of an object, comes from."""
    return str(value.__module__ if inspect.isroutine(value) else type(value).__module__)


def _modules(*values: Any) -> list[str]:
    return list(dict.fromkeys(_module(part) for part in parts_of(*values)))


def duplicate_notes(dataset: Any, workers: int, worker_init_fn: Any = None) -> list[str]:
    """A note if each of several workers reads the whole stream."""
    if workers < 2 or not repeats_items(dataset, worker_init_fn):
        return []
    return [duplicated(type(dataset).__name__, workers)]


def duplicated(name: str, workers: int) -> str:
    """That each of several workers gives all items of a stream."""
    return (
        f"items are duplicated: {name} does not share its items out by torch.utils.data.get_worker_info(), "
        f"so each of {workers} workers gives all of them"
    )


def shard_notes(shards: int | None, workers: int) -> list[str]:
    """A note if a stream has fewer parts than there are workers."""
    if shards is None or workers <= max(1, shards):
        return []
    return [f"only {shards} of {workers} workers have items: the stream cannot be shared out in more parts (shards)"]


def rank_duplicate_notes(dataset: Any, ranks: int) -> list[str]:
    """A note if each rank seems to read the whole stream."""
    words = ("get_rank", "RANK", "world_size", "num_replicas", "split_by_node")
    if ranks < 2 or any(word in _source(module) for module in _modules(dataset) for word in words):
        return []
    return [
        f"items are duplicated: {type(dataset).__name__} does not share its items out by "
        f"torch.distributed.get_rank(), so each of {ranks} ranks gives all of them"
    ]


def module_shares_out(module: str, source: str) -> bool:
    """Whether what a module with this source has seems to share items out."""
    package = module.partition(".")[0]
    if package in SHARING_PACKAGES or module == SHARING_MODULE:
        return True
    return package != "torch" and WORKER_WORD in source


def _shards(stream: Any) -> int | None:
    """As Hugging Face's streams say it; of webdataset's, the length of the list that they begin with."""
    with suppress(Exception):  # a stream may answer in any way
        for name in ("num_shards", "n_shards"):
            count = getattr(stream, name, None)
            if isinstance(count, int):
                return count
        first = next(iter(getattr(stream, "pipeline", None) or ()), None)
        return len(getattr(first, "urls", ())) if type(first).__name__ == "SimpleShardList" else None
    return None


def _source(module: str) -> str:
    with suppress(OSError, TypeError):  # there is none to look at
        return inspect.getsource(sys.modules[module]) if module in sys.modules else ""
    return ""
