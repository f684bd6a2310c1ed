"""Data by name: every kind opens, and what is not one is told."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from stoker.errors import InputError
from stoker.workload.data.open import KINDS, open_data
from stoker.workload.data.synthetic import jpeg_bytes


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("device-image", (4, 3, 224, 224)), ("device-text", (4, 128)), ("device-video", (4, 3, 16, 112, 112))],
)
def test_random_items_make_a_batch(kind: str, shape: tuple[int, ...]) -> None:
    data = pickle.loads(pickle.dumps(open_data(kind, part="train", mode="train", items=6)))
    batch = next(iter(DataLoader(data.dataset, batch_size=4, collate_fn=data.collate_fn)))
    inputs = batch["input_ids"] if isinstance(batch, dict) else batch[0]
    assert inputs.shape == shape
    assert (len(data.dataset), data.files(), data.path, data.name) == (6, [], None, kind)
    again = data.dataset[0]
    assert torch.equal(inputs[0], again["input_ids"] if isinstance(again, dict) else again[0])


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'jpgs' is neither a known kind of data nor an .* folder; known: jpeg, "):
        open_data("jpgs", part="train", mode="infer")


def test_a_file_is_no_set(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(InputError, match="is a file; expected a folder"):
        open_data(str(tmp_path / "a.jpg"), part="train", mode="infer")


@pytest.mark.parametrize(("name", "said"), [("items", "items"), ("image_size", "image size"), ("files", "files")])
def test_counts_must_be_positive(name: str, said: str) -> None:
    with pytest.raises(InputError, match=f"{said} must be at least 1, got 0"):
        open_data("jpeg", part="train", mode="infer", **{name: 0})  # type: ignore[arg-type]


def test_a_folder_is_bounded_but_never_repeated(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02d}.jpg").write_bytes(jpeg_bytes(number))
    data = open_data(str(tmp_path), part="train", mode="infer", items=500)
    assert (len(data.dataset), data.classes, data.name) == (11, 1, f"{tmp_path.name} (one class)")
    few = open_data(str(tmp_path), part="train", mode="infer", items=3)
    assert (len(few.dataset), len(few.files())) == (3, 3)


def test_a_folder_too_small_to_validate_on_says_so(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(jpeg_bytes(1))
    assert len(open_data(str(tmp_path), part="train", mode="infer").dataset) == 1
    with pytest.raises(InputError, match="no validation part, and too few files to hold some out"):
        open_data(str(tmp_path), part="validation", mode="infer")


def test_the_names_of_kinds_come_without_torch() -> None:
    code = "import sys; from stoker.workload.data.open import KINDS; assert KINDS; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "jpeg" in KINDS
