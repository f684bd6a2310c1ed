"""Items that come from far away: each one waits for the network, then a small model trains."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

ROUND_TRIP_S, STEP_S = 0.006, 0.012


class Remote(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(ROUND_TRIP_S)
        return torch.full((64,), index / 4000)


def main():
    torch.set_num_threads(1)
    net = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for batch in DataLoader(Remote(), batch_size=8, shuffle=True):
        time.sleep(STEP_S)  # a GPU would compute meanwhile
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
