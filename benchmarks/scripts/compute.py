"""Items and steps that both compute on the CPU: they compete for it, so that workers bring less."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Features(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        signal = np.random.default_rng(index).standard_normal(2**14)
        return torch.from_numpy(np.abs(np.fft.rfft(signal))[:1024].astype(np.float32)), index % 10


def main():
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    loader_arguments = {"batch_size": 32, "num_workers": 0}
    for features, labels in DataLoader(Features(), shuffle=True, **loader_arguments):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
