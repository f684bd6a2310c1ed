"""Why a run takes as long as it does: one bottleneck, and what it costs; and what would help, by predicted gain."""

from collections.abc import Iterator
from statistics import median

import msgspec

from stoker.analysis.spans import steady
from stoker.errors import InputError
from stoker.forecast.batches import waited_for, warm
from stoker.forecast.predictor import Predictor
from stoker.forecast.probes import facts_of, run_of
from stoker.measure.malloc import ENVIRONMENT
from stoker.records import Probes, Remedy, Setting, Trial
from stoker.tuning.candidates import bytes_of_an_item
from stoker.units import format_bytes

# ---------------------------------------------------------------- what would help

_WORTH = 0.03
"""A change that is predicted to save less than this is not worth naming."""


def remedies(
    predictor: Predictor,
    setting: Setting,
    items: int,
    *,
    epochs: int = 1,
    chosen: bool = False,
    waited: float | None = None,
) -> list[Remedy]:
    """Concrete changes that are predicted to save time, the best first; or the one that will not help, said.

    A setting that was `chosen` by runs is not advised against: batch and workers stay out of it. `waited` is the share
    of a run that the device waited, where there was one: it knows better than a prediction.
    """
    now = predictor.predict(setting, items, epochs=epochs)
    changes = list(_changes(predictor, setting, items, epochs))
    if not chosen:
        changes += _settings(predictor, setting, items, epochs)
    found = [
        Remedy(change=change, before_s=now.total_s, after_s=after)
        for change, after in changes
        if after < now.total_s * (1 - _WORTH)
    ]
    found.sort(key=lambda remedy: remedy.after_s)
    waiting = now.wait_share if waited is None else max(waited, now.wait_share)
    if waiting < 0.1:
        share = 1 - waiting
        said = f"more workers will not help, as the device works {share:.0%} of the time"
        found.append(Remedy(change=said, before_s=now.total_s, after_s=now.total_s))
    return found


def _settings(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[tuple[str, float]]:
    """Other workers, another batch."""

    def seconds(**changes: int) -> float:
        return predictor.predict(msgspec.structs.replace(setting, **changes), items, epochs=epochs).total_s

    cores = max(1, int(predictor.costs.cores))
    counts = {count for count in (0, 1, 2, 4, 8, 16, cores) if count <= cores and count != setting.num_workers}
    best = min(((seconds(num_workers=count), count) for count in counts), default=None)
    if best:
        seen = any(run.num_workers for run in predictor.probes.runs)
        uncounted = "" if seen or not best[1] else " (what starting them takes was not measured)"
        yield f"workers {setting.num_workers} → {best[1]}{uncounted}", best[0]
    if setting.num_workers:
        after, ahead = min((seconds(prefetch_factor=ahead), ahead) for ahead in (2, 4, 8))
        if ahead != setting.prefetch_factor:
            yield f"prefetch_factor {setting.prefetch_factor} → {ahead}", after
    sizes = {max(1, setting.batch_size // factor) for factor in (2, 4)} | {setting.batch_size * 2}
    after, size = min((seconds(batch_size=size), size) for size in sizes)
    yield f"batch {setting.batch_size} → {size}", after


def _changes(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[tuple[str, float]]:
    """Each change of anything else in words, with the seconds it would take."""

    def seconds(using: Predictor, **changes: bool) -> float:
        return using.predict(msgspec.structs.replace(setting, **changes), items, epochs=epochs).total_s

    if setting.num_workers > 1 and setting.in_order:
        yield "in_order=False, if any order of batches will do", seconds(predictor, in_order=False)
    if epochs > 1 and setting.num_workers and not setting.persistent_workers:
        yield "persistent_workers=True", seconds(predictor, persistent_workers=True)
    costly = [name for name in ("decode", "transform") if predictor.costs.shares.get(name, 0) > 0.1]
    for name in costly:
        yield f"{name} twice as fast", seconds(predictor.changed({name: 2.0}))
    if "decode" in costly:
        stored = items * bytes_of_an_item(predictor.probes)
        decoded = predictor.changed({}, item=_read_only(predictor, setting.batch_size))
        yield f"keep decoded tensors ({format_bytes(stored)} of disk)", seconds(decoded)
    kept = _kept(predictor.probes)
    if kept is not None and setting.num_workers:
        yield f"let malloc keep memory ({ENVIRONMENT} before python)", seconds(predictor.changed({}, item=kept))
    single = _single(predictor.probes)
    if single is not None and not setting.num_workers:
        yield "load with one thread (torch.set_num_threads(1))", seconds(predictor.changed({}, item=single))
    yield "a device twice as fast", seconds(predictor.changed({"step": 2.0}))


def _kept(probes: Probes) -> float | None:
    """What is left of a worker's time for an item if malloc keeps what is freed, as probed; None where it was not."""
    for run in probes.of("kept"):
        for usual in probes.of("load"):
            if (usual.batch_size, usual.num_workers) == (run.batch_size, run.num_workers):
                pairs = list(zip(run.load_s, usual.load_s, strict=False))[1:]
                return median(new / max(old, 1e-12) for new, old in pairs) if pairs else None
    return None


def _single(probes: Probes) -> float | None:
    """What is left of a batch's time without workers if the loop's process has one thread: it collates alone then, and
    waits for no other to wake. None where that was not probed."""
    for run in probes.of("single"):
        usual = [other for other in probes.of("load") if (other.batch_size, other.num_workers) == (run.batch_size, 0)]
        if usual and warm(run) and warm(usual[0]):
            return waited_for(run) / max(waited_for(usual[0]), 1e-12)
    return None


def _read_only(predictor: Predictor, batch_size: int) -> float:
    """The share of an item's time that reading it as a stored tensor takes: reading as now, and one copy of its bytes.

    Collating is such a copy, and was measured.
    """
    costs = predictor.costs
    copying = costs.collate_s.at(batch_size) / batch_size / max(costs.worker_item_s.at(batch_size), 1e-12)
    return min(1.0, costs.shares.get("read", 0.0) + copying)


def waited(trial: Trial) -> float | None:
    """The share of a finished run, once steady, in which the device waited for data."""
    span = steady(trial) if trial.outcome == "done" else None
    return span.share("wait") if span else None


def advise(trial: Trial) -> list[Remedy]:
    """What would help, predicted from one profiled run alone: rougher than with probes."""
    if trial.outcome != "done" or trial.machine is None or not trial.workers.began_s or not trial.items:
        return []
    runs = (run_of(trial, "load"), run_of(trial, "step"))
    probes = Probes(subject=trial.workload, machine=facts_of(trial.machine), setting=trial.setting, runs=runs)
    try:
        epochs = len(trial.timeline.batches)
        items = max(1, trial.items // epochs)
        setting = msgspec.structs.replace(trial.setting, accumulate=1)  # its steps are as they were seen
        return remedies(Predictor(probes), setting, items, epochs=epochs, waited=waited(trial))
    except InputError:
        return []
