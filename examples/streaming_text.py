"""A Hugging Face dataset that is streamed from files, and mapped on the way."""

import json
import tempfile
from pathlib import Path

import torch
from datasets import IterableDataset, load_dataset
from torch import nn, optim

import stoker

FILE = Path(tempfile.gettempdir(), "stoker-examples", "texts.jsonl")


def features(row: dict[str, object]) -> dict[str, object]:
    # Planted: the words of each text are sorted 5,000 times.
    for _ in range(5000):
        words = sorted(str(row["text"]).split())
    return {"x": [float(len(word)) for word in words[:100]]}


def rows() -> IterableDataset:
    if not FILE.exists():
        FILE.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"text": " ".join(str(hash((n, w))) for w in range(200)), "labels": n % 2} for n in range(2000)]
        FILE.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    streamed = load_dataset("json", data_files=str(FILE), split="train", streaming=True)
    return streamed.map(features, remove_columns=["text"]).with_format("torch")


def forward(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(batch["x"])


def workload() -> stoker.Workload:
    return stoker.Workload(
        model=nn.Linear(100, 2), dataset=rows, forward=forward, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD
    )
