"""Synthetic photographs, and images of any folder as a dataset."""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from stoker.marks import Recorder, record_into
from stoker.workload.data.images import CorruptItem, ImageFiles, decode, transform_for
from stoker.workload.data.open import OpenedData, open_data
from stoker.workload.data.synthetic import CLASSES, build_jpegs, draw_pixels, jpeg_bytes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    build_jpegs(200, root=root)
    return root


def opened(root: Path, **changes: Any) -> OpenedData:
    return open_data("jpeg", **{"part": "train", "mode": "infer", "root": root, "files": 200, **changes})


def test_the_set_has_its_files_in_class_folders_and_both_parts(root: Path) -> None:
    folder = root / "jpeg-v1-200"
    assert sorted(path.name for path in folder.iterdir()) == ["train", "validation"]
    assert [len(list((folder / part).glob("class_*/*.jpg"))) for part in ("train", "validation")] == [200, 20]
    assert len(list((folder / "train").iterdir())) == CLASSES


def test_files_are_as_large_as_imagenettes(root: Path) -> None:
    sizes = [path.stat().st_size for path in (root / "jpeg-v1-200").rglob("*.jpg")]
    assert 117_000 * 0.9 < np.mean(sizes) < 117_000 * 1.1
    assert np.std(sizes) > 30_000


def test_pictures_have_many_sizes_around_that_of_a_camera(root: Path) -> None:
    sizes = []
    for path in (root / "jpeg-v1-200").rglob("*.jpg"):
        with Image.open(path) as image:
            sizes.append(image.size)
    assert sorted(np.median(np.asarray(sizes), axis=0)) == [375, 500]
    assert len(set(sizes)) > 10


def test_an_image_is_the_same_wherever_it_is_made(root: Path) -> None:
    assert (root / "jpeg-v1-200/train/class_7/000017.jpg").read_bytes() == jpeg_bytes(17)
    pixels = draw_pixels(np.random.Generator(np.random.PCG64([1, 2])), (60, 80), 1.0, 3)
    # From plain arithmetic alone, so the same on every machine; where this changes, VERSION must.
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == "555f21c3ad8ba466"


def test_parts_share_no_image(root: Path) -> None:
    digests = {
        part: {hashlib.sha256(path.read_bytes()).digest() for path in (root / "jpeg-v1-200" / part).rglob("*.jpg")}
        for part in ("train", "validation")
    }
    assert [len(found) for found in digests.values()] == [200, 20]
    assert not digests["train"] & digests["validation"]


def test_an_item_is_a_normalised_tensor_and_its_label(root: Path) -> None:
    data = opened(root)
    item, label = data.dataset[13]
    assert (item.shape, item.dtype, label) == ((3, 224, 224), torch.float32, 3)
    assert (data.classes, data.name, len(data.dataset)) == (10, "jpeg", 200)
    assert data.dataset[-1][1] == data.dataset[199][1]
    with pytest.raises(IndexError):
        data.dataset[200]


def test_items_bound_the_set_or_repeat_it(root: Path) -> None:
    few, many = opened(root, items=15), opened(root, items=450)
    assert (len(few.dataset), len(few.files())) == (15, 15)
    assert {few.dataset[index][1] for index in range(10)} == set(range(10))
    assert (len(many.dataset), len(many.files())) == (450, 200)
    assert torch.equal(many.dataset[3][0], many.dataset[403][0])


def test_training_augments_and_validation_does_not(root: Path) -> None:
    training = opened(root, mode="train").dataset
    validation = opened(root, mode="train", part="validation").dataset
    assert not torch.equal(training[0][0], training[0][0])
    assert torch.equal(validation[0][0], validation[0][0])
    assert [type(one).__name__ for one in training.transform.transforms] == [
        "RandomResizedCrop",
        "RandomHorizontalFlip",
        "ToTensor",
        "Normalize",
    ]
    resize, crop, *_ = validation.transform.transforms
    assert (resize.size, crop.size) == (256, (224, 224))


def test_the_image_size_can_be_chosen(root: Path) -> None:
    assert opened(root, image_size=299).dataset[0][0].shape == (3, 299, 299)


def test_reading_and_decoding_are_marked(root: Path) -> None:
    dataset = opened(root).dataset
    recorder = Recorder()
    record_into(recorder)
    try:
        dataset[0]
    finally:
        record_into(None)
    assert set(recorder.take()) == {"read", "decode"}


def test_the_dataset_goes_to_a_spawned_worker(root: Path) -> None:
    dataset = opened(root, items=4).dataset
    loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    inputs, labels = next(iter(loader))
    assert inputs.shape == (4, 3, 224, 224)
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for own in ("cat", "dog"):
        (tmp_path / own).mkdir()
        for number in range(3):
            (tmp_path / own / f"{number}.jpg").write_bytes(jpeg_bytes(number))
    return tmp_path


def test_a_truncated_jpeg_is_named_across_worker_processes(folder: Path) -> None:
    broken = folder / "cat" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:2000])
    dataset = open_data(str(folder), part="train", mode="infer").dataset
    batches: Any = iter(DataLoader(dataset, batch_size=2, num_workers=1))
    with pytest.raises(CorruptItem, match=r"cat/0.jpg is not a readable image \(.*\): remove it or make it anew"):
        next(batches)
    # Torch tells a worker whose batch failed nothing more, and waits five seconds for it to look around.
    batches._workers_done_event.set()
    batches._index_queues[0].put(None)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "the file is empty"), (b"no picture at all", "no image format is recognised"), (b"\x89PNG\r\n\x1a\n", ".+")],
)
def test_what_is_no_image_is_told(content: bytes, why: str) -> None:
    with pytest.raises(CorruptItem, match=rf"a.jpg is not a readable image \({why}\): remove it"):
        decode(content, "a.jpg")


def test_any_early_cut_of_a_jpeg_is_told() -> None:
    whole = jpeg_bytes(1)
    for length in range(1, 1000, 7):
        with pytest.raises(CorruptItem):
            decode(whole[:length], "a.jpg")


def test_a_file_that_went_away_is_told(folder: Path) -> None:
    dataset = open_data(str(folder), part="train", mode="infer").dataset
    (folder / "cat" / "0.jpg").unlink()
    with pytest.raises(CorruptItem, match=r"cat/0.jpg cannot be read \(No such file or directory\)"):
        dataset[0]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16", "1"])
def test_pictures_of_any_mode_become_three_channels(mode: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (40, 30)).save(file, "TIFF")
    assert transform_for("infer", 32)(decode(file.getvalue(), "a.tiff")).shape == (3, 32, 32)


def test_a_pickled_dataset_is_small(root: Path) -> None:
    assert isinstance(opened(root).dataset, ImageFiles)
    assert len(pickle.dumps(opened(root).dataset)) < 200 * 40 + 4000


def test_the_classes_can_be_learned(root: Path) -> None:
    """A small net on thumbnails, shown few images a few times, does far better on new ones than one in ten."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shown, new = (all_items(opened(root, part=part, image_size=32)) for part in ("train", "validation"))
        assert accuracy(shown, new) > 0.4
    finally:
        torch.set_num_threads(threads)


def all_items(data: OpenedData) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = next(iter(DataLoader(data.dataset, batch_size=len(data.dataset))))
    return inputs, labels


def accuracy(shown: tuple[torch.Tensor, torch.Tensor], new: tuple[torch.Tensor, torch.Tensor]) -> float:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(5):
        for start in range(0, len(shown[1]), 20):
            inputs, labels = (part[start : start + 20] for part in shown)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    return float((net.eval()(new[0]).argmax(1) == new[1]).float().mean())
