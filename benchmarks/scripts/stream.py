"""A stream of records that are parsed one after another, shared out among the workers."""

import time

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

RECORD_S, STEP_S = 0.004, 0.015
NUM_WORKERS = 0


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, 8000, step):
            time.sleep(RECORD_S)
            yield torch.full((64,), number / 8000)


def main():
    torch.set_num_threads(1)
    net = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for batch in DataLoader(Stream(), batch_size=8, num_workers=NUM_WORKERS):
        time.sleep(STEP_S)
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
