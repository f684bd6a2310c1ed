"""What a comparison of two batch sizes asks for, checked where it is made, and the task that identifies it."""

from collections.abc import Sequence
from typing import Any, get_args

from stoker.errors import InputError
from stoker.records import Extent, LearningRateScale, Record, Setting, Task, WorkloadSpec


class ConvergeRules(Record, frozen=True):
    """What is done if nothing else is asked for."""

    seeds: int = 3
    """The fewest from which an interval says something: with two it is six times as wide."""
    epochs: int = 5
    """Enough to see a curve."""


RULES = ConvergeRules()


class ConvergeRequest(Record, frozen=True):
    """Trainings with `batch_size` and with `against`, once for each seed. Raises InputError for what makes no
    comparison."""

    batch_size: int
    against: int
    epochs: int | None = None
    updates: int | None = None
    seeds: tuple[int, ...] = tuple(range(RULES.seeds))
    scale_lr: LearningRateScale = "none"

    def __post_init__(self) -> None:
        if self.epochs is not None and self.updates is not None:
            raise InputError("--epochs and --updates both say how long a training is; keep one of them")
        named = {"batch size": self.batch_size, "against": self.against, "epochs": self.epochs}
        named |= {"updates": self.updates, "seeds": len(self.seeds)}
        for name, value in named.items():
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.batch_size == self.against:
            raise InputError(f"a batch size is compared with another one, and both are {self.against}")
        if self.scale_lr not in get_args(LearningRateScale):
            known = ", ".join(get_args(LearningRateScale))
            raise InputError(f"no such scale of the learning rate: {self.scale_lr!r}; choose {known}")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError("a seed is given twice: the same training again tells nothing new")

    @property
    def length(self) -> tuple[int | None, int | None]:
        """Epochs or updates: one of them, the other None."""
        return (RULES.epochs, None) if self.epochs is None and self.updates is None else (self.epochs, self.updates)

    def task(self, workload: WorkloadSpec | None, setting: Setting, device: str) -> Task:
        """What was asked for. `setting` is what the runs share."""
        epochs, updates = self.length
        options: dict[str, str | int | float | bool] = {
            "against": self.against,
            "seeds": ",".join(map(str, self.seeds)),
        }
        if updates is not None:
            options["updates"] = updates
        if self.scale_lr != "none":
            options["scale_lr"] = self.scale_lr
        return Task(
            kind="converge",
            workload=workload,
            mode="train",
            device=device,
            setting=setting,
            extent=Extent(batches=None, epochs=epochs or 1, validate=True),
            options=options,
        )


def request_of(task: Task) -> ConvergeRequest:
    """The request that made a task."""
    updates = task.options.get("updates")
    scale: Any = task.options.get("scale_lr", "none")  # checked by the request
    return ConvergeRequest(
        batch_size=task.setting.batch_size,
        against=int(task.options["against"]),
        epochs=None if updates is not None else task.extent.epochs,
        updates=None if updates is None else int(updates),
        seeds=tuple(int(each) for each in str(task.options["seeds"]).split(",")),
        scale_lr=scale,
    )


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """How many seeds, or which. Raises InputError for a number below one."""
    if isinstance(seeds, int) and seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    return tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
