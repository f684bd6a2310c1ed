"""A model that the script itself passes through torch.compile. Inference."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import stoker


def model() -> nn.Module:
    # Planted: 16 layers of 1024 × 1024, beside data that lie in memory.
    layers = [layer for _ in range(16) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return torch.compile(nn.Sequential(*layers))


def workload() -> stoker.Workload:
    return stoker.Workload(model=model, dataset=TensorDataset(torch.rand(4096, 1024)))
