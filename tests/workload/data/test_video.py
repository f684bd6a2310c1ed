"""Videos that we encode ourselves, and clips cut from them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stoker.errors import MissingPackage
from stoker.marks import Recorder, record_into
from stoker.workload.data.images import CorruptItem
from stoker.workload.data.open import OpenedData, open_data
from stoker.workload.data.video import FRAMES, draw_frames, read_clip, transform_for

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


def opened(root: Path, **changes: Any) -> OpenedData:
    return open_data("video", **{"part": "train", "mode": "infer", "root": root, "files": 40, **changes})


def encode(path: Path, pictures: list[np.ndarray[Any, Any]], **options: Any) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(options.get("codec", "mpeg4"), rate=25)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt, stream.gop_size, stream.bit_rate = "yuv420p", 12, 2_000_000
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def counting(count: int) -> list[np.ndarray[Any, Any]]:
    """Frame n shows n as eight bars, white for one and black for nought: a decoded frame says which one it was."""
    bars = [[255 * (number >> bit & 1) for bit in range(8)] for number in range(count)]
    return [np.tile(np.repeat(np.array(row, dtype=np.uint8), 16)[None, :, None], (48, 1, 3)) for row in bars]


def numbers(pictures: list[Any]) -> list[int]:
    bars = [picture.reshape(48, 8, 16, 3).mean(axis=(0, 2, 3)) > 128 for picture in pictures]
    return [sum(1 << bit for bit in range(8) if row[bit]) for row in bars]


def test_an_item_is_a_clip_of_channels_and_frames(root: Path) -> None:
    data = opened(root)
    clip, label = data.dataset[13]
    assert (clip.shape, clip.dtype, label) == ((3, 16, 112, 112), torch.float32, 3)
    assert (data.classes, data.name, len(data.dataset), len(data.files())) == (10, "video", 40, 40)
    assert -3 < float(clip.mean()) < 3
    assert len(opened(root, part="validation").dataset) == 10


def test_files_are_like_those_of_ucf101(root: Path) -> None:
    with av.open(str(opened(root).files()[0])) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (320, 240, 25)
        assert 60 <= stream.frames <= 100
        assert stream.codec_context.name == "mpeg4"


def test_frames_move_and_are_the_same_whenever_they_are_drawn() -> None:
    first, second = list(draw_frames(4)), list(draw_frames(4))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("ending", ["avi", "mp4", "mkv"])
def test_the_middle_is_cut_out_exactly(tmp_path: Path, ending: str) -> None:
    path = encode(tmp_path / f"a.{ending}", counting(100))
    assert numbers(read_clip(str(path), anywhere=False)) == list(range(42, 58))


def test_in_training_a_clip_comes_from_anywhere(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.avi", counting(60))
    torch.manual_seed(0)
    starts = {numbers(read_clip(str(path), anywhere=True))[0] for _ in range(40)}
    assert len(starts) > 10
    assert min(starts) >= 0
    assert max(starts) <= 60 - FRAMES


def test_a_short_video_repeats_its_last_frame(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.avi", counting(5))
    assert numbers(read_clip(str(path), anywhere=True)) == [0, 1, 2, 3, *[4] * 12]


def test_training_and_validation_differ_as_they_should(root: Path) -> None:
    training = opened(root, mode="train").dataset
    assert not torch.equal(training[0][0], training[0][0])
    still = opened(root, mode="train", part="validation").dataset
    assert torch.equal(still[0][0], still[0][0])


def test_reading_and_decoding_are_marked(root: Path) -> None:
    dataset = opened(root).dataset
    recorder = Recorder()
    record_into(recorder)
    try:
        dataset[0]
    finally:
        record_into(None)
    assert set(recorder.take()) == {"read", "decode"}


def test_a_users_folder_of_videos_opens_in_workers(root: Path, tmp_path: Path) -> None:
    for own in ("Archery", "Bowling"):
        (tmp_path / own).mkdir()
        for number, path in enumerate(opened(root).files()[:3]):
            shutil.copy(path, tmp_path / own / f"v_{number}.avi")
    data = open_data(str(tmp_path), part="train", mode="infer", items=3)
    inputs, labels = next(iter(DataLoader(data.dataset, batch_size=3, num_workers=1)))
    assert inputs.shape == (3, 3, 16, 112, 112)
    assert labels.tolist() == [0, 1, 0]
    assert data.name == tmp_path.name


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_what_is_no_video_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.avi"
    path.write_bytes(content)
    with pytest.raises(CorruptItem, match=r"a.avi is not a readable video \(.+\): remove it or make it anew"):
        read_clip(str(path), anywhere=False)


def test_a_video_cut_off_before_its_frames_is_told(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.avi", counting(60))
    path.write_bytes(path.read_bytes()[:5700])
    with pytest.raises(CorruptItem, match=r"a.avi is not a readable video"):
        read_clip(str(path), anywhere=False)


def test_without_pyav_the_extra_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'av'", name="av")

    monkeypatch.setattr("stoker.packages.importlib.import_module", missing)
    with pytest.raises(MissingPackage, match=r"pip install 'stoker\[video\]'"):
        opened(root)


def test_the_classes_can_be_learned(root: Path) -> None:
    """The mean colour of a clip, compared with that of each class, is right far more often than one in ten."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shown, new = (colours(opened(root, part=part)) for part in ("train", "validation"))
    finally:
        torch.set_num_threads(threads)
    classes = [torch.stack([colour for colour, label in shown if label == own]).mean(0) for own in range(10)]
    right = [int(torch.stack([(colour - own).norm() for own in classes]).argmin()) == label for colour, label in new]
    assert sum(right) >= 4


def colours(data: OpenedData) -> list[tuple[torch.Tensor, int]]:
    return [(clip.mean(dim=(1, 2, 3)), label) for clip, label in data.dataset]


def test_another_size_keeps_its_proportions() -> None:
    resize, crop, *_ = transform_for("infer", 224).transforms
    assert (list(resize.size), crop.size) == ([256, 342], (224, 224))
