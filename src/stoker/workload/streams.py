"""What an iterable dataset gives several workers: each of them a part of its items, or all of them.

Streams are known by their class's name: this is also asked about logs, where torch is not imported.
"""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

SHARING_PACKAGES = ("datasets", "webdataset", "torchdata", "streaming", "litdata", "torch_geometric")
"""Their streams give each worker a part of the items."""
WORKER_WORD = "get_worker_info"
"""A stream that shares its items out itself asks torch by this name which worker it is in."""
_TORCH = "torch.utils.data.dataset"
_DEEPEST = 4


def repeats_items(dataset: Any) -> bool:
    """Whether each of several workers would give all items of a dataset: it is a stream, and neither it nor a stream
    that it reads seems to share them out."""
    found = list(streams_of(dataset))
    return bool(found) and not any(_shares_out(stream) for stream in found)


def shards_of(dataset: Any) -> int | None:
    """How many parts a stream can be shared out in at most, or None if it does not say so."""
    return next((count for stream in streams_of(dataset) if (count := _shards(stream)) is not None), None)


def streams_of(dataset: Any, depth: int = 0) -> Iterator[Any]:
    """A stream and the streams that it holds."""
    if not any(kind.__name__ == "IterableDataset" and kind.__module__ == _TORCH for kind in type(dataset).__mro__):
        return
    yield dataset
    if depth < _DEEPEST:
        for value in list(getattr(dataset, "__dict__", {}).values()):
            yield from streams_of(value, depth + 1)


def duplicate_notes(dataset: Any, workers: int) -> list[str]:
    """A note if each of several workers reads the whole stream."""
    return [duplicated(type(dataset).__name__, workers)] if workers > 1 and repeats_items(dataset) else []


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
    source = _source(dataset)
    words = ("get_rank", "RANK", "world_size", "num_replicas", "split_by_node")
    if ranks < 2 or any(word in source for word in words):
        return []
    return [
        f"items are duplicated: {type(dataset).__name__} does not share its items out by "
        f"torch.distributed.get_rank(), so each of {ranks} ranks gives all of them"
    ]


def module_shares_out(module: str, source: str) -> bool:
    """Whether streams of a module with this source seem to share their items out."""
    return module.partition(".")[0] in SHARING_PACKAGES or WORKER_WORD in source


def _shares_out(stream: Any) -> bool:
    return module_shares_out(type(stream).__module__, _source(stream))


def _shards(stream: Any) -> int | None:
    """As Hugging Face's streams say it; of webdataset's, the length of the list that they begin with."""
    for name in ("num_shards", "n_shards"):
        count = getattr(stream, name, None)
        if isinstance(count, int):
            return count
    first = next(iter(getattr(stream, "pipeline", None) or ()), None)
    return len(getattr(first, "urls", ())) if type(first).__name__ == "SimpleShardList" else None


def _source(dataset: Any) -> str:
    """The source of a dataset's module."""
    with suppress(OSError, TypeError):  # there is none to look at
        return inspect.getsource(inspect.getmodule(type(dataset)) or type(dataset))
    return ""
