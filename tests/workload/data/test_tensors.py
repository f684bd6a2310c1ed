"""Prepared tensors: the same items as the images they came from, in files of their own or packed."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stoker.errors import InputError, MachineError
from stoker.marks import Recorder, record_into
from stoker.workload.data import prepare as preparing
from stoker.workload.data.images import CorruptItem
from stoker.workload.data.open import OpenedData, open_data
from stoker.workload.data.prepare import prepare
from stoker.workload.data.synthetic import jpeg_bytes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


def opened(root: Path, kind: str, **changes: Any) -> OpenedData:
    return open_data(kind, **{"part": "train", "mode": "infer", "root": root, "files": 20, **changes})


@pytest.mark.parametrize("kind", ["tensors", "packed"])
@pytest.mark.parametrize("part", ["train", "validation"])
def test_an_item_is_what_preprocessing_its_image_gives(root: Path, kind: str, part: str) -> None:
    images, tensors = (opened(root, name, part=part).dataset for name in ("jpeg", kind))
    assert len(tensors) == len(images)
    for index in (0, 7):
        assert torch.equal(tensors[index][0], images[index][0])
        assert tensors[index][1] == images[index][1]


@pytest.mark.parametrize("kind", ["tensors", "packed"])
def test_a_set_repeats_is_bounded_and_travels(root: Path, kind: str) -> None:
    many = pickle.loads(pickle.dumps(opened(root, kind, items=50))).dataset
    assert len(many) == 50
    assert torch.equal(many[3][0], many[43][0])
    inputs, labels = next(iter(DataLoader(opened(root, kind, items=5).dataset, batch_size=8, num_workers=1)))
    assert inputs.shape == (5, 3, 224, 224)
    assert labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["tensors", "packed"])
def test_an_item_is_read_and_is_ours_to_write(root: Path, kind: str) -> None:
    dataset = opened(root, kind).dataset
    recorder = Recorder()
    record_into(recorder)
    try:
        item, _ = dataset[0]
    finally:
        record_into(None)
    assert set(recorder.take()) == {"read"}
    item.zero_()
    assert dataset[0][0].abs().sum() > 0


def test_numpy_reads_the_files_too(root: Path) -> None:
    files, packed = opened(root, "tensors"), opened(root, "packed")
    assert len(files.files()) == 20
    assert np.load(files.files()[0]).shape == (3, 224, 224)
    assert [path.name for path in packed.files()] == ["train.npy"]
    assert np.array_equal(np.load(packed.files()[0])[4], files.dataset[4][0].numpy())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "photos"
    for place, name in enumerate(("train/cat/1.jpg", "train/cat/1.JPEG", "train/dog/more/2.jpg", "val/dog/3.jpg")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(jpeg_bytes(place))
    return source


@pytest.mark.parametrize("packed", [False, True])
def test_prepare_keeps_classes_and_parts(source: Path, tmp_path: Path, packed: bool) -> None:
    out, told = tmp_path / "out", list[tuple[str, int, int]]()
    made = prepare(source, out, packed=packed, image_size=64, progress=lambda *event: told.append(event))
    assert (made.items, made.classes, made.shape) == ({"train": 3, "validation": 1}, 2, (3, 64, 64))
    assert made.stored_bytes == 4 * 3 * 64 * 64 * 4
    assert told[-1] == ("preparing photos", 4, 4)
    for part in ("train", "validation"):
        images = open_data(str(source), part=part, mode="infer", image_size=64)
        tensors = open_data(str(out), part=part, mode="infer")
        assert (tensors.name, tensors.classes) == ("out", 2)
        pairs = zip(images.dataset, tensors.dataset, strict=True)
        assert all(torch.equal(one[0], other[0]) and one[1] == other[1] for one, other in pairs)


def test_what_was_prepared_describes_itself(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "out")
    described = json.loads((tmp_path / "out" / "stoker.json").read_text())
    assert described["classes"] == ["cat", "dog"]
    assert described["shape"] == [3, 224, 224]
    assert described["dtype"] == "float32"
    assert described["source"] == "photos"
    assert described["preprocessing"]["resize"] == 256


def test_a_flat_folder_can_be_prepared(tmp_path: Path) -> None:
    source = tmp_path / "flat"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.jpg").write_bytes(jpeg_bytes(number))
    made = prepare(source, tmp_path / "out", image_size=32)
    assert made.items == {"train": 2, "validation": 1}
    assert len(open_data(str(tmp_path / "out"), part="train", mode="infer").dataset) == 2


def test_a_corrupt_image_is_named_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    broken = source / "train/cat/1.jpg"
    broken.write_bytes(broken.read_bytes()[:3000])
    with pytest.raises(InputError, match=r"train/cat/1.jpg is not a readable image .*: remove it or make it anew"):
        prepare(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_a_folder_that_is_in_use_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="notes is a file"):
        prepare(source, tmp_path / "notes")
    with pytest.raises(InputError, match="is not empty; give a folder that is new or empty"):
        prepare(source, tmp_path)
    with pytest.raises(InputError, match="lies in"):
        prepare(source, source / "tensors")
    assert prepare(source, tmp_path / "empty", image_size=32).items["train"] == 3
    with pytest.raises(InputError, match="holds prepared tensors already"):
        prepare(tmp_path / "empty", tmp_path / "again")


def test_no_room_for_the_tensors_is_told_before_any_is_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "in_parallel", lambda *_, **__: pytest.fail("work was begun"))
    with pytest.raises(MachineError, match=r"no space left in .* needs about .* MB; free some, or choose a folder on"):
        prepare(source, tmp_path / "out", image_size=10_000_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_a_truncated_tensor_is_named(source: Path, tmp_path: Path) -> None:
    for packed in (False, True):
        out = tmp_path / f"out-{packed}"
        prepare(source, out, packed=packed, image_size=32)
        data = open_data(str(out), part="train", mode="infer")
        last = data.files()[-1]
        last.write_bytes(last.read_bytes()[:-8])
        with pytest.raises(CorruptItem, match=rf"{last.name} is truncated \(.*\): remove it or prepare the set anew"):
            data.dataset[2]


def test_a_file_of_another_shape_is_named(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "out", image_size=32)
    data = open_data(str(tmp_path / "out"), part="train", mode="infer")
    np.save(data.files()[0], np.zeros((32, 32, 3), dtype=np.float32))
    with pytest.raises(CorruptItem, match=r"is not a float32 array of shape \(3, 32, 32\)"):
        data.dataset[0]


def test_another_size_than_was_prepared_is_refused(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "out", image_size=32)
    with pytest.raises(InputError, match="was prepared at 32 pixels, not 224"):
        open_data(str(tmp_path / "out"), part="train", mode="infer", image_size=224)


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "does not describe prepared tensors"), ('{"schema": "stoker-tensors-9"}', "does not describe")],
)
def test_a_description_that_is_not_ours_is_told(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "stoker.json").write_text(content)
    with pytest.raises(InputError, match=why):
        open_data(str(tmp_path), part="train", mode="infer")
