"""Shards of webdataset that give whole batches: `.batched(8)` behind decoding and a map."""

import io
import tempfile
from pathlib import Path

import torch
import webdataset
from PIL import Image
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor

import stoker

SHARD = Path(tempfile.gettempdir(), "stoker-examples", "photos.tar")


def small(photo: Image.Image) -> Tensor:
    return to_tensor(photo.crop((0, 0, 32, 32)))


def loader() -> "DataLoader[object]":
    if not SHARD.exists():
        SHARD.parent.mkdir(parents=True, exist_ok=True)
        # Planted: photos of 2400 × 1800, of which the network sees a corner of 32 × 32.
        photo = io.BytesIO()
        Image.effect_noise((2400, 1800), 60).convert("RGB").save(photo, "jpeg")
        with webdataset.TarWriter(str(SHARD)) as sink:
            for number in range(64):
                sink.write({"__key__": f"{number:03}", "jpg": photo.getvalue(), "cls": number % 2})
    shards = webdataset.WebDataset(str(SHARD), shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    return DataLoader(shards.map_tuple(small, torch.tensor).batched(8), batch_size=None)


def workload() -> stoker.Workload:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    return stoker.Workload(model=model, loader=loader, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD)
