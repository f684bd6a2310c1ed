"""The items of a search: loaded once, kept while they fit, and the same wherever they come from."""

from pathlib import Path

import pytest
import torch

from stoker.ranking.supply import HostStore, Loaded, Options, Supply, open_items
from stoker.records import WorkloadSpec
from stoker.workload import models
from tests.ranking.cases import NET, OTHER, pictures


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pictures(tmp_path_factory.mktemp("images") / "birds", each=4)
    (folder / "class1" / "2.jpg").write_bytes(b"no picture")
    return folder


def supply(
    images: Path, store: HostStore, model: str = NET, *, prepared: bool = False, decoded: bool = False
) -> Supply:
    items = open_items(models.describe(model), None, WorkloadSpec(spec=model, data=str(images)), Options())
    return Supply(items, store, keeps_prepared=prepared, keeps_decoded=decoded)


def joined(batches: list[Loaded]) -> tuple[torch.Tensor, list[int], list[int], int]:
    inputs = torch.cat([each.inputs for each in batches if each.inputs is not None])
    places = [place for each in batches for place in each.places]
    labels = [label for each in batches for label in each.labels]
    return inputs, labels, places, sum(each.skipped for each in batches)


def everything(one: Supply, size: int, workers: int = 0) -> tuple[torch.Tensor, list[int], list[int], int]:
    found = joined(list(one.batches(size, workers, pinned=False)))
    one.finish()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_items_come_in_order_with_their_labels(images: Path, workers: int) -> None:
    inputs, labels, places, skipped = everything(supply(images, HostStore()), 5, workers)
    assert inputs.shape == (11, 3, 160, 160)
    assert labels == [place % 3 for place in places], "the classes are interleaved"
    assert (len(places), places, skipped) == (11, sorted(places), 1)


def test_prepared_items_are_kept_for_a_candidate_with_the_same_preprocessing(images: Path) -> None:
    store = HostStore(limit_bytes=2**30)
    first = everything(supply(images, store, prepared=True), 4)
    again = supply(images, store)
    assert (again.source, again.in_memory) == ("prepared", True)
    second = everything(again, 3)
    assert torch.equal(first[0], second[0])
    assert first[1:] == second[1:]
    store.prepared_over()
    assert (store.used_bytes, supply(images, store).source) == (0, "files")


@pytest.mark.parametrize("workers", [0, 2])
def test_decoded_images_are_kept_for_a_candidate_with_another_preprocessing(images: Path, workers: int) -> None:
    store = HostStore(limit_bytes=2**30)
    everything(supply(images, store, decoded=True), 4, workers)
    assert store.used_bytes == 11 * 48 * 64 * 3
    other = supply(images, store, OTHER)
    assert other.source == "decoded"
    found, fresh = everything(other, 4), everything(supply(images, HostStore(), OTHER), 4)
    assert torch.equal(found[0], fresh[0])
    assert found[1:3] == fresh[1:3]


@pytest.mark.parametrize("limit_bytes", [0, 48 * 64 * 3 * 5, 3 * 160 * 160 * 4 * 5])
def test_what_does_not_fit_is_not_kept_and_takes_no_room(images: Path, limit_bytes: int) -> None:
    store = HostStore(limit_bytes=limit_bytes)
    kept = everything(supply(images, store, prepared=True), 2)
    assert store.used_bytes == 0
    assert supply(images, store).source == "files"
    plain = everything(supply(images, HostStore()), 2)
    assert torch.equal(kept[0], plain[0])
    one = supply(images, store, decoded=True)
    next(one.batches(2, 0, pinned=False))
    one.abandon()
    assert store.used_bytes == 0, "a candidate that fails half-way keeps nothing"
