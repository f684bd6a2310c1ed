"""What a finished loop saw, as a trial."""

from itertools import pairwise

import msgspec
import torch

from stoker.measure.account import account
from stoker.measure.device import Nap
from stoker.measure.loop import Loop
from stoker.measure.spy import wrappers
from stoker.records import WORKER_STAGES, Machine, Setting, Stage, Timeline, Trial, WorkerLog
from stoker.units import format_workers


def measured(
    trial: Trial,
    loop: Loop,
    began: float,
    done: float,
    scores: list[tuple[float, float | None]],
    device: torch.device | Nap,
    machine: Machine,
) -> Trial:
    """The trial with what the loop saw."""
    epochs = loop.settled()
    stages = account(began, epochs, done)
    if scores:
        seconds = tuple(spent for spent, _ in scores)
        stages["score"] = Stage(clock="loop", samples_s=seconds)
        stages["other"] = _less(stages["other"], sum(seconds))
    starts = [epoch.began for epoch in epochs] + [done]
    rows = [row for *_, rows in loop.epochs for row in rows]
    return msgspec.structs.replace(
        trial,
        machine=machine,
        notes=(*trial.notes, *_crowded(trial.setting, machine)),
        items=sum(loop.items),
        total_s=done - began,
        start_s=epochs[0].started - epochs[0].began,
        stages={**stages, **_worker_stages(loop.stamps)},
        timeline=Timeline(
            asked_s=tuple(asked - began for asked, *_ in rows),
            got_s=tuple(got - began for _, got, *_ in rows),
            done_s=tuple(finished - began for _, _, finished, *_ in rows),
            items=tuple(loop.items),
            batches=tuple(len(rows) for *_, rows in loop.epochs),
            epoch_s=tuple(after - before for before, after in pairwise(starts)),
        ),
        workers=_worker_log(loop, began),
        scores=tuple(value for _, value in scores if value is not None),
        peaks=_peaks(device),
    )


def _less(other: Stage, seconds: float) -> Stage:
    """`other` without what was found to be scoring, which lies between epochs: in the largest samples."""
    samples = list(other.samples_s)
    for index in sorted(range(len(samples)), key=lambda place: -samples[place]):
        taken = min(samples[index], seconds)
        samples[index] -= taken
        seconds -= taken
    return Stage(clock="loop", samples_s=tuple(samples))


def _worker_stages(stamps: list[wrappers.Stamp]) -> dict[str, Stage]:
    """Seconds of each stage that the workers saw, a sample a batch; `transform` is the sum of its named members."""
    names = dict.fromkeys(name for stamp in stamps for name in stamp.sums)
    rows = {name: [stamp.sums.get(name, 0.0) for stamp in stamps] for name in names}
    members = [values for name, values in rows.items() if name.partition(".")[0] == "transform"]
    if members:
        rows["transform"] = [sum(values) for values in zip(*members, strict=True)]
    order = {name: place for place, name in enumerate(WORKER_STAGES)}
    ordered = sorted(rows, key=lambda name: (order.get(name.partition(".")[0], len(order)), name.count(".")))
    return {name: Stage(clock="worker", samples_s=tuple(rows[name])) for name in ordered}


def _crowded(setting: Setting, machine: Machine) -> list[str]:
    workers, cpus = setting.num_workers, machine.cpu.usable
    if workers <= max(1.0, cpus):
        return []
    return [
        f"{format_workers(workers)} on {cpus:g} usable CPUs: they take turns, and more of them will not load faster"
    ]


def _worker_log(loop: Loop, began: float) -> WorkerLog:
    stamps = loop.stamps
    return WorkerLog(
        worker=tuple(stamp.worker for stamp in stamps),
        began_s=tuple(stamp.began - began for stamp in stamps),
        ended_s=tuple(stamp.ended - began for stamp in stamps),
        cpu_s=tuple(stamp.cpu_s for stamp in stamps),
        item_s=tuple(round(seconds, 7) for stamp in stamps for seconds in stamp.item_s),
        batch_bytes=tuple(loop.bytes),
    )


def _peaks(device: torch.device | Nap) -> dict[str, int]:
    if isinstance(device, Nap) or device.type != "cuda":
        return {}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }
