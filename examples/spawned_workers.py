"""A small set, one epoch at a time, and workers that are started by spawn."""

import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import stoker

ROWS = TensorDataset(torch.rand(2048, 8), torch.arange(2048) % 2)


def connect(worker: int) -> None:
    time.sleep(3)  # Planted: each worker first opens something slow, and imports torch anew before.


def loader() -> "DataLoader[object]":
    return DataLoader(ROWS, batch_size=32, num_workers=2, multiprocessing_context="spawn", worker_init_fn=connect)


def workload() -> stoker.Workload:
    return stoker.Workload(model=nn.Linear(8, 2), loader=loader, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD)
