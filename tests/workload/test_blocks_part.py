"""Parts of a model: how they are written, where they begin, what blocks cost, and joint models."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from stoker.errors import InputError
from stoker.workload.blocks import (
    PARTS,
    Block,
    Blocks,
    Joint,
    Part,
    compose,
    cut,
    describe,
    joint,
    parse_part,
    run,
    split,
)

units = st.sampled_from(["blocks", "layers", "parameters", "time"])
percentages = st.decimals(min_value="0.001", max_value=99, places=3).map(float)
parts = st.builds(Part, percent=percentages, unit=units, heads=st.integers(1, 9)) | st.builds(
    Part, count=st.integers(1, 99), unit=st.sampled_from(["blocks", "layers"]), heads=st.integers(1, 9)
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small layers wait for their threads longer than they compute
    yield
    torch.set_num_threads(threads)


def net() -> nn.Sequential:
    """Blocks of 6, 12, 24 and 10 parameters: 2 -> 2 -> 4 -> 4 + ReLU -> 2."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 2), nn.Linear(2, 4), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)]
    return nn.Sequential(*layers).eval()


def blocks_of(parameters: list[int]) -> Blocks:
    return Blocks(tuple(Block(name=str(size), call=nn.Linear(size, 1, bias=False)) for size in parameters))


def costs_of(times: list[float]) -> list[Any]:
    return [SimpleNamespace(time_s_per_item=time) for time in times]


# ---------------------------------------------------------------- as text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("full", Part(percent=100.0)),
        ("last:50%", Part(percent=50.0)),
        ("last:12.5%", Part(percent=12.5)),
        (" LAST:25%:Parameters ", Part(percent=25.0, unit="parameters")),
        ("last:25%:time", Part(percent=25.0, unit="time")),
        ("last:25%:blocks", Part(percent=25.0)),
        ("last:100%:layers", Part(percent=100.0)),
        ("last:3", Part(count=3)),
        ("last:1:layers", Part(count=1, unit="layers")),
        ("joint:8:last:50%", Part(percent=50.0, heads=8)),
        ("joint:2:last:3", Part(count=3, heads=2)),
        ("joint:2:last:50%:time", Part(percent=50.0, unit="time", heads=2)),
    ],
)
def test_a_part_as_text(text: str, part: Part) -> None:
    assert parse_part(text) == part


@given(parts)
def test_a_part_and_its_text_are_the_same(part: Part) -> None:
    assert parse_part(part.text) == part


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a part must be full, last:50%, last:3, .* got ''"),
        ("first:3", "a part must be full"),
        ("full:3", "a part must be full"),
        ("last", "a part must be full"),
        ("last:3:blocks:4", "a part must be full"),
        ("last:", "the number of blocks must be a whole number, got '' in 'last:'"),
        ("last:three", "must be a whole number, got 'three'"),
        ("last:-1", "must be a whole number, got '-1'"),
        ("last:1.5", "must be a whole number, got '1.5'"),
        ("last:²", "must be a whole number"),
        ("last:0", "must have at least 1 of the blocks, got 0"),
        ("last:0:layers", "must have at least 1 of the layers, got 0"),
        ("last:x%", "the percentage of a part must be a number, got 'x%'"),
        ("last:-5%", "the percentage of a part must be a number, got '-5%'"),
        ("last:nan%", "the percentage of a part must be a number"),
        ("last:0%", "must be above 0 and at most 100, got 0%"),
        ("last:101%", "must be above 0 and at most 100, got 101%"),
        ("last:50%:items", "must be measured in blocks, layers, parameters or time, got 'items'"),
        ("last:3:parameters", "write last:25%:parameters instead of 'last:3:parameters'"),
        ("last:3:time", "a count is of blocks or layers"),
        ("joint", "a joint model is written joint:HEADS:last:AMOUNT"),
        ("joint:2", "a joint model is written"),
        ("joint:1:last:3", "must have at least 2 heads, got 1"),
        ("joint:two:last:3", "the number of heads must be a whole number, got 'two'"),
        ("joint:2:joint:2:last:3", "a part must be full"),
        ("joint:2:full", "'joint:2:full' has none before it"),
        ("joint:2:last:100%", "'joint:2:last:100%' has none before it"),
    ],
)
def test_what_is_no_part_is_refused_with_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        parse_part(text)
    assert "\n" not in str(error.value)


@given(st.text(alphabet="lastjoinfu:%.0123456789 ", max_size=20))
def test_any_text_is_a_part_or_refused(text: str) -> None:
    try:
        part = parse_part(text)
    except InputError:
        return
    assert parse_part(part.text) == part


# ---------------------------------------------------------------- where a part begins


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("full", 0),
        ("last:100%", 0),
        ("last:50%", 10),
        ("last:25%", 15),  # of 20 blocks the last 5; a percentage is never an index, which would give 20 - 25 or 25
        ("last:75%", 5),
        ("last:1%", 19),
        ("last:3", 17),
        ("last:1", 19),
        ("last:20", 0),
        ("last:99", 0),
    ],
)
def test_where_a_part_of_twenty_blocks_begins(text: str, begin: int) -> None:
    assert cut(blocks_of([1] * 20), parse_part(text)) == begin


def test_each_unit_cuts_by_its_own_amounts() -> None:
    blocks = blocks_of([100, 10, 10, 10, 70])
    costs = costs_of([1.0, 1.0, 1.0, 6.0, 1.0])
    assert cut(blocks, parse_part("last:40%")) == 3
    assert cut(blocks, parse_part("last:40%:parameters")) == 3  # 80 of 200
    assert cut(blocks, parse_part("last:50%:parameters")) == 1  # 100 of 200
    assert cut(blocks, parse_part("last:10%:time"), costs) == 4
    assert cut(blocks, parse_part("last:50%:time"), costs) == 3  # 7 of 10 s; 1 of 10 s is further away

    deep = Blocks(tuple(Block(name="", call=nn.Sequential(*(nn.Linear(1, 1) for _ in range(n)))) for n in (1, 4, 2, 1)))
    assert cut(deep, parse_part("last:3:layers")) == 2
    assert cut(deep, parse_part("last:50%:layers")) == 2  # 3 of 8 layers; 7 are further away
    assert cut(deep, parse_part("last:7:layers")) == 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), percentages)
def test_no_other_cut_is_nearer(sizes: list[int], percent: float) -> None:
    blocks, costs = blocks_of([1] * len(sizes)), costs_of([float(size) for size in sizes])
    part = Part(percent=percent, unit="time")
    if not sum(sizes):
        with pytest.raises(InputError, match="no time"):
            cut(blocks, part, costs)
        return
    begin = cut(blocks, part, costs)
    wanted = sum(sizes) * percent / 100
    distances = [abs(sum(sizes[index:]) - wanted) for index in range(len(sizes))]
    assert 0 <= begin < len(sizes)
    assert distances[begin] == pytest.approx(min(distances))


def test_a_part_of_the_time_needs_times() -> None:
    with pytest.raises(InputError, match="needs the time of each of the 2 blocks, got 0: measure them with describe"):
        cut(blocks_of([1, 1]), parse_part("last:50%:time"))
    with pytest.raises(InputError, match="got 3"):
        cut(blocks_of([1, 1]), parse_part("last:50%:time"), costs_of([1, 2, 3]))
    with pytest.raises(InputError, match=r"no parameters cannot be cut at last:50%:parameters"):
        cut(Blocks((Block(name="", call=torch.relu),)), parse_part("last:50%:parameters"))


# ---------------------------------------------------------------- what blocks cost


def test_the_cost_of_each_block() -> None:
    blocks = split(net(), torch.randn(3, 2))
    costs = describe(blocks, torch.randn(5, 2), runs=4)

    assert [cost.name for cost in costs] == ["0", "1", "2", "4"]
    assert [cost.index for cost in costs] == [0, 1, 2, 3]
    assert [cost.parameters for cost in costs] == [6, 12, 20, 10]
    assert [cost.layers for cost in costs] == [1, 1, 1, 1]
    assert [cost.output_bytes_per_item for cost in costs] == [8, 16, 16, 8]
    assert all(len(cost.samples_s_per_item) == 4 and min(cost.samples_s_per_item) > 0 for cost in costs)
    assert [cost.begins for cost in costs] == [("full",), ("last:3",), ("last:50%",), ("last:25%", "last:1")]


class Repeated(nn.Module):
    def __init__(self, work: int) -> None:
        super().__init__()
        self.layer, self.work = nn.Linear(64, 64), work

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.work):
            x = torch.tanh(self.layer(x))
        return x


def test_times_are_those_of_the_blocks() -> None:
    model = nn.Sequential(Repeated(2), Repeated(200), Repeated(2)).eval()
    costs = describe(model, torch.randn(4, 64), parts=["last:60%:time"])
    times = [cost.time_s_per_item for cost in costs]
    assert times[1] > 10 * max(times[0], times[2])
    assert costs[1].begins == ("last:60%:time",)


def test_what_cannot_be_described_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 run, got 0"):
        describe(net(), torch.randn(3, 2), runs=0)
    with pytest.raises(InputError, match="a part must be full"):
        describe(net(), torch.randn(3, 2), parts=["half"])


# ---------------------------------------------------------------- joint models


def test_a_joint_model_runs_its_prefix_once() -> None:
    model, x = net(), torch.randn(5, 2)
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("prefix"))
    blocks = split(model, x)
    with torch.no_grad():
        together = joint(blocks, parse_part("joint:4:last:50%"))
        calls.clear()
        outputs = together(x)
        assert calls == ["prefix"]
        assert outputs[0].equal(model(x))
        assert not any(one.equal(other) for one, other in itertools.combinations(outputs, 2))
        again = joint(blocks, parse_part("joint:4:last:50%"))(x)
        other = joint(blocks, parse_part("joint:4:last:50%"), seed=1)(x)
    assert [one.equal(two) for one, two in zip(outputs, again, strict=True)] == [True] * 4
    assert [one.equal(two) for one, two in zip(outputs, other, strict=True)] == [True, False, False, False]
    assert sum(parameter.numel() for parameter in together.parameters()) == 48 + 3 * 30


def test_a_joint_model_of_two_models() -> None:
    x, one, two = torch.randn(5, 2), net(), net()
    nn.init.ones_(two[4].weight)  # type: ignore[arg-type]
    first, second = split(one, x), split(two, x)
    with torch.no_grad():
        outputs = Joint(first[:2], [first[2:], second[2:]])(x)
        assert outputs[0].equal(one(x))
        assert outputs[1].equal(two(x))
    with pytest.raises(InputError, match="at least one head"):
        Joint(first, [])


def test_a_model_that_runs_whole_is_a_joint_model_without_a_prefix() -> None:
    model, x = nn.Linear(2, 2).eval(), torch.randn(3, 2)
    blocks = split(model, x)
    with torch.no_grad():
        outputs = joint(blocks, parse_part("joint:2:last:50%"))(x)
        assert outputs[0].equal(model(x))
        assert not outputs[1].equal(model(x))


def test_a_composition_is_a_module_and_does_not_change_the_model() -> None:
    model, x = net(), torch.randn(3, 2)
    blocks = split(model, x)
    whole = compose(blocks)
    assert not whole.training
    assert not any(module.training for module in model.modules())
    assert {id(each) for each in whole.parameters()} == {id(each) for each in model.parameters()}
    with torch.no_grad():
        model[4].bias.add_(1)  # type: ignore[operator]
        assert whole(x).equal(model(x))
        assert run(blocks, x).equal(model(x))
        assert whole.double()(x.double()).dtype == torch.float64
        assert compose([])(x) is x


def test_published_parts_are_parts() -> None:
    assert [parse_part(text).text for text in PARTS] == list(PARTS)
