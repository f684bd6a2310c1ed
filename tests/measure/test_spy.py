"""What the spy sees inside real loader workers, and that the batches are what they would have been."""

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, get_worker_info
from torchvision import datasets, transforms
from torchvision.transforms import v2

import stoker
from stoker import marks
from stoker.measure.spy import wrappers
from stoker.measure.spy.transforms import SpiedCall


@pytest.fixture(autouse=True)
def looking() -> Iterator[None]:
    wrappers.install()
    yield
    marks.record_into(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0)
    for name in ("ants", "bees"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = noise.integers(0, 255, (40, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.jpg")
    return tmp_path


class Marked(Dataset[Any]):
    """Says itself what it does."""

    def __init__(self) -> None:
        self.transform = transforms.Compose([transforms.Lambda(lambda x: x), AddOne(), AddOne()])

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        with stoker.stage("read"):
            time.sleep(0.002)
        return self.transform(torch.full((3,), float(index)))


class AddOne:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Opaque(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.tensor(index), {"text": str(index)}


class WholeBatches(Opaque):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    begin = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(self.begin, self.begin + 6))


def parcels(dataset: Any, workers: int = 0, **options: Any) -> list[wrappers.Parcel]:
    init = options.pop("worker_init_fn", None)
    collate = options.pop("collate_fn", None)
    loader = DataLoader(
        wrappers.spied(dataset),
        batch_size=4,
        num_workers=workers,
        collate_fn=wrappers.SpiedCollate(collate),
        worker_init_fn=wrappers.SpiedInit(init),
        **options,
    )
    return list(loader)


def stages(found: list[wrappers.Parcel]) -> set[str]:
    return {name for parcel in found for name in parcel.stamp.sums}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_marks_and_transforms_are_seen_by_name(workers: int) -> None:
    found = parcels(Marked(), workers)
    expected = {"read", "transform.Lambda", "transform.AddOne", "transform.AddOne.2", "item", "collate"}
    assert stages(found) == expected | ({"send"} if workers else set())
    assert all(parcel.stamp.sums["read"] >= 4 * 0.002 for parcel in found)
    assert torch.cat([parcel.batch for parcel in found])[:, 0].tolist() == [float(i + 2) for i in range(12)]
    assert {parcel.stamp.worker for parcel in found} == (set(range(workers)) if workers else {-1})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_cannot_be_looked_into_is_one_stage(workers: int) -> None:
    found = parcels(Opaque(), workers)
    assert stages(found) - {"send"} == {"item", "collate"}
    assert [len(parcel.stamp.item_s) for parcel in found] == [4, 4]
    assert found[1].batch[1]["text"] == ["4", "5", "6", "7"]


@pytest.mark.parametrize("compose", [transforms.Compose, v2.Compose])
def test_an_image_folder_is_told_apart_into_read_decode_transform(folder: Path, compose: Any) -> None:
    steps = compose([transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()])
    found = parcels(datasets.ImageFolder(str(folder), transform=steps), 2)
    assert stages(found) >= {"read", "decode", "transform.Resize", "transform.CenterCrop", "transform.ToTensor"}
    plain = datasets.ImageFolder(str(folder), transform=compose([*_unwrapped(steps)]))
    assert torch.equal(found[0].batch[0], torch.stack([plain[i][0] for i in range(4)]))


def _unwrapped(compose: Any) -> list[Any]:
    return [member._inner if isinstance(member, SpiedCall) else member for member in compose.transforms]


def test_transforms_of_a_nested_dataset_are_found() -> None:
    nested: Subset[Any] = Subset(ConcatDataset([Marked(), Marked()]), list(range(8)))
    assert "transform.AddOne" in stages(parcels(nested))


def test_a_single_transform_and_a_target_transform_are_found(folder: Path) -> None:
    images = datasets.ImageFolder(str(folder), transform=transforms.ToTensor(), target_transform=AddOne())
    images.transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    assert stages(parcels(images)) >= {"transform.Resize", "transform.AddOne"}


def test_a_dataset_that_loads_whole_batches_goes_on_doing_so() -> None:
    found = parcels(WholeBatches(), 1)
    assert [len(parcel.stamp.item_s) for parcel in found] == [1, 1]
    assert isinstance(wrappers.spied(Subset(WholeBatches(), [0, 1])), wrappers.SpiedBatches)
    assert not isinstance(wrappers.spied(Subset(Opaque(), [0, 1])), wrappers.SpiedBatches)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_timed_item_by_item(workers: int) -> None:
    found = parcels(Stream(), workers)
    assert torch.cat([parcel.batch for parcel in found]).tolist() == list(range(6))
    assert len(found[0].stamp.item_s) == 4


def test_the_end_of_a_stream_belongs_to_no_batch() -> None:
    wrappers.install()
    stream, book = wrappers.spied(Stream()), wrappers.ledger()
    for _ in stream:
        pass
    stamp = book.close_batch()
    assert len(stamp.item_s) == 6, "and none for the end"
    began = time.perf_counter()
    list(iter(wrappers.spied(torch.utils.data.ChainDataset([]))))
    assert book.close_batch().began >= began
    assert not book.close_batch().item_s


def shift(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.begin = 100  # type: ignore[attr-defined]


def test_a_worker_init_function_finds_its_own_dataset() -> None:
    found = parcels(Stream(), 1, worker_init_fn=shift)
    assert torch.cat([parcel.batch for parcel in found]).tolist() == list(range(100, 106))


def test_workers_that_are_spawned_see_the_same() -> None:
    context = multiprocessing.get_context("spawn")
    found = parcels(Opaque(), 1, multiprocessing_context=context)
    assert stages(found) == {"item", "collate", "send"}


def test_the_item_that_fails_is_named() -> None:
    class Broken(Opaque):
        def __getitem__(self, index: int) -> Any:
            raise ValueError("no such label")

    with pytest.raises(ValueError) as caught:
        parcels(Broken())
    assert "item 0 of Broken" in caught.value.__notes__[0]


def test_numpy_and_torch_files_are_reading(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4))
    torch.save(torch.zeros(4), tmp_path / "a.pt")

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.load(tmp_path / "a.npy"), torch.load(tmp_path / "a.pt", weights_only=True)

    assert "read" in stages(parcels(Files()))
