"""Whether a batch size learns as well as another: training runs of both, from the same seeds and data order."""

from datetime import datetime
from typing import Literal

from stoker.records.base import Record
from stoker.records.machine import Machine
from stoker.records.task import Setting, Task
from stoker.records.trial import Outcome, Problem, Subject

LearningRateScale = Literal["none", "linear", "sqrt"]
"""How the learning rate grows with the batch size: not at all, in proportion, or by the square root."""


class Checkpoint(Record, frozen=True):
    """One look at the validation set, and the training since the one before. The first is before any training.

    `updates` and `items` count from the beginning, `train_s` is the time of the training since the last checkpoint and
    `validation_s` that of the look itself. Losses and metrics that are not finite numbers are None.
    """

    epochs: float
    updates: int
    items: int
    train_s: float
    validation_s: float
    train_loss: float | None = None
    validation_loss: float | None = None
    metric: float | None = None


class TrainingRun(Record, frozen=True):
    """One training with one batch size from one seed. `diverged`: a loss was no finite number, and the run ended."""

    batch_size: int
    seed: int
    outcome: Outcome
    learning_rates: tuple[float, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    diverged: bool = False
    problem: Problem | None = None
    subject: Subject | None = None
    when: datetime | None = None
    reference_s: tuple[float, ...] = ()

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def train_s(self) -> float:
        """Seconds of training, without the looks at the validation set."""
        return sum(each.train_s for each in self.checkpoints)


class Convergence(Record, frozen=True):
    """Training runs with `batch_size` and with `against`, in the order in which they ran.

    `epochs` or `updates` is how long each run was asked to be; the other is None. `setting` is what the runs share; its
    batch size is `batch_size`. What follows from the runs is computed, not stored: `analysis.convergence`.
    """

    workload: Subject
    batch_size: int
    against: int
    seeds: tuple[int, ...]
    setting: Setting
    scale_lr: LearningRateScale = "none"
    epochs: int | None = None
    updates: int | None = None
    runs: tuple[TrainingRun, ...] = ()
    notes: tuple[str, ...] = ()
    machine: Machine | None = None
    task: Task | None = None
    when: datetime | None = None

    def of(self, batch_size: int) -> tuple[TrainingRun, ...]:
        """The runs with this batch size, by seed."""
        return tuple(sorted((run for run in self.runs if run.batch_size == batch_size), key=lambda run: run.seed))
