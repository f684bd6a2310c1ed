"""Workloads of a user's own file: a recurrent net, and a step with two losses over a batch that is a dictionary."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import stoker

LENGTH, WIDTH, CLASSES = 64, 48, 10


class Sequences(Dataset[tuple[Tensor, int]]):
    """Random sequences, each a function of its index alone."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(LENGTH, WIDTH, generator=torch.Generator().manual_seed(index)), index % CLASSES


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(WIDTH, 128, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(x)[0][:, -1])
        return logits


class Pictures(Dataset[dict[str, Any]]):
    """Small random pictures with a label, as a dictionary."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((3, 64, 64), index / 256), "label": index % CLASSES}


class Autoencoder(nn.Module):
    """Classifies a picture and restores it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.GELU())
        self.decoder = nn.ConvTranspose2d(32, 3, 2, stride=2)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        coded = self.encoder(image)
        tokens = functional.avg_pool2d(coded, 4).flatten(2).transpose(1, 2)
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(mixed.mean(dim=1)), self.decoder(coded)


def step(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Both losses of a batch."""
    logits, restored = model(batch["image"])
    return functional.cross_entropy(logits, batch["label"]) + functional.mse_loss(restored, batch["image"])


def recurrent() -> stoker.Workload:
    return stoker.Workload(
        model=Recurrent, dataset=Sequences, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1)
    )


def autoencoder() -> stoker.Workload:
    return stoker.Workload(model=Autoencoder, dataset=Pictures, optimizer=torch.optim.AdamW, step=step)
