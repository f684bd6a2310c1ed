"""What each block costs, and where each part of a model begins."""

import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from msgspec import structs
from torch import nn

from stoker.errors import InputError
from stoker.records import Record
from stoker.records.part import PARTS, parse_part
from stoker.workload.blocks.block import Blocks
from stoker.workload.blocks.division import split
from stoker.workload.blocks.part import cut
from stoker.workload.blocks.state import clone, item_count, state_bytes, tensors


class BlockCost(Record, frozen=True):
    """One block: its size, what it hands on, its time in each of several runs, and the parts that begin with it."""

    index: int
    name: str
    layers: int
    parameters: int
    output_bytes_per_item: float
    samples_s_per_item: tuple[float, ...]
    begins: tuple[str, ...] = ()

    @property
    def time_s_per_item(self) -> float:
        """The median of the runs."""
        return statistics.median(self.samples_s_per_item)


def describe(
    model: nn.Module | Blocks, example: Any, *, parts: Sequence[str] = PARTS, runs: int = 5, warmup_runs: int = 2
) -> tuple[BlockCost, ...]:
    """The cost of each block of a model on a batch, in order.

    A model that is not yet split is split first; to learn whether it runs whole, call `split` and give its result.
    Times are wall times on the device of the example. Raises InputError as `split` and `parse_part` do.
    """
    if runs < 1:
        raise InputError(f"blocks must be timed in at least 1 run, got {runs}")
    wanted = [parse_part(text) for text in parts]
    blocks = model if isinstance(model, Blocks) else split(model, example)
    items = item_count(example)
    with torch.no_grad():
        output_bytes = [0] * len(blocks)
        samples: list[list[float]] = [[] for _ in blocks]
        for number in range(warmup_runs + runs):
            state = clone(example)
            for index, block in enumerate(blocks):
                _settle(state)
                began = perf_counter()
                state = block(state)
                _settle(state)
                if number >= warmup_runs:
                    samples[index].append((perf_counter() - began) / items)
                output_bytes[index] = state_bytes(state)
    costs = [
        BlockCost(
            index=index,
            name=block.name,
            layers=block.layers,
            parameters=block.parameters,
            output_bytes_per_item=output_bytes[index] / items,
            samples_s_per_item=tuple(samples[index]),
        )
        for index, block in enumerate(blocks)
    ]
    begins = [(cut(blocks, part, costs), part.text) for part in wanted]
    return tuple(
        structs.replace(cost, begins=tuple(text for index, text in begins if index == cost.index)) for cost in costs
    )


def _settle(state: Any) -> None:
    """Wait until the device has computed a state."""
    first = next(tensors(state), None)
    if first is not None and first.device.type != "cpu":
        torch.accelerator.synchronize(first.device)
