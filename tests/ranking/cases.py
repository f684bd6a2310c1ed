"""Small searches: images that a model can tell apart, snapshots of tiny models, texts with a tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from stoker.records import Extent, Task, WorkloadSpec

NET = "timm/test_resnet"
"""Half a million parameters at 160 pixels: made to be tested with."""
OTHER = "timm/test_vit"


def pictures(folder: Path, *, classes: int = 3, each: int = 8, seed: int = 0) -> Path:
    """Class folders of noise, brighter from class to class."""
    rng = np.random.default_rng(seed)
    for number in range(classes):
        own = folder / f"class{number}"
        own.mkdir(parents=True)
        for place in range(each):
            values = rng.normal(60 + 50 * number, 60, (48, 64, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(values).save(own / f"{place}.jpg")
    return folder


def snapshot(path: Path, *, seed: int = 0, classes: int = 5, model: str = "test_resnet") -> Path:
    """The weights of a model with a head of so many classes."""
    torch.manual_seed(seed)
    state = timm.create_model(model, num_classes=classes).state_dict()
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def asked(spec: str, data: Path | str | None, *, weights: Path | None = None, **more: Any) -> Task:
    """A candidate's task; options by name, `items` and `extent` apart."""
    options = {"batch_size": "measured", **{name: value for name, value in more.items() if name not in _APART}}
    return Task(
        kind="search",
        workload=WorkloadSpec(
            spec=spec,
            data=str(data) if data is not None else None,
            items=more.get("items"),
            weights=str(weights) if weights is not None else None,
        ),
        mode="infer",
        device="cpu",
        extent=more.get("extent", Extent(batches=None)),
        options=options,
        **({"setting": more["setting"]} if "setting" in more else {}),
    )


_APART = ("items", "extent", "setting")

TEXT = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "far", "away", "from", "it"]


def texts(folder: Path) -> Path:
    """Two classes of text files that use different words."""
    rng = np.random.default_rng(0)
    for number, words in enumerate((TEXT[:8], TEXT[6:])):
        own = folder / f"class{number}"
        own.mkdir(parents=True)
        for place in range(8):
            (own / f"{place}.txt").write_text(" ".join(rng.choice(words, 6 + place % 3)))
    return folder


def text_model(folder: Path, *, tokenizer: bool = True) -> Path:
    """A tiny BERT in a folder: a configuration, and a vocabulary beside it."""
    folder.mkdir(parents=True)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = {"model_type": "bert", "vocab_size": 40, "max_position_embeddings": 32, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        (folder / "vocab.txt").write_text("\n".join([*special, *dict.fromkeys(TEXT)]))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


WORKLOADS = """
import os, time
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
import stoker

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4))

class Rows(Dataset):
    def __init__(self, count=40, targets="classes"):
        random = torch.Generator().manual_seed(0)
        self.y = torch.arange(count) % 2
        self.x = torch.randn(count, 6, generator=random) + self.y[:, None]
        self.targets = targets
    def __len__(self):
        return len(self.x)
    def __getitem__(self, place):
        target = {"classes": self.y[place], "one": self.y[place] * 0, "numbers": self.x[place, 0]}[self.targets]
        return self.x[place], target

class Stream(IterableDataset):
    def __iter__(self):
        rows = Rows()
        return (rows[place] for place in range(len(rows)))

class Dies(torch.nn.Module):
    def forward(self, x):
        os._exit(9)

class Sleeps(torch.nn.Module):
    def forward(self, x):
        time.sleep(600)

class Raises(torch.nn.Module):
    def forward(self, x):
        raise ValueError("no such thing")

def seeded(seed):
    def made():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 4 + seed), torch.nn.ReLU(), torch.nn.Linear(4 + seed, 4))
    return stoker.Workload(model=made, dataset=Rows)

def seed0(): return seeded(0)
def seed1(): return seeded(1)
def seed2(): return seeded(2)
def seed3(): return seeded(3)
def plain(): return stoker.Workload(model=net, dataset=Rows)
def stream(): return stoker.Workload(model=net, dataset=Stream)
def numbers(): return stoker.Workload(model=net, dataset=Rows(targets="numbers"))
def one_class(): return stoker.Workload(model=net, dataset=Rows(targets="one"))
def dies(): return stoker.Workload(model=Dies, dataset=Rows)
def sleeps(): return stoker.Workload(model=Sleeps, dataset=Rows)
def raises(): return stoker.Workload(model=Raises, dataset=Rows)
"""


def workloads(folder: Path) -> str:
    """A file with workloads of a user's: the name before the colon."""
    path = folder / "mine.py"
    path.write_text(WORKLOADS)
    return str(path)
