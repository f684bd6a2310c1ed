"""Two ranks that train together: under torchrun, or started by torch.multiprocessing."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def run(rank, world):
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    data = TensorDataset(torch.arange(128.0).reshape(32, 4))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=1, multiprocessing_context="fork")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    for (x,) in loader:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        os.environ["MASTER_PORT"] = sys.argv[1]
        mp.spawn(run, (2,), nprocs=2)
    print("done")
