"""A model's blocks as a table: what each holds, hands on and takes, and where each part begins."""

from collections.abc import Sequence
from typing import Any

import torch

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.measure.device import parse_device
from stoker.measure.session import trial_server
from stoker.process import child
from stoker.records import Record, WorkloadSpec
from stoker.workload import calls, models
from stoker.workload.batch import split as split_batch
from stoker.workload.batch import without_target
from stoker.workload.blocks.cost import BlockCost, describe
from stoker.workload.blocks.division import split
from stoker.workload.blocks.part import PARTS, parse_part
from stoker.workload.spec import load

EXAMPLE_ITEMS = 4
EXAMPLE_TOKENS = 128


class BlockTable(Record, frozen=True):
    """The blocks of a model, measured on a batch of `items` of the given shape. `whole_reason` says why a model is one
    block."""

    model: str
    device: str
    items: int
    shape: tuple[int, ...]
    parameters: int
    blocks: tuple[BlockCost, ...]
    whole_reason: str | None = None


def block_table(model: str, *, parts: Sequence[str] = PARTS, device: str = "auto") -> BlockTable:
    """The blocks of a model by name, or of the model of `FILE.py:workload`, measured in a child process.

    Raises InputError for an unknown model, and for a part that cannot be read.
    """
    for part in parts:
        parse_part(part)
    return child.value(child.run(_table, (model, tuple(parts), device), kind=BlockTable, server=trial_server()))


def _table(name: str, parts: Sequence[str], device_name: str, emit: OnEvent) -> BlockTable:
    device = parse_device(device_name)
    if not isinstance(device, torch.device):
        raise InputError(f"{device_name} computes nothing that could be measured; choose cpu or cuda")
    torch.manual_seed(0)
    if WorkloadSpec(spec=name).from_function:
        workload = calls.opened(load(name))
        model = calls.make_model(workload)
        dataset = calls.make_dataset(workload)
        collate = workload.collate_fn or torch.utils.data.default_collate
        inputs = without_target(split_batch(collate([dataset[place] for place in range(EXAMPLE_ITEMS)]))[0])
    else:
        kind = models.describe(name)
        model = models.build(name)
        inputs = _example(kind)
    model.eval().to(device)
    inputs = calls.to_device(inputs, device)
    blocks = split(model, inputs)
    first = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs
    return BlockTable(
        model=name,
        device=str(device),
        items=EXAMPLE_ITEMS,
        shape=tuple(first.shape[1:]),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        blocks=describe(blocks, inputs, parts=parts),
        whole_reason=blocks.whole_reason,
    )


def _example(kind: models.ModelKind) -> Any:
    """A batch of random values in the shape that the model takes."""
    if kind.medium == "text":
        ids = torch.randint(5, min(1000, kind.vocabulary or 1000), (EXAMPLE_ITEMS, EXAMPLE_TOKENS))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if kind.medium == "video":
        return torch.randn(EXAMPLE_ITEMS, 3, 16, kind.image_size, kind.image_size)
    from stoker.ranking.preprocessing import preparation

    size = preparation(kind).image_size
    return torch.randn(EXAMPLE_ITEMS, 3, size, size)
