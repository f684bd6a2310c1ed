"""Which streams share their items out among workers, and among how many."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, IterableDataset

from stoker.integrations.bootstrap import loaders
from stoker.workload import streams
from tests.workload import sharing


class Everything(IterableDataset[int]):
    """Gives all its items in every process."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Sharing(Everything):
    """Stands for a stream of a library that shares its items out, in three parts."""

    num_shards = 3


Sharing.__module__ = "datasets.iterable_dataset"


class Rude(Everything):
    """Does not say how many shards it has."""

    @property
    def num_shards(self) -> int:
        raise RuntimeError("ask again later")


class Inside(IterableDataset[int]):
    """Reads another stream, and gives its items."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[int]:
        return iter(self.stream)


class Reader:
    """No stream: it asks which worker it is in, and reads its part."""


Reader.__module__ = sharing.__name__


class SimpleShardList:
    """Stands for the first stage of webdataset's streams."""

    urls = ("a.tar", "b.tar")


def test_a_stream_that_every_process_reads_whole_is_noted() -> None:
    [note] = streams.rank_duplicate_notes(Everything(), 2)
    assert "so each of 2 ranks gives all of them" in note
    assert streams.rank_duplicate_notes(Everything(), 1) == []
    [note] = streams.duplicate_notes(Everything(), 2)
    assert "so each of 2 workers gives all of them" in note
    assert streams.duplicate_notes(Everything(), 1) == []


STREAMS = [
    (Everything(), True, None),
    (Inside(Everything()), True, None),
    (Rude(), True, None),
    (Sharing(), False, 3),
    (Inside(Inside(Sharing())), False, 3),
    (Inside(Reader()), False, None),
    (Inside(sharing.part), False, None),
    (Inside(partial(sharing.part, range(3))), False, None),
    (Inside({"parts": [sharing.part]}), False, None),
    (ChainDataset([Everything(), Sharing()]), False, 3),
    (ChainDataset([Everything(), Everything()]), True, None),
    (Inside([range(3), "text", torch.nn.Linear(1, 1)]), True, None),
    ([1, 2], False, None),
]
"""Streams, whether several workers would each give all their items, and their shards."""


@pytest.mark.parametrize(("dataset", "repeats", "shards"), STREAMS)
def test_what_a_stream_reads_may_share_its_items_out(dataset: Any, repeats: bool, shards: int | None) -> None:
    assert streams.repeats_items(dataset) is repeats
    assert streams.shards_of(dataset) == shards


@pytest.mark.parametrize(("dataset", "repeats", "shards"), STREAMS)
def test_what_observes_a_script_sees_the_same(dataset: Any, repeats: bool, shards: int | None) -> None:
    facts = loaders._stream(SimpleNamespace(dataset=dataset))
    texts = ((module, Path(file).read_text(encoding="utf-8") if file else "") for module, file in facts["streams"])
    shared = any(streams.module_shares_out(module, text) for module, text in texts)
    assert (bool(facts["streams"]) and not shared, facts["shards"]) == (repeats, shards)


def test_what_begins_a_worker_may_share_the_items_out() -> None:
    assert not streams.repeats_items(Everything(), sharing.part)
    assert streams.repeats_items(Everything(), seed_all)
    assert streams.duplicate_notes(Everything(), 2, sharing.part) == []


def seed_all(worker: int) -> None:
    torch.manual_seed(worker)


def test_webdatasets_list_of_shards_is_counted() -> None:
    stream = Everything()
    stream.pipeline = [SimpleShardList(), SimpleNamespace()]  # type: ignore[attr-defined]
    assert streams.shards_of(stream) == 2


def test_a_stream_that_holds_itself_ends() -> None:
    stream = Inside(None)
    stream.stream = stream
    assert streams.repeats_items(stream)


def test_workers_without_items_are_noted() -> None:
    [note] = streams.shard_notes(2, 4)
    assert note.startswith("only 2 of 4 workers have items")
    assert streams.shard_notes(2, 2) == streams.shard_notes(None, 4) == []
