"""The optimizers that a question can name in place of the workload's own."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from stoker.records import OptimizerName

OPTIMIZERS: dict[OptimizerName, Callable[..., Any]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.01),
    "momentum": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
