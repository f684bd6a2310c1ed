"""What the spy sees inside real loader workers, and that the batches are what they would have been."""

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, get_worker_info
from torchvision import datasets, io, transforms
from torchvision.transforms import v2

import stoker
from stoker import marks
from stoker.measure import spy
from stoker.measure.spy import wrappers
from stoker.measure.spy.transforms import SpiedCall


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


def parcels(dataset: Any, workers: int = 0, **options: Any) -> list[spy.Parcel]:
    init = options.pop("worker_init_fn", None)
    collate = options.pop("collate_fn", None)
    with spy.installed(dataset) as watched:
        loader = DataLoader(
            watched.dataset,
            batch_size=4,
            num_workers=workers,
            collate_fn=watched.collate_fn(collate),
            worker_init_fn=watched.worker_init_fn(init),
            **options,
        )
        return list(loader)


def stages(found: list[spy.Parcel]) -> set[str]:
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
    plain = datasets.ImageFolder(str(folder), transform=steps)
    assert torch.equal(found[0].batch[0], torch.stack([plain[i][0] for i in range(4)]))


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
    for dataset, expected in ((WholeBatches(), True), (Opaque(), False)):
        inner: Subset[Any] = Subset(dataset, [0, 1])
        with spy.installed(inner) as watched:
            assert isinstance(watched.dataset, wrappers.SpiedBatches) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_timed_item_by_item(workers: int) -> None:
    found = parcels(Stream(), workers)
    assert torch.cat([parcel.batch for parcel in found]).tolist() == list(range(6))
    assert len(found[0].stamp.item_s) == 4


def test_the_end_of_a_stream_belongs_to_no_batch() -> None:
    with spy.installed(Stream()) as watched:
        for _ in watched.dataset:
            pass
        stamp = wrappers.ledger().close_batch()
        assert len(stamp.item_s) == 6, "and none for the end"
    with spy.installed(torch.utils.data.ChainDataset([])) as watched:
        began = time.perf_counter()
        list(iter(watched.dataset))
        stamp = wrappers.ledger().close_batch()
        assert stamp.began >= began
        assert not stamp.item_s


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


# ---------------------------------------------------------------- everything goes back


def twice(x: Any) -> Any:
    return x


class Pair(Dataset[Any]):
    """A dataset with transforms in all places where they are looked for."""

    def __init__(self, folder: Path) -> None:
        inner = transforms.Compose([transforms.Resize(8), twice])
        self.transforms = transforms.Compose([inner, transforms.ToTensor()])
        self.augment = v2.Compose([v2.Resize(8), inner])
        self.chain = torch.nn.Sequential(AddOneModule(), AddOneModule())
        self.target_transform = twice
        self.images = datasets.ImageFolder(str(folder), transform=self.transforms, target_transform=twice)
        self.datasets = [self.images, Marked()]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("no such label")
        return self.images[index]


class AddOneModule(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def parts(holder: Any, found: dict[int, Any] | None = None) -> list[tuple[int, Any]]:
    """Every object below a dataset by its identity, with the attributes that it has."""
    found = {} if found is None else found
    if id(holder) not in found:
        if isinstance(holder, list | tuple):
            found[id(holder)] = [id(each) for each in holder]
            for each in holder:
                parts(each, found)
        elif hasattr(holder, "__dict__") and not isinstance(holder, type):
            found[id(holder)] = {name: id(value) for name, value in vars(holder).items()}
            for value in vars(holder).values():
                parts(value, found)
    return sorted(found.items(), key=lambda pair: pair[0])


def patched() -> list[Any]:
    pil = [Image.open, Image.Image.convert, ImageFile.ImageFile.load]
    return [*pil, np.load, np.fromfile, torch.load, io.read_file, io.decode_image, io.image.read_file]


@pytest.mark.parametrize("fails", [False, True])
def test_dataset_transforms_and_decoders_are_as_they_were(folder: Path, fails: bool) -> None:
    dataset = Pair(folder)
    before, functions = parts(dataset), patched()
    with pytest.raises(ValueError) if fails else contextlib.nullcontext():
        with spy.installed(dataset) as watched:
            assert parts(dataset) != before
            assert isinstance(dataset.transforms.transforms[0], SpiedCall)
            assert patched() != functions
            for index in range(8 if fails else 4):
                watched.dataset[index]
    assert parts(dataset) == before
    assert patched() == functions
    assert marks.recorder() is None


def test_a_spy_that_cannot_be_installed_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Marked()
    before, functions = parts(dataset), patched()

    def refuse(dataset: Any) -> bool:
        raise RuntimeError("asked for its items too early")

    monkeypatch.setattr(wrappers, "_loads_batches", refuse)
    with pytest.raises(RuntimeError, match="too early"), spy.installed(dataset):
        pass
    assert parts(dataset) == before
    assert patched() == functions
    assert marks.recorder() is None


def test_a_spy_inside_a_spy_puts_back_the_outer_one() -> None:
    dataset = Marked()
    before, functions = parts(dataset), patched()
    with spy.installed(dataset) as outer:
        within, recorder = patched(), marks.recorder()
        with spy.installed(dataset):
            assert marks.recorder() is not recorder
        assert patched() == within
        assert marks.recorder() is recorder
        outer.dataset[0]
        assert wrappers.ledger().close_batch().sums["read"] > 0
    assert parts(dataset) == before
    assert patched() == functions


def test_what_somebody_else_patched_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    original = np.load

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    with spy.installed(Opaque()):
        monkeypatch.setattr(np, "load", theirs)
    assert np.load is theirs
    monkeypatch.setattr(np, "load", original)


@dataclass(frozen=True)
class Frozen:
    transform: Any

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.tensor(index))


def test_a_transform_that_cannot_be_replaced_is_left_untimed() -> None:
    assert "transform.AddOne" not in stages(parcels(Frozen(AddOne())))
    assert stages(parcels(Frozen(transforms.Compose([AddOne()])))) >= {"transform.AddOne"}


def test_pausing_looks_away_and_back() -> None:
    with spy.installed(Marked()):
        recorder = marks.recorder()
        with pytest.raises(ZeroDivisionError), spy.paused():
            1 / 0 if marks.recorder() is None else None
        assert marks.recorder() is recorder


# ---------------------------------------------------------------- libraries that read and decode


class Scans(Dataset[Any]):
    """Rows of an HDF5 file, opened lazily."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        import h5py

        self.file = self.file or h5py.File(self.path)
        return torch.from_numpy(self.file["rows"][index])


def test_rows_of_an_hdf5_file_are_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("rows", data=np.arange(8, dtype=np.float32).reshape(4, 2))
    before = h5py.Dataset.__getitem__
    found = parcels(Scans(tmp_path / "rows.h5"))
    assert all(parcel.stamp.sums["read"] > 0 for parcel in found)
    assert h5py.Dataset.__getitem__ is before


class Bent(Dataset[Any]):
    """Images that OpenCV reads and Albumentations changes."""

    def __init__(self, path: Path, augment: Any) -> None:
        self.path, self.augment = path, augment

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        import cv2

        return torch.from_numpy(self.augment(image=cv2.imread(str(self.path)))["image"])


@pytest.mark.slow
def test_transforms_of_albumentations_go_by_name(tmp_path: Path) -> None:
    albumentations, cv2 = pytest.importorskip("albumentations"), pytest.importorskip("cv2")
    cv2.imwrite(str(tmp_path / "a.jpg"), np.zeros((32, 32, 3), np.uint8))
    augment = albumentations.Compose([albumentations.Resize(16, 16), albumentations.HorizontalFlip(p=1.0)])
    members = list(augment.transforms)
    found = parcels(Bent(tmp_path / "a.jpg", augment))
    assert {"decode", "transform.Resize", "transform.HorizontalFlip"} <= set(found[0].stamp.sums)
    assert found[0].batch.shape[1:] == (16, 16, 3)
    assert list(augment.transforms) == members
