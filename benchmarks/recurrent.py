"""Small workloads that torchvision does not have: a recurrent net and an encoder with torch's own fast path."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import stoker

_LENGTH, _WIDTH = 200, 256


class Sequences(Dataset[Any]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(_LENGTH, _WIDTH, generator=generator), index % 10


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(_WIDTH, 512, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.recurrent(x)[0][:, -1])
        return logits


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(_WIDTH, 8, 1024, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(_WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(x).mean(1))
        return logits


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def lstm() -> stoker.Workload:
    return stoker.Workload(model=Recurrent, dataset=Sequences, loss=nn.CrossEntropyLoss(), optimizer=_sgd, name="lstm")


def encoder() -> stoker.Workload:
    loss = nn.CrossEntropyLoss()
    return stoker.Workload(model=Encoder, dataset=Sequences, loss=loss, optimizer=_sgd, name="encoder")
