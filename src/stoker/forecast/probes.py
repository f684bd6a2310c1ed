"""What was measured of a workload and a machine so that any setting can be predicted: raw samples, and nothing derived.

A probe is a short run of the real loop. `costs.py` turns probes into costs, `loader.py` costs into predictions.
"""

from collections.abc import Iterable

import msgspec

from stoker.errors import InputError
from stoker.records import Facts, Kind, Machine, Probes, Run, Trial, decode
from stoker.records.probes import PROBES_VERSION

_ITEM_STAGES = ("read", "decode", "transform", "item")


def facts_of(machine: Machine) -> Facts:
    """What of a machine bounds a loader."""
    host = machine.host
    return Facts(
        usable_cores=machine.cpu.usable,
        memory_bytes=host.limit_bytes,
        available_bytes=host.available_bytes,
        shm_free_bytes=host.shm_free_bytes,
        open_files=host.open_files_soft,
        gpu_memory_bytes=machine.gpus[0].memory_total_bytes if machine.gpus else None,
    )


def read(data: bytes) -> Probes:
    """Probes from a file's bytes, checked."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
    except msgspec.MsgspecError:
        version = PROBES_VERSION  # what is wrong with it is said below
    if version != PROBES_VERSION:
        raise InputError(f"these probes have version {version}, this Stoker reads {PROBES_VERSION}: probe again")
    probes = decode(data, Probes)
    if not probes.machine.usable_cores > 0 or not all(map(_holds_together, probes.runs)):
        raise InputError("these probes do not hold together, as if a part were missing: probe again")
    return probes


class _Versioned(msgspec.Struct):
    version: int = PROBES_VERSION


def _holds_together(run: Run) -> bool:
    """Whether every list has a value for each batch, or none at all."""
    count = len(run.items)
    always = (run.asked_s, run.got_s, run.done_s, run.bytes)
    maybe = (run.worker, run.began_s, run.ended_s, run.cpu_s, run.collate_s)
    return (
        count > 0
        and min(run.batch_size, *run.items) > 0
        and all(len(values) == count for values in always)
        and len({len(values) for values in maybe}) == 1
        and len(run.began_s) in (0, count)
    )


def run_of(trial: Trial, kind: Kind) -> Run:
    """What a finished trial tells a prediction."""
    line, log, setting = trial.timeline, trial.workers, trial.setting
    compute = [name for name, stage in trial.stages.items() if stage.clock == "loop" and name not in _NOT_DEVICE]
    rows = [trial.stages[name].samples_s for name in compute]
    return Run(
        kind=kind,
        batch_size=setting.batch_size,
        num_workers=setting.num_workers,
        prefetch_factor=setting.prefetch_factor,
        pinned=bool(setting.pin_memory),
        total_s=_short(trial.total_s),
        start_s=_short(trial.start_s),
        asked_s=_all_short(line.asked_s),
        got_s=_all_short(line.got_s),
        done_s=_all_short(line.done_s),
        items=line.items,
        bytes=log.batch_bytes,
        worker=log.worker,
        began_s=_all_short(log.began_s),
        ended_s=_all_short(log.ended_s),
        cpu_s=_all_short(log.cpu_s),
        collate_s=_samples(trial, "collate", len(log.began_s)),
        send_s=_samples(trial, "send", 0),
        pin_s=_samples(trial, "pin", 0),
        device_s=_all_short(sum(values) for values in zip(*rows, strict=True)),
        copy_s=_samples(trial, "copy", 0),
        update_s=_samples(trial, "update", 0),
        item_s=_all_short(log.item_s),
        stages_s=_item_stages(trial),
    )


_NOT_DEVICE = ("start", "wait", "stop", "score", "other")


def _samples(trial: Trial, stage: str, count: int) -> tuple[float, ...]:
    return _all_short(trial.stages[stage].samples_s) if stage in trial.stages else (0.0,) * count


def _item_stages(trial: Trial) -> dict[str, float]:
    """Seconds of every named part of loading items, and of collating."""
    kept = (*_ITEM_STAGES, "collate")
    stages = trial.stages.items()
    return {name: _short(stage.total_s) for name, stage in stages if name.partition(".")[0] in kept}


def _short(seconds: float) -> float:
    """To a tenth of a microsecond: finer than any clock here, and half the file."""
    return round(seconds, 7)


def _all_short(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(_short, values))
