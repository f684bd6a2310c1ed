"""`stoker prepare` as people run it, and the set it makes used as data."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands import apart, here


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("ants", "bees"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def test_images_become_tensors_that_can_be_profiled(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "tensors"
    done = apart("prepare", str(images), "-o", str(out), "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(out)
    arguments = ("--data", str(out), "--mode", "infer", "--device", "sleep:1ms", "--batch-size", "2", "--batches", "2")
    found = here("profile", "resnet18", *arguments, "--warmup", "0", "--json", "--quiet")
    assert found.returncode == 0, found.stderr
    stages = json.loads(found.stdout)["stages"]
    assert "read" in stages
    assert "decode" not in stages


def test_tensors_of_another_size_are_refused(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "tensors"
    assert here("prepare", str(images), "-o", str(out), "--image-size", "32", "--quiet").returncode == 0
    found = here("profile", "resnet18", "--mode", "infer", "--data", str(out), "--quiet")
    assert found.returncode == 1
    assert "prepared at 32 pixels" in found.stderr


def test_a_folder_that_is_there_is_not_written_over(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "tensors"
    out.mkdir()
    (out / "mine.txt").write_text("keep me")
    done = here("prepare", str(images), "-o", str(out), "--quiet")
    assert done.returncode == 1
    assert str(out) in done.stderr
    assert (out / "mine.txt").read_text() == "keep me"
