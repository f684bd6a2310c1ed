"""A model's features: what its last layer takes, caught while the model runs as it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from stoker.errors import InputError
from stoker.ranking.items import Floats
from stoker.workload.blocks.block import is_layer
from stoker.workload.blocks.state import tensors
from stoker.workload.calls import logits_of


class FeatureTap:
    """Catches the features of each batch. Use it as `with tap.watching(): output = run(...)`, then `tap.take(output)`.

    On the first batch every layer is watched. Where the one that is called last gives the model's output, it is the
    head, and its inputs are the features; from then on only this layer is watched. In a model without such a head the
    output itself is the features. A last convolution is a head only if `convolution_head`: in a model that is made to
    give features it looks the same.
    """

    def __init__(self, model: nn.Module, *, convolution_head: bool = True) -> None:
        self._heads = (nn.Linear, nn.Conv2d) if convolution_head else (nn.Linear,)
        self._layers = [module for module in model.modules() if is_layer(module)]
        self._is_decided = False
        self._last: tuple[nn.Module, Any, Any] | None = None

    @property
    def has_head(self) -> bool:
        """Whether the model ends with a layer whose outputs are a source head's; known after the first batch."""
        return bool(self._layers)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._last = None
        handles = [layer.register_forward_hook(self._note, always_call=False) for layer in self._layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._last = (layer, inputs[0] if inputs else None, output)

    def take(self, output: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The features of the batch that just ran, items × features, and the head's outputs if there is a head."""
        result = first_tensor(output)
        if not self._is_decided:
            self._layers = (
                [self._last[0]] if self._last is not None and _is_head(*self._last, result, self._heads) else []
            )
            self._is_decided = True
        if not self._layers or self._last is None:
            return _flat(result), None
        return _flat(self._last[1]), result.detach()


def first_tensor(output: Any) -> torch.Tensor:
    """The logits or embeddings in what a model returns. A joint model returns a tuple: its first head counts."""
    found = next(tensors(logits_of(output)), None)
    if found is None or found.dim() < 2:
        raise InputError(f"the model gives {type(output).__name__}, which has no features for each item")
    return found


def _is_head(
    layer: nn.Module, inputs: Any, output: Any, result: torch.Tensor, heads: tuple[type[nn.Module], ...]
) -> bool:
    """Whether a layer turns features into the model's output: as many items, and as many values an item."""
    if not isinstance(inputs, torch.Tensor) or not isinstance(output, torch.Tensor) or result.dim() != 2:
        return False
    if not isinstance(layer, heads) or inputs.shape[0] != result.shape[0]:
        return False
    return output.shape[1 if output.dim() == 4 else -1] == result.shape[1]


def _flat(values: torch.Tensor) -> torch.Tensor:
    """One row an item: maps are averaged over their places, sequences over their tokens."""
    values = values.detach()
    if values.dim() == 4:
        values = values.mean(dim=(2, 3))
    elif values.dim() == 3:
        values = values.mean(dim=1)
    return values.flatten(1).float()


class Collected:
    """Features of all batches in host memory, and the head's outputs if a score needs them."""

    def __init__(self, *, keeps_outputs: bool) -> None:
        self._keeps_outputs = keeps_outputs
        self._features: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        self._labels: list[int] = []

    def add(self, features: torch.Tensor, outputs: torch.Tensor | None, labels: list[int]) -> None:
        if len(features) != len(labels):
            raise InputError(f"the model gave {len(features)} rows of features for {len(labels)} items")
        self._features.append(features.cpu().clone())
        if outputs is not None and self._keeps_outputs:
            self._outputs.append(outputs.float().cpu())
        self._labels += labels

    @property
    def labels(self) -> list[int]:
        return self._labels

    def features(self) -> Any:
        return torch.cat(self._features).numpy()

    def probabilities(self) -> Floats | None:
        """Of the source head's classes; None without a head."""
        if not self._outputs:
            return None
        values = torch.softmax(torch.cat(self._outputs).double(), dim=1).numpy()
        return np.asarray(values, dtype=np.float64)
