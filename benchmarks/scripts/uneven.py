"""A few items take very long, as long videos among short ones: with few batches ahead the loop waits for each."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

SHORT_S, LONG_S, EVERY, STEP_S = 0.002, 0.12, 40, 0.014


class Videos(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        time.sleep(LONG_S if index % EVERY == 0 else SHORT_S)
        return torch.full((64,), index / 8000)


def loaders(workers=1):
    return DataLoader(Videos(), batch_size=4, shuffle=True, num_workers=workers)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for batch in loaders():
        time.sleep(STEP_S)
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
