"""Makes trials of what was observed in a script: one for each loader that was read, validation and ranks apart.

The clock of a trial stands still while the script reads other loaders, so that every second of a trial belongs to one
of its stages, once.
"""

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple, cast, get_args

import msgspec

from stoker.analysis.spans import LOOP_CORES
from stoker.integrations.logs import Fetch, Iterated, LoaderLog, ProcessLog, RunLog, Step
from stoker.records import (
    WORKER_STAGES,
    Extent,
    Gauge,
    Machine,
    Mode,
    Record,
    Setting,
    Stage,
    StartMethod,
    Subject,
    Task,
    Timeline,
    Trial,
    WorkerLog,
    WorkloadSpec,
)
from stoker.workload.streams import duplicated, module_shares_out, shard_notes

_CALLS = ("copy", "forward", "backward", "update")
_STEP = (*_CALLS, "step")
"""Stages of a step. On the CPU, `step` is what the script does outside of the calls that are seen; on a GPU that is
`other`: the GPU has nothing to do then."""


class TrialRules(Record, frozen=True):
    """Which loaders have a trial."""

    least_batches: int = 2
    """A loader that was left after one batch, as by Lightning's sanity check, has no pace."""
    seen_share: float = 0.9
    """Where fewer batches than this share were looked at while they were loaded, a note says so."""
    warm_share: float = 0.25
    """Warm-up takes at most this share of an epoch, where epochs are short."""


RULES = TrialRules()


class Surroundings(Record, frozen=True):
    """What was read beside the script, from the process that launched it. Times are of `time.perf_counter`."""

    machine: Machine | None = None
    when: datetime | None = None
    reference_s: tuple[float, ...] = ()
    interference: float | None = None
    idle_cpus: float | None = None
    gauges: dict[str, Gauge] = msgspec.field(default_factory=dict)


class LoaderTrial(NamedTuple):
    """A trial, and the log that it was made of."""

    trial: Trial
    loader: LoaderLog
    process: ProcessLog


def trials_of(log: RunLog, command: Sequence[str], around: Surroundings | None = None) -> list[LoaderTrial]:
    """A trial for each loader that was read for a few batches: the training loader of the first rank comes first, then
    those of other ranks, then all others by the number of their batches."""
    found = []
    for process in log.processes:
        for loader in process.loaders:
            made = _trial(process, loader, command, around or Surroundings(), _neighbours(process, log))
            if made is not None:
                found.append(LoaderTrial(made, loader, process))

    def order(each: LoaderTrial) -> tuple[bool, int, int]:
        training = each.process.training
        main = training is not None and each.loader is training
        return not main, (each.process.rank or 0) if main else 0, -len(each.trial.timeline.got_s)

    return sorted(found, key=order)


def _neighbours(process: ProcessLog, log: RunLog) -> int:
    """How many ranks share this one's machine, itself included."""
    return max(1, sum(each.rank is not None and each.host == process.host for each in log.processes))


def _trial(
    process: ProcessLog, loader: LoaderLog, command: Sequence[str], around: Surroundings, ranks: int
) -> Trial | None:
    epochs = _epochs(loader)
    if sum(len(epoch.steps) for epoch in epochs) < RULES.least_batches:
        return None
    clock = _Clock(epochs[0].log.began_s, _away(process, loader, epochs))
    setting = _setting(loader)
    loads = _loads(loader, epochs, setting)
    device = "cuda" if _on_gpu(process) else "cpu"
    stages = _loop_stages(epochs, clock)
    notes = [_overridden_note(loader)] if loader.overridden else []
    if loads.seen < RULES.seen_share * len(loads.fetches):
        notes.append(_seen_note(loads))
    notes += _stream_notes(loader, setting.num_workers)
    items = tuple(each.items for each in loads.fetches)
    began = around.when and datetime.fromtimestamp(
        process.unix_s + epochs[0].log.began_s - process.clock_s, around.when.tzinfo
    )
    gauges = _gauges(process, clock, around)
    return Trial(
        outcome="done",
        workload=_subject(process, loader, device),
        setting=setting,
        extent=_extent(epochs, setting),
        machine=around.machine,
        items=sum(items),
        total_s=sum(stage.total_s for stage in stages.values()),
        start_s=stages["start"].samples_s[0],
        stages={**stages, **_worker_stages(loads.fetches)},
        timeline=_timeline(epochs, clock, items),
        workers=_worker_log(loads.fetches, clock),
        gauges=gauges,
        notes=tuple(notes),
        interference=around.interference,
        idle_cpus=around.idle_cpus,
        run_delay=gauges["run_delay"].average if "run_delay" in gauges else None,
        task=_task(process, loader, command, setting, ranks),
        when=began,
        reference_s=around.reference_s,
    )


# ---------------------------------------------------------------- what was run


def site_of(loader: LoaderLog, process: ProcessLog) -> tuple[str, int] | None:
    """The file and line of the user's code that made the loader: of the one that a framework replaced, if it did."""
    source = next((each for each in process.loaders if each.number == loader.source), None)
    made = source if source is not None and source.site else loader
    return (made.site[0][0], made.site[0][1]) if made.site else None


def _subject(process: ProcessLog, loader: LoaderLog, device: str) -> Subject:
    mode: Mode = "train" if loader.trains else "infer"
    own_batches = loader.arguments.get("batch_size") is None and loader.batch_size is None
    whole = own_batches and loader.batch_sampler == "NoneType"
    return Subject(
        name=script_name(process),
        model=loader.made_by[0] if loader.made_by else "script",
        data=loader.dataset.rpartition(".")[2],
        mode=mode,
        device=device,
        items=loader.items,
        stream=loader.iterable,
        repeats=_repeats(loader),
        shards=loader.shards,
        batch_sampler=own_batches,
        batching="dataset" if whole else "sampler" if own_batches else "size",
        mode_reason="an optimizer steps" if loader.trains else "no optimizer steps",
        current=_setting(loader),
    )


def _repeats(loader: LoaderLog) -> bool:
    """Whether each of several workers would give all items: the loader's dataset is a stream, and neither it nor
    what it holds seems to share them out."""
    return bool(loader.streams) and not any(module_shares_out(module, _text(file)) for module, file in loader.streams)


def _text(file: str | None) -> str:
    """What a file of the script holds, now that the script has ended."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace") if file else ""
    except OSError:
        return ""


def _stream_notes(loader: LoaderLog, workers: int) -> list[str]:
    notes = shard_notes(loader.shards, workers)
    if workers > 1 and _repeats(loader):
        notes.append(duplicated(loader.dataset.rpartition(".")[2], workers))
    return notes


def script_name(process: ProcessLog) -> str:
    """The script's file without its folder; for a package its name."""
    if process.script is None:
        return Path(process.argv[0]).name if process.argv and process.argv[0] else "python"
    path = Path(process.script)
    return path.parent.name if path.name == "__main__.py" else path.name


def _setting(loader: LoaderLog) -> Setting:
    given = loader.arguments
    workers = int(given.get("num_workers") or 0)
    method = given.get("multiprocessing_context")
    known = cast(StartMethod, method) if method in get_args(StartMethod) else None
    return Setting(
        batch_size=loader.batch_size or round(fmean([each.items for each in loader.fetches] or [1])) or 1,
        num_workers=workers,
        prefetch_factor=int(given.get("prefetch_factor") or 2),
        pin_memory=bool(given.get("pin_memory")),
        persistent_workers=bool(given.get("persistent_workers")),
        in_order=given.get("in_order") is not False,
        multiprocessing_context=known if workers else None,
    )


def _task(process: ProcessLog, loader: LoaderLog, command: Sequence[str], setting: Setting, ranks: int) -> Task:
    options: dict[str, str | int | float | bool] = {"command": shlex.join(command), "loader": loader.kind}
    site = site_of(loader, process)
    if site is not None:
        options |= {"file": site[0], "line": site[1]}
    for name in ("script", "sha256", "rank", "world_size"):
        value = getattr(process, name)
        if value is not None:
            options[name] = value
    if ranks > 1:
        options["local_world_size"] = ranks
    if loader.made_by:
        options["made_by"] = ", ".join(loader.made_by)
    return Task(
        kind="run",
        workload=WorkloadSpec(spec=script_name(process)),
        mode="train" if loader.trains else "infer",
        setting=setting,
        options=options,
    )


def _on_gpu(process: ProcessLog) -> bool:
    sampled = any(step.gpu_s for loader in process.loaders for step in loader.steps)
    return sampled or any(each.cuda_bytes for each in process.gauges)


# ---------------------------------------------------------------- epochs and the clock


class _Epoch(NamedTuple):
    """One iteration of the loader, and its steps that were seen to their end. `left_s` is when a step began that was
    not."""

    log: Iterated
    steps: list[Step]
    left_s: float | None

    @property
    def ended_s(self) -> float:
        """When the loop was done with it."""
        if self.left_s is not None:
            return self.left_s
        done = self.steps[-1].done_s
        assert done is not None
        return done if self.log.ended_s is None else max(done, self.log.ended_s)


def _epochs(loader: LoaderLog) -> list[_Epoch]:
    """Iterations of one loader that overlap count as one: two iterators over it take turns."""
    merged: dict[int, int] = {}
    last, until = -1, float("-inf")
    for each in loader.iterations:
        if last < 0 or each.began_s >= until:
            last = each.number
        merged[each.number] = last
        ends = [step.done_s or step.got_s for step in loader.steps if step.iteration == each.number]
        until = max([until, *ends])
    epochs = []
    for each in loader.iterations:
        steps = [step for step in loader.steps if merged[step.iteration] == each.number]
        seen = [step for step in steps if step.done_s is not None]
        if seen:
            left = [step.asked_s for step in steps if step.done_s is None and step.asked_s >= seen[-1].asked_s]
            epochs.append(_Epoch(each, seen, left[0] if left else None))
    return epochs


class _Clock:
    """Seconds since the trial began, without the spans in which it stood still."""

    def __init__(self, began_s: float, spans: Sequence[tuple[float, float]]) -> None:
        self.began_s = began_s
        merged: list[list[float]] = []
        for start, end in sorted((max(start, began_s), end) for start, end in spans if end > began_s):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif end > start:
                merged.append([start, end])
        self._starts = [start for start, _ in merged]
        self._ends = [end for _, end in merged]
        self._before = [0.0, *accumulate(end - start for start, end in merged)]

    def at(self, moment_s: float) -> float:
        place = bisect_right(self._starts, moment_s)
        away = self._before[place]
        if place:
            away -= max(0.0, self._ends[place - 1] - moment_s)
        return moment_s - self.began_s - away

    def between(self, start_s: float, end_s: float) -> float:
        return max(0.0, self.at(end_s) - self.at(start_s))

    def runs(self, start_s: float, end_s: float) -> bool:
        """Whether the clock never stood still between two moments."""
        place = bisect_right(self._starts, end_s)
        return not place or self._ends[place - 1] <= start_s


def _away(process: ProcessLog, loader: LoaderLog, epochs: Sequence[_Epoch]) -> list[tuple[float, float]]:
    """When the script was with other loaders, or in a step whose end was not seen."""
    spans = [(epoch.left_s, after.log.began_s) for epoch, after in pairwise(epochs) if epoch.left_s is not None]
    asked = sorted(step.asked_s for step in loader.steps)
    for other in process.loaders:
        if other is loader:
            continue
        for iteration in other.iterations:
            steps = [step for step in other.steps if step.iteration == iteration.number]
            end = max([iteration.started_s, iteration.ended_s or 0.0, *(step.done_s or step.got_s for step in steps)])
            place = bisect_left(asked, iteration.began_s)
            if place < len(asked) and asked[place] < end:  # the two are read side by side
                spans.append((iteration.began_s, iteration.started_s))
                spans += [(step.asked_s, step.got_s) for step in steps]
            else:
                spans.append((iteration.began_s, end))
    return spans


def _extent(epochs: Sequence[_Epoch], setting: Setting) -> Extent:
    extent = Extent(batches=max(len(epoch.steps) for epoch in epochs), epochs=len(epochs))
    usual = median(len(epoch.steps) for epoch in epochs)
    warm = min(extent.warm_batches(setting.num_workers), max(1, int(usual * RULES.warm_share)))
    return msgspec.structs.replace(extent, warmup=warm)


# ---------------------------------------------------------------- the loop


def _loop_stages(epochs: Sequence[_Epoch], clock: _Clock) -> dict[str, Stage]:
    """Seconds of each loop stage: every moment of the trial's clock belongs to one of them."""
    names = ("start", "wait", *_STEP, "stop", "other")
    samples: dict[str, list[float]] = {name: [] for name in names}
    gpu = _gpu_medians(epochs)
    before = epochs[0].log.began_s
    for epoch in epochs:
        log = epoch.log
        samples["start"].append(clock.between(log.began_s, log.started_s))
        idle_s = clock.between(before, log.began_s)
        before = log.started_s
        for step in epoch.steps:
            idle_s += clock.between(before, step.asked_s)
            spent = _step_stages(step, gpu, clock)
            spent["other"] += idle_s
            for name, seconds in spent.items():
                samples[name].append(seconds)
            assert step.done_s is not None
            idle_s, before = 0.0, step.done_s
        stopped = epoch.log.ended_s is not None and epoch.left_s is None
        samples["stop"].append(clock.between(before, epoch.ended_s) if stopped else 0.0)
        before = epoch.ended_s if stopped else before
    samples["other"].append(0.0)
    seen = [name for name in names if name not in _STEP or any(samples[name])]
    return {name: Stage(clock="loop", samples_s=tuple(samples[name])) for name in seen}


def _gpu_medians(epochs: Sequence[_Epoch]) -> dict[str, float]:
    """The usual time of each stage on the GPU; one step in a few is timed there."""
    found: dict[str, list[float]] = {}
    for epoch in epochs:
        for step in epoch.steps:
            for name, seconds in step.gpu_s.items():
                found.setdefault("copy" if name == "before" else name, []).append(seconds)
    return {name: median(values) for name, values in found.items()}


def _step_stages(step: Step, gpu: dict[str, float], clock: _Clock) -> dict[str, float]:
    """What a batch took, by stage. On a GPU the stages are its own; a wait during which it still works on the step
    before is not counted, as the pace is not the loader's then."""
    assert step.done_s is not None
    wait_s, step_s = step.wait_s, clock.between(step.got_s, step.done_s)
    if not gpu:
        spent = {"copy": step.copy_s, "forward": step.forward_s, "backward": step.backward_s, "update": step.update_s}
        busy_s = sum(spent.values())
        if busy_s > step_s > 0:  # two clocks that differ by less than a microsecond a call
            spent = {name: seconds * step_s / busy_s for name, seconds in spent.items()}
        return {"wait": wait_s, **spent, "step": max(0.0, step_s - sum(spent.values())), "other": 0.0}
    own = {("copy" if name == "before" else name): seconds for name, seconds in step.gpu_s.items()}
    spent = {name: own.get(name, gpu.get(name, 0.0)) for name in _CALLS}
    busy_s, period_s = sum(spent.values()), wait_s + step_s
    if busy_s > period_s:
        spent = {name: seconds * period_s / busy_s for name, seconds in spent.items()}
        busy_s = period_s
    hidden_s = max(0.0, busy_s - step_s)
    return {"wait": wait_s - hidden_s, **spent, "step": 0.0, "other": max(0.0, step_s - busy_s)}


def _timeline(epochs: Sequence[_Epoch], clock: _Clock, items: tuple[int, ...]) -> Timeline:
    steps = [step for epoch in epochs for step in epoch.steps]
    starts = [clock.at(epoch.log.began_s) for epoch in epochs]
    ends = [*starts[1:], clock.at(epochs[-1].ended_s)]
    return Timeline(
        asked_s=tuple(clock.at(step.asked_s) for step in steps),
        got_s=tuple(clock.at(step.got_s) for step in steps),
        done_s=tuple(clock.at(cast(float, step.done_s)) for step in steps),
        items=items,
        batches=tuple(len(epoch.steps) for epoch in epochs),
        epoch_s=tuple(end - start for start, end in zip(starts, ends, strict=True)),
    )


def _gauges(process: ProcessLog, clock: _Clock, around: Surroundings) -> dict[str, Gauge]:
    """The readings from outside, and the CPUs that the loop's own process used while the clock ran."""
    began, over = (clock.began_s, process.ended_s or float("inf"))
    found = {}
    for name, gauge in around.gauges.items():
        pairs = [(at, value) for at, value in zip(gauge.times_s, gauge.samples, strict=True) if began <= at <= over]
        if pairs:
            found[name] = Gauge(
                times_s=tuple(clock.at(at) for at, _ in pairs), samples=tuple(value for _, value in pairs)
            )
    own = [
        (clock.at(after.at_s), (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s))
        for before, after in pairwise(process.gauges)
        if before.at_s >= began and after.at_s > before.at_s and clock.runs(before.at_s, after.at_s)
    ]
    if own:
        found[LOOP_CORES] = Gauge(times_s=tuple(at for at, _ in own), samples=tuple(cores for _, cores in own))
    held = [(clock.at(each.at_s), each.cuda_bytes) for each in process.gauges if each.cuda_bytes is not None]
    if held and any(size for _, size in held):
        found["reserved_bytes"] = Gauge(times_s=tuple(at for at, _ in held), samples=tuple(size for _, size in held))
    return found


# ---------------------------------------------------------------- loading


class _Loads(NamedTuple):
    """How each batch of the trial was loaded. `seen` of them were looked at; the others are taken to be as the nearest
    one of the same worker."""

    fetches: list[Fetch]
    seen: int


def _loads(loader: LoaderLog, epochs: Sequence[_Epoch], setting: Setting) -> _Loads:
    merged: list[Fetch] = []
    seen = 0
    for epoch in epochs:
        numbers = {step.iteration for step in epoch.steps} | {epoch.log.number}
        own = [each for each in loader.fetches if each.iteration in numbers]
        places = _places(own, setting, loader, len(epoch.steps))
        seen += len(places)
        merged += _filled(places, epoch.steps, setting)
    return _Loads(merged, seen)


def _places(fetches: Sequence[Fetch], setting: Setting, loader: LoaderLog, count: int) -> dict[int, Fetch]:
    """Which batch of the epoch each one is: workers take turns, unless batches come as they are ready."""
    if not setting.num_workers:
        found = {each.number: each for each in fetches}
    elif setting.in_order and not loader.iterable:
        found = {each.number * setting.num_workers + (each.worker or 0): each for each in fetches}
    elif setting.in_order:
        found = dict(enumerate(sorted(fetches, key=lambda each: (each.number, each.worker or 0))))
    else:
        found = dict(enumerate(sorted(fetches, key=lambda each: each.ended_s)))
    return {place: each for place, each in found.items() if place < count}


def _filled(places: dict[int, Fetch], steps: Sequence[Step], setting: Setting) -> list[Fetch]:
    """A fetch for each step. One that was not looked at is taken to be as long as the nearest of its worker, and to
    have ended when the loop asked for it or had it."""
    found = []
    known = sorted(places)
    lanes = max(1, setting.num_workers)
    for place, step in enumerate(steps):
        if place in places:
            found.append(places[place])
            continue
        same = [each for each in known if each % lanes == place % lanes] or known
        worker = place % lanes if setting.num_workers else None
        if not same:
            found.append(_unseen(step, setting, worker))
            continue
        near = places[min(same, key=lambda each: abs(each - place))]
        ended = step.got_s if worker is None else min(step.got_s, step.asked_s)
        shift = ended - near.ended_s
        found.append(
            msgspec.structs.replace(
                near, worker=worker, began_s=near.began_s + shift, loaded_s=near.loaded_s + shift, ended_s=ended
            )
        )
    return found


def _unseen(step: Step, setting: Setting, worker: int | None) -> Fetch:
    """Of a loader none of whose batches was looked at: all of the wait is loading."""
    return Fetch(
        iteration=step.iteration,
        worker=worker,
        number=0,
        began_s=step.asked_s,
        loaded_s=step.got_s,
        ended_s=step.got_s,
        cpu_s=0.0,
        items=setting.batch_size,
        bytes=0,
    )


def _overridden_note(loader: LoaderLog) -> str:
    words = ", ".join(f"{name} {before} → {after}" for name, (before, after) in loader.overridden.items())
    return f"set from outside for this run: {words}"


def _seen_note(loads: _Loads) -> str:
    if not loads.seen:
        return "no batch was looked at while it was loaded: what loading consists of is not known"
    every = f"{len(loads.fetches) / loads.seen:.1f}".removesuffix(".0")
    return f"loading was looked at in one batch of {every}: more would have slowed the script down"


def _worker_log(fetches: Sequence[Fetch], clock: _Clock) -> WorkerLog:
    return WorkerLog(
        worker=tuple(each.worker or 0 for each in fetches),
        began_s=tuple(clock.at(each.ended_s) - (each.ended_s - each.began_s) for each in fetches),
        ended_s=tuple(clock.at(each.ended_s) for each in fetches),
        cpu_s=tuple(each.cpu_s for each in fetches),
        item_s=tuple(seconds for each in fetches for seconds in each.item_s),
        batch_bytes=tuple(each.bytes for each in fetches),
    )


def _worker_stages(fetches: Sequence[Fetch]) -> dict[str, Stage]:
    """Seconds of each stage of loading, a sample a batch. Named parts, such as `transform.Resize`, stand beside their
    whole."""
    rows: dict[str, list[float]] = {}
    for place, each in enumerate(fetches):
        for name, seconds in _parts(each).items():
            row = rows.setdefault(name, [0.0] * len(fetches))
            row[place] += seconds
    order = {name: number for number, name in enumerate(WORKER_STAGES)}
    names = sorted(rows, key=lambda name: (order.get(name.partition(".")[0], len(order)), "." in name))
    return {name: Stage(clock="worker", samples_s=tuple(rows[name])) for name in names}


def _parts(fetch: Fetch) -> dict[str, float]:
    spent: dict[str, float] = {}
    for name, seconds in fetch.stages_s.items():
        spent[name] = spent.get(name, 0.0) + seconds
        whole = name.partition(".")[0]
        if whole != name:
            spent[whole] = spent.get(whole, 0.0) + seconds
    named = sum(seconds for name, seconds in fetch.stages_s.items())
    spent["item"] = spent.get("item", 0.0) + max(0.0, fetch.items_s - named)
    spent["collate"] = fetch.collate_s
    if fetch.send_s:
        spent["send"] = fetch.send_s
    return spent
