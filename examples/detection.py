"""Detection: images of different sizes, which a collate function puts into a tuple, through SSDlite. Inference."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import stoker


class Images(Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.full((3, 240 + index % 64, 320), 0.5), {"boxes": torch.zeros(0, 4)}


def collate(items: list[tuple[Tensor, object]]) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    images, targets = zip(*items, strict=True)
    return images, targets


def detect(model: nn.Module, images: tuple[Tensor, ...]) -> object:
    return model(list(images))


def model() -> nn.Module:
    # Planted: loading is filling a small tensor, so that nearly all of the time is the network's.
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)


def workload() -> stoker.Workload:
    loader = DataLoader(Images(), batch_size=2, collate_fn=collate)
    return stoker.Workload(model=model, loader=loader, forward=detect)
