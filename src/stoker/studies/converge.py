"""Whether a batch size learns as well as another: trainings with both, from the same seeds and data order."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

import msgspec

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.measure.training import TrainingRequest, lr_factor, train
from stoker.records import (
    Convergence,
    Extent,
    LearningRateScale,
    Record,
    Setting,
    Subject,
    Task,
    TrainingRun,
    WorkloadSpec,
)
from stoker.workload.workload import Workload


class ConvergeRules(Record, frozen=True):
    """What is done if nothing else is asked for."""

    seeds: int = 3
    """The fewest from which an interval says something: with two it is six times as wide."""
    epochs: int = 5
    """Enough to see a curve."""


RULES = ConvergeRules()


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
    chosen = _checked(batch_size, against, epochs, updates, seeds, scale_lr)
    shared = msgspec.structs.replace(setting or Setting(), batch_size=batch_size)
    if shared.accumulate != 1:
        raise InputError("accumulate changes how many items an update has; give that number as the batch size")
    if epochs is None and updates is None:
        epochs = RULES.epochs
    began = datetime.now(UTC)
    runs: list[TrainingRun] = []
    for place, seed in enumerate(chosen):
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
        seeds=chosen,
        setting=shared,
        scale_lr=scale_lr,
        epochs=epochs,
        updates=updates,
        runs=tuple(runs),
        notes=tuple(_notes(subject, batch_size, against)),
        machine=inspect(),
        task=_task(source, shared, device, against, epochs, updates, chosen, scale_lr),
        when=began,
    )


def _checked(
    batch_size: int,
    against: int,
    epochs: int | None,
    updates: int | None,
    seeds: int | Sequence[int],
    scale_lr: LearningRateScale,
) -> tuple[int, ...]:
    """The seeds. Raises InputError for what makes no comparison."""
    if epochs is not None and updates is not None:
        raise InputError("--epochs and --updates both say how long a training is; keep one of them")
    count = seeds if isinstance(seeds, int) else len(seeds)
    named = {"batch size": batch_size, "against": against, "epochs": epochs, "updates": updates, "seeds": count}
    for name, value in named.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if batch_size == against:
        raise InputError(f"a batch size is compared with another one, and both are {against}")
    if scale_lr not in get_args(LearningRateScale):
        known = ", ".join(get_args(LearningRateScale))
        raise InputError(f"no such scale of the learning rate: {scale_lr!r}; choose {known}")
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if len(set(chosen)) < len(chosen):
        raise InputError("a seed is given twice: the same training again tells nothing new")
    return chosen


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


def _task(
    source: Workload | WorkloadSpec,
    setting: Setting,
    device: str,
    against: int,
    epochs: int | None,
    updates: int | None,
    seeds: tuple[int, ...],
    scale_lr: LearningRateScale,
) -> Task:
    options: dict[str, str | int | float | bool] = {"against": against, "seeds": ",".join(map(str, seeds))}
    if updates is not None:
        options["updates"] = updates
    if scale_lr != "none":
        options["scale_lr"] = scale_lr
    return Task(
        kind="converge",
        workload=source if isinstance(source, WorkloadSpec) else None,
        mode="train",
        device=device,
        setting=setting,
        extent=Extent(batches=None, epochs=epochs or 1, validate=True),
        options=options,
    )
