"""A workload whose owner does the whole step: two losses, clipped gradients, a batch sampler and named batches."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

import stoker.workload.workload as stoker


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Pairs(Dataset[Pair]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Pair:
        left = torch.full((3,), float(index))
        return Pair(left, left + 1)


class Twin(nn.Module):
    """Encodes both sides with one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(left), self.encoder(right)


def collate(items: list[Pair]) -> Pair:
    return Pair(torch.stack([item.left for item in items]), torch.stack([item.right for item in items]))


def step(model: Any, batch: Pair) -> Tensor:
    left, right = model(batch.left, batch.right)
    loss: Tensor = functional.mse_loss(left, right) + 0.1 * left.pow(2).mean()
    return loss


def set_threads(worker: int) -> None:
    torch.set_num_threads(1)


def workload() -> stoker.Workload:
    dataset = Pairs()
    return stoker.Workload(
        model=Twin,
        dataset=dataset,
        optimizer=torch.optim.AdamW,
        step=step,
        collate_fn=collate,
        batch_sampler=BatchSampler(SequentialSampler(dataset), batch_size=5, drop_last=False),
        worker_init_fn=set_threads,
        name="twins",
    )
