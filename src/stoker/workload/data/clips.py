"""Video files as a dataset of clips: sixteen frames cut out of each, decoded from the key frame before them."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import transforms

from stoker.marks import stage
from stoker.packages import optional
from stoker.records import Mode
from stoker.workload.data.folders import Listing
from stoker.workload.data.images import CorruptItem, Transform, place_of

FRAMES = 16
CROP = 112
MEAN = (0.43216, 0.394666, 0.37645)
STD = (0.22803, 0.22145, 0.216989)

_USUAL_RATE = Fraction(25)

Picture = NDArray[np.uint8]


class ClipFiles(Dataset[tuple[Tensor, int]]):
    """A clip of each video: from its middle, or in training from anywhere in it."""

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
    """From frames of channels to channels of frames, as models of video take them."""

    def forward(self, clip: Tensor) -> Tensor:
        return clip.transpose(0, 1)


def transform_for(mode: Mode, crop: int = CROP) -> transforms.Compose:
    """Resize to 128×171 and crop 112, or in proportion; in training the crop and the side are random."""
    resize = transforms.Resize((round(crop * 128 / CROP), round(crop * 171 / CROP)), antialias=True)
    cut = (
        [transforms.RandomCrop(crop), transforms.RandomHorizontalFlip()]
        if mode == "train"
        else [transforms.CenterCrop(crop)]
    )
    to_float = transforms.ConvertImageDtype(torch.float32)
    return transforms.Compose([resize, *cut, to_float, transforms.Normalize(MEAN, STD), TimeAfterChannels()])


def read_clip(path: str, *, anywhere: bool) -> list[Picture]:
    """Sixteen pictures; of a video with fewer frames the last is repeated."""
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
    # One thread: how many process a batch is the loader's to choose, and a thread's time would be in no mark.
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
    """The frames from `begin` on, sixteen at most; those before it must be decoded, but not turned into pictures."""
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
