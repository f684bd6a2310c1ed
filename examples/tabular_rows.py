"""A small network on a table, whose rows are dictionaries of columns."""

import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Dataset

import stoker

# Planted: torch's collate function makes 200 tensors of a batch, each from 8,192 numbers of Python; 8 are used.
COLUMNS = [f"column{number}" for number in range(200)]


class Table(Dataset):
    def __init__(self) -> None:
        self.rows = [{name: float(number) for name in COLUMNS} | {"labels": number % 2} for number in range(1000)]

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> dict[str, float]:
        return self.rows[index % len(self.rows)]


def forward(model: nn.Module, columns: dict[str, Tensor]) -> Tensor:
    return model(torch.stack([columns[name] for name in COLUMNS[:8]], dim=1).float())


def workload() -> stoker.Workload:
    return stoker.Workload(
        model=nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        loader=DataLoader(Table(), batch_size=8192, shuffle=True),
        forward=forward,
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.SGD,
    )
