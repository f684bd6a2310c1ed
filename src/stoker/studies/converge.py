"""Whether a batch size learns as well as another: trainings with both, from the same seeds and data order."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.measure.training import TrainingRequest, lr_factor, train
from stoker.records import (
    Convergence,
    LearningRateScale,
    Setting,
    Subject,
    TrainingRun,
    WorkloadSpec,
)
from stoker.studies.request import RULES, ConvergeRequest, seeds_of
from stoker.workload.workload import Workload


def converge(
    source: Workload | WorkloadSpec | str,
    *,
    batch_size: int,
    against: int,
    epochs: int | None = None,
    updates: int | None = None,
    seeds: int | Sequence[int] = RULES.seeds,
    scale_lr: LearningRateScale = "none",
    setting: Setting | None = None,
    device: str = "auto",
    timeout_s: float | None = None,
    on_event: OnEvent | None = None,
) -> Convergence:
    """Train with `batch_size` and with `against`, once for each seed, each in a process of its own.

    A training ends after `epochs` passes over the set (5 by default) or after `updates` of the weights. `seeds` is how
    many, or which. With `scale_lr` the learning rates of `against` are multiplied by the ratio of the two sizes, or by
    its square root. `setting` has what the runs share; its batch size does not count. `timeout_s` limits each training.

    Needs a validation set. A metric is a score: higher is better. Raises InputError or MachineError for what cannot be
    trained; a training that fails later is an outcome of its run.
    """
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    asked = ConvergeRequest(
        batch_size=batch_size,
        against=against,
        epochs=epochs,
        updates=updates,
        seeds=seeds_of(seeds),
        scale_lr=scale_lr,
    )
    shared = msgspec.structs.replace(setting or Setting(), batch_size=batch_size)
    if shared.accumulate != 1:
        raise InputError("accumulate changes how many items an update has; give that number as the batch size")
    epochs, updates = asked.length
    began = datetime.now(UTC)
    runs: list[TrainingRun] = []
    for place, seed in enumerate(asked.seeds):
        order = (batch_size, against) if place % 2 == 0 else (against, batch_size)
        for size in order:  # in turn, so that a machine that becomes slower does not make one size look slower
            request = TrainingRequest(
                setting=msgspec.structs.replace(shared, batch_size=size),
                seed=seed,
                epochs=epochs,
                updates=updates,
                lr_factor=lr_factor(scale_lr, size, batch_size),
                validation_batch=min(batch_size, against),
                device=device,
            )
            runs.append(train(source, request, timeout_s=timeout_s, on_event=on_event))
    subject = next((run.subject for run in runs if run.subject is not None), _unopened(source, device))
    return Convergence(
        workload=subject,
        batch_size=batch_size,
        against=against,
        seeds=asked.seeds,
        setting=shared,
        scale_lr=scale_lr,
        epochs=epochs,
        updates=updates,
        runs=tuple(runs),
        notes=tuple(_notes(subject, batch_size, against)),
        machine=inspect(),
        task=asked.task(source if isinstance(source, WorkloadSpec) else None, shared, device),
        when=began,
    )


def _unopened(source: Workload | WorkloadSpec, device: str) -> Subject:
    """The subject if no run got as far as to know it."""
    if isinstance(source, WorkloadSpec):
        name, data = source.spec, source.data
    else:
        name, data = source.name, source.data_name
    return Subject(name=name, model=name, data=data or "its own", mode="train", device=device, items=None)


def _notes(subject: Subject, batch_size: int, against: int) -> list[str]:
    notes = []
    if subject.batch_sampler:
        notes.append("the workload sets its batches itself: both runs have the same ones")
    larger = max(batch_size, against)
    if subject.items is not None and larger > subject.items:
        notes.append(f"the batch of {larger:,} is larger than the set: its one batch has {subject.items:,} items")
    return notes
