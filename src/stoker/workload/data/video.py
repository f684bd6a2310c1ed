"""Synthetic videos: short clips that we encode ourselves, in ten classes that differ in colour and in how they move."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.atomic import data_root, write_file
from stoker.events import OnProgress, silent
from stoker.packages import optional
from stoker.workload.data.synthetic import SEED, build_classes, class_of, draw_pixels

FILES = 200
WIDTH, HEIGHT, FRAMES_A_SECOND = 320, 240, 25  # as UCF101
SHORTEST, LONGEST = 60, 100

_VERSION = 1
_BITS_A_SECOND = 700_000
_MARGIN = 160
# Pixels a frame across and down: what tells two classes apart when their colours do not.
_MOTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 0), (1, 0))


def build_videos(files: int = FILES, *, root: Path | None = None, progress: OnProgress = silent) -> Path:
    """The folder of the synthetic video set, built where it is not there yet: `files` to train on, a tenth more."""
    optional("av", extra="video")
    final = (root or data_root()) / f"video-v{_VERSION}-{files}"
    return build_classes(final, _write_video, files, "avi", item_bytes=_BITS_A_SECOND // 8 * 3, progress=progress)


def _write_video(task: tuple[Path, int]) -> None:
    path, index = task
    write_file(path, video_bytes(index))


def video_bytes(index: int, *, seed: int = SEED) -> bytes:
    """The file of video `index`. It is encoded in memory: FFmpeg would not tell of a full disk."""
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
    """A view that glides over a painted scene as the class moves, turning back at the scene's edge."""
    rng = np.random.Generator(np.random.PCG64([seed, index, 1]))
    label = class_of(index)
    scene = draw_pixels(rng, (HEIGHT + _MARGIN, WIDTH + _MARGIN), 0.8 * rng.random(), label)
    across, down = _MOTIONS[label]
    left, top = (int(place) for place in rng.random(2) * _MARGIN)
    for frame in range(SHORTEST + int(rng.random() * (LONGEST - SHORTEST + 1))):
        x, y = _bounce(left + across * frame), _bounce(top + down * frame)
        yield np.ascontiguousarray(scene[y : y + HEIGHT, x : x + WIDTH])


def _bounce(place: int) -> int:
    """A place on the line from 0 to the margin, to and fro."""
    around = place % (2 * _MARGIN)
    return min(around, 2 * _MARGIN - around)
