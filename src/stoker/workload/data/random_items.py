"""Random items without files, for batches that lie on the device already."""

from typing import Any, Literal

import torch
from torch.utils.data import Dataset

from stoker.workload.data.images import place_of
from stoker.workload.data.text import FIRST_ID, VOCABULARY
from stoker.workload.data.video import FRAMES

Form = Literal["image", "text", "video"]

_TEXT_LENGTH = 128


class RandomItems(Dataset[Any]):
    """Items with the shapes of the synthetic sets. Item `i` is always the same."""

    def __init__(self, form: Form, *, items: int, classes: int, size: int) -> None:
        self.form = form
        self.items = items
        self.classes = classes
        self.size = size

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Any:
        place = place_of(index, self.items, self.items)
        random = torch.Generator().manual_seed(place)
        label = place % self.classes
        if self.form == "text":
            ids = torch.randint(FIRST_ID, VOCABULARY, (_TEXT_LENGTH,), generator=random)
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(label)}
        frames = (FRAMES,) if self.form == "video" else ()
        return torch.randn((3, *frames, self.size, self.size), generator=random), label
