"""Items that come over a network: two workers, which wait most of the time. Inference."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import stoker


class Objects(Dataset):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Tensor:
        with stoker.stage("read"):
            time.sleep(0.05)  # Planted: each request takes 50 ms, and a worker makes one at a time.
        return torch.zeros(16)


def workload() -> stoker.Workload:
    return stoker.Workload(model=nn.Linear(16, 2), loader=DataLoader(Objects(), batch_size=4, num_workers=2))
