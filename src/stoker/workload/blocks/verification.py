"""Whether blocks compute what their model computes, to the bit, and which of them work in place."""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stoker.workload.blocks.block import Block, is_layer, run
from stoker.workload.blocks.graph import Unsplittable
from stoker.workload.blocks.state import apply, clone, digest, same_bits, share_memory, take


def verified(blocks: Sequence[Block], model: nn.Module, example: Any, expected: Any) -> tuple[Block, ...]:
    """The blocks, with `modifies_input` found out. Raises Unsplittable where they give other bits than the model.

    They are compared on the example, with every state between blocks stored and loaded, and on its first item. There
    each layer must also get the same inputs: a last layer whose weights are zero hides what comes before it.
    """
    _compare(run(blocks, clone(example)), expected, model, example)
    first = take(example, 1)
    with _layer_inputs(model) as of_model:
        result = apply(model, clone(first))
    with _layer_inputs(model) as of_blocks:
        _compare(run(blocks, clone(first)), result, model, first)
    if any(of_model[layer] != of_blocks[layer] for layer in of_model.keys() & of_blocks.keys()):
        raise Unsplittable("its blocks give other bits than the model")

    changed, passed_on = [], []
    state = example
    for block in blocks:
        stored, loaded = clone(state), clone(state)
        state = block(loaded)
        changed.append(not same_bits(loaded, stored))
        passed_on.append(share_memory(loaded, state))
    if not same_bits(state, expected):
        raise Unsplittable("its blocks change values in place that they share")

    found: list[Block] = []
    modifies = False
    for block, changes, passes in zip(reversed(blocks), reversed(changed), reversed(passed_on), strict=True):
        modifies = changes or (passes and modifies)
        found.insert(0, replace(block, modifies_input=modifies))
    return tuple(found)


def _compare(result: Any, expected: Any, model: nn.Module, example: Any) -> None:
    if same_bits(result, expected):
        return
    if not same_bits(apply(model, clone(example)), expected):
        raise Unsplittable("it gives different outputs for the same input")
    raise Unsplittable("its blocks give other bits than the model")


@contextmanager
def _layer_inputs(model: nn.Module) -> Iterator[Mapping[str, list[bytes]]]:
    """Digests of what each layer is called with from now on, by the layer's name."""
    found: dict[str, list[bytes]] = {}
    thread = threading.get_ident()

    def note(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            found.setdefault(name, []).append(digest((args, kwargs)))

    handles = [
        module.register_forward_pre_hook(functools.partial(note, name), with_kwargs=True)
        for name, module in model.named_modules()
        if is_layer(module) and not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
