"""A pass over the validation set: how long it takes, and what the workload's metric and loss say."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from stoker.errors import InputError
from stoker.measure.steps import ModelStep
from stoker.records import Setting
from stoker.workload import calls
from stoker.workload.workload import Workload


class Score(NamedTuple):
    """Seconds of a pass, and means over the items: of the metric, and of the loss if it was asked for. None where the
    workload has none."""

    seconds: float
    metric: float | None
    loss: float | None


class Scorer:
    """The validation set in batches, for any number of passes."""

    def __init__(self, workload: Workload, batch_size: int, num_workers: int, *, pinned: bool) -> None:
        if workload.validation is None:
            raise InputError("there is no validation set to score on; give one: Workload(validation=...)")
        self._workload = workload
        self._loader: DataLoader[Any] = DataLoader(
            calls.make_dataset(workload, "validation"),
            batch_size=batch_size,
            num_workers=num_workers,
            pin_memory=pinned,
            collate_fn=workload.collate_fn,
            worker_init_fn=workload.worker_init_fn,
        )

    def run(self, step: ModelStep, *, with_loss: bool = False, beat: Callable[[], None] | None = None) -> Score:
        """One pass. Training goes on after it. `beat` is called after each batch."""
        began = perf_counter()
        training = step.model.training
        step.model.eval()
        metrics: list[tuple[torch.Tensor | float, int]] = []
        losses: list[tuple[torch.Tensor | float, int]] = []
        try:
            with torch.inference_mode(), step.precision():
                for batch in self._loader:
                    output, target, loss = self._one(step, step.move(batch), with_loss=with_loss)
                    count = calls.count_items(batch)
                    if self._workload.metric is not None:
                        metrics.append((self._workload.metric(output, target), count))
                    if loss is not None:
                        losses.append((loss, count))
                    if beat is not None:
                        beat()
        finally:
            step.model.train(training)
        metric, mean_loss = _mean(metrics), _mean(losses)
        return Score(perf_counter() - began, metric, mean_loss)

    def _one(self, step: ModelStep, batch: Any, *, with_loss: bool) -> tuple[Any, Any, torch.Tensor | None]:
        """The output, the target and the loss of a batch."""
        workload = self._workload
        inputs, target = calls.split(batch)
        if not with_loss:
            return calls.forward(workload, step.model, inputs), target, None
        if workload.step is not None:
            output = calls.forward(workload, step.model, inputs) if workload.metric is not None else None
            returned = workload.step(step.model, batch) if step.returns_loss else None
            return output, target, calls.step_loss(returned)
        output = calls.forward(workload, step.model, inputs, with_target=workload.loss is None)
        return output, target, calls.loss_of(workload, output, target)


def score(workload: Workload, step: ModelStep, setting: Setting, *, pinned: bool) -> tuple[float, float | None]:
    """Seconds of the pass, and the metric's mean over the items (None without a metric). Training goes on after it."""
    found = Scorer(workload, setting.batch_size, setting.num_workers, pinned=pinned).run(step)
    return found.seconds, found.metric


def _mean(values: list[tuple[torch.Tensor | float, int]]) -> float | None:
    items = sum(count for _, count in values)
    return sum(float(value) * count for value, count in values) / items if items else None
