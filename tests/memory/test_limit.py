"""The largest batch without a GPU: against sums done by hand, against laws, and against maxima measured on an H200."""

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import stoker
from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.measure.session import open_workload
from stoker.memory.allocator import rounded
from stoker.memory.limit import limit
from stoker.memory.replay import largest, most_alive, replay
from stoker.memory.trace.log import Allocation, AllocationLog
from stoker.process import child
from stoker.records import Setting
from stoker.workload.optimizers import OPTIMIZERS

GIB = 2**30
MIB = 2**20
PLENTY = 2**60


def log_of(
    workload: stoker.Workload | str, mode: str, precision: str = "fp32", optimizer: str | None = None
) -> AllocationLog:
    source: Any = stoker.WorkloadSpec(spec=workload, data="device") if isinstance(workload, str) else workload
    setting = Setting(precision=precision)  # type: ignore[arg-type]
    return child.value(child.run(_logged, (source, mode, setting, optimizer), kind=AllocationLog))


def _logged(source: Any, mode: Any, setting: Setting, optimizer: Any, emit: OnEvent) -> AllocationLog:
    from stoker.memory.trace import follow

    workload = open_workload(source, mode, emit)
    return follow.record(workload.with_(optimizer=OPTIMIZERS[optimizer]) if optimizer else workload, mode, setting)


def vectors(model: Any, width: int = 1024, **parts: Any) -> stoker.Workload:
    dataset = TensorDataset(torch.zeros(8, width), torch.zeros(8, dtype=torch.long))
    return stoker.Workload(model=model, dataset=dataset, loss=torch.nn.CrossEntropyLoss(), **parts)


# ---------------------------------------------------------------- sums done by hand


def test_inference_of_one_layer_is_its_weights_its_input_and_its_output() -> None:
    log = log_of(vectors(lambda: torch.nn.Linear(1024, 512)), "infer")
    batch = 4096
    weights = 1024 * 512 * 4 + 512 * 4
    inputs, labels, outputs = batch * 1024 * 4, batch * 8, batch * 512 * 4
    found = replay(msgspec.structs.replace(log, workspace_bytes=0), batch, PLENTY)
    fused_bias = MIB  # what cuBLASLt takes once, to add the bias on the way
    assert found.allocated_peak_bytes == pytest.approx(weights + inputs + labels + outputs + fused_bias, abs=8 * 512)


def test_the_workspace_of_matrix_products_is_counted_once_a_thread() -> None:
    workload = vectors(lambda: torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.Linear(512, 10)))
    for mode, handles in (("infer", 1), ("train", 2)):
        log = log_of(workload, mode)
        assert sum(storage.kind == "workspace" for storage in log.allocations) == handles


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)])
def test_an_optimizer_keeps_so_many_copies_of_the_weights(optimizer: str, copies: int) -> None:
    log = log_of(vectors(lambda: torch.nn.Linear(1024, 1024, bias=False)), "train", optimizer=optimizer)
    weights = 1024 * 1024 * 4
    born = [event for event in log.first if event >= 0]
    died = {-event - 1 for event in log.first if event < 0}
    kept = [log.allocations[number].fixed_bytes for number in born if number not in died]
    assert [size for size in kept if size >= weights] == [weights] * copies


def test_what_does_not_learn_has_no_gradient() -> None:
    def frozen() -> torch.nn.Module:
        body, head = torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 10)
        body.requires_grad_(False)
        return torch.nn.Sequential(body, head)

    log = log_of(vectors(frozen), "train")
    gradients = [storage for storage in log.allocations[4:] if storage.fixed_bytes == 1024 * 1024 * 4]
    assert gradients == []


def test_tied_weights_are_counted_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(1024, 1024, bias=False)
            self.second = torch.nn.Linear(1024, 1024, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))  # type: ignore[no-any-return]

    log = log_of(vectors(Tied), "infer")
    assert [log.allocations[event].fixed_bytes for event in log.init] == [1024 * 1024 * 4]


class Blocks(torch.nn.Module):
    def __init__(self, saving: bool) -> None:
        super().__init__()
        self.saving = saving
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256))
            for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saving else block(x)
        return x


def test_activation_checkpointing_saves_what_it_should() -> None:
    peaks = {}
    for saving in (False, True):
        log = log_of(vectors(lambda saving=saving: Blocks(saving), width=256), "train")
        peaks[saving] = replay(log, 8192, PLENTY).allocated_peak_bytes
    assert peaks[True] < 0.6 * peaks[False]


def test_half_precision_needs_less_for_each_item() -> None:
    logs = {precision: log_of("resnet18", "train", precision) for precision in ("fp32", "bf16")}
    peaks = {name: replay(log, 256, PLENTY, scratch=False).allocated_peak_bytes for name, log in logs.items()}
    assert peaks["bf16"] < 0.75 * peaks["fp32"]


# ---------------------------------------------------------------- measured on an H200

# Torch 2.11 and cuDNN 9.19, momentum, fp32, allocator capped at 16 GiB, every try in a fresh process:
# the first size that failed and the last that ran.
MEASURED = {"resnet18": (751, 749), "resnet50": (193, 192), "alexnet": (3143, 3374), "vit_b_16": (123, 122)}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_maxima_lie_in_the_interval(name: str) -> None:
    found = limit(stoker.WorkloadSpec(spec=name, data="device"), gpu_memory="16GiB", mode="train", optimizer="momentum")
    low, high = found.interval
    first_failed, last_ran = MEASURED[name]
    assert low <= max(first_failed - 1, last_ran)
    assert high >= min(first_failed - 1, last_ran)
    assert found.comfortable_batch is not None
    assert found.comfortable_batch <= found.max_batch


# ---------------------------------------------------------------- laws


@given(some.integers(0, 10_000), some.integers(0, 100_000))
def test_a_search_over_any_monotone_predicate_finds_the_edge(edge: int, near: int) -> None:
    assert largest(lambda batch: batch <= edge) == edge
    assert largest(lambda batch: batch <= edge, near=near) == edge, "whatever it is told of where it lies"


@given(
    some.lists(some.tuples(some.integers(0, 4 * MIB), some.integers(64, 4096)), min_size=1, max_size=12),
    some.integers(1, 400),
    some.integers(1, 4),
)
def test_nothing_fits_whose_tensors_alone_do_not(sizes: list[tuple[int, int]], mib: int, kept: int) -> None:
    allocations = tuple(Allocation(fixed_bytes=fixed, item_bytes=item) for fixed, item in sizes)
    births = tuple(range(len(sizes)))
    deaths = tuple(-n - 1 for n in births[kept:])
    log = AllocationLog(allocations=allocations, init=(), first=(*births, *deaths), steady=(), batch_size=251)
    bound = most_alive(log, mib * MIB)
    assert not replay(log, bound + 1, mib * MIB, steps=1).fits
    assert most_alive(msgspec.structs.replace(log, first=()), mib * MIB) > bound, "nothing is made: anything fits"
    assert largest(lambda batch: replay(log, batch, mib * MIB, steps=1).fits) <= bound


@given(some.lists(some.tuples(some.integers(0, 4 * MIB), some.integers(0, 4096)), min_size=1, max_size=20))
def test_a_replay_holds_at_least_what_is_alive_at_once(sizes: list[tuple[int, int]]) -> None:
    allocations = tuple(Allocation(fixed_bytes=fixed, item_bytes=item) for fixed, item in sizes)
    births = tuple(range(len(sizes)))
    log = AllocationLog(
        allocations=allocations, init=(), first=(*births, *(-n - 1 for n in births)), steady=(), batch_size=251
    )
    found = replay(log, 7, PLENTY, steps=1)
    assert found.allocated_peak_bytes >= sum(rounded(storage.at(7)) for storage in allocations)
    assert found.reserved_peak_bytes >= found.allocated_peak_bytes


def test_more_memory_never_means_a_smaller_batch() -> None:
    log = log_of("resnet18", "train", optimizer="adamw")

    def at(gib: int) -> int:
        return largest(lambda batch: replay(log, batch, gib * GIB).fits)

    batches = [at(gib) for gib in (2, 4, 8, 16, 40, 80)]
    assert batches == sorted(batches)
    assert batches[0] > 0


# ---------------------------------------------------------------- what cannot be


def test_a_loop_that_accumulates_fits_fewer_items_however_many_batches_it_gathers() -> None:
    found = {
        batches: limit("vit_b_16", gpu_memory="8GiB", mode="train", method="trace", gpu="h200", accumulate=batches)
        for batches in (1, 2, 8)
    }
    gradients = 86_567_656 * 4
    lost = found[1].max_batch - found[2].max_batch
    assert lost * found[1].bytes_per_item == pytest.approx(gradients, rel=0.5), "a few items are what they take"
    assert found[8].max_batch == found[2].max_batch


def test_a_model_that_is_too_large_says_by_how_much() -> None:
    with pytest.raises(InputError, match=r"not even a batch of 1 fits in 100 MiB: it needs about"):
        limit(stoker.WorkloadSpec(spec="resnet50", data="device"), gpu_memory=100 * MIB)


def test_a_step_that_depends_on_values_is_said_not_guessed() -> None:
    class Picky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1024, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x[x.sum(1) > 0])  # type: ignore[no-any-return]

    with pytest.raises(InputError, match="cannot be followed without a GPU"):
        limit(vectors(Picky), gpu_memory=GIB)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.LSTM(64, 128, batch_first=True)
        self.head = torch.nn.Linear(128, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])  # type: ignore[no-any-return]


def test_what_recurrent_layers_reserve_is_said_to_be_estimated() -> None:
    dataset = TensorDataset(torch.zeros(8, 20, 64), torch.zeros(8, dtype=torch.long))
    workload = stoker.Workload(model=Recurrent, dataset=dataset, loss=torch.nn.CrossEntropyLoss())
    for mode in ("infer", "train"):
        assert "estimated" in " ".join(limit(workload, gpu_memory="1GiB", mode=mode).unseen)


def test_a_mistake_in_the_step_is_shown_with_its_line() -> None:
    def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0][:, :7]).sum()  # type: ignore[no-any-return]

    with pytest.raises(InputError, match=r"test_limit\.py:\d+ in step"):
        limit(vectors(lambda: torch.nn.Linear(1024, 2), step=step), gpu_memory=GIB, mode="train")


def test_the_callers_model_stays_as_it_was() -> None:
    model = torch.nn.Linear(1024, 2)
    before = model.weight.clone()
    limit(vectors(model), gpu_memory=GIB)
    assert torch.equal(model.weight, before)
    assert model.weight.device.type == "cpu"
