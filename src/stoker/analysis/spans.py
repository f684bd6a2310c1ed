"""Statistics of a trial, derived from its samples: the whole run, and its steady state."""

from stoker.records import Record, Trial

PER_EPOCH = ("start", "stop", "score")
COMPUTE = ("forward", "backward", "update", "step")


class Span(Record, frozen=True):
    """Part of a run: its wall-clock seconds by loop stage, and its workers' seconds by worker stage."""

    batches: int
    items: int
    loop_s: dict[str, float]
    worker_s: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.loop_s.values())

    @property
    def items_per_s(self) -> float:
        return self.items / self.seconds if self.seconds else 0.0

    @property
    def compute_s(self) -> float:
        return sum(self.loop_s.get(name, 0.0) for name in COMPUTE)

    @property
    def busy(self) -> float:
        """The share of the time in which the device worked: copied or computed."""
        return (self.compute_s + self.loop_s.get("copy", 0.0)) / self.seconds if self.seconds else 0.0

    @property
    def worker_parts(self) -> dict[str, float]:
        """The worker stages that add up to their whole: named parts of a stage left out."""
        return {name: seconds for name, seconds in self.worker_s.items() if "." not in name}

    def share(self, stage: str) -> float:
        """Of the wall clock for a loop stage, of the workers' time for a worker stage."""
        if stage in self.loop_s:
            return self.loop_s[stage] / self.seconds if self.seconds else 0.0
        whole = sum(self.worker_parts.values())
        return self.worker_s.get(stage, 0.0) / whole if whole else 0.0


def whole(trial: Trial) -> Span:
    """The run from the asking for its first batch to its end."""
    sums = {name: stage.total_s for name, stage in trial.stages.items()}
    return Span(
        batches=sum(trial.timeline.batches),
        items=trial.items,
        loop_s={name: sums[name] for name, stage in trial.stages.items() if stage.clock == "loop"},
        worker_s={name: sums[name] for name, stage in trial.stages.items() if stage.clock == "worker"},
    )


def steady_batches(trial: Trial) -> list[int]:
    """The positions of the batches after each epoch's warm-up."""
    places: list[int] = []
    begin = 0
    for count in trial.timeline.batches:
        places.extend(range(begin + trial.extent.warm_batches(trial.setting.num_workers), begin + count))
        begin += count
    return places


def steady(trial: Trial) -> Span | None:
    """The batches after each epoch's warm-up; None where there are none."""
    kept = steady_batches(trial)
    if not kept:
        return None
    loop_s: dict[str, float] = {}
    worker_s: dict[str, float] = {}
    for name, stage in trial.stages.items():
        if name in PER_EPOCH:
            continue
        sums = loop_s if stage.clock == "loop" else worker_s
        sums[name] = sum(stage.samples_s[index] for index in kept if index < len(stage.samples_s))
    lines = [log.timeline.items for log in trial.rank_logs] or [trial.timeline.items]
    items = sum(line[index] for line in lines for index in kept if index < len(line))
    return Span(batches=len(kept), items=items, loop_s=loop_s, worker_s=worker_s)


def wait_s(trial: Trial) -> float:
    """Seconds that the loop waited for a batch, once steady; of a run that is too short, over all of it."""
    span = steady(trial) or whole(trial)
    return span.loop_s.get("wait", 0.0) / max(1, span.batches)


LOOP_CORES = "loop_cores"
"""The gauge of the CPUs that the loop's own process used."""


def step_cores(trial: Trial) -> float | None:
    """How many CPUs a step uses, for a step on the CPU: what the loop's process used, less what loading in it did, over
    the share of the time that steps take. None where that was not read."""
    gauge = trial.gauges.get(LOOP_CORES)
    if gauge is None or trial.workload.device != "cpu" or trial.total_s <= 0:
        return None
    run = whole(trial)
    steps_s = run.compute_s + run.loop_s.get("copy", 0.0)
    loading_s = sum(trial.workers.cpu_s) if not trial.setting.num_workers else 0.0
    if steps_s <= 0:
        return None
    return max(0.0, gauge.average * run.seconds - loading_s) / steps_s
