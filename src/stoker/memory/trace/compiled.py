"""Whether a step uses `torch.compile`: a trace follows what was written, not what a compiler makes of it."""

import functools
from typing import Any

import torch

UNSEEN = "what torch.compile changes: the step was followed as it is written, and compiled it may take less or more"
_calls = 0


def watch() -> None:
    """Count calls of `torch.compile` from now on, in a process that makes a workload."""
    compile_ = torch.compile

    @functools.wraps(compile_)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _calls
        _calls += 1
        return compile_(*args, **kwargs)

    torch.compile = counted


def is_used(model: torch.nn.Module) -> bool:
    """Whether it was called, or a part of the model came compiled."""
    return _calls > 0 or any(map(_is_compiled, model.modules()))


def _is_compiled(module: torch.nn.Module) -> bool:
    whole = getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
    return whole or hasattr(module.forward, "_torchdynamo_orig_callable")
