"""A training that is judged by what it learns: runs to its end in a process of its own, with looks at a validation set.

The same seed gives the same first weights and the same order of items for every batch size. What a transform draws at
random differs, because the workers share the items out by batches.
"""

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch.utils.data import IterableDataset

from stoker.errors import InputError
from stoker.events import OnEvent, Progress
from stoker.machine.host import out_of_memory_kills
from stoker.measure import reference
from stoker.measure.device import clock_for, parse_device
from stoker.measure.feed import NO_ITEMS, make_feed
from stoker.measure.run import pinned_memory
from stoker.measure.session import RULES as SESSION
from stoker.measure.session import judge, open_workload, outcome_of, trial_server
from stoker.measure.steps import ModelStep
from stoker.measure.validation import Scorer
from stoker.process import child
from stoker.records import (
    Checkpoint,
    Extent,
    LearningRateScale,
    Outcome,
    Problem,
    Record,
    Setting,
    Subject,
    TrainingRun,
    WorkloadSpec,
)
from stoker.workload import calls
from stoker.workload.workload import Workload


class TrainingRules(Record, frozen=True):
    """How often a training says how far it is, and looks at the validation set."""

    event_gap_s: float = 0.1
    """An event costs a system call."""
    looks: int = 10
    """At the validation set, if the training ends after a number of updates: enough for a curve."""


RULES = TrainingRules()


class TrainingRequest(Record, frozen=True):
    """One training. Either `epochs` or `updates` says when it ends. The learning rates of the workload's optimizer are
    multiplied by `lr_factor`. The validation set is read in batches of `validation_batch`, the same for every run."""

    setting: Setting
    seed: int
    validation_batch: int
    epochs: int | None = None
    updates: int | None = None
    lr_factor: float = 1.0
    device: str = "auto"


def lr_factor(scale: LearningRateScale, batch_size: int, base: int) -> float:
    """By what the learning rate grows from batch `base` to `batch_size`."""
    ratio = batch_size / base
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scale]


def train(
    source: Workload | WorkloadSpec | str,
    request: TrainingRequest,
    *,
    timeout_s: float | None = None,
    on_event: OnEvent | None = None,
) -> TrainingRun:
    """Run one training in a child process. Raises InputError or MachineError for what cannot be trained at all; what
    happens once it trains is the run's outcome."""
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    kills = out_of_memory_kills()
    reference_s, when = reference.reference_s(), datetime.now(UTC)
    ended = child.run(
        _train,
        (source, request),
        kind=TrainingRun,
        server=trial_server(),
        timeout_s=timeout_s,
        stall_s=SESSION.opening_stall_s,
        on_event=on_event,
    )
    if ended.how == "returned" or (ended.failure is not None and ended.failure.kind):
        run = child.value(ended)
    else:
        killed = out_of_memory_kills() > kills
        outcome, problem = judge(ended, timeout_s, killed, SESSION.opening_stall_s)
        run = TrainingRun(batch_size=request.setting.batch_size, seed=request.seed, outcome=outcome, problem=problem)
    return msgspec.structs.replace(run, when=when, reference_s=reference_s)


# ---------------------------------------------------------------- in the child


def _train(source: Workload | WorkloadSpec, request: TrainingRequest, emit: OnEvent) -> TrainingRun:
    training = _Training(source, request, emit)
    outcome: Outcome = "done"
    problem: Problem | None = None
    try:
        training.run()
    except InputError:
        raise
    except BaseException as error:
        outcome, problem = outcome_of(error)
    return TrainingRun(
        batch_size=request.setting.batch_size,
        seed=request.seed,
        outcome=outcome,
        learning_rates=training.learning_rates,
        checkpoints=tuple(training.checkpoints),
        diverged=training.diverged,
        problem=problem,
        subject=training.subject,
    )


class _Training:
    """The model, the loader and the looks at the validation set of one run."""

    def __init__(self, source: Workload | WorkloadSpec, request: TrainingRequest, emit: OnEvent) -> None:
        self._request, self._emit = request, emit
        device = parse_device(request.device)
        if not isinstance(device, torch.device):
            raise InputError(f"{request.device} computes nothing that could learn; choose cpu or cuda")
        self._seed()
        workload = open_workload(source, "train", emit)
        workload.mode_choice("train")
        if workload.validation is None:
            raise InputError("there is no validation set to judge the training by; give one: Workload(validation=...)")
        self._workload = workload = calls.opened(workload)
        dataset = calls.make_dataset(workload)
        setting = msgspec.structs.replace(request.setting, pin_memory=pinned_memory(request.setting, device))
        pinned = bool(setting.pin_memory)
        if setting.threads is not None:
            torch.set_num_threads(setting.threads)
        self._clock = clock_for(device)
        self._seed()  # the model begins the same, however much was drawn while the data was opened
        self._step = ModelStep(workload, "train", setting, device, pinned=pinned)
        self.learning_rates = self._step.scale_learning_rates(request.lr_factor)
        self._scorer = Scorer(workload, request.validation_batch, setting.num_workers, pinned=pinned)
        self._feed = make_feed(
            workload, dataset, "train", setting, Extent(batches=None, seed=request.seed), pinned=pinned
        )
        self._losses = _LossSum()
        self._step.on_loss = self._losses.add
        self.subject = _subject(workload, dataset, self._step, device)
        self.checkpoints: list[Checkpoint] = []
        self.diverged = False
        self._updates = self._items = 0
        self._reported_s = 0.0

    def _seed(self) -> None:
        import numpy as np

        torch.manual_seed(self._request.seed)
        random.seed(self._request.seed)
        np.random.seed(self._request.seed)

    def run(self) -> None:
        self._look(0.0, 0.0, emit_of=None)
        self._step.begin(1)
        began_s, epoch = perf_counter(), 0
        while not self._is_over(epoch):
            seen = 0
            for batch in self._feed:
                self._losses.items = self._count(batch)
                self._step(batch)
                self._items += self._losses.items
                self._updates += 1
                seen += 1
                self._report()
                if self._is_due():
                    share = seen / self._feed.batches if self._feed.batches else 0.0
                    began_s = self._checkpoint(began_s, epoch + share)
                    if self.diverged:
                        return
                if self._updates == self._request.updates:
                    return
            if not seen:
                raise InputError(NO_ITEMS)
            epoch += 1
            if self._request.updates is None:
                began_s = self._checkpoint(began_s, float(epoch))
                if self.diverged:
                    return

    def _is_over(self, epoch: int) -> bool:
        if self._request.updates is not None:
            return self._updates >= self._request.updates
        return epoch >= (self._request.epochs or 0)

    def _is_due(self) -> bool:
        """Whether a training of a number of updates is at one of its looks."""
        wanted = self._request.updates
        return wanted is not None and self._updates in _look_updates(wanted)

    def _checkpoint(self, began_s: float, epochs: float) -> float:
        """Look at the validation set; when the training goes on."""
        self._clock.settle()
        self._look(perf_counter() - began_s, epochs, emit_of=self._losses)
        return perf_counter()

    def _look(self, train_s: float, epochs: float, *, emit_of: "_LossSum | None") -> None:
        train_loss = emit_of.take() if emit_of is not None else None
        found = self._scorer.run(self._step, with_loss=True, beat=self._report)
        self.checkpoints.append(
            Checkpoint(
                epochs=epochs,
                updates=self._updates,
                items=self._items,
                train_s=train_s,
                validation_s=found.seconds,
                train_loss=_finite(train_loss),
                validation_loss=_finite(found.loss),
                metric=_finite(found.metric),
            )
        )
        values = (train_loss, found.loss)
        self.diverged = any(value is not None and not math.isfinite(value) for value in values)
        if emit_of is not None and found.loss is None and found.metric is None:
            raise InputError(
                "the workload's step returns no loss and there is no metric, so nothing says what it learns; "
                "give Workload(metric=...)"
            )
        if self._step.updates_itself and self._request.lr_factor != 1.0:
            raise InputError(
                "the workload's step makes its own updates, so its learning rate cannot be scaled; scale it there "
                "and leave out --scale-lr"
            )

    def _count(self, batch: Any) -> int:
        known = calls.known_count(batch)
        return known if known is not None else self._feed.items_a_batch or calls.count_items(batch)

    @property
    def _title(self) -> str:
        return f"batch {self._request.setting.batch_size:,}, seed {self._request.seed}"

    def _report(self) -> None:
        """Say how far the training is: also a sign of life during a long look at the validation set."""
        now = perf_counter()
        if now - self._reported_s < RULES.event_gap_s:
            return
        self._reported_s = now
        of = self._request.updates
        if of is None and self._feed.batches:
            of = self._feed.batches * (self._request.epochs or 0)
        self._emit(Progress(what=self._title, done=self._updates, of=of))


def _look_updates(updates: int) -> set[int]:
    """After how many updates to look, if there are that many: evenly, the last at the end."""
    looks = min(RULES.looks, updates)
    return {round(updates * (number + 1) / looks) for number in range(looks)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class _LossSum:
    """The mean loss of the items since it was last taken. The sum stays on the device: to read it would wait."""

    def __init__(self) -> None:
        self.items = 0
        self._sum: torch.Tensor | None = None
        self._count = 0

    def add(self, loss: torch.Tensor) -> None:
        """`items` is how many the loss is the mean of."""
        weighted = loss.detach().double() * self.items
        self._sum = weighted if self._sum is None else self._sum + weighted
        self._count += self.items

    def take(self) -> float | None:
        mean = float(self._sum) / self._count if self._sum is not None and self._count else None
        self._sum, self._count = None, 0
        return mean


def _subject(workload: Workload, dataset: Any, step: ModelStep, device: torch.device) -> Subject:
    size: Callable[[], int] | None = getattr(dataset, "__len__", None)
    is_stream = isinstance(dataset, IterableDataset)
    return Subject(
        name=workload.name,
        model=type(step.model).__name__,
        data=workload.data_name or type(dataset).__name__,
        mode="train",
        device=str(device),
        items=size() if size is not None and not is_stream and not workload.batched else None,
        parameters=step.parameters,
        stream=is_stream,
        batch_sampler=workload.sets_batches,
        batching=workload.batching,
        current=workload.current,
    )
