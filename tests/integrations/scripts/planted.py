"""Loops with planted delays, timed by the script's own clock. Arguments: WORKERS[:METHOD]..."""

import json
import sys
from statistics import median
from time import perf_counter, sleep

import torch
from torch.utils.data import DataLoader, Dataset

ITEM_S, STEP_S, BATCH, BATCHES = 0.005, 0.02, 4, 24


class Items(Dataset):
    """Each item is how long it took."""

    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, index):
        began = perf_counter()
        sleep(ITEM_S)
        return torch.tensor(perf_counter() - began, dtype=torch.float64)


def loop(loader, net, optimizer):
    waits, steps, items, losses = [], [], [], []
    batches = iter(loader)
    while True:
        asked = perf_counter()
        batch = next(batches, None)
        got = perf_counter()
        if batch is None:
            break
        waits.append(got - asked)
        items += batch.tolist()
        sleep(STEP_S)
        optimizer.zero_grad()
        loss = net(torch.ones(BATCH, 4)).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        steps.append(perf_counter() - got)
    return {"wait": median(waits[2:]), "step": median(steps[2:]), "item": median(items), "losses": losses}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    results = []
    for asked in sys.argv[1:]:
        workers, _, method = asked.partition(":")
        loader = DataLoader(
            Items(), BATCH, shuffle=True, num_workers=int(workers), multiprocessing_context=method or None
        )
        results.append(loop(loader, net, optimizer))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
