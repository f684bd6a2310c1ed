"""A pass over the validation set: how long it takes, and what the workload's metric says."""

from time import perf_counter

import torch
from torch.utils.data import DataLoader

from stoker.errors import InputError
from stoker.measure.steps import ModelStep
from stoker.records import Setting
from stoker.workload import calls
from stoker.workload.workload import Workload


def score(workload: Workload, step: ModelStep, setting: Setting, *, pinned: bool) -> tuple[float, float | None]:
    """Seconds of the pass, and the metric's mean over the items (None without a metric). Training goes on after it."""
    if workload.validation is None:
        raise InputError("there is no validation set to score on; give one: Workload(validation=...)")
    dataset = calls.make_dataset(workload, "validation")
    loader = DataLoader(
        dataset,
        batch_size=setting.batch_size,
        num_workers=setting.num_workers,
        pin_memory=pinned,
        collate_fn=workload.collate_fn,
        worker_init_fn=workload.worker_init_fn,
    )
    began = perf_counter()
    training = step.model.training
    step.model.eval()
    values: list[tuple[torch.Tensor | float, int]] = []
    try:
        with torch.inference_mode(), step.precision():
            for batch in loader:
                inputs, target = calls.split(step.move(batch))
                output = calls.forward(workload, step.model, inputs)
                if workload.metric is not None:
                    values.append((workload.metric(output, target), calls.count_items(batch)))
    finally:
        step.model.train(training)
    items = sum(count for _, count in values)
    mean = sum(float(value) * count for value, count in values) / items if items else None
    return perf_counter() - began, mean
