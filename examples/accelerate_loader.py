"""A loader that accelerate has prepared, and a dataset whose own code is slow."""

import torch
from accelerate import Accelerator
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Dataset

import stoker


class Documents(Dataset):
    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # Planted: letters are counted one by one, in Python.
        counts = [0.0] * 26
        for place in range(400_000):
            counts[(index + place) % 26] += 1.0
        return torch.tensor(counts), index % 2


def loader() -> object:
    return Accelerator(cpu=True).prepare(DataLoader(Documents(), batch_size=8, shuffle=True, num_workers=1))


def workload() -> stoker.Workload:
    return stoker.Workload(model=nn.Linear(26, 2), loader=loader, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD)
