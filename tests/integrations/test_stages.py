"""Where the time of an item goes: known libraries, and what a dataset's own code calls."""

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import read_image
from torchvision.transforms import v2

from stoker import Extent, Setting, Workload, profile
from stoker.integrations.bootstrap.stages import Stages
from stoker.integrations.watch import watch
from tests.workload import sharing

COUNT = 12
SIZE = (480, 640)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for index in range(COUNT):
        folder = root / f"class{index % 2}"
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.jpg", quality=95)
    return root


class Files(Dataset[Any]):
    """Images by their path, loaded by a function of the test's."""

    def __init__(self, root: Path, load: Callable[[Path], Any]) -> None:
        self.files = sorted(root.rglob("*.jpg"))
        self.load = load

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.load(self.files[index])


def shares(dataset: Any, workers: int = 0, **options: Any) -> dict[str, float]:
    """Each stage's share of the items' time; what is left is `item`."""
    watched = watch(DataLoader(dataset, 3, num_workers=workers, **options))
    for _ in range(2):
        for _ in watched:
            pass
    assert not watched.log.problems
    fetches = watched.log.processes[0].loaders[0].fetches
    assert fetches
    total = sum(fetch.items_s for fetch in fetches)
    names = {name for fetch in fetches for name in fetch.stages_s}
    found = {name: sum(fetch.stages_s.get(name, 0) for fetch in fetches) / total for name in names}
    unnamed = [name for name in found if name.startswith("item.")]
    return {**{name: found[name] for name in names if name not in unnamed}, "item": 1 - _named(found)}


def _named(found: dict[str, float]) -> float:
    return sum(share for name, share in found.items() if not name.startswith("item."))


@pytest.mark.parametrize("workers", [0, 1])
def test_torchvision_transforms_and_pil(images: Path, workers: int) -> None:
    steps = [transforms.RandomResizedCrop(64), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    found = shares(ImageFolder(str(images), transforms.Compose(steps)), workers)
    members = {f"transform.{name}" for name in ("RandomResizedCrop", "ToTensor", "Normalize")}
    assert {"read", "decode", *members} <= set(found)
    assert found["item"] < 0.3
    assert found["decode"] > found["read"]


def test_torchvision_v2_and_its_own_reader(images: Path) -> None:
    chain = v2.Compose([v2.Resize((64, 64)), v2.ToDtype(torch.float32, scale=True)])
    found = shares(Files(images, lambda path: chain(read_image(str(path)))))
    assert {"read", "decode", "transform.Resize", "transform.ToDtype"} <= set(found)
    assert found["item"] < 0.3


class Pair:
    """A chain of the user's own, for an image and its label."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def __call__(self, image: Any, label: int) -> Any:
        for step in self.steps:
            image, label = step(image, label)
        return image, label


class Slowly:
    def __call__(self, image: Any, label: int) -> Any:
        sleep(0.009)
        return image, label


def flipped(image: Any, label: int) -> Any:
    sleep(0.003)
    return image, 1 - label


class Paired(Dataset[Any]):
    def __init__(self) -> None:
        self.pair = Pair(Slowly(), flipped)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.pair(torch.zeros(4), index)


def test_a_chain_of_the_users_own(images: Path) -> None:
    found = shares(Paired())
    assert found["transform.Slowly"] == pytest.approx(0.75, abs=0.1)
    assert found["transform.flipped"] == pytest.approx(0.25, abs=0.1)


def test_a_subset_has_items_too() -> None:
    watched = watch(DataLoader(Subset(Paired(), range(8)), 4))
    for _ in watched:
        pass
    (first, second) = watched.log.processes[0].loaders[0].fetches
    assert [len(first.item_s), len(second.item_s)] == [4, 4]
    assert all(seconds >= 0.012 for seconds in first.item_s)


class Stream(IterableDataset[Any]):
    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        for path in self.files:
            with path.open("rb") as file:
                data = file.read()
            image = Image.open(io.BytesIO(data)).convert("RGB").resize((64, 64))
            yield torch.from_numpy(np.array(image))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset(images: Path, workers: int) -> None:
    found = shares(Stream(sorted(images.rglob("*.jpg"))), workers)
    assert {"read", "decode", "transform.resize"} <= set(found)
    assert found["item"] < 0.3


def test_a_stream_says_where_it_comes_from_and_its_shards(images: Path) -> None:
    stream = Stream(sorted(images.rglob("*.jpg")))
    stream.num_shards = 2  # type: ignore[attr-defined]
    watched = watch(DataLoader(stream, 3, worker_init_fn=partial(sharing.begin)))
    for _ in watched:
        pass
    loader = watched.log.processes[0].loaders[0]
    assert loader.streams == ((__name__, __file__), (sharing.__name__, sharing.__file__))
    assert loader.shards == 2


class Helped(Dataset[Any]):
    """Its item is loaded by helpers, one of which nobody knows."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self._loaded(index)

    def _loaded(self, index: int) -> Any:
        data = np.load(self.root / "array.npy")
        sleep(0.002)
        return torch.from_numpy(self.augment(data))

    def augment(self, data: Any) -> Any:
        sleep(0.001)
        return data


def test_helpers_of_the_dataset_and_calls_that_nobody_knows(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros((64, 64), "f4"))
    watched = watch(DataLoader(Helped(tmp_path), 4))
    for _ in watched:
        pass
    names = {name for fetch in watched.log.processes[0].loaders[0].fetches for name in fetch.stages_s}
    assert {"read", "transform.augment"} <= names
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "sleep(0.002)" in text and number > 100)
    assert f"item.sleep@{line}" in names


def test_stages_are_own_times_and_what_was_left_without_a_word_ends_with_its_outer_one() -> None:
    stages = Stages()
    stages.begin()
    outer = stages.enter("item.f", "call")
    decode = stages.enter("decode")
    assert stages.enter("transform.x") is None  # what a decoder calls is decoding
    read = stages.enter("read")
    assert outer is not None
    assert decode is not None
    assert read is not None
    sleep(0.002)
    stages.leave(read)
    stages.enter("read")
    stages.leave(outer)
    assert set(stages.sums) == {"read", "item.f"}
    assert stages.sums["read"] >= 2_000_000
    assert stages.total == pytest.approx(sum(stages.sums.values()), rel=0.2)


# ---------------------------------------------------------------- libraries that not everyone has


def _lmdb(root: Path, images: Path) -> Dataset[Any]:
    lmdb = pytest.importorskip("lmdb")
    env = lmdb.open(str(root / "lmdb"), map_size=1 << 27)
    with env.begin(write=True) as transaction:
        for index, path in enumerate(sorted(images.rglob("*.jpg"))):
            transaction.put(str(index).encode(), path.read_bytes())
    env.close()

    class Items(Dataset[Any]):
        env: Any = None

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            if self.env is None:
                self.env = lmdb.open(str(root / "lmdb"), readonly=True, lock=False)
            with self.env.begin() as transaction:
                data = transaction.get(str(index).encode())
            return transforms.functional.to_tensor(Image.open(io.BytesIO(data)).convert("RGB"))

    return Items()


def _h5py(root: Path, images: Path) -> Dataset[Any]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "x.h5", "w") as file:
        pixels = np.random.default_rng(0).normal(size=(COUNT, 1024, 1024)).astype("f4")
        file.create_dataset("x", data=pixels, chunks=(1, 1024, 1024), compression="gzip")

    class Items(Dataset[Any]):
        file: Any = None

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = h5py.File(root / "x.h5")
            return torch.from_numpy(self.file["x"][index])

    return Items()


def _albumentations(root: Path, images: Path) -> Dataset[Any]:
    album = pytest.importorskip("albumentations")
    cv2 = pytest.importorskip("cv2")

    class Items(Files):
        def __init__(self) -> None:
            super().__init__(images, str)
            self.transform = album.Compose([album.RandomCrop(64, 64), album.HorizontalFlip(), album.Normalize()])

        def __getitem__(self, index: int) -> Any:
            image = cv2.cvtColor(cv2.imread(str(self.files[index])), cv2.COLOR_BGR2RGB)
            return self.transform(image=image)["image"]

    return Items()


def _soundfile(root: Path, images: Path) -> Dataset[Any]:
    soundfile = pytest.importorskip("soundfile")
    for index in range(COUNT):
        soundfile.write(root / f"{index}.flac", np.random.default_rng(index).normal(size=240_000), 16_000)

    class Items(Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(soundfile.read(root / f"{index}.flac", dtype="float32")[0])

    return Items()


def _webdataset(root: Path, images: Path) -> Any:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(root / "shard.tar")) as sink:
        for index, path in enumerate(sorted(images.rglob("*.jpg"))):
            sink.write({"__key__": f"{index:04}", "jpg": path.read_bytes(), "cls": index % 2})
    chain = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
    pipeline = webdataset.WebDataset(str(root / "shard.tar"), shardshuffle=False, empty_check=False)
    return pipeline.decode("pil").to_tuple("jpg", "cls").map_tuple(chain, int)


class Compose:
    """A chain of the user's own."""

    def __init__(self, *chain: Callable[[Any], Any]) -> None:
        self.chain = chain

    def __call__(self, value: Any) -> Any:
        for each in self.chain:
            value = each(value)
        return value


class Changed(Dataset[Any]):
    """Arrays that a chain of the user's own changes."""

    def __init__(self) -> None:
        self.augment = Compose(np.fft.fft2, np.abs, torch.from_numpy)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.augment(np.full((512, 512), float(index)))


_LIBRARIES: list[tuple[Any, set[str]]] = [
    (_lmdb, {"read", "decode"}),
    (_h5py, {"read"}),
    (_albumentations, {"decode", "transform.RandomCrop", "transform.Normalize"}),
    (_soundfile, {"decode"}),
    (_webdataset, {"read", "decode", "transform.Resize", "transform.ToTensor"}),
    (lambda root, images: Changed(), set()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "stages"), _LIBRARIES)
def test_a_profile_names_as_much(make: Any, stages: set[str], tmp_path: Path, images: Path) -> None:
    workload = Workload(model=torch.nn.Identity(), dataset=make(tmp_path, images), step=lambda model, batch: None)
    trial = profile(workload, Setting(batch_size=3), Extent(batches=4, warmup=1), device="cpu", mode="infer")
    assert trial.outcome == "done", trial.problem
    assert stages <= set(trial.stages)
    loading = {name: stage.total_s for name, stage in trial.stages.items() if stage.clock == "worker"}
    whole = sum(loading.get(name, 0.0) for name in ("read", "decode", "transform", "item"))
    assert loading["item"] < 0.3 * whole


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("make", "stages"), _LIBRARIES)
def test_less_than_a_third_of_an_item_has_no_name(
    make: Any, stages: set[str], workers: int, tmp_path: Path, images: Path
) -> None:
    found = shares(make(tmp_path, images), workers)
    assert stages <= set(found)
    assert found["item"] < 0.3
