"""What a trace says of memory, against what the same step really takes on the CPU, whose kernels do alike here."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import stoker
from stoker import Limit
from stoker.errors import InputError
from stoker.records import OptimizerName
from stoker.workload.optimizers import OPTIMIZERS

WIDTH = 16384
MEMORY = 2 * 2**30


class Wide(nn.Module):
    """Little work, and a large output for the loss."""

    def __init__(self, *, between: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(16, WIDTH)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out.sigmoid() if self.between else out


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, item: Callable[[], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.item()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def workload(model: Any, item: Callable[[], Any], **more: Any) -> stoker.Workload:
    return stoker.Workload(model=model, dataset=Pairs(item), **{"optimizer": sgd, **more})


def traced(given: stoker.Workload, **more: Any) -> Limit:
    return stoker.limit(given, gpu_memory=MEMORY, method="trace", **more)


def really(
    model: nn.Module, sides: list[tuple[int, ...]], loss: Callable[..., torch.Tensor], few: int, many: int
) -> float:
    """Bytes an item of a training step on the CPU, by all that is allocated and freed there; the loop holds on to its
    batch."""
    peaks = []
    for size in (few, many):
        optimizer = sgd(model.parameters())
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            for _ in range(2):
                batch = [torch.zeros(size, *side) for side in sides]
                loss(model(batch[0]), *batch[1:]).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                del batch
        events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
        now = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            peak = max(peak, now)
        peaks.append(peak)
    return (peaks[1] - peaks[0]) / (many - few)


LOSSES: dict[str, tuple[Any, bool]] = {
    "mse": (nn.MSELoss(), False),
    "mse, summed": (nn.MSELoss(reduction="sum"), False),
    "mse of each": (lambda out, target: functional.mse_loss(out, target, reduction="none").mean(), False),
    "smooth l1": (nn.SmoothL1Loss(), False),
    "huber": (nn.HuberLoss(), False),
    "soft margin": (nn.SoftMarginLoss(), False),
    "binary": (nn.BCELoss(), True),
    "of logits": (nn.BCEWithLogitsLoss(), False),
    "of logits, weighted": (nn.BCEWithLogitsLoss(pos_weight=torch.full([], 2.0)), False),
    "l1": (nn.L1Loss(), False),
    "hinge": (nn.HingeEmbeddingLoss(), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_takes_what_it_does(name: str) -> None:
    loss, between = LOSSES[name]

    told = traced(workload(lambda: Wide(between=between), lambda: (torch.zeros(16), torch.zeros(WIDTH)), loss=loss))
    assert told.bytes_per_item == pytest.approx(
        really(Wide(between=between), [(16,), (WIDTH,)], loss, 200, 400), rel=0.01
    )


def taught(out: torch.Tensor) -> torch.Tensor:
    """The target learns too."""
    return functional.binary_cross_entropy_with_logits(out, (out * 2).sigmoid())


def penalised(out: torch.Tensor) -> torch.Tensor:
    """A gradient's gradient is wanted."""
    loss = functional.binary_cross_entropy_with_logits(out, torch.zeros_like(out))
    slope: torch.Tensor = torch.autograd.grad(loss, out, create_graph=True)[0]
    return loss + slope.square().sum()


@pytest.mark.parametrize("loss", [taught, penalised])
def test_a_loss_of_logits_is_followed_however_it_is_used(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    told = traced(workload(Wide, lambda: torch.zeros(16), step=lambda model, batch: loss(model(batch))))
    assert told.bytes_per_item == pytest.approx(really(Wide(), [(16,)], loss, 200, 400), rel=0.05)


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Linear(72, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(functional.unfold(self.first(x), 3, padding=1).transpose(1, 2)).mean(1)
        return made


def test_unfolding_keeps_more_than_its_shape_tells() -> None:
    told = traced(workload(Patches, lambda: torch.zeros(3, 32, 32), step=lambda model, batch: model(batch).sum()))
    assert told.bytes_per_item == pytest.approx(really(Patches(), [(3, 32, 32)], torch.sum, 40, 80), rel=0.05)


# ---------------------------------------------------------------- sizes that the traced batch divides


@pytest.mark.parametrize("side", [251, 502, 251 * 257])
def test_a_side_that_a_prime_divides_is_no_batch(side: int) -> None:
    def net(width: int) -> stoker.Workload:
        layers = lambda: nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))  # noqa: E731
        return workload(layers, lambda: (torch.zeros(width), torch.zeros(width)), loss=nn.L1Loss())

    one, next_to_it = (traced(net(width)).max_batch for width in (side, side + 1))
    assert one == pytest.approx(next_to_it, rel=0.01)


def test_a_side_that_appears_in_between_is_no_batch() -> None:
    """253 pixels become 251, which no tensor of the model or of the batch has."""

    def net(pixels: int) -> stoker.Workload:
        return workload(
            lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            lambda: (torch.zeros(1, pixels, pixels), 0),
            loss=nn.CrossEntropyLoss(),
        )

    one, next_to_it = (traced(net(pixels)).max_batch for pixels in (253, 254))
    assert one == pytest.approx(next_to_it, rel=0.03)


def test_what_grows_with_the_square_still_does() -> None:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        return (out @ out.T).exp().sum()

    told = traced(workload(lambda: nn.Linear(8, 8), lambda: torch.zeros(8), step=step))
    pair_bytes = 4 * told.max_batch**2
    assert 2 * pair_bytes < MEMORY < 5 * pair_bytes


# ---------------------------------------------------------------- optimizers, compilers, operators of one's own


class WithOptimizer(nn.Module):
    """As people write it who update by themselves."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2048, 2048)
        self.made = self.make() if early else None

    def make(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.layer.parameters())

    def update(self, loss: torch.Tensor) -> None:
        self.made = self.made or self.make()
        loss.backward()
        self.made.step()
        self.made.zero_grad(set_to_none=True)


def updating(early: bool) -> stoker.Workload:
    return workload(
        lambda: WithOptimizer(early),
        lambda: torch.zeros(2048),
        step=lambda model, batch: model.update(model.layer(batch).sum()),
    )


def test_an_optimizer_that_was_made_with_the_model_counts() -> None:
    early, late = (traced(updating(is_early), mode="train") for is_early in (True, False))
    assert early.max_batch == late.max_batch
    assert early.fixed_bytes == pytest.approx(late.fixed_bytes, rel=0.01)


def test_a_gradient_of_a_gradient_is_followed() -> None:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        x = batch.requires_grad_()
        slope: torch.Tensor = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        away: torch.Tensor = slope.norm(dim=-1) - 1
        return away.square().mean()

    layers = lambda: nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))  # noqa: E731
    found = {traced(workload(layers, lambda: torch.zeros(512), step=step)).max_batch for _ in range(3)}
    assert len(found) == 1


@pytest.mark.parametrize("how", ["whole", "forward", "in place", "a part"])
def test_what_a_compiler_changes_is_said(how: str) -> None:
    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8))
        if how == "whole":
            return torch.compile(made)  # type: ignore[return-value]
        if how == "forward":
            made.forward = torch.compile(made.forward)  # type: ignore[method-assign]
        elif how == "in place":
            made.compile()
        else:
            made[0] = torch.compile(made[0])  # type: ignore[assignment]
        return made

    told = traced(workload(model, lambda: torch.zeros(8), step=lambda model, batch: model(batch).sum()))
    assert any("torch.compile" in words for words in told.unseen)


@torch.library.custom_op("stoker_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])[: len(x)] * 2


twice.register_fake(torch.empty_like)


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return twice(x)


def test_an_operator_of_ones_own_is_named() -> None:
    told = traced(workload(Twice, lambda: torch.zeros(8)), mode="infer")
    assert any("stoker_tests::twice" in words for words in told.unseen)


def test_a_value_that_is_only_looked_at_does_not_matter() -> None:
    seen: list[float] = []

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).sum()
        seen.append(loss.item())
        return loss

    def checked(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).sum()
        if loss.isnan():
            raise ValueError("no number")
        return loss

    layer = lambda: nn.Linear(512, 512)  # noqa: E731
    plain = traced(workload(layer, lambda: torch.zeros(512), step=lambda model, batch: model(batch).sum()))
    for each, words in ((step, "followed with 0 and with 1, alike"), (checked, "followed with 0, as the other raises")):
        told = traced(workload(layer, lambda: torch.zeros(512), step=each))
        assert told.max_batch == pytest.approx(plain.max_batch, rel=0.01)
        assert [said for said in told.unseen if words in said and "test_reference.py" in said]


def test_a_mask_that_hides_nothing_is_dropped_as_transformers_does() -> None:
    pytest.importorskip("transformers")
    told = stoker.limit(
        stoker.WorkloadSpec(spec="hf/bert-base-uncased", data="device"),
        gpu_memory="16GiB",
        optimizer="adamw",
        gpu="h200",
        method="trace",
    )
    assert told.interval[0] <= 192 <= told.interval[1], "what ran on an H200"
    assert told.max_batch == 192


# ---------------------------------------------------------------- what is asked, and what is answered


def test_the_optimizers_that_can_be_asked_for_are_those_that_are_known() -> None:
    assert set(get_args(OptimizerName)) == set(OPTIMIZERS)


def test_what_is_needed_is_never_more_than_there_is() -> None:
    convolution = workload(
        lambda: nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 8, 3, padding=1)),
        lambda: torch.zeros(3, 128, 128),
        step=lambda model, batch: model(batch).sum(),
    )
    told = traced(convolution, mode="infer")
    assert told.peak_bytes_at_max <= told.gpu_memory_bytes
    assert told.fixed_bytes + told.bytes_per_item * told.max_batch == pytest.approx(told.peak_bytes_at_max, rel=0.01)


def test_where_the_search_ends_is_said() -> None:
    told = traced(workload(lambda: nn.Linear(1, 1), lambda: torch.zeros(1)), mode="infer")
    assert any("the search ends at" in note for note in told.notes)


class Broken(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise OSError("page 7 is gone")


def test_a_persons_own_error_is_theirs_and_has_its_line() -> None:
    def broken(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ValueError("wrong shape somewhere")

    def curious(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch).sum()
        return out * 2 if out.item() > 0 else out

    with pytest.raises(InputError, match=r"OSError: page 7 is gone, at .*test_reference.py:\d+"):
        traced(stoker.Workload(model=lambda: nn.Linear(8, 8), dataset=Broken()), mode="infer")
    with pytest.raises(InputError, match=r"the step fails .*ValueError: wrong shape somewhere, at .*:\d+"):
        traced(workload(lambda: nn.Linear(8, 8), lambda: torch.zeros(8), step=broken))
    with pytest.raises(InputError, match=r"depends on a value that only a run has, at .*:\d+"):
        traced(workload(lambda: nn.Linear(8, 8), lambda: torch.zeros(8), step=curious))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "lion"}, "no such optimizer: 'lion'; choose sgd"),
        ({"precision": "fp8"}, "no such precision"),
        ({"mode": "eval"}, "no such mode"),
        ({"gpu": "99.9"}, "no GPU is known"),
        ({"gpu_memory": (4,)}, "a number of bytes"),
    ],
)
def test_a_wrong_answer_to_a_question_is_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        stoker.limit("alexnet", **{"gpu_memory": "4GiB", **options})


def test_items_come_as_the_sampler_has_them() -> None:
    class Keyed(dict[str, torch.Tensor]):
        """Its items have names."""

    keyed = Keyed({name: torch.zeros(size) for name, size in (("a", 8), ("b", 8))})
    told = traced(stoker.Workload(model=lambda: nn.Linear(8, 8), dataset=keyed, sampler=["a", "b"]), mode="infer")
    assert told.max_batch > 1


def test_an_example_is_not_the_set() -> None:
    told = stoker.limit(nn.Linear(8, 8), torch.zeros(4, 8), gpu_memory="1GiB")
    assert not any("the set has only" in note for note in told.notes)
