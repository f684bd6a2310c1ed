"""Video: files as a dataset of clips, and the synthetic set, which we draw and encode ourselves.

A clip is sixteen frames cut out of a video, decoded from the key frame before them. The synthetic videos have ten
classes, which differ in colour and in how the picture moves.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import transforms

from stoker.atomic import data_root, write_file
from stoker.events import OnProgress, silent
from stoker.marks import stage
from stoker.packages import optional
from stoker.records import Mode
from stoker.workload.data.folders import Listing
from stoker.workload.data.images import CorruptItem, Transform, place_of
from stoker.workload.data.synthetic import SEED, build_classes, class_of, draw_pixels

FRAMES = 16
CROP = 112
MEAN = (0.43216, 0.394666, 0.37645)
STD = (0.22803, 0.22145, 0.216989)

_USUAL_RATE = Fraction(25)

Picture = NDArray[np.uint8]


class ClipFiles(Dataset[tuple[Tensor, int]]):
    """One clip of each video: from its middle, or for training from a random place (`anywhere`)."""

    def __init__(self, listing: Listing, transform: Transform, *, anywhere: bool, items: int | None = None) -> None:
        optional("av", extra="video")
        self.listing = listing
        self.transform = transform
        self.anywhere = anywhere
        self.items = len(listing) if items is None else items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = place_of(index, self.items, len(self.listing))
        pictures = read_clip(self.listing.path(place), anywhere=self.anywhere)
        with stage("decode"):
            clip = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
        return self.transform(clip), self.listing.label(place)


class TimeAfterChannels(nn.Module):
    """Turn (frames, channels, …) into (channels, frames, …), the order that video models take."""

    def forward(self, clip: Tensor) -> Tensor:
        return clip.transpose(0, 1)


def transform_for(mode: Mode, crop: int = CROP) -> transforms.Compose:
    """Resize to 128×171 and crop 112, or in proportion. For training, crop and flip are random."""
    resize = transforms.Resize((round(crop * 128 / CROP), round(crop * 171 / CROP)), antialias=True)
    cut = (
        [transforms.RandomCrop(crop), transforms.RandomHorizontalFlip()]
        if mode == "train"
        else [transforms.CenterCrop(crop)]
    )
    to_float = transforms.ConvertImageDtype(torch.float32)
    return transforms.Compose([resize, *cut, to_float, transforms.Normalize(MEAN, STD), TimeAfterChannels()])


def read_clip(path: str, *, anywhere: bool) -> list[Picture]:
    """Sixteen pictures. A video with fewer frames repeats its last. Raises CorruptItem for an unreadable file."""
    av = optional("av", extra="video")
    try:
        with stage("read"):
            container = av.open(path, metadata_errors="ignore")
        with container:
            pictures = _cut(container, anywhere)
    except (av.FFmpegError, OSError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise CorruptItem(f"{path} is not a readable video ({why}): remove it or make it anew") from None
    if not pictures:
        raise CorruptItem(f"{path} is not a readable video (it has no frames): remove it or make it anew")
    return pictures + pictures[-1:] * (FRAMES - len(pictures))


@dataclass(frozen=True)
class _Timing:
    """When frames are shown, in the stream's own ticks."""

    first: int
    ticks_a_frame: Fraction
    frames: int

    def shown_at(self, frame: int) -> int:
        return self.first + round(frame * self.ticks_a_frame)


def _cut(container: Any, anywhere: bool) -> list[Picture]:
    if not container.streams.video:
        return []
    stream = container.streams.video[0]
    # One thread: the loader chooses how many processes work, and time in another thread would be in no stage.
    stream.codec_context.thread_count = 1
    timing = _timing(container, stream)
    spare = max(0, timing.frames - FRAMES)
    start = int(torch.randint(spare + 1, ())) if anywhere else spare // 2
    begin = timing.shown_at(start)
    if start:
        with stage("read"):
            container.seek(begin, stream=stream)
    return list(_pictures(container, stream, begin if start else None))


def _timing(container: Any, stream: Any) -> _Timing:
    rate = stream.average_rate or _USUAL_RATE
    seconds = stream.duration * stream.time_base if stream.duration else (container.duration or 0) / Fraction(10**6)
    return _Timing(stream.start_time or 0, 1 / (rate * stream.time_base), stream.frames or int(seconds * rate))


def _pictures(container: Any, stream: Any, begin: int | None) -> Iterator[Picture]:
    """At most sixteen frames from `begin` on. Earlier frames are decoded, but not turned into pictures."""
    packets = container.demux(stream)
    count = 0
    while count < FRAMES:
        with stage("read"):
            packet = next(packets, None)
        if packet is None:
            return
        with stage("decode"):
            frames = [f for f in packet.decode() if begin is None or f.pts is None or f.pts >= begin]
            pictures = [frame.to_ndarray(format="rgb24") for frame in frames[: FRAMES - count]]
        count += len(pictures)
        yield from pictures


# ---------------------------------------------------------------- the synthetic set

FILES = 200
WIDTH, HEIGHT, FRAMES_A_SECOND = 320, 240, 25  # as UCF101
SHORTEST, LONGEST = 60, 100

_VERSION = 1
_BITS_A_SECOND = 700_000
_MARGIN = 160
# Pixels a frame across and down: what tells two classes apart when their colours do not.
_MOTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 0), (1, 0))


def build_videos(files: int = FILES, *, root: Path | None = None, progress: OnProgress = silent) -> Path:
    """The folder of the synthetic videos, built if missing: `files` for training, a tenth as many for validation."""
    optional("av", extra="video")
    final = (root or data_root()) / f"video-v{_VERSION}-{files}"
    return build_classes(final, _write_video, files, "avi", item_bytes=_BITS_A_SECOND // 8 * 3, progress=progress)


def _write_video(task: tuple[Path, int]) -> None:
    path, index = task
    write_file(path, video_bytes(index))


def video_bytes(index: int, *, seed: int = SEED) -> bytes:
    """The content of video file `index`, encoded in memory because FFmpeg would not report a full disk."""
    av = optional("av", extra="video")
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=FRAMES_A_SECOND)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.bit_rate, stream.gop_size = _BITS_A_SECOND, FRAMES_A_SECOND
        stream.codec_context.thread_count = 1
        for picture in draw_frames(index, seed=seed):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def draw_frames(index: int, *, seed: int = SEED) -> Iterator[NDArray[np.uint8]]:
    """Frames of a view that moves over a painted scene, in the direction of its class, and bounces at the edges."""
    rng = np.random.Generator(np.random.PCG64([seed, index, 1]))
    label = class_of(index)
    scene = draw_pixels(rng, (HEIGHT + _MARGIN, WIDTH + _MARGIN), 0.8 * rng.random(), label)
    across, down = _MOTIONS[label]
    left, top = (int(place) for place in rng.random(2) * _MARGIN)
    for frame in range(SHORTEST + int(rng.random() * (LONGEST - SHORTEST + 1))):
        x, y = _bounce(left + across * frame), _bounce(top + down * frame)
        yield np.ascontiguousarray(scene[y : y + HEIGHT, x : x + WIDTH])


def _bounce(place: int) -> int:
    """A position that runs from 0 to the margin and back."""
    around = place % (2 * _MARGIN)
    return min(around, 2 * _MARGIN - around)
