"""A Lightning module and its data module: `train_dataloader()` and `training_step`."""

import lightning
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import stoker


class Users(lightning.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        users = torch.randint(400_000, (4096,))
        return DataLoader(TensorDataset(users, users % 2), batch_size=64, shuffle=True)


class Recommender(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        # Planted: a batch looks up 64 rows of this table, but AdamW updates all 400,000.
        self.table = nn.Embedding(400_000, 32)
        self.head = nn.Linear(32, 2)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        users, labels = batch
        return nn.functional.cross_entropy(self.head(self.table(users)), labels)


def workload() -> stoker.Workload:
    return stoker.Workload(
        model=Recommender,
        loader=Users().train_dataloader,
        step=lambda model, batch: model.training_step(batch, 0),
        optimizer=optim.AdamW,
    )
