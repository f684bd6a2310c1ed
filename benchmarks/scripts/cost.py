"""What a step and an item take of CPU time, and when the script began: python cost.py KIND SIZE OUTPUT

KIND is `step` (steps that do next to nothing, without workers), `queue` (the same with a worker), `items` (JPEGs that
one worker decodes and augments) or `start` (a few batches). SIZE is how many batches are read.
"""

# ruff: noqa: E402 - the clock is read before anything else is imported
import time

BEGAN = time.time()

import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

COLD = 8


class Tensors(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((8,), index / self.count)


class Images(Dataset):
    """Each item holds the CPU time of its worker when it was begun."""

    def __init__(self, count):
        noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        self.count, self.bytes = count, buffer.getvalue()
        chain = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        self.transform = transforms.Compose(chain)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        began = time.thread_time()
        image = Image.open(io.BytesIO(self.bytes)).convert("RGB")
        return self.transform(image), torch.tensor(began, dtype=torch.float64)


def trained(loader, size):
    """CPU seconds of this thread from one step to the next."""
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    marks = []
    for batch in loader:
        marks.append(time.thread_time())
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
    return {"step_s": (marks[-1] - marks[COLD]) / (size - 1 - COLD)}


def step(size):
    return trained(DataLoader(Tensors(4 * size), batch_size=4), size)


def queue(size):
    return trained(DataLoader(Tensors(4 * size), batch_size=4, num_workers=1), size)


def items(size):
    firsts = [began[0].item() for _, began in DataLoader(Images(8 * size), batch_size=8, num_workers=1)]
    return {"item_s": (firsts[-1] - firsts[COLD]) / (8 * (size - 1 - COLD))}


def start(size):
    first = None
    for _ in DataLoader(Tensors(4 * size), batch_size=4):
        first = first or time.time()
    return {"first_batch_at": first}


def main():
    kind, size, output = sys.argv[1:]
    torch.set_num_threads(1)
    found = globals()[kind](int(size))
    text = json.dumps({"began_at": BEGAN, **found, "ended_at": time.time()})
    Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
