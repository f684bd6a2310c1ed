"""Items in a compressed HDF5 file, which each process opens when it first reads."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.utils.data import Dataset

import stoker

FILE = Path(tempfile.gettempdir(), "stoker-examples", "scans.h5")


class Scans(Dataset):
    def __init__(self) -> None:
        self.file: h5py.File | None = None
        if not FILE.exists():
            FILE.parent.mkdir(parents=True, exist_ok=True)
            scans = np.random.default_rng(0).normal(size=(256, 16_384)).astype(np.float32)
            with h5py.File(FILE, "w") as file:
                # Planted: all 256 scans share a chunk, and all of it is decompressed for each of them.
                file.create_dataset("scans", data=scans, chunks=(256, 16_384), compression="gzip")

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.file = self.file or h5py.File(FILE, rdcc_nbytes=0)
        return torch.from_numpy(self.file["scans"][index]), index % 2


def workload() -> stoker.Workload:
    return stoker.Workload(model=nn.Linear(16_384, 2), dataset=Scans, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD)
