"""What would make a run faster, by predicted gain."""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import msgspec

from stoker.analysis.spans import steady
from stoker.errors import InputError
from stoker.forecast.constraints import WORKER_COUNTS
from stoker.forecast.predictor import Predictor
from stoker.forecast.probes import facts_of, run_of
from stoker.forecast.samples import item_bytes_of, mean_wait_s, warm_batches
from stoker.measure.malloc import ENVIRONMENT
from stoker.records import Probes, Record, Remedy, Setting, Trial
from stoker.tuning.space import RULES as SPACE
from stoker.units import format_bytes


class RemedyRules(Record, frozen=True):
    """Which changes are predicted."""

    worker_counts: tuple[int, ...] = tuple(count for count in WORKER_COUNTS if count <= 16 and count & (count - 1) == 0)
    """The powers of two among the worker counts: remedies name a direction, `tune` looks for the best count."""
    prefetches: tuple[int, ...] = (2, 4, 8)
    batch_times: tuple[float, ...] = (0.25, 0.5, 2)
    """A quarter, half and twice the batch size."""
    costly_share: float = 0.1
    """A stage of loading with a smaller share of the time is not worth making faster."""
    busy_wait: float = 0.1
    """If the device waits for less than this share of the time, more workers will not help."""


RULES = RemedyRules()


class Change(NamedTuple):
    """A change in words, the seconds that a run would take with it, and the fields of the setting that it changes."""

    text: str
    after_s: float
    changes: dict[str, int | float | bool | str]


def remedies(
    predictor: Predictor,
    setting: Setting,
    items: int,
    *,
    epochs: int = 1,
    chosen: bool = False,
    waited: float | None = None,
) -> list[Remedy]:
    """Concrete changes that are predicted to save time, the best first; and whether more workers will not help.

    If the setting was `chosen` by runs, other batch sizes and workers are left out. `waited` is the share of a real run
    in which the device waited: it is more reliable than a prediction.
    """
    now = predictor.predict(setting, items, epochs=epochs)
    changes = list(_changes(predictor, setting, items, epochs))
    if not chosen:
        changes += _other_settings(predictor, setting, items, epochs)
    found = [
        Remedy(change=each.text, before_s=now.total_s, after_s=each.after_s, changes=each.changes)
        for each in changes
        if each.after_s < now.total_s * (1 - SPACE.worth)
    ]
    found.sort(key=lambda remedy: remedy.after_s)
    waiting = now.wait_share if waited is None else max(waited, now.wait_share)
    if waiting < RULES.busy_wait:
        share = 1 - waiting
        text = f"more workers will not help, as the device works {share:.0%} of the time"
        found.append(Remedy(change=text, before_s=now.total_s, after_s=now.total_s))
    return found


def _other_settings(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """Other workers, another prefetch factor, another batch size."""

    def seconds(**changes: int) -> float:
        return predictor.predict(msgspec.structs.replace(setting, **changes), items, epochs=epochs).total_s

    cores = max(1, int(predictor.costs.cores))
    counts = {count for count in (*RULES.worker_counts, cores) if count <= cores and count != setting.num_workers}
    best = min(((seconds(num_workers=count), count) for count in counts), default=None)
    if best:
        after, count = best
        measured = any(run.num_workers for run in predictor.probes.runs)
        uncounted = "" if measured or not count else " (what starting them takes was not measured)"
        yield Change(f"workers {setting.num_workers} → {count}{uncounted}", after, {"num_workers": count})
    if setting.num_workers:
        after, ahead = min((seconds(prefetch_factor=ahead), ahead) for ahead in RULES.prefetches)
        if ahead != setting.prefetch_factor:
            yield Change(f"prefetch_factor {setting.prefetch_factor} → {ahead}", after, {"prefetch_factor": ahead})
    sizes = {max(1, int(setting.batch_size * times)) for times in RULES.batch_times}
    after, size = min((seconds(batch_size=size), size) for size in sizes)
    yield Change(f"batch {setting.batch_size} → {size}", after, {"batch_size": size})


def _changes(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """Changes of anything else."""

    def seconds(using: Predictor, **changes: bool) -> float:
        return using.predict(msgspec.structs.replace(setting, **changes), items, epochs=epochs).total_s

    if setting.num_workers > 1 and setting.in_order:
        after_s = seconds(predictor, in_order=False)
        yield Change("in_order=False, if any order of batches will do", after_s, {"in_order": False})
    if epochs > 1 and setting.num_workers and not setting.persistent_workers:
        after_s = seconds(predictor, persistent_workers=True)
        yield Change("persistent_workers=True", after_s, {"persistent_workers": True})
    costly = [name for name in ("decode", "transform") if predictor.costs.shares.get(name, 0) > RULES.costly_share]
    for name in costly:
        yield Change(f"{name} twice as fast", seconds(predictor.changed({name: 2.0})), {})
    if "decode" in costly:
        stored = items * item_bytes_of(predictor.probes)
        decoded = predictor.changed({}, item=_read_only_share(predictor, setting.batch_size))
        yield Change(f"keep decoded tensors ({format_bytes(stored)} of disk)", seconds(decoded), {})
    malloc = _malloc_share(predictor.probes)
    if malloc is not None and setting.num_workers:
        after_s = seconds(predictor.changed({}, item=malloc))
        yield Change(f"let malloc keep memory ({ENVIRONMENT} before python)", after_s, {})
    thread = _one_thread_share(predictor.probes)
    if thread is not None and not setting.num_workers:
        after_s = seconds(predictor.changed({}, item=thread))
        yield Change("load with one thread (torch.set_num_threads(1))", after_s, {})
    yield Change("a device twice as fast", seconds(predictor.changed({"step": 2.0})), {})


def _malloc_share(probes: Probes) -> float | None:
    """The share of a worker's time for an item that is left if malloc keeps freed memory. None if not probed."""
    for run in probes.of("kept"):
        for usual in probes.of("load"):
            if (usual.batch_size, usual.num_workers) == (run.batch_size, run.num_workers):
                pairs = list(zip(run.load_s, usual.load_s, strict=False))[1:]
                return median(new / max(old, 1e-12) for new, old in pairs) if pairs else None
    return None


def _one_thread_share(probes: Probes) -> float | None:
    """The share of a batch's time without workers that is left if the loop's process has one thread: it collates alone
    then, and waits for no other thread to wake up. None if not probed."""
    for run in probes.of("single"):
        usual = [other for other in probes.of("load") if (other.batch_size, other.num_workers) == (run.batch_size, 0)]
        if usual and warm_batches(run) and warm_batches(usual[0]):
            return mean_wait_s(run) / max(mean_wait_s(usual[0]), 1e-12)
    return None


def _read_only_share(predictor: Predictor, batch_size: int) -> float:
    """The share of an item's time to read it as a stored tensor: reading as now, and one copy of its bytes.

    Collating is such a copy, and was measured.
    """
    costs = predictor.costs
    copying = costs.collate_s.at(batch_size) / batch_size / max(costs.worker_item_s.at(batch_size), 1e-12)
    return min(1.0, costs.shares.get("read", 0.0) + copying)


def waited_share(trial: Trial) -> float | None:
    """The share of a finished run's steady state in which the device waited for data."""
    span = steady(trial) if trial.outcome == "done" else None
    return span.share("wait") if span else None


def advise(trial: Trial) -> list[Remedy]:
    """What would help, predicted from one profiled run alone. This is rougher than with probes.

    The list is empty for a run that did not finish, or that loaded nothing.
    """
    if trial.outcome != "done" or trial.machine is None or not trial.workers.began_s or not trial.items:
        return []
    runs = (run_of(trial, "load"), run_of(trial, "step"))
    probes = Probes(subject=trial.workload, machine=facts_of(trial.machine), setting=trial.setting, runs=runs)
    try:
        epochs = len(trial.timeline.batches)
        items = max(1, trial.items // epochs)
        setting = msgspec.structs.replace(trial.setting, accumulate=1)  # its steps include accumulation already
        return remedies(Predictor(probes), setting, items, epochs=epochs, waited=waited_share(trial))
    except InputError:
        return []
