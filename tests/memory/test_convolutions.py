"""The tables of rules for convolutions: every convolution has a rule, and every rule has its convolutions."""

import random
from collections.abc import Iterator

import pytest
import torch

from stoker.memory.trace.kernels.convolutions import (
    BACKWARD_INPUT,
    FORWARD,
    Convolution,
    Rule,
    backward_weight_rules,
    workspace,
)

CHANNELS = (1, 3, 4, 8, 16, 32, 63, 64, 128, 129, 160, 256, 512)
TABLES = {"forward": FORWARD, "input": BACKWARD_INPUT, "weights": backward_weight_rules(132)}


def convolutions(count: int = 20_000) -> Iterator[Convolution]:
    """Drawn with a seed; their tensors have shapes only."""
    draw = random.Random(1)
    for _ in range(count):
        dimensions, side, step = draw.choice((1, 2, 2, 3)), draw.choice((1, 2, 3, 5, 7)), draw.choice((1, 1, 2))
        groups = draw.choice((1, 1, 1, 2, 8))
        inputs, outputs = (draw.choice(CHANNELS) * groups for _ in range(2))
        pixels = draw.choice((1, 7, 14, 56))
        dtype = draw.choice((torch.float32, torch.float32, torch.bfloat16))
        x, y, weight = (
            torch.empty(shape, dtype=dtype, device="meta")
            for shape in (
                (64, inputs, *[pixels] * dimensions),
                (64, outputs, *[max(1, pixels // step)] * dimensions),
                (outputs, inputs // groups, *[side] * dimensions),
            )
        )
        transposed, last = draw.random() < 0.2, draw.random() < 0.1
        yield Convolution(x, y, weight, [step] * dimensions, groups, transposed=transposed, last=last)


@pytest.mark.parametrize("table", TABLES)
def test_every_rule_decides_for_some_convolution_and_every_convolution_has_one(table: str) -> None:
    rules, used = TABLES[table], set()
    for convolution in convolutions():
        rule = next(rule for rule in rules if rule.applies(convolution))
        used.add(rule.name)
        assert workspace(rules, convolution) == rule.sizes(convolution)
    assert used == {rule.name for rule in rules}


@pytest.mark.parametrize("rules", TABLES.values(), ids=TABLES)
def test_every_rule_names_what_it_was_read_off(rules: tuple[Rule, ...]) -> None:
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.seen_in and rule.cudnn for rule in rules)
