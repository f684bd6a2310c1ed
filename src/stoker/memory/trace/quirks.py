"""Where other libraries ask for what a simulated device cannot answer: masks of transformers, and `torch.compile`.

Transformers drops an attention mask that hides nothing, after a look at values that fake tensors do not have. And a
trace follows what was written, not what a compiler makes of it, so a compiled step has to be reported.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch

# ---------------------------------------------------------------- masks of transformers

_LOOKS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
"""Functions of transformers that say whether a mask hides nothing."""
_MASK = "attention_mask"


def answer_masks_from(example: Any) -> None:
    """If the example batch's mask hides nothing, make transformers drop fake masks as it would drop real ones."""
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


# ---------------------------------------------------------------- torch.compile

UNSEEN_COMPILED = (
    "what torch.compile changes: the step was followed as it is written, and compiled it may take less or more"
)
_compile_calls = 0


def watch_compile() -> None:
    """Count calls of `torch.compile` from now on, in the process that makes a workload."""
    compile_ = torch.compile

    @functools.wraps(compile_)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _compile_calls
        _compile_calls += 1
        return compile_(*args, **kwargs)

    torch.compile = counted


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether `torch.compile` was called, or a part of the model came compiled."""
    return _compile_calls > 0 or any(map(_is_compiled_module, model.modules()))


def _is_compiled_module(module: torch.nn.Module) -> bool:
    whole = getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
    return whole or hasattr(module.forward, "_torchdynamo_orig_callable")
