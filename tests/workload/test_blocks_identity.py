"""Fingerprints: equal blocks agree whatever their names are, and what could change an output tells blocks apart."""

import copy
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import torchvision.models as tv
import transformers
from torch import Tensor, nn

from stoker.errors import InputError
from stoker.workload.blocks import Block, fingerprint, split

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small layers wait for their threads longer than they compute
    yield
    torch.set_num_threads(threads)


def prints(model: nn.Module, example: Any) -> list[str]:
    return [fingerprint(block) for block in split(model, example)]


def of(call: Callable[..., Any]) -> str:
    return fingerprint(Block(name="", call=call))


def shared(one: list[str], other: list[str]) -> int:
    """How many first blocks agree."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


SEVEN_LABELS: dict[str, Any] = {"num_labels": 7}
IMAGES = torch.randn(2, 3, 32, 32)
IDS = {"input_ids": torch.randint(3, 90, (2, 8))}


@pytest.mark.parametrize(
    "make",
    [
        tv.resnet18,
        tv.mobilenet_v3_small,
        functools.partial(tv.swin_v2_t),
        functools.partial(timm.create_model, "test_convnext"),
        functools.partial(timm.create_model, "vit_tiny_patch16_224", img_size=32),
    ],
)
def test_snapshots_share_the_blocks_before_the_first_change(make: Callable[[], nn.Module]) -> None:
    one, two = make().eval(), make().eval()
    two.load_state_dict(one.state_dict())
    first, second = prints(one, IMAGES), prints(two, IMAGES)
    pickled = pickle.loads(pickle.dumps(one))
    assert first == second == prints(copy.deepcopy(one), IMAGES) == prints(pickled, IMAGES)
    assert len(set(first)) == len(first)

    blocks = split(two, IMAGES)
    with torch.no_grad():
        changed = next(iter(blocks[4].call.parameters()))  # type: ignore[attr-defined]
        changed.view(-1)[0] += 1e-3
    assert [a == b for a, b in zip(first, prints(two, IMAGES), strict=True)] == [i != 4 for i in range(len(first))]


ANOTHER_PROCESS = """
import torch, torchvision
from stoker.workload.blocks import fingerprint, split
torch.manual_seed(3)
model = torchvision.models.mobilenet_v3_small().eval()
print(*[fingerprint(block) for block in split(model, torch.ones(2, 3, 32, 32))])
"""


def test_fingerprints_are_the_same_in_another_process() -> None:
    torch.manual_seed(3)
    here = prints(tv.mobilenet_v3_small().eval(), torch.ones(2, 3, 32, 32))
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == here


def test_text_models_with_other_heads_share_their_encoder() -> None:
    config = transformers.BertConfig(**TEXT, **SEVEN_LABELS)
    config._name_or_path = "elsewhere"
    one: Any = transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT))
    two: Any = transformers.BertForSequenceClassification(config)
    base: Any = transformers.BertModel(config)
    for model in (one, two, base):
        model.eval()
    two.bert.load_state_dict(one.bert.state_dict())
    base.load_state_dict(one.bert.state_dict())

    assert shared(prints(one, IDS), prints(two, IDS)) == 5
    assert shared(prints(one, IDS), prints(base, IDS)) == 4

    other = transformers.BertConfig(**{**TEXT, "num_attention_heads": 8})
    heads: Any = transformers.BertForSequenceClassification(other)
    heads.eval()
    heads.load_state_dict(one.state_dict())
    assert shared(prints(one, IDS), prints(heads, IDS)) <= 1


class Renamed(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = model[0], model[1], model[2]

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        out: Tensor = self.third(x)
        return out


def test_names_do_not_matter() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    x = torch.randn(2, 4)
    assert prints(model, x) == prints(Renamed(model).eval(), x)


class Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 2), scale

    def forward(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Options:
    names: tuple[str, ...]
    rate: float


def _with(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = Scaled(1.0).eval()
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def _weights(change: Callable[[Any], Any]) -> nn.Module:
    made: Any = _with()
    with torch.no_grad():
        change(made.layer)
    return made  # type: ignore[no-any-return]


def test_equal_blocks_agree_and_every_difference_shows() -> None:
    different = {
        "base": _with(),
        "weight": _weights(lambda layer: layer.weight[0, 0].add_(1e-6)),
        "sign of zero": _weights(lambda layer: layer.bias.zero_()),
        "negative zero": _weights(lambda layer: layer.bias.zero_().neg_()),
        "dtype": _with().double(),
        "order": _weights(lambda layer: setattr(layer.weight, "data", layer.weight.t().contiguous().t())),
        "setting": _with(scale=2.0),
        "type of a setting": _with(scale=1),
        "text": _with(scale="1.0"),
        "tuple": _with(scale=(1, 2)),
        "list": _with(scale=[1, 2]),
        "nested": _with(scale=[1, [2]]),
        "mapping": _with(scale={"a": 1}),
        "other mapping": _with(scale={"a": 2}),
        "set": _with(scale={1, 2}),
        "object": _with(scale=Options(("a",), 0.1)),
        "other object": _with(scale=Options(("a", "b"), 0.1)),
        "function": _with(scale=torch.relu),
        "other function": _with(scale=torch.tanh),
        "partial": _with(scale=functools.partial(torch.clamp, min=0)),
        "other partial": _with(scale=functools.partial(torch.clamp, min=1)),
        "class": _with(scale=nn.Linear),
        "more": _with(more=1),
        "tensor": _with(table=torch.arange(3)),
        "other tensor": _with(table=torch.arange(3).float()),
        "training": _with().train(),
        "child": _with(child=nn.Tanh()),
        "other child": _with(child=nn.Sigmoid()),
        "other name of a child": _with(kid=nn.Tanh()),
        "another class": Options(("a",), 0.1),
    }
    found = {name: of(module) for name, module in different.items()}  # type: ignore[arg-type]
    assert len(set(found.values())) == len(found)
    assert found == {name: of(copy.deepcopy(module)) for name, module in different.items()}  # type: ignore[arg-type]


def _adder(amount: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x + amount


def _add(x: Tensor, amount: float = 1) -> Tensor:
    return x + amount


def _subtract(x: Tensor, amount: float = 1) -> Tensor:
    return x - amount


def test_functions_differ_by_code_and_by_what_they_enclose() -> None:
    assert of(_adder(1)) == of(_adder(1)) != of(_adder(2))
    assert of(_add) == of(_add) != of(_subtract)
    made = [type("Made", (nn.Tanh,), {"forward": forward})() for forward in (_add, _subtract)]
    assert of(made[0]) == of(made[0]) != of(made[1])
    assert of(lambda x, y=1: x + y) != of(lambda x, y=2: x + y)


def test_the_same_layer_twice_is_not_two_equal_layers() -> None:
    layer = nn.Linear(2, 2)
    assert of(nn.Sequential(layer, layer)) == of(nn.Sequential(*[copy.deepcopy(layer)] * 2))
    other = nn.Linear(2, 2)
    assert of(nn.Sequential(layer, other)) != of(nn.Sequential(other, layer))


def test_what_only_training_reads_does_not_matter() -> None:
    one, two = nn.BatchNorm1d(3).eval(), nn.BatchNorm1d(3).eval()
    assert one.num_batches_tracked is not None
    one.num_batches_tracked.add_(5)
    assert of(one) == of(two)
    assert two.running_mean is not None
    two.running_mean.add_(1)
    assert of(one) != of(two)


def test_what_cannot_be_identified_is_never_shared() -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    for module in (hooked, _with(scale=torch.Generator()), _with(scale=iter([1]))):
        assert of(module) != of(module)

    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(InputError, match="meta device has no fingerprint: load them first"):
        of(empty)
