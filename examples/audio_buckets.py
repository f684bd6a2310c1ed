"""Audio of different lengths, in buckets of like length by a batch sampler, as packed sequences."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset

import stoker

FOLDER = Path(tempfile.gettempdir(), "stoker-examples", "audio")


class Clips(Dataset):
    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> Tensor:
        path = FOLDER / f"{index % 6}.flac"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Planted: two minutes at 48 kHz are decoded, for a clip of a hundredth of a second.
            soundfile.write(path, np.random.default_rng(index).normal(0, 0.1, 120 * 48_000), 48_000)
        return torch.from_numpy(soundfile.read(path, dtype="float32")[0][: 240 + 40 * (index % 24)]).reshape(-1, 40)


def buckets(batch_size: int) -> list[list[int]]:
    order = sorted(range(240), key=lambda index: index % 24)  # by length
    return [order[at : at + batch_size] for at in range(0, 240, batch_size)]


def workload() -> stoker.Workload:
    pack = partial(pack_sequence, enforce_sorted=False)
    return stoker.Workload(model=nn.GRU(40, 8), dataset=Clips, collate_fn=pack, batch_sampler=buckets)
