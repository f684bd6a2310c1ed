"""Makes a trial of what a loop wrote down: every second of the run is accounted for, once.

The device's stages lie on one line, one after another. Between two batches the device is idle; of that time, what the
host spent starting workers is `start`, what it spent asking the loader for a batch is `wait`, and the rest is `other`.
A wait during which the device still works on the batch before is not counted.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from stoker.measure.log import BatchLog, LoopLog, WorkerStamp
from stoker.records import WORKER_STAGES, Machine, Setting, Stage, Timeline, Trial, WorkerLog
from stoker.units import format_workers


def assemble(trial: Trial, log: LoopLog, machine: Machine | None = None, peaks: dict[str, int] | None = None) -> Trial:
    """The trial with what the log says. The log has at least one epoch."""
    began_s, ended_s = log.began_s, log.ended_s
    stages = account(log)
    if log.scores:
        seconds = tuple(spent for spent, _ in log.scores)
        stages["score"] = Stage(clock="loop", samples_s=seconds)
        stages["other"] = _less(stages["other"], sum(seconds))
    starts = [epoch.began for epoch in log.epochs] + [ended_s]
    batches = [batch for epoch in log.epochs for batch in epoch.batches]
    workers = _worker_log(log)
    return msgspec.structs.replace(
        trial,
        machine=machine,
        notes=(*trial.notes, *_crowded(trial.setting, machine, workers)),
        items=sum(log.items),
        total_s=ended_s - began_s,
        start_s=log.epochs[0].ready - log.epochs[0].began,
        stages={**stages, **_worker_stages(log.stamps)},
        timeline=Timeline(
            asked_s=tuple(batch.asked - began_s for batch in batches),
            got_s=tuple(batch.got - began_s for batch in batches),
            done_s=tuple(batch.done - began_s for batch in batches),
            items=tuple(log.items),
            batches=tuple(len(epoch.batches) for epoch in log.epochs),
            epoch_s=tuple(after - before for before, after in pairwise(starts)),
        ),
        workers=workers,
        scores=tuple(value if math.isfinite(value) else None for _, value in log.scores if value is not None),
        peaks=peaks or {},
    )


def account(log: LoopLog) -> dict[str, Stage]:
    """Seconds of each loop stage, a sample a batch (`start`, `stop`: an epoch); all samples add up to the whole.

    `other` has one sample more: what came after the last batch.
    """
    names = list(dict.fromkeys(name for epoch in log.epochs for batch in epoch.batches for name, _ in batch.ends))
    samples: dict[str, list[float]] = {name: [] for name in ("start", "wait", *names, "stop", "other")}
    free = log.began_s
    stop = (free, free)
    for number, epoch in enumerate(log.epochs):
        starts = 0.0
        for batch in epoch.batches:
            idle = (free, max(free, log.clock.seconds(batch.began)))
            start = overlap(idle, (epoch.began, epoch.ready))
            wait = overlap(idle, (batch.asked, batch.got))
            stopping = overlap(idle, stop)
            starts += start
            if batch is epoch.batches[0] and number:
                samples["stop"].append(stopping)
            samples["wait"].append(wait)
            samples["other"].append(max(0.0, idle[1] - idle[0] - start - wait - stopping))
            free = _device_stages(log, batch, idle[1], names, samples)
        samples["start"].append(starts)
        stop = (epoch.exhausted, epoch.ended)
    samples["stop"].append(overlap((free, log.ended_s), stop))
    samples["other"].append(max(0.0, log.ended_s - max(free, log.began_s) - samples["stop"][-1]))
    return {name: Stage(clock="loop", samples_s=tuple(values)) for name, values in samples.items()}


def overlap(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Seconds that two spans have in common."""
    return max(0.0, min(first[1], second[1]) - max(first[0], second[0]))


def _device_stages(
    log: LoopLog, batch: BatchLog, moment: float, names: Sequence[str], samples: dict[str, list[float]]
) -> float:
    """Append what each stage of one step took; when the device is free again."""
    spent = dict.fromkeys(names, 0.0)
    for name, mark in batch.ends:
        end = log.clock.seconds(mark)
        spent[name] += max(0.0, end - moment)
        moment = max(moment, end)
    for name, seconds in spent.items():
        samples[name].append(seconds)
    return moment


def _less(other: Stage, seconds: float) -> Stage:
    """`other` without the seconds of scoring, which lie between epochs: in the largest samples."""
    samples = list(other.samples_s)
    for index in sorted(range(len(samples)), key=lambda place: -samples[place]):
        taken = min(samples[index], seconds)
        samples[index] -= taken
        seconds -= taken
    return Stage(clock="loop", samples_s=tuple(samples))


def _worker_stages(stamps: Sequence[WorkerStamp]) -> dict[str, Stage]:
    """Seconds of each stage in the workers, a sample a batch; `transform` is the sum of its named members."""
    names = dict.fromkeys(name for stamp in stamps for name in stamp.sums)
    rows = {name: [stamp.sums.get(name, 0.0) for stamp in stamps] for name in names}
    members = [values for name, values in rows.items() if name.partition(".")[0] == "transform"]
    if members:
        rows["transform"] = [sum(values) for values in zip(*members, strict=True)]
    order = {name: place for place, name in enumerate(WORKER_STAGES)}
    ordered = sorted(rows, key=lambda name: (order.get(name.partition(".")[0], len(order)), name.count(".")))
    return {name: Stage(clock="worker", samples_s=tuple(rows[name])) for name in ordered}


def _worker_log(log: LoopLog) -> WorkerLog:
    stamps = log.stamps
    delays = [seconds for stamp in stamps if (seconds := getattr(stamp, "delay_s", None)) is not None]
    return WorkerLog(
        worker=tuple(stamp.worker for stamp in stamps),
        began_s=tuple(stamp.began - log.began_s for stamp in stamps),
        ended_s=tuple(stamp.ended - log.began_s for stamp in stamps),
        cpu_s=tuple(stamp.cpu_s for stamp in stamps),
        item_s=tuple(round(seconds, 7) for stamp in stamps for seconds in stamp.item_s),
        batch_bytes=tuple(log.bytes),
        delay_s=tuple(delays) if len(delays) == len(stamps) else (),
        output_bytes=_output_bytes(stamps),
    )


def _output_bytes(stamps: Sequence[WorkerStamp]) -> dict[str, float]:
    """The mean bytes of what each stage returned for an item, as far as stamps say."""
    sums: dict[str, tuple[int, int]] = {}
    for stamp in stamps:
        for name, (count, whole) in getattr(stamp, "outputs", {}).items():
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + count, before[1] + whole)
    return {name: whole / count for name, (count, whole) in sums.items() if whole}


def _crowded(setting: Setting, machine: Machine | None, log: WorkerLog) -> list[str]:
    """A note on more workers than CPUs, unless they read or sleep much of their time: then they need no CPU."""
    if machine is None or not setting.num_workers > max(1.0, machine.cpu.usable):
        return []
    cpus, wanted = machine.cpu.usable, setting.num_workers * (1 - log.waiting_share)
    if log.delay_s and wanted <= cpus:
        return []
    return [
        f"{format_workers(setting.num_workers)} on {cpus:g} usable CPUs: "
        "they take turns, and more of them will not load faster"
    ]
