"""Synthetic photographs: JPEGs that take as long to read, decode and transform as real ones, in ten learnable classes.

An image depends only on (seed, index), on any machine. Pixels come from plain float32 arithmetic, which every processor
rounds in the same way, without sines, matrix products or long sums.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stoker.atomic import CACHE_REMEDY, build_folder, data_root, in_parallel, write_file
from stoker.events import OnProgress, silent
from stoker.machine.cpu import worker_processes
from stoker.workload.data.folders import PARTS

CLASSES = 10
FILES = 1000
SEED = 2024
VERSION = 1  # increase it when the pixels change, so that an old set is not used as a new one
VALIDATION_FROM = 10_000_000  # index of the first validation item

Plane = NDArray[np.float32]

# Measured on ImageNet: three in four photographs have a camera's size, full colour resolution and little compression.
# The rest came from the web: smaller or much larger, more compressed, with colour at half resolution.
_CAMERA_SIZES = (
    ((500, 375), 47),
    ((375, 500), 12),
    ((500, 333), 19),
    ((333, 500), 8),
    ((500, 357), 4),
    ((500, 400), 4),
    ((500, 325), 3),
    ((400, 300), 2),
    ((500, 212), 1),
)
_WEB_SIZES = (
    ((500, 375), 20),
    ((500, 333), 11),
    ((375, 500), 9),
    ((250, 206), 11),
    ((160, 170), 10),
    ((320, 240), 9),
    ((640, 480), 12),
    ((800, 600), 13),
    ((910, 768), 3),
    ((1152, 864), 2),
    ((1280, 1024), 1),
)
_CAMERA_SHARE = 0.73
_CAMERA_QUALITY = 96
_WEB_QUALITIES = (92, 85, 80, 75, 70, 62)
_GREY_SHARE = 0.015

# The classes differ in their main colour and in the direction of their stripes, a step in x and y.
_COLOURS = (
    (0.85, 0.25, 0.20),
    (0.90, 0.55, 0.15),
    (0.80, 0.78, 0.25),
    (0.35, 0.70, 0.25),
    (0.15, 0.60, 0.50),
    (0.20, 0.55, 0.85),
    (0.25, 0.30, 0.80),
    (0.55, 0.25, 0.75),
    (0.85, 0.35, 0.65),
    (0.50, 0.40, 0.30),
)
_STRIPES = ((1.0, 0.0), (0.8, 0.6), (0.6, 0.8), (0.0, 1.0), (-0.6, 0.8))


@dataclass(frozen=True)
class Look:
    """How an image is stored, and how much fine detail it has."""

    width: int
    height: int
    quality: int
    half_colour: bool
    grey: bool
    detail: float


def build_jpegs(files: int = FILES, *, root: Path | None = None, progress: OnProgress = silent) -> Path:
    """The folder of the synthetic JPEGs, built if missing: `files` for training, a tenth as many for validation."""
    final = (root or data_root()) / f"jpeg-v{VERSION}-{files}"
    return build_classes(final, _write_jpeg, files, "jpg", item_bytes=117_000, progress=progress)


def build_classes(
    final: Path,
    write: Callable[[tuple[Path, int]], None],
    files: int,
    ending: str,
    *,
    item_bytes: int,
    progress: OnProgress,
) -> Path:
    """Build class folders for both parts. `write((path, index))` writes one file."""
    counts = (files, max(CLASSES, files // 10))

    def fill(folder: Path) -> None:
        tasks = [
            (folder / part / f"class_{class_of(place)}" / f"{place:06d}.{ending}", first + place)
            for part, first, count in zip(PARTS, (0, VALIDATION_FROM), counts, strict=True)
            for place in range(count)
        ]
        for parent in {path.parent for path, _ in tasks}:
            parent.mkdir(parents=True, exist_ok=True)
        in_parallel(write, tasks, what=f"building {final.name}", progress=progress, processes=worker_processes())

    needs_bytes = sum(counts) * item_bytes
    return build_folder(final, fill, needs_bytes=needs_bytes, remedy=CACHE_REMEDY, progress=progress)


def _write_jpeg(task: tuple[Path, int]) -> None:
    path, index = task
    write_file(path, jpeg_bytes(index))


def class_of(index: int) -> int:
    return index % CLASSES


def jpeg_bytes(index: int, *, seed: int = SEED) -> bytes:
    """The content of image file `index`."""
    rng = np.random.Generator(np.random.PCG64([seed, index]))
    look = _draw_look(rng)
    image = Image.fromarray(draw_pixels(rng, (look.height, look.width), look.detail, class_of(index)))
    if look.grey:
        image = image.convert("L")
    file = io.BytesIO()
    subsampling = {} if look.grey else {"subsampling": 2 if look.half_colour else 0}
    image.save(file, "JPEG", quality=look.quality, **subsampling)
    return file.getvalue()


def _draw_look(rng: np.random.Generator) -> Look:
    camera = rng.random() < _CAMERA_SHARE
    table = _CAMERA_SIZES if camera else _WEB_SIZES
    width, height = _pick(rng, table)
    quality = _CAMERA_QUALITY if camera else _WEB_QUALITIES[int(rng.random() * len(_WEB_QUALITIES))]
    grey = bool(rng.random() < _GREY_SHARE)
    return Look(width, height, quality, half_colour=not camera, grey=grey, detail=0.15 + 2.8 * rng.random())


def _pick(rng: np.random.Generator, table: tuple[tuple[tuple[int, int], int], ...]) -> tuple[int, int]:
    ticket = rng.random() * sum(weight for _, weight in table)
    for size, weight in table:
        ticket -= weight
        if ticket < 0:
            return size
    return table[-1][0]


def draw_pixels(rng: np.random.Generator, shape: tuple[int, int], detail: float, label: int) -> NDArray[np.uint8]:
    """A smooth background, striped objects, and detail at every scale, strongest at the coarse ones."""
    ground = _noise(rng, shape, 3.0)
    light = ground * np.float32(0.5) + _detail(rng, shape, detail)
    light += _stripes(rng, shape, label) * np.float32(0.10)
    colour = np.asarray(_COLOURS[label], dtype=np.float32) + _uniform(rng, 3, 0.12)
    other = np.float32(0.5) + _uniform(rng, 3, 0.35)
    things = _things(rng, shape)
    tint = (_noise(rng, shape, 12.0) + _noise(rng, shape, shape[1] / 5) * np.float32(0.5)) * np.float32(0.08)
    pixels = np.empty((*shape, 3), dtype=np.uint8)
    for channel in range(3):
        base = other[channel] + (colour[channel] - other[channel]) * things
        plane = base + light + tint * np.float32(channel - 1)
        np.clip(plane * np.float32(255), 0, 255, out=plane)
        pixels[..., channel] = plane
    return pixels


def _detail(rng: np.random.Generator, shape: tuple[int, int], amount: float) -> Plane:
    """Octaves of noise, each with half the cell size of the last and a little weaker, down to single pixels."""
    total = np.zeros(shape, dtype=np.float32)
    cell, strength = 48.0, 0.22
    while cell >= 2:
        total += _noise(rng, shape, shape[1] / cell) * np.float32(strength)
        cell, strength = cell / 2, strength * (0.45 + 0.22 * amount)
    grain = rng.random(shape, dtype=np.float32) - np.float32(0.5)
    return total + grain * np.float32(0.09 * amount)


def _noise(rng: np.random.Generator, shape: tuple[int, int], cells: float) -> Plane:
    """Random values on a grid of about `cells` columns, smoothly interpolated, between -0.5 and 0.5."""
    height, width = shape
    step = np.float32(max(cells, 1.0) / width)
    rows, row_share = _places(height, step)
    columns, column_share = _places(width, step)
    grid = rng.random((int(rows[-1]) + 2, int(columns[-1]) + 2), dtype=np.float32) - np.float32(0.5)
    upper, lower = grid[rows], grid[rows + 1]
    bands = upper + (lower - upper) * row_share[:, None]
    left, right = np.take(bands, columns, axis=1), np.take(bands, columns + 1, axis=1)
    right -= left
    right *= column_share
    right += left
    return np.asarray(right, dtype=np.float32)


def _places(length: int, step: np.float32) -> tuple[NDArray[np.intp], Plane]:
    """For each pixel, the grid point before it and the smoothed distance from it, so that no grid line shows."""
    at = np.arange(length, dtype=np.float32) * step
    before = np.floor(at)
    past = at - before
    eased: Plane = past * past * (np.float32(3) - np.float32(2) * past)
    return before.astype(np.intp), eased


def _stripes(rng: np.random.Generator, shape: tuple[int, int], label: int) -> Plane:
    """Bent stripes in the direction of the class. Two classes share a direction and differ in width."""
    across, down = _STRIPES[label % len(_STRIPES)]
    period = 14.0 if label < len(_STRIPES) else 30.0
    y = np.arange(shape[0], dtype=np.float32)[:, None] * np.float32(down / period)
    x = np.arange(shape[1], dtype=np.float32)[None, :] * np.float32(across / period)
    phase = x + y + _noise(rng, shape, 4.0) * np.float32(1.5)
    sharp: Plane = np.abs(phase - np.floor(phase) - np.float32(0.5)) * np.float32(4) - np.float32(1)
    return sharp


def _things(rng: np.random.Generator, shape: tuple[int, int]) -> Plane:
    """The areas with the colour of the class: a few ellipses with sharp edges over a soft mixture."""
    cover: Plane = _noise(rng, shape, 2.0) + np.float32(0.5)
    y = np.arange(shape[0], dtype=np.float32)[:, None] / np.float32(shape[0])
    x = np.arange(shape[1], dtype=np.float32)[None, :] / np.float32(shape[1])
    for _ in range(4):
        middle_y, middle_x, tall, wide, strength = (np.float32(value) for value in rng.random(5))
        tall, wide = np.float32(0.12) + tall * np.float32(0.3), np.float32(0.12) + wide * np.float32(0.3)
        down, across = (y - middle_y) / tall, (x - middle_x) / wide
        inside = np.clip((np.float32(1) - down * down - across * across) * np.float32(20), 0, 1)
        cover += (strength - cover) * inside if strength < 0.3 else (np.float32(1) - cover) * inside
    return cover


def _uniform(rng: np.random.Generator, count: int, reach: float) -> Plane:
    return (rng.random(count, dtype=np.float32) - np.float32(0.5)) * np.float32(2 * reach)
