"""A GAN: two networks, two optimizers, and one step that updates both."""

import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import stoker


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Planted: layers of 2048 × 2048, beside data that lie in memory.
        self.generator = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 64))
        self.critic = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 1))
        self.makes = optim.SGD(self.generator.parameters(), lr=1e-3)
        self.judges = optim.SGD(self.critic.parameters(), lr=1e-3)


def step(model: Gan, batch: list[Tensor]) -> None:
    [real] = batch
    fake = model.generator(torch.randn_like(real))
    model.judges.zero_grad()
    (model.critic(fake.detach()).mean() - model.critic(real).mean()).backward()
    model.judges.step()
    model.makes.zero_grad()
    (-model.critic(fake).mean()).backward()
    model.makes.step()


def workload() -> stoker.Workload:
    return stoker.Workload(model=Gan, dataset=TensorDataset(torch.rand(4096, 64)), step=step)
