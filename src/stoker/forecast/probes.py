"""Probes: short runs of the real loop, kept as raw samples so that any setting can be predicted from them.

`fit.py` turns probes into costs, `simulate.py` turns costs into predictions.
"""

from collections.abc import Iterable

import msgspec

from stoker.analysis.spans import PER_EPOCH
from stoker.errors import InputError
from stoker.records import Facts, Kind, Machine, Probes, Run, Trial, decode
from stoker.records.probes import PROBES_VERSION

_LOADING = ("read", "decode", "transform", "item", "collate")
"""Stages of loading items. Their named parts have names like `transform.Resize`."""
_NOT_DEVICE = (*PER_EPOCH, "wait", "other")
"""Stages of the loop that are not a step's."""


def facts_of(machine: Machine) -> Facts:
    """What bounds a loader on this machine."""
    host = machine.host
    return Facts(
        usable_cores=machine.cpu.usable,
        available_bytes=host.available_bytes,
        shm_free_bytes=host.shm_free_bytes,
        open_files=host.open_files_soft,
    )


def read(data: bytes) -> Probes:
    """Probes from the bytes of a file. Raises InputError if they are of another version or incomplete."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
    except msgspec.MsgspecError:
        version = PROBES_VERSION  # decoding the whole says what is wrong
    if version != PROBES_VERSION:
        raise InputError(f"these probes have version {version}, this Stoker reads {PROBES_VERSION}: probe again")
    probes = decode(data, Probes)
    if not probes.machine.usable_cores > 0 or not all(map(_is_complete, probes.runs)):
        raise InputError("these probes are incomplete: probe again")
    return probes


class _Versioned(msgspec.Struct):
    version: int = PROBES_VERSION


def _is_complete(run: Run) -> bool:
    """Whether every list has a value for each batch; lists of workers may all be empty instead."""
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
    """The samples of a finished trial that predictions use."""
    line, log, setting = trial.timeline, trial.workers, trial.setting
    compute = [name for name, stage in trial.stages.items() if stage.clock == "loop" and name not in _NOT_DEVICE]
    rows = [trial.stages[name].samples_s for name in compute]
    return Run(
        kind=kind,
        batch_size=batch_size_of(trial),
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
        update_s=_samples(trial, "update", 0),
        item_s=_all_short(log.item_s),
        stages_s=_item_stages(trial),
        delay_s=_all_short(log.delay_s),
        output_bytes=log.output_bytes,
        start_method=start_method_of(trial),
        worker_threads=setting.worker_threads,
    )


def batch_size_of(trial: Trial) -> int:
    """The batch size of a trial. If the workload's `batch_sampler` sets it, the mean of its batches."""
    items = trial.timeline.items
    if not (trial.workload.batch_sampler and items):
        return trial.setting.batch_size
    return max(1, round(sum(items) / len(items)))


def start_method_of(trial: Trial) -> str | None:
    """How the trial's workers were started; None if there were none."""
    if not trial.setting.num_workers:
        return None
    return trial.setting.multiprocessing_context or (trial.machine.host.start_method if trial.machine else None)


def _samples(trial: Trial, stage: str, count: int) -> tuple[float, ...]:
    return _all_short(trial.stages[stage].samples_s) if stage in trial.stages else (0.0,) * count


def _item_stages(trial: Trial) -> dict[str, float]:
    """Seconds of each stage of loading, and of its named parts."""
    stages = trial.stages.items()
    return {name: _short(stage.total_s) for name, stage in stages if name.partition(".")[0] in _LOADING}


def _short(seconds: float) -> float:
    """Rounded to 0.1 µs: finer than any clock here, and half the size of the file."""
    return round(seconds, 7)


def _all_short(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(_short, values))
