"""What `tune` answers: a plan, and the DataLoader that it describes."""

from typing import TYPE_CHECKING, Any, Literal

from stoker.predict.forecast import Prediction
from stoker.records import Mode, Record, Verdict
from stoker.tune.advise import Remedy
from stoker.tune.candidates import Candidate
from stoker.tune.constrain import RuledOut
from stoker.tune.objective import Measured, Objective

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Planner = Literal["simulate", "thesis", "grid"]


class Plan(Record, frozen=True):
    """What to set, what it was predicted to cost and what it did, beside the current setting and the runners-up."""

    batch_size: int
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    persistent_workers: bool
    accumulate: int
    gpus: int
    batch_sampler: bool
    workload: str
    mode: Mode
    planner: Planner
    objective: Objective
    predicted: Prediction | None
    predicted_s: float
    measured: Measured | None
    current: Candidate | None
    candidates: tuple[Candidate, ...]
    ruled_out: tuple[RuledOut, ...]
    verdict: Verdict | None
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...]
    seconds: float
    probe_s: float

    @property
    def gain(self) -> float | None:
        """How many times faster than the current setting, as measured."""
        if self.current is None or self.current.measured is None or self.measured is None:
            return None
        return self.current.measured.total_s / self.measured.total_s

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for a DataLoader."""
        options: dict[str, Any] = {} if self.batch_sampler else {"batch_size": self.batch_size}
        options["num_workers"] = self.num_workers
        if self.num_workers:
            options["prefetch_factor"] = self.prefetch_factor
            options["persistent_workers"] = self.persistent_workers
        return {**options, "pin_memory": self.pin_memory}

    @property
    def line(self) -> str:
        """A line to paste."""
        options = {"batch_sampler": "batch_sampler", **self.options} if self.batch_sampler else self.options
        return f"DataLoader(dataset, {', '.join(f'{name}={value}' for name, value in options.items())})"

    def loader(self, dataset: Any, **options: Any) -> "DataLoader[Any]":
        """A DataLoader as planned; `options` (shuffle, collate_fn, ...) are passed on and win."""
        from torch.utils.data import DataLoader

        planned = self.options
        if options.get("num_workers") == 0:
            planned = {name: planned[name] for name in planned if name not in ("prefetch_factor", "persistent_workers")}
        if options.get("batch_sampler") is not None:
            planned.pop("batch_size", None)
        return DataLoader(dataset, **{**planned, **options})
