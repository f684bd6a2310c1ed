"""A collate function that gives NumPy arrays, which workers send through a pipe. Inference."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import stoker


class Volumes(Dataset):
    def __init__(self) -> None:
        self.volume = np.zeros((1, 4_000_000), np.float32)

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> np.ndarray:
        return self.volume


def collate(volumes: list[np.ndarray]) -> list[np.ndarray]:
    # Planted: 16 MB an item. Tensors would travel in shared memory; arrays are pickled, written, read and copied.
    return volumes


def forward(model: nn.Module, volumes: list[np.ndarray]) -> Tensor:
    return model(torch.stack([torch.from_numpy(volume[0, :16]) for volume in volumes]))


def workload() -> stoker.Workload:
    loader = DataLoader(Volumes(), batch_size=8, num_workers=1, collate_fn=collate)
    return stoker.Workload(model=nn.Linear(16, 2), loader=loader, forward=forward)
