"""Attention masks that hide nothing: transformers drops them after a look at values that fake tensors do not have."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

_LOOKS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
_MASK = "attention_mask"


def answer_from(example: Any) -> None:
    """Let transformers find in a fake mask what a real one of the example batch says, where the model came from it."""
    module: Any = sys.modules.get("transformers.masking_utils")
    if module is None or not _hides_nothing(example):
        return
    for name in _LOOKS:
        look = getattr(module, name, None)
        if look is not None:
            setattr(module, name, _without_mask(look))


def _hides_nothing(example: Any) -> bool:
    if isinstance(example, Mapping):
        mask = example.get(_MASK)
        return isinstance(mask, torch.Tensor) and bool(mask.all())
    return isinstance(example, tuple | list) and any(_hides_nothing(part) for part in example)


def _without_mask(look: Any) -> Any:
    def answered(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
        return look(None, *args, **kwargs)

    return answered
