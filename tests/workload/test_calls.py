"""How a workload is made and called, on batches of every shape people use."""

import copy
import random
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stoker.errors import InputError
from stoker.workload import calls
from stoker.workload.borrowed import borrowed
from stoker.workload.workload import Workload

Point = namedtuple("Point", ["x", "y"])
X, Y = torch.zeros(5, 3), torch.arange(5)


@dataclass(frozen=True)
class Graph:
    nodes: Tensor
    name: str
    degree: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", torch.ones(len(self.nodes)))


class OwnBatch:
    """A batch class whose `to` takes the device alone."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def to(self, device: str) -> "OwnBatch":
        return OwnBatch(self.values.to(device))


def workload(**parts: Any) -> Workload:
    return Workload(**{"model": nn.Identity(), "dataset": [0], **parts})


# ---------------------------------------------------------------- split


def test_a_pair_is_inputs_and_target() -> None:
    assert calls.split((X, Y)) == (X, Y)
    assert calls.split([X, Y]) == (X, Y)


def test_of_several_values_the_last_is_the_target() -> None:
    inputs, target = calls.split([X, X, Y])
    assert type(inputs) is tuple
    assert len(inputs) == 2
    assert target is Y


def test_inputs_alone_have_no_target() -> None:
    assert calls.split(X) == (X, None)
    assert calls.split((X,)) == (X, None)


@pytest.mark.parametrize("name", ["labels", "label", "target", "targets"])
def test_a_mapping_names_its_target(name: str) -> None:
    batch = {"input_ids": X, name: Y}
    assert calls.split(batch) == (batch, Y)


def test_a_packed_sequence_is_one_input() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert calls.split(packed) == (packed, None)
    assert calls.count_items(packed) == 2


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="empty batch"):
        calls.split(())


# ---------------------------------------------------------------- moving, counting, weighing

BATCHES: list[Any] = [
    X,
    (X, Y),
    [X, Y],
    {"a": X, "b": [Y, "text", None, 3]},
    OrderedDict(a=X),
    defaultdict[str, Any](list, a=X),
    UserDict(a=X),
    Point(X, Y),
    Graph(X, "ring"),
    OwnBatch(X),
    pack_sequence([torch.ones(2, 2)]),
    ((X, X), {"mask": Y}),
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_every_tensor_moves_and_every_container_keeps_its_kind(batch: Any) -> None:
    moved = calls.to_device(batch, "meta")
    assert type(moved) is type(batch)
    tensors = list(_tensors(moved))
    assert len(tensors) == len(list(_tensors(batch))) > 0
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert {tensor.device.type for tensor in _tensors(batch)} == {"cpu"}, "the original is left alone"


def test_what_is_no_tensor_stays() -> None:
    batch = {"names": ["a", "b"], "id": 3, "nothing": None, "array": np.zeros(2)}
    moved = calls.to_device(batch, "meta")
    assert moved["names"] == ["a", "b"]
    assert moved["array"] is batch["array"]


def test_a_default_dict_keeps_its_default() -> None:
    moved = calls.to_device(defaultdict[str, Any](list, a=X), "meta")
    assert moved["new"] == []


def test_images_and_clips_become_channels_last_and_nothing_else_does() -> None:
    image, clip, mask = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 2, 4, 4), torch.zeros(2, 3, 4, 4, dtype=torch.long)
    moved = calls.to_device((image, clip, mask, X), "cpu", channels_last=True)
    assert moved[0].is_contiguous(memory_format=torch.channels_last)
    assert moved[1].is_contiguous(memory_format=torch.channels_last_3d)
    assert moved[2].is_contiguous()
    assert torch.equal(moved[0], image)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (X, 5),
        ((X, Y), 5),
        ([[X, X], Y], 5),
        ({"input_ids": X, "labels": Y}, 5),
        (([torch.zeros(3, 4, 4), torch.zeros(3, 5, 4)], [{"boxes": X}, {"boxes": X}]), 2),
        ((torch.zeros(2, 3, 8, 8), torch.zeros(17, 6)), 2),
        (([torch.zeros(3, 4, 4), torch.zeros(2, 5, 4)], None), 2),
        (Graph(X, "ring"), 5),
        (OwnBatch(X), 5),
        (np.zeros((4, 2)), 4),
        ((["a", "b", "c"], torch.tensor([0, 1, 2])), 3),
    ],
)
def test_items_are_counted(batch: Any, count: int) -> None:
    assert calls.count_items(batch) == count


def test_a_batch_that_cannot_be_counted_says_so() -> None:
    with pytest.raises(InputError, match="how many items a batch of type SimpleNamespace holds"):
        calls.count_items(SimpleNamespace(name="x"))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 9))
def test_bytes_add_up(widths: list[int], items: int) -> None:
    batch = {str(place): torch.zeros(items, width) for place, width in enumerate(widths)}
    assert calls.batch_bytes((batch, torch.zeros(items, dtype=torch.int64))) == items * (4 * sum(widths) + 8)


def test_bytes_of_arrays_strings_and_numbers() -> None:
    assert calls.batch_bytes([np.zeros(3), b"ab", "é", 7, None]) == 24 + 2 + 2


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield value.data  # the sizes stay on the host, whatever the device
    elif isinstance(value, dict | UserDict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))


# ---------------------------------------------------------------- making


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 3


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_objects_are_used_as_they_are_and_makers_are_called() -> None:
    for thing in (nn.Linear(1, 1), Numbers(), Stream(), TensorDataset(X), [1, 2]):
        assert calls.make(thing) is thing
    assert isinstance(calls.make(Numbers), Numbers)
    assert isinstance(calls.make(partial(nn.Linear, 1, 1)), nn.Linear)
    assert isinstance(calls.make(lambda: Stream()), Stream)


def test_a_model_that_is_none_is_told() -> None:
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module or a function that makes one, got NoneType"):
        calls.make_model(workload(model=lambda: None))


def test_datasets_are_made_and_checked() -> None:
    assert isinstance(calls.make_dataset(workload(dataset=Numbers)), Numbers)
    assert isinstance(calls.make_dataset(workload(validation=Numbers), "validation"), Numbers)
    with pytest.raises(InputError, match="no validation dataset"):
        calls.make_dataset(workload(), "validation")
    with pytest.raises(InputError, match="dataset must be a dataset or a function that makes one, got int"):
        calls.make_dataset(workload(dataset=lambda: 3))


def test_the_optimizer_gets_what_is_to_be_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = calls.make_optimizer(workload(optimizer=torch.optim.AdamW), model)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [parameter.shape for parameter in optimizer.param_groups[0]["params"]] == [(1, 2), (1,)]


def test_without_an_optimizer_sgd_with_momentum_trains() -> None:
    optimizer = calls.make_optimizer(workload(), nn.Linear(2, 2))
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["momentum"] == 0.9


def test_nothing_to_train_and_no_optimizer_are_told() -> None:
    with pytest.raises(InputError, match="nothing to train"):
        calls.make_optimizer(workload(), nn.ReLU())
    with pytest.raises(InputError, match="must give an optimizer when called with parameters, got int"):
        calls.make_optimizer(workload(optimizer=len), nn.Linear(1, 1))
    with pytest.raises(InputError, match=r"got SGD; give its class, or a functools\.partial of it"):
        workload(optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))


# ---------------------------------------------------------------- calling


class Returns(nn.Module):
    """Remembers how it was called, and returns what it was told to."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.called_with = (inputs, named)
        return self.output


@pytest.mark.parametrize(
    ("inputs", "called_with"),
    [
        (X, ((X,), {})),
        ([X, Y], ((X, Y), {})),
        ((X, Y), ((X, Y), {})),
        ({"x": X, "y": Y}, ((), {"x": X, "y": Y})),
    ],
)
def test_inputs_reach_the_model(inputs: Any, called_with: Any) -> None:
    model = Returns()
    calls.forward(workload(), model, inputs)
    assert model.called_with == called_with


def test_a_named_tuple_is_one_input() -> None:
    model, point = Returns(), Point(X, Y)
    calls.forward(workload(), model, point)
    assert model.called_with == ((point,), {})


def test_labels_reach_a_model_only_where_it_computes_the_loss() -> None:
    batch = {"input_ids": X, "labels": Y}
    model = Returns()
    calls.forward(workload(), model.train(), batch)
    assert set(model.called_with[1]) == {"input_ids", "labels"}
    calls.forward(workload(), model.eval(), batch)
    assert set(model.called_with[1]) == {"input_ids"}
    calls.forward(workload(loss=nn.CrossEntropyLoss()), model.train(), batch)
    assert set(model.called_with[1]) == {"input_ids"}
    assert set(batch) == {"input_ids", "labels"}


def test_the_owners_forward_replaces_the_call() -> None:
    model = Returns()
    calls.forward(workload(forward=lambda model, images: model(list(images))), model, X)
    assert len(model.called_with[0][0]) == 5


LOGITS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
TARGET = torch.tensor([0, 1, 2, 0, 1])
EXPECTED = functional.cross_entropy(LOGITS, TARGET)


@pytest.mark.parametrize("output", [LOGITS, SimpleNamespace(logits=LOGITS), {"out": LOGITS}, {"logits": LOGITS}])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), functional.cross_entropy, partial(functional.cross_entropy, reduction="mean")]
)
def test_a_loss_of_torch_gets_the_logits(loss: Any, output: Any) -> None:
    assert torch.equal(calls.loss_of(workload(loss=loss), output, TARGET), EXPECTED)


def test_a_loss_of_ones_own_gets_what_the_model_returned() -> None:
    def loss(output: Any, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.logits, target) * 2

    found = calls.loss_of(workload(loss=loss), SimpleNamespace(logits=LOGITS), TARGET)
    assert torch.equal(found, EXPECTED * 2)


def test_auxiliary_heads_weigh_in() -> None:
    from torchvision.models import GoogLeNetOutputs, InceptionOutputs

    given_loss = workload(loss=nn.CrossEntropyLoss())
    torch.testing.assert_close(calls.loss_of(given_loss, InceptionOutputs(LOGITS, LOGITS), TARGET), EXPECTED * 1.4)
    torch.testing.assert_close(calls.loss_of(given_loss, InceptionOutputs(LOGITS, None), TARGET), EXPECTED)
    outputs = GoogLeNetOutputs(LOGITS, LOGITS, LOGITS)
    torch.testing.assert_close(calls.loss_of(given_loss, outputs, TARGET), EXPECTED * 1.6)


def test_a_model_may_bring_its_own_loss() -> None:
    loss = torch.tensor(0.5)
    assert calls.loss_of(workload(), SimpleNamespace(loss=loss, logits=LOGITS), None) is loss
    assert calls.loss_of(workload(), {"loss": loss}, TARGET) is loss


@pytest.mark.parametrize(
    ("loss", "output", "target", "sentence"),
    [
        (None, LOGITS, TARGET, "has no loss, and its model returned none"),
        (None, SimpleNamespace(loss=None), TARGET, "has no loss, and its model returned none"),
        (nn.CrossEntropyLoss(), LOGITS, None, "the loss needs a target, and the batch has none"),
        (nn.CrossEntropyLoss(reduction="none"), LOGITS, TARGET, r"one number, got one of shape \(5,\)"),
        (lambda output, target: 0.5, LOGITS, TARGET, "one number, got float"),
    ],
)
def test_a_loss_that_cannot_be_had_is_told(loss: Any, output: Any, target: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        calls.loss_of(workload(loss=loss), output, target)


def test_an_own_step_gives_a_loss_or_did_all_of_it() -> None:
    assert calls.step_loss(None) is None
    assert calls.step_loss(EXPECTED) is EXPECTED
    with pytest.raises(InputError, match="got dict"):
        calls.step_loss({"loss": EXPECTED})


def test_top1_is_the_share_that_is_right() -> None:
    logits = torch.eye(3)[[0, 1, 2, 2]]
    assert calls.top1(SimpleNamespace(logits=logits), torch.tensor([0, 1, 2, 0])).item() == 0.75


# ---------------------------------------------------------------- borrowing


def _state(model: nn.Module) -> Any:
    state = copy.deepcopy(model.state_dict())
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return state, gradients, [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]


def _same(before: Any, after: Any) -> None:
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=0)


def _use_and_fail(model: nn.Module) -> None:
    with borrowed(model) as ours:
        ours.train().requires_grad_(True)
        optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
        optimizer.zero_grad(set_to_none=False)
        ours(torch.rand(3, 4)).sum().backward()
        optimizer.step()
        ours.to(dtype=torch.float64)
        _draw()
        raise RuntimeError("out of memory")


def _seed() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


def _draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_a_borrowed_model_comes_back_as_it_was_even_when_the_run_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    model(torch.rand(3, 4)).sum().backward()
    model[1].eval()
    model[0].bias.requires_grad_(False)
    before, addresses = _state(model), [parameter.data_ptr() for parameter in model.parameters()]
    _seed()
    with pytest.raises(RuntimeError, match="out of memory"):
        _use_and_fail(model)
    drawn = _draw()
    _seed()
    assert drawn == _draw()
    _same(before, _state(model))
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


# ---------------------------------------------------------------- batches of users' own classes


class Kinds:
    """Refers to itself, to a class and to a dataclass type."""

    def __init__(self) -> None:
        self.rows, self.kind, self.me = X, Graph, self


def test_classes_and_cycles_inside_a_batch_are_not_walked() -> None:
    batch = Kinds()
    assert calls.batch_bytes(batch) == X.nbytes
    assert calls.count_items(batch) == 5
    assert calls.to_device({"kind": Graph, "x": X}, "meta")["kind"] is Graph


class Sized:
    batch_size = 7


def test_a_batch_may_say_how_many_items_it_holds() -> None:
    assert calls.count_items(Sized()) == 7
    assert calls.known_count(object()) is None


class Stuck:
    def __init__(self) -> None:
        self.rows = X


class Raises:
    def to(self, device: str) -> None:
        raise AttributeError("no rows")


@pytest.mark.parametrize("batch", [Stuck(), Raises()])
def test_a_batch_that_cannot_be_moved_names_the_remedies(batch: Any) -> None:
    with pytest.raises(InputError, match=r"cannot be moved to meta.*step=.*forward=") as caught:
        calls.to_device(batch, "meta")
    assert type(batch).__name__ in str(caught.value)
    assert calls.to_device(batch, "meta", leave_unknown=True) is batch


def test_what_cannot_be_counted_names_the_remedies() -> None:
    with pytest.raises(InputError, match=r"cannot tell how many items.*step=.*forward="):
        calls.count_items(object())
