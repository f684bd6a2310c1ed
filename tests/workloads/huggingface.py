"""Fine-tuning as with the Trainer's pieces: rows, a collator, an optimizer, and a model that returns its loss."""

from typing import Any

import torch
from torch import nn

import stoker

SIZE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def model() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**SIZE))


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    names = rows[0]
    return {name: torch.tensor([row[name] for row in rows]) for name in names}


def fine_tuning() -> stoker.Workload:
    rows = [{"input_ids": [number % 40] * 8, "attention_mask": [1] * 8, "labels": number % 2} for number in range(64)]
    return stoker.Workload(model=model, dataset=rows, collate_fn=collate, optimizer=torch.optim.AdamW)
