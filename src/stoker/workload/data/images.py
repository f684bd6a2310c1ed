"""Image files as a dataset. Reading, decoding and transforming are separate stages in a profile."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from stoker.errors import InputError
from stoker.marks import stage
from stoker.records import Mode
from stoker.workload.data.folders import Listing

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

Transform = Callable[[Any], Any]


class CorruptItem(InputError):
    """An item of a set cannot be read. It takes one string, because DataLoader recreates errors from their message."""


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images and their labels. The files repeat if `items` is larger than their number."""

    def __init__(self, listing: Listing, transform: Transform, items: int | None = None) -> None:
        self.listing = listing
        self.transform = transform
        self.items = len(listing) if items is None else items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = place_of(index, self.items, len(self.listing))
        path = self.listing.path(place)
        with stage("read"):
            data = read_bytes(path)
        with stage("decode"):
            image = decode(data, path)
        return self.transform(image), self.listing.label(place)


def place_of(index: int, items: int, files: int) -> int:
    """The number of the file for item `index`."""
    if not -items <= index < items:
        raise IndexError(f"item {index} of {items}")
    return (index % items) % files


def read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CorruptItem(f"{path} cannot be read ({error.strerror}): put it back, or open the set anew") from None


def decode(data: bytes, path: str) -> Image.Image:
    """The picture in a file's bytes. Pillow raises many types of errors; all become CorruptItem."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except UnidentifiedImageError:
        why = "the file is empty" if not data else "no image format is recognised"
    except (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
    except Image.DecompressionBombError:
        why = "it is larger than Pillow allows"
    raise CorruptItem(f"{path} is not a readable image ({why}): remove it or make it anew")


def transform_for(mode: Mode, image_size: int) -> transforms.Compose:
    """The usual augmentation of ImageNet for training, the usual preprocessing for inference."""
    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if mode == "train":
        return transforms.Compose([transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip(), *end])
    return transforms.Compose(
        [transforms.Resize(resize_for(image_size)), transforms.CenterCrop(image_size), *end],
    )


def resize_for(image_size: int) -> int:
    """The shorter side before the crop: 256 for 224, otherwise in proportion."""
    return round(image_size * 256 / 224)
