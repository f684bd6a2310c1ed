"""What Stoker answers: limits, predictions, plans, verdicts, remedies."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import field

from stoker.errors import InputError
from stoker.records.base import Record
from stoker.records.machine import Software
from stoker.records.probes import Probes, Run
from stoker.records.task import Mode, Precision, Setting, StartMethod
from stoker.records.trial import Batching, Outcome, Problem, Trial
from stoker.units import format_seconds, format_workers

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class Prediction(Record, frozen=True):
    """What a run would cost. `first_batch_s` counts from the start of the run, which includes forking the workers.

    `limited_by` is `start`, `step`, `send` (moving batches to the loop), or the stage of loading that takes most.
    """

    setting: Setting
    items: int
    epochs: int
    total_s: float
    interval_s: tuple[float, float]
    first_batch_s: float
    first_batch_interval_s: tuple[float, float]
    steady_items_per_s: float
    wait_share: float
    limited_by: str


class Objective(Record, frozen=True):
    """What is minimised: the time of `epochs` passes over `items` items, or (`throughput`) without starting up."""

    items: int
    epochs: int = 1
    kind: Literal["time", "throughput"] = "time"

    def __post_init__(self) -> None:
        for name in ("items", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")


FAR_APART = 1.1
"""If two runs of one setting differ by more than this factor, the longer one was disturbed."""


class Measured(Record, frozen=True):
    """What runs of one setting took.

    `samples_s` has the seconds of the objective for each run, `run_s` the seconds of the run itself, which may have
    been shorter. `disturbed`: other processes disturbed every run.
    """

    samples_s: tuple[float, ...]
    run_s: tuple[float, ...]
    items: int
    first_batch_s: float
    steady_items_per_s: float
    disturbed: bool = False
    rounds: tuple[int, ...] = ()
    """The round of each sample, where candidates ran in rounds."""

    @property
    def total_s(self) -> float:
        """The median of all runs. Of two runs that are far apart, the shorter: disturbances only make a run longer."""
        least = min(self.samples_s)
        return least if len(self.samples_s) == 2 and max(self.samples_s) > FAR_APART * least else median(self.samples_s)


Bound = Literal["device_memory", "shm", "host_memory", "open_files", "cpus", "shards"]
"""What a machine, or a stream, may have too little of for a setting."""


class RuledOut(Record, frozen=True):
    """A setting that was not considered, and the bound that it breaks."""

    batch_size: int
    num_workers: int
    bound: Bound
    sentence: str


class Candidate(Record, frozen=True):
    """A setting with its predicted cost, and its measured cost if it was run.

    The current setting is run even if the request does not allow it, as is a faster batch size than the one that is
    kept. Then it is not `asked_for` and never the plan. `updates` are an epoch's, in training.
    """

    setting: Setting
    predicted_s: float
    predicted: Prediction | None = None
    measured: Measured | None = None
    asked_for: bool = True
    updates: int | None = None
    tied: bool = False
    """Within noise of the best by runs and predictions, as is at least one other. The plan is the cheapest of these."""

    @property
    def seconds(self) -> float:
        return self.measured.total_s if self.measured else self.predicted_s

    @property
    def runs(self) -> int:
        return len(self.measured.samples_s) if self.measured else 0

    @property
    def in_flight_items(self) -> int:
        return self.setting.in_flight_batches * self.setting.batch_size


RemedyKind = Literal["setting", "code", "what_if"]


class Remedy(Record, frozen=True):
    """One change, the seconds that a run took (or is predicted to take) before it, and those predicted after it.

    A `setting` is a change of the fields in `changes`, with their new values. `code` is a change that the user makes
    elsewhere. A `what_if` says what something faster would bring; how to make it faster is left open.
    """

    change: str
    before_s: float
    after_s: float
    changes: dict[str, int | float | bool | str] = field(default_factory=dict)
    kind: RemedyKind = "code"

    @property
    def sentence(self) -> str:
        return f"{self.change}: {format_seconds(self.before_s)} → {format_seconds(self.after_s)}"


class VerifiedRemedy(Record, frozen=True):
    """A remedy that was run. `before_s` and `after_s` have one run each for every pair, which ran one after the other.

    `problem` says why it has no runs.
    """

    remedy: Remedy
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    problem: str | None = None

    @property
    def predicted_gain(self) -> float:
        """How many times as fast the run was predicted to be."""
        return self.remedy.before_s / max(self.remedy.after_s, 1e-12)

    @property
    def measured_gain(self) -> float | None:
        """The median of the pairs' ratios; None without a pair."""
        ratios = [before / max(after, 1e-12) for before, after in zip(self.before_s, self.after_s, strict=True)]
        return median(ratios) if ratios else None


class Verdict(Record, frozen=True):
    """The stage that costs a run most of its time, and its share.

    An `uncertain` verdict may be about the host and not the pipeline: the run's threads had to wait for CPUs, and
    `doubt` says why. `findings` are sentences about what was seen beside the bottleneck, and hints without figures.
    `rank` is the one of several ranks that the others regularly wait for; None where they are even.
    """

    bottleneck: str
    share: float
    sentence: str
    uncertain: bool = False
    doubt: str = ""
    findings: tuple[str, ...] = ()
    rank: int | None = None


Planner = Literal["simulate", "algebra", "grid"]


class AlgebraTiming(Record, frozen=True):
    """Seconds of a batch with 0 workers: t_d to load it, t_g to compute it on one GPU."""

    batch_size: int
    load_s: float
    compute_s: float

    @property
    def ratio(self) -> float:
        return self.load_s / self.compute_s if self.compute_s > 0 else inf


class AlgebraAnswer(Record, frozen=True):
    """The answer of the algebra, and what it follows from.

    `ratio` is the t_d / t_g that sets the workers; `ratio_spread` says by how much the ratios of the timed batch sizes
    differ. `bound_by` is the constraint that stopped the batch from growing. `most_workers` is how many workers host
    memory allows at this batch.
    """

    batch_size: int
    num_workers: int
    ratio: float
    ratio_spread: float | None
    bound_by: Literal["max_batch", "host_memory"]
    most_workers: int
    item_bytes: int
    memory_bytes: int
    timings: tuple[AlgebraTiming, ...]


class Plan(Record, frozen=True):
    """What to set, its predicted and measured cost, the current setting and the runners-up.

    `algebra` is there if the planner was the algebra.
    """

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
    algebra: AlgebraAnswer | None = None
    multiprocessing_context: StartMethod | None = None
    worker_threads: int | None = None
    verified: tuple[VerifiedRemedy, ...] = ()
    batching: Batching = "size"
    mode_reason: str = ""
    ranks: int = 1

    def __repr__(self) -> str:
        """One line: candidates and predictions would fill pages."""
        took = f", {format_seconds(self.measured.total_s)} measured" if self.measured else ""
        workers = format_workers(self.num_workers)
        return f"<Plan for {self.workload}, {self.mode}: batch {self.batch_size}, {workers}{took}>"

    @property
    def gain(self) -> float | None:
        """How many times faster than the current setting, as measured; None if one of them was not run."""
        if self.current is None or self.current.measured is None or self.measured is None:
            return None
        return self.current.measured.total_s / self.measured.total_s

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for a DataLoader."""
        options: dict[str, Any] = {} if self.batch_sampler else {"batch_size": self.batch_size}
        if self.batching == "dataset":
            options = {"batch_size": None}
        elif self.batching == "function":
            options = {}
        options["num_workers"] = self.num_workers
        if self.num_workers:
            options["prefetch_factor"] = self.prefetch_factor
            options["persistent_workers"] = self.persistent_workers
            if self.multiprocessing_context is not None:
                options["multiprocessing_context"] = self.multiprocessing_context
        return {**options, "pin_memory": self.pin_memory}

    @property
    def line(self) -> str:
        """The line of Python that makes the planned loader."""
        options = self.options
        if self.batching == "function":
            options = {"batch_sampler": f"batch_sampler({self.batch_size})", **options}
        elif self.batch_sampler and self.batching != "dataset":
            options = {"batch_sampler": "batch_sampler", **options}
        shown = (f"{name}={value if name == 'batch_sampler' else repr(value)}" for name, value in options.items())
        return f"DataLoader(dataset, {', '.join(shown)})"

    def loader(self, dataset: Any, **options: Any) -> "DataLoader[Any]":
        """A DataLoader as planned. `options` (shuffle, collate_fn, ...) are passed on and override the plan."""
        from torch.utils.data import DataLoader

        planned = self.options
        if options.get("num_workers") == 0:
            of_workers = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
            planned = {name: planned[name] for name in planned if name not in of_workers}
        elif self.worker_threads is not None and self.num_workers:
            options["worker_init_fn"] = partial(_begin_worker, self.worker_threads, options.get("worker_init_fn"))
        if options.get("batch_sampler") is not None:
            planned.pop("batch_size", None)
        return DataLoader(dataset, **{**planned, **options})


def _begin_worker(threads: int, inner: Callable[[int], None] | None, worker: int) -> None:
    """Let torch use so many threads in a worker, then call the user's own function."""
    import torch

    torch.set_num_threads(threads)
    if inner is not None:
        inner(worker)


Method = Literal["auto", "trace", "two-point", "doubling", "search"]


METHODS: tuple[Method, ...] = get_args(Method)


class Attempt(Record, frozen=True):
    """One batch size, tried in a process of its own.

    `free_bytes` is what the device had left for tensors when the try began; `reserved_samples` what the allocator held
    after each step; `input_bytes` and `output_bytes` what goes into the model and comes out of it.
    """

    batch_size: int
    outcome: Outcome
    peak_bytes: int = 0
    reserved_bytes: int = 0
    retries: int = 0
    seconds: float = 0.0
    free_bytes: int = 0
    step_s: tuple[float, ...] = ()
    reserved_samples: tuple[int, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    problem: Problem | None = None


class LimitRemedy(Record, frozen=True):
    """What a change in the order of things would bring: the batch that it lets run, predicted and then run."""

    what: str
    how: str
    predicted_batch: int | None
    max_batch: int


AliveSince = Literal["init", "earlier_step", "step"]


class AliveBytes(Record, frozen=True):
    """Device memory that an operator allocated and that is alive at the peak of a step: since the making of the model,
    since an earlier step (gradients, optimizer state), or within this one."""

    operator: str
    since: AliveSince
    bytes: int
    tensors: int


class Limit(Record, frozen=True):
    """A batch size that fits. `ran` says whether it was run; where not, `interval` is where we expect the true maximum.

    A band, where sizes were tried: the largest below the first failure, and the last that failed or ran.
    `comfortable_batch` needs no retry of the allocator, which would first give back all unused memory that it keeps.
    `predicted_batch` is what the trace had said before anything ran. `alive` is what the traced step holds at its
    peak at the largest batch; it is empty where no step was traced.
    """

    max_batch: int
    interval: tuple[int, int]
    comfortable_batch: int | None
    method: Method
    gpu_memory_bytes: int
    peak_bytes_at_max: int
    bytes_per_item: int
    fixed_bytes: int
    workload: str
    mode: Mode
    precision: Precision
    optimizer: str | None
    ran: bool = False
    memory: str = "GPU"
    predicted_batch: int | None = None
    predicted_interval: tuple[int, int] | None = None
    probes: tuple[Attempt, ...] = ()
    remedies: tuple[LimitRemedy, ...] = ()
    notes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    seconds: float = 0.0
    mode_reason: str = ""
    alive: tuple[AliveBytes, ...] = ()
    software: Software | None = None
    when: datetime | None = None

    def __repr__(self) -> str:
        """One line: the probes would fill pages."""
        low, high = self.interval
        how = "ran" if self.ran else f"predicted, {low} to {high}"
        return f"<Limit of {self.workload}, {self.mode}, {self.precision}: batch {self.max_batch}, {how}>"


class MethodRow(Record, frozen=True):
    """One method's answer, or why it has none. `error` is (estimate − truth) / truth; the truth is what `search` ran.

    The error of the two-point method's author (5.1) has the other sign.
    """

    method: Method
    limit: Limit | None
    error: float | None
    problem: str | None = None


class MethodComparison(Record, frozen=True):
    workload: str
    rows: tuple[MethodRow, ...]


class Stalls(Record, frozen=True):
    """The three trials. Shares are of the cold run's time, worker start and stop left out."""

    memory: Trial
    cached: Trial
    cold: Trial

    @property
    def finished(self) -> bool:
        return all(trial.outcome == "done" for trial in (self.memory, self.cached, self.cold))


class InterruptedTune(Record, frozen=True):
    """What a tuning had measured when it was interrupted or failed."""

    interrupted: bool
    runs: tuple[Run, ...] = ()
    probes: Probes | None = None
    trials: tuple[Trial, ...] = ()
