"""Whether blocks compute what their model computes, to the bit, and which of them work in place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from stoker.workload.blocks.block import Block, run
from stoker.workload.blocks.graph import Unsplittable
from stoker.workload.blocks.state import apply, clone, item_count, same_bits, share_memory, take


def verified(blocks: Sequence[Block], model: nn.Module, example: Any, expected: Any) -> tuple[Block, ...]:
    """The blocks, with `modifies_input` found out. Raises Unsplittable where they give other bits than the model.

    They are compared on the example, on its first item, and with every state between blocks stored and loaded.
    """
    _compare(run(blocks, clone(example)), expected, model, example)
    if item_count(example) > 1:
        first = take(example, 1)
        _compare(run(blocks, clone(first)), apply(model, clone(first)), model, first)

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
