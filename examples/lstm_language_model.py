"""The perplexity of a language model with an LSTM, on a TensorDataset of token windows. Inference."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import stoker


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0]).transpose(1, 2)


def windows() -> TensorDataset:
    # Planted: windows of 200 tokens, whose 200 steps follow one another.
    tokens = torch.randint(1000, (512, 201))
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def workload() -> stoker.Workload:
    return stoker.Workload(model=LanguageModel, dataset=windows)
