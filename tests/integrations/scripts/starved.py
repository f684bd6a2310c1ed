"""A loop that waits for its data: items sleep. Arguments that `stoker run` has too are this script's own."""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

ITEM_S, STEP_S = 0.01, 0.004


class Items(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(ITEM_S)
        return torch.full((8,), float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-6)
    loader = DataLoader(Items(), batch_size=4, shuffle=True, num_workers=args.workers)
    print("begins", os.environ.get("STOKER_RERUN"), args.save, flush=True)
    for _ in range(args.epochs):
        for batch in loader:
            time.sleep(STEP_S)
            optimizer.zero_grad()
            net(batch).sum().backward()
            optimizer.step()
    print("ends", flush=True)


if __name__ == "__main__":
    main()
