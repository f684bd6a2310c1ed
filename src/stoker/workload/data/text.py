"""Synthetic texts: token ids of varied length, in four classes that differ in their frequent words."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stoker.atomic import CACHE_REMEDY, build_folder, data_root, write_file
from stoker.events import OnProgress, silent
from stoker.marks import stage
from stoker.workload.data.folders import PARTS, Part
from stoker.workload.data.images import place_of
from stoker.workload.data.synthetic import VALIDATION_FROM
from stoker.workload.data.tensors import npy_header, read_at

CLASSES = 4
FILES = 2000
SEED = 2024
SHORTEST, LONGEST = 8, 512
FIRST_ID, VOCABULARY = (
    5,
    28996,
)  # of the smallest common vocabulary (cased BERT); the first few mean padding and the like

_VERSION = 1
_OWN_WORDS = 300
_OWN_SHARE = 0.1
_MEDIAN_LENGTH, _LENGTH_SPREAD = 112.0, 0.75

Item = dict[str, Tensor]


class Texts(Dataset[Item]):
    """Items of one part: `input_ids` and `attention_mask` as long as the text, and `labels`."""

    def __init__(self, folder: Path, part: Part, items: int | None = None) -> None:
        self.path = str(folder / f"{part}-ids.npy")
        self.ends: NDArray[np.int64] = np.load(folder / f"{part}-ends.npy", allow_pickle=False)
        self.labels: NDArray[np.int64] = np.load(folder / f"{part}-labels.npy", allow_pickle=False)
        self.items = len(self.labels) if items is None else items
        self._start = len(npy_header((int(self.ends[-1]),), np.dtype(np.uint16)))

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Item:
        place = place_of(index, self.items, len(self.labels))
        first, end = int(self.ends[place]), int(self.ends[place + 1])
        with stage("read"):
            stored = read_at(self.path, self._start + 2 * first, 2 * (end - first))
        with stage("decode"):
            ids = torch.from_numpy(stored.view(np.uint16).astype(np.int64))
            return {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "labels": torch.tensor(int(self.labels[place])),
            }


def pad_batch(items: Sequence[Item], *, pad_id: int = 0) -> Item:
    """Texts of one batch, padded to the longest. The mask is 0 at the padding."""
    shape = (len(items), max(len(item["input_ids"]) for item in items))
    ids = torch.full(shape, pad_id, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.int64)
    for row, item in enumerate(items):
        length = len(item["input_ids"])
        ids[row, :length] = item["input_ids"]
        mask[row, :length] = item["attention_mask"]
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.stack([item["labels"] for item in items])}


def build_texts(files: int = FILES, *, root: Path | None = None, progress: OnProgress = silent) -> Path:
    """The folder of the synthetic texts, built if missing: `files` for training, a tenth as many for validation."""
    final = (root or data_root()) / f"text-v{_VERSION}-{files}"
    counts = (files, max(CLASSES, files // 10))

    def fill(folder: Path) -> None:
        for part, first, count in zip(PARTS, (0, VALIDATION_FROM), counts, strict=True):
            progress(f"building {final.name}", PARTS.index(part), len(PARTS))
            _write_part(folder, part, first, count)

    return build_folder(final, fill, needs_bytes=sum(counts) * 300, remedy=CACHE_REMEDY, progress=progress)


def _write_part(folder: Path, part: Part, first: int, count: int) -> None:
    odds = _word_odds()
    texts = [_draw_ids(first + place, odds) for place in range(count)]
    ends = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
    labels = np.asarray([class_of(first + place) for place in range(count)], dtype=np.int64)
    for name, values in (("ids", np.concatenate(texts)), ("ends", ends), ("labels", labels)):
        write_file(folder / f"{part}-{name}.npy", npy_header(values.shape, values.dtype), values.tobytes())


def class_of(index: int) -> int:
    return index % CLASSES


def _word_odds() -> NDArray[np.float64]:
    """The cumulative probability of words by rank, from Zipf's law."""
    summed: NDArray[np.float64] = np.cumsum(1 / np.arange(1, VOCABULARY - FIRST_ID + 1))
    odds: NDArray[np.float64] = summed / summed[-1]
    return odds


def _draw_ids(index: int, odds: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Words by Zipf's law. One in ten is one of the class's own words."""
    rng = np.random.Generator(np.random.PCG64([SEED, index]))
    length = _draw_length(rng)
    ranks = np.searchsorted(odds, rng.random(length))
    own = 1000 + class_of(index) * _OWN_WORDS + (rng.random(length) * _OWN_WORDS).astype(np.int64)
    words = np.where(rng.random(length) < _OWN_SHARE, own, ranks)
    return (FIRST_ID + np.minimum(words, VOCABULARY - FIRST_ID - 1)).astype(np.uint16)


def _draw_length(rng: np.random.Generator) -> int:
    """Many short texts and a long tail, about 128 tokens on average."""
    bell = float(rng.random(12).sum()) - 6
    return int(min(max(_MEDIAN_LENGTH * 2 ** (_LENGTH_SPREAD * bell), SHORTEST), LONGEST))
