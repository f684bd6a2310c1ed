"""JPEGs that are decoded and augmented by torchvision, with one worker; the step stands in for a GPU's."""

import argparse
import io
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

STEP_S = 0.055


def jpeg(seed):
    noise = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class Images(Dataset):
    def __init__(self):
        self.files = [jpeg(seed) for seed in range(16)]
        steps = [
            v2.RandomResizedCrop(224),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
        self.transform = v2.Compose(steps)

    def __len__(self):
        return 8000

    def __getitem__(self, index):
        return self.transform(Image.open(io.BytesIO(self.files[index % 16])).convert("RGB")), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-j", "--workers", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 10))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    loader = DataLoader(Images(), batch_size=16, shuffle=True, num_workers=args.workers)
    for images, labels in loader:
        time.sleep(STEP_S)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
