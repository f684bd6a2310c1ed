"""One step of training, and several batches gathered into one update."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import stoker
from stoker.forecast.costs import StepCosts, Table
from stoker.measure.steps import ModelStep
from stoker.records import OWN_UPDATES, Extent, Setting
from stoker.workload.workload import Workload

HERE = "tests/workloads/planted.py"
BATCHES = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(6)]


class Counting(torch.optim.SGD):
    """Keeps count of its updates."""

    updates = 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        return super().step(closure)


def made(model: nn.Module) -> tuple[ModelStep, list[Counting]]:
    optimizers: list[Counting] = []

    def optimizer(parameters: Any) -> Counting:
        optimizers.append(Counting(parameters, lr=0.1))
        return optimizers[-1]

    workload = Workload(model=model, dataset=BATCHES, loss=nn.MSELoss(), optimizer=optimizer)
    step = ModelStep(workload, "train", Setting(), torch.device("cpu"), pinned=False)
    return step, optimizers


@pytest.mark.parametrize(("accumulate", "updates"), [(1, 6), (2, 3), (4, 1), (7, 0)])
def test_there_is_one_update_for_so_many_batches(accumulate: int, updates: int) -> None:
    step, optimizers = made(nn.Linear(3, 2))
    step.begin(accumulate)
    ticks: list[str] = []
    for batch in BATCHES:
        step(batch, ticks.append)
    assert optimizers[0].updates == updates
    assert ticks == ["copy", "forward", "backward", "update"] * len(BATCHES), "each batch has the same stages"


def test_batches_that_are_gathered_learn_what_one_of_all_would() -> None:
    start = nn.Linear(3, 2)
    two, one = copy.deepcopy(start), copy.deepcopy(start)
    for model, batches, accumulate in (
        (two, BATCHES[:2], 2),
        (one, [tuple(torch.cat(part) for part in zip(*BATCHES[:2], strict=True))], 1),
    ):
        step, _ = made(model)
        step.begin(accumulate)
        for batch in batches:
            step(batch, lambda name: None)
        model.load_state_dict(step.model.state_dict())
    assert torch.allclose(two.weight, one.weight)
    assert not torch.allclose(two.weight, start.weight)


def test_what_was_gathered_for_another_run_is_dropped() -> None:
    step, optimizers = made(nn.Linear(3, 2))
    step.begin(2)
    step(BATCHES[0], lambda name: None)
    step.begin(2)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    step(BATCHES[0], lambda name: None)
    assert optimizers[0].updates == 0


def test_a_profile_says_where_batches_cannot_be_gathered() -> None:
    setting, extent = Setting(batch_size=8, accumulate=2), Extent(batches=2, warmup=0)
    own = stoker.profile(f"{HERE}:updates_itself", setting, extent, device="cpu", mode="train")
    assert OWN_UPDATES in own.notes
    assert own.updates_itself
    nothing = stoker.profile(f"{HERE}:plain", setting, extent, device="cpu", mode="infer")
    assert any("inference has none" in note for note in nothing.notes)
    many = Setting(batch_size=8, accumulate=4)
    few = stoker.profile(f"{HERE}:plain", many, extent, device="cpu", mode="train")
    assert any("none was made" in note for note in few.notes)
    assert not few.updates_itself


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_batch_is_told_its_share_of_the_update(asynchronous: bool) -> None:
    whole, update = Table((8.0, 64.0), (0.010, 0.030)), Table((8.0, 64.0), (0.004, 0.004), True)
    step = StepCosts(host_s=whole, device_s=whole, update_s=update, asynchronous=asynchronous)
    gathered = step.accumulating(4)
    changed, kept = (gathered.device_s, gathered.host_s) if asynchronous else (gathered.host_s, gathered.device_s)
    assert [changed.at(size) for size in (8, 64)] == pytest.approx([0.007, 0.027])
    assert kept == whole
    assert step.accumulating(1) is step
