"""Real trainings of a few numbers: the same beginning for both batch sizes, and every way to end."""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import stoker
from stoker.analysis.convergence import difference, sentences
from stoker.errors import InputError
from stoker.integrations.reports import page_of
from stoker.measure.training import lr_factor
from stoker.records import Convergence
from stoker.report.documents import convergence_document, save
from stoker.report.html import render
from tests.commands import here
from tests.workloads.small import Squares, make_model, workload

SMALL = "tests/workloads/small.py:workload"


@cache
def small() -> Convergence:
    """Two seeds of both sizes."""
    return stoker.converge(workload(), batch_size=4, against=16, epochs=3, seeds=2)


def test_both_sizes_begin_with_the_same_weights() -> None:
    for seed in (0, 1):
        first, second = (next(run for run in small().of(size) if run.seed == seed) for size in (4, 16))
        assert first.checkpoints[0].validation_loss == pytest.approx(second.checkpoints[0].validation_loss, rel=1e-5)
        assert first.checkpoints[0].metric == second.checkpoints[0].metric
    began = {run.seed: run.checkpoints[0].validation_loss for run in small().of(4)}
    assert began[0] != began[1]


def test_each_epoch_is_a_checkpoint() -> None:
    run = small().of(16)[0]
    assert [(each.epochs, each.updates, each.items) for each in run.checkpoints] == [
        (0, 0, 0),
        (1, 4, 64),
        (2, 8, 128),
        (3, 12, 192),
    ]
    assert all(each.train_s > 0 and each.train_loss is not None for each in run.checkpoints[1:])
    assert run.learning_rates == (0.1,)


def test_training_lowers_the_loss() -> None:
    for run in small().runs:
        losses = [each.validation_loss for each in run.checkpoints]
        assert losses[0] is not None
        assert losses[-1] is not None
        assert losses[-1] < losses[0]


def test_sizes_take_turns_in_going_first() -> None:
    assert [(run.seed, run.batch_size) for run in small().runs] == [(0, 4), (0, 16), (1, 16), (1, 4)]


def test_a_saved_answer_comes_back_and_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    save(convergence_document(small()), path)
    assert stoker.read(path) == small()
    assert json.loads(path.read_text())["sentences"] == sentences(small())
    page = render(page_of(small()))
    assert "Validation loss over items seen" in page
    assert "batch 4 against 16" in str(small())


class Order(Dataset[Any]):
    """Notes in a file which items are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return torch.full((4,), float(index)), index % 2


def order_of(path: Path, size: int, against: int) -> list[list[int]]:
    """The order in which each run of one seed asked for the items."""
    source = stoker.Workload(
        model=make_model, dataset=partial(Order, path), loss=nn.CrossEntropyLoss(), validation=partial(Squares, 4)
    )
    stoker.converge(source, batch_size=size, against=against, epochs=2, seeds=[5])
    asked = [int(line) for line in path.read_text().split()]
    return [asked[:24], asked[24:]]


def test_both_sizes_see_the_items_in_the_same_order(tmp_path: Path) -> None:
    first, second = order_of(tmp_path / "order", 3, 6)
    assert first == second
    assert sorted(first[:12]) == list(range(12))
    assert first[:12] != first[12:]


def test_updates_end_both_sizes_alike() -> None:
    found = stoker.converge(workload(), batch_size=8, against=32, updates=20, seeds=1, scale_lr="linear")
    for run in found.runs:
        assert run.last is not None
        assert run.last.updates == 20
        assert len(run.checkpoints) == 11
    assert [run.learning_rates for run in found.runs] == [(0.1,), (pytest.approx(0.4),)]
    assert sentences(found)[0].startswith("one seed proves nothing")


def test_the_learning_rate_follows_the_size() -> None:
    assert [lr_factor(scale, 256, 64) for scale in ("none", "linear", "sqrt")] == [1.0, 4.0, 2.0]


def infinite(output: Tensor, target: Tensor) -> Tensor:
    return output.sum() * torch.inf


class OwnStep:
    """A step that returns its loss, or makes the update itself."""

    def __init__(self, itself: bool) -> None:
        self._itself = itself

    def __call__(self, model: nn.Module, batch: Any) -> Tensor | None:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        if not self._itself:
            return loss
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
        return None


def test_a_run_that_diverges_ends_and_says_so() -> None:
    found = stoker.converge(workload().with_(loss=infinite), batch_size=4, against=16, epochs=3, seeds=1)
    assert all(run.diverged and len(run.checkpoints) == 2 for run in found.runs)
    assert sentences(found)[0] == "batch 4 diverged in 1 of 1 seed: its loss was no finite number"


@pytest.mark.parametrize("itself", [False, True])
def test_steps_of_the_workloads_own(itself: bool) -> None:
    own = workload().with_(step=OwnStep(itself), loss=None)
    found = stoker.converge(own, batch_size=4, against=16, epochs=1, seeds=1)
    last = found.runs[0].last
    assert last is not None
    assert last.metric is not None
    assert (last.validation_loss is None) == itself
    if itself:
        with pytest.raises(InputError, match="nothing says what it learns"):
            stoker.converge(own.with_(metric=None), batch_size=4, against=16, epochs=1, seeds=1)
        with pytest.raises(InputError, match="makes its own updates"):
            stoker.converge(own, batch_size=4, against=16, epochs=1, seeds=1, scale_lr="linear")


def failing(output: Tensor, target: Tensor) -> Tensor:
    if len(target) == 16:
        raise ValueError("sixteen are too many")
    return nn.functional.cross_entropy(output, target)


def test_a_run_that_fails_is_an_outcome() -> None:
    found = stoker.converge(workload().with_(loss=failing), batch_size=4, against=16, epochs=1, seeds=1)
    outcomes = {run.batch_size: run.outcome for run in found.runs}
    assert outcomes == {4: "done", 16: "failed"}
    problem = found.of(16)[0].problem
    assert problem is not None
    assert problem.sentence == "ValueError: sixteen are too many"
    assert "sixteen are too many" in str(found)
    assert difference(found).pairs == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"against": 4}, "both are 4"),
        ({"against": 0}, "against must be at least 1, got 0"),
        ({"epochs": 1, "updates": 1}, "keep one of them"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": [1, 1]}, "a seed is given twice"),
        ({"scale_lr": "cubic"}, "choose none, linear, sqrt"),
        ({"device": "sleep:1ms"}, "computes nothing that could learn"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        stoker.converge(workload(), **{"batch_size": 4, "against": 16, **options})


def test_the_command_prints_the_answer(tmp_path: Path) -> None:
    done = here(
        "converge", SMALL, "--batch-size", "8", "--against", "16", "--epochs", "1", "--seeds", "1", "--quiet",
        "--report", str(tmp_path / "page.html"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "One seed proves nothing" in done.stdout
    assert (tmp_path / "page.html").stat().st_size > 10_000
    refused = here("converge", "tests/workloads/small.py:inference", "--batch-size", "8", "--against", "16", "--quiet")
    assert refused.returncode == 1
    assert "there is no validation set" in refused.stderr


@pytest.fixture(autouse=True)
def cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are compared exactly, which a GPU's are not."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
