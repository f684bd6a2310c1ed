"""Batches that were run: on the host, where a budget stands in for a device's memory; and what is said if none fits."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import stoker
from stoker.errors import InputError, MachineError
from stoker.machine import gpu as driver
from stoker.memory import methods
from stoker.memory.limit import LimitOptions, LimitRequest
from stoker.memory.search import kind_of
from stoker.memory.tries import TryFactory, TryJob, TryOrder
from stoker.process.fork import Forked
from stoker.process.wire import Failure
from stoker.workload.example import grown, worst_example

MIB = 2**20
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


class Wide(torch.nn.Module):
    """A megabyte of output for each item."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).expand(-1, 2**18).contiguous()


def wide(**parts: Any) -> stoker.Workload:
    return stoker.Workload(model=Wide, dataset=TensorDataset(torch.zeros(512, 1)), **parts)


def factory(workload: stoker.Workload, mode: Any = "infer", **job: Any) -> TryFactory:
    return TryFactory(workload, TryJob(mode=mode, device="cpu", **job))


# ---------------------------------------------------------------- one try


def tried(batch_size: int, budget_bytes: int | None = None, emit: Any = None) -> stoker.records.Record:
    return factory(wide(), budget_bytes=budget_bytes).attempt(TryOrder(batch_size=batch_size))


def in_child(function: Any, *arguments: Any) -> Any:
    """Tries are forked from a process that has started no threads; this one has."""
    from stoker.process import child
    from stoker.records import Attempt

    return child.value(child.run(function, arguments, kind=Attempt))


def test_a_try_within_its_budget_runs_and_tells_its_peak() -> None:
    probe = in_child(tried, 64, 512 * MIB)
    assert probe.outcome == "done", probe.problem
    assert probe.peak_bytes >= 64 * MIB
    assert len(probe.step_s) == 3


def test_a_try_beyond_its_budget_is_out_of_memory_and_nothing_worse() -> None:
    probe = in_child(tried, 256, 64 * MIB)
    assert probe.outcome == "oom"
    assert probe.problem is not None


def accumulating(batches: int, emit: Any = None) -> stoker.records.Record:
    """A model of 64 MiB, trained with sgd on tiny batches."""
    dataset = TensorDataset(torch.zeros(64, 64))
    workload = stoker.Workload(
        model=lambda: torch.nn.Linear(64, 2**18, bias=False),
        dataset=dataset,
        step=lambda model, batch: model(batch[0]).sum(),
        optimizer=partial(torch.optim.SGD, lr=0.01),
    )
    setting = stoker.Setting(accumulate=batches)
    return factory(workload, "train", setting=setting, budget_bytes=1024 * MIB).attempt(TryOrder(batch_size=2))


def test_a_try_that_accumulates_keeps_gradients_between_batches() -> None:
    plain, gathered = (in_child(accumulating, batches) for batches in (1, 2))
    assert (len(plain.step_s), len(gathered.step_s)) == (3, 6)
    assert gathered.peak_bytes - plain.peak_bytes == pytest.approx(64 * MIB, rel=0.25)


def two_at_once(emit: Any = None) -> stoker.records.Record:
    made = factory(wide(), budget_bytes=512 * MIB)
    first, second = (made.begin(TryOrder(batch_size=size)) for size in (64, 32))
    first.stop()
    return second.result()


def test_tries_run_side_by_side_and_one_can_be_given_up() -> None:
    probe = in_child(two_at_once)
    assert (probe.batch_size, probe.outcome) == (32, "done")


def test_what_a_forked_call_raises_comes_back_as_words() -> None:
    def fails() -> int:
        raise ValueError("no")

    result = Forked(fails, int).result()
    assert isinstance(result, Failure)
    assert result.sentence == "no"
    assert Forked(lambda: 7, int).result() == 7


# ---------------------------------------------------------------- the example


class Lengths(Dataset[Any]):
    """Items of different lengths; the longest lies in the middle."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(self.sizes[index])


def test_the_largest_item_of_the_whole_set_is_found() -> None:
    workload = stoker.Workload(model=Wide, dataset=Lengths([3] * 10 + [5] * 80 + [900] + [4] * 50))
    example = worst_example(workload, within_s=60)
    assert example.batch.shape == (3, 900)
    assert example.sized(7, torch.device("cpu")).shape == (7, 900)
    assert example.note is None


def test_a_set_that_was_not_seen_whole_says_so() -> None:
    workload = stoker.Workload(model=Wide, dataset=Lengths([3, 5] * 100))
    example = worst_example(workload, within_s=0)
    assert example.seen == 1
    workload = stoker.Workload(model=Wide, dataset=Lengths([3] * 70 + [5] * 30))
    assert worst_example(workload, within_s=60).seen == 64


def test_a_batch_whose_items_are_not_in_front_is_collated_for_real() -> None:
    workload = stoker.Workload(model=Wide, dataset=Lengths([4] * 8), collate_fn=lambda items: torch.stack(items, dim=1))
    example = worst_example(workload)
    assert not example.grows
    assert example.sized(7, torch.device("cpu")).shape == (4, 7)


def test_such_a_batch_is_not_traced_as_if_it_never_grew() -> None:
    workload = stoker.Workload(model=Wide, dataset=Lengths([4] * 8), collate_fn=lambda items: torch.stack(items, dim=1))
    with pytest.raises(InputError, match="first dimension does not count its items"):
        stoker.limit(workload, method="trace", gpu_memory="1GiB", mode="infer")


def test_what_stays_the_same_in_every_batch_does_not_grow() -> None:
    def with_weights(items: list[Any]) -> Any:
        return torch.stack(items), torch.ones(10)

    workload = stoker.Workload(model=Wide, dataset=Lengths([4] * 8), collate_fn=with_weights)
    inputs, weights = worst_example(workload).sized(7, torch.device("cpu"))
    assert (inputs.shape, weights.shape) == ((7, 4), (10,))


class Chances(Dataset[Any]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> Any:
        return torch.randn(64), torch.rand(64)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 11])
def test_a_batch_of_any_size_has_the_values_of_its_items(size: int) -> None:
    batch = (torch.randn(3, 2, 4, 5), torch.tensor([7, 8, 9]), torch.ones(10))
    images, labels, weights = grown(batch, 3, size, torch.device("cpu"), channels_last=True)
    rows = [number % 3 for number in range(size)]
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, batch[0][rows])
    assert torch.equal(labels, batch[1][rows])
    assert torch.equal(weights, batch[2])


def test_a_loss_that_takes_only_chances_is_given_such() -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Sigmoid())

    workload = stoker.Workload(model=model, dataset=Chances, loss=torch.nn.BCELoss(), optimizer=torch.optim.Adam)
    assert stoker.limit(workload, gpu_memory=64 * MIB, device="cpu", mode="train").ran


def test_a_trace_says_that_the_set_is_smaller_than_the_batch() -> None:
    found = stoker.limit(wide(), method="trace", gpu_memory="4GiB", mode="infer")
    assert any("only 512 items" in note for note in found.notes)


# ---------------------------------------------------------------- the answer, on a machine without a GPU


def test_on_the_host_its_memory_bounds_the_batch_and_the_answer_ran() -> None:
    found = stoker.limit(wide(), gpu_memory=256 * MIB, device="cpu", mode="infer")
    assert found.memory == "host"
    assert any("host memory bounds" in note for note in found.notes)
    assert found.ran
    outcomes = {probe.batch_size: probe.outcome for probe in found.probes}
    assert outcomes[found.max_batch] == "done"
    assert any(outcome == "oom" and size > found.max_batch for size, outcome in outcomes.items())
    assert 64 <= found.max_batch <= 256, "two copies of a megabyte an item, at least one of them alive"


def test_a_slow_step_on_the_host_is_extrapolated_and_not_run() -> None:
    def slow(model: Any, inputs: Any) -> Any:
        time.sleep(0.05 * len(inputs))
        return model(inputs)

    found = stoker.limit(wide(forward=slow), gpu_memory=2048 * MIB, device="cpu", mode="infer")
    assert not found.ran
    assert any("not run" in note for note in found.notes)
    assert {probe.batch_size for probe in found.probes} == {2, 8, 32}


@pytest.mark.parametrize(
    ("name", "told"),
    [("NVIDIA H200", "NVIDIA H200"), ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090"), ("X1", "9.0")],
)
def test_a_card_is_told_by_its_name_where_that_says_more_than_its_generation(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(name=name, compute_capability="9.0")
    monkeypatch.setattr(driver, "read", lambda: ([card], SimpleNamespace(visible_devices=None)))
    monkeypatch.setattr(driver, "visible", lambda cards, visible: cards)
    found = methods._card(LimitRequest())
    assert found is not None
    assert kind_of(found) == told


@NO_GPU
def test_methods_that_run_on_a_gpu_say_that_there_is_none() -> None:
    with pytest.raises(MachineError, match="finds none here"):
        stoker.limit(wide(), method="doubling", gpu_memory="1GiB")


@NO_GPU
def test_two_points_are_traced_without_a_gpu() -> None:
    found = stoker.limit("resnet50", mode="train", gpu_memory="16GiB", method="two-point")
    assert found.method == "two-point"
    assert not found.ran
    assert found.max_batch == pytest.approx(162, rel=0.05), "what readings on an H200 give: benchmarks/results/h200"
    assert found.max_batch == pytest.approx((2**34 - found.fixed_bytes) / found.bytes_per_item, abs=1)
    assert any("traced on a simulated GPU" in note for note in found.notes)
    with pytest.raises(InputError, match="needs batches of 10 and 50, and 10 does not fit"):
        stoker.limit("resnet50", mode="train", gpu_memory="1GiB", method="two-point")


@NO_GPU
def test_a_step_that_fails_is_not_taken_for_one_out_of_memory() -> None:
    def broken(model: Any, inputs: Any) -> Any:
        raise ValueError("wrong shape somewhere")

    with pytest.raises(InputError, match=r"not for want of memory: ValueError: wrong shape somewhere"):
        stoker.limit(wide(forward=broken), mode="infer")


def test_bad_requests_get_a_sentence() -> None:
    for options, words in (
        ({"gpu_memory": "16 parsecs"}, "unknown unit"),
        ({"gpu_memory": 0}, "at least 1 byte"),
        ({"gpu_memory": "1GiB", "reserve": "2GiB"}, "leaves nothing"),
        ({"gpu_memory": "1GiB", "gpu": "abacus"}, "no GPU is known"),
        ({"gpu_memory": "1GiB", "method": "magic"}, "no such method"),
        ({"gpu_memory": "9" * 400}, "larger than any"),
        ({"device": "banana"}, "no such device"),
        ({"device": "sleep:5ms"}, "no such device"),
        ({"gpu_memory": "1GiB", "gpus": 0}, "at least 1"),
        ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
        ({"gpu_memory": float("inf")}, "finite"),
    ):
        with pytest.raises(InputError, match=words):
            stoker.limit(wide(), **options)
        with pytest.raises(InputError, match=words):
            LimitRequest(**options)


def test_the_options_of_limit_are_the_fields_of_the_request() -> None:
    fields = {field for field in LimitRequest.__struct_fields__ if field != "optimizer"}
    assert set(LimitOptions.__annotations__) == fields
    with pytest.raises(TypeError, match="banana"):
        stoker.limit(wide(), banana=3)  # type: ignore[call-arg]


# ---------------------------------------------------------------- a live model


def test_a_live_model_on_the_host_is_traced_and_left_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = (torch.randn(4, 64), torch.zeros(4, dtype=torch.long))
    chance = torch.get_rng_state()
    found = stoker.limit(
        model, batch, gpu_memory="1GiB", loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer, method="trace"
    )
    assert found.mode == "train"
    assert found.max_batch > 1000
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_no_model_is_said() -> None:
    with pytest.raises(InputError, match="got int"):
        stoker.limit(3, gpu_memory="1GiB")
    with pytest.raises(InputError, match="example batch"):
        stoker.limit(torch.nn.Linear(2, 2), gpu_memory="1GiB")


def test_priming_leaves_a_model_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = (torch.randn(4, 8), torch.zeros(4, dtype=torch.long))
    stoker.prime(model, batch, loss=torch.nn.CrossEntropyLoss())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_lent_optimizer_comes_back_with_its_state() -> None:
    from stoker.workload.borrowed import borrowed_optimizer

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    held = {key: {name: value.clone() for name, value in values.items()} for key, values in optimizer.state.items()}
    with borrowed_optimizer(optimizer):
        optimizer.param_groups[0]["lr"] = 7.0
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.1
    for key, values in optimizer.state.items():
        assert all(torch.equal(value, held[key][name]) for name, value in values.items())
