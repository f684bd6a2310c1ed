"""What would make a run faster, by predicted gain: settings to change, code to change, and what-ifs."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from stoker.analysis.interference import thread_change
from stoker.analysis.objective import own_items
from stoker.analysis.spans import steady, step_cores
from stoker.errors import InputError
from stoker.forecast.constraints import WORKER_COUNTS, bounds_of, ruled_out, workers_that_pay
from stoker.forecast.predictor import Predictor
from stoker.forecast.probes import batch_size_of, facts_of, run_of, start_method_of
from stoker.forecast.samples import item_bytes_of, mean_wait_s, warm_batches
from stoker.measure.malloc import ENVIRONMENT
from stoker.records import Probes, Record, Remedy, RemedyKind, Run, Setting, Trial
from stoker.tuning.caching import Prefix, deterministic_prefix
from stoker.tuning.space import RULES as SPACE
from stoker.units import format_bytes


class RemedyRules(Record, frozen=True):
    """Which changes are predicted."""

    worker_counts: tuple[int, ...] = tuple(count for count in WORKER_COUNTS if count & (count - 1) == 0)
    """The powers of two among the worker counts: remedies name a direction, `tune` looks for the best count."""
    prefetches: tuple[int, ...] = (2, 4, 8)
    batch_times: tuple[float, ...] = (0.25, 0.5, 2)
    """A quarter, half and twice the batch size, where they lie between sizes that were measured."""
    costly_share: float = 0.1
    """A stage of loading with a smaller share of the time is not worth making faster."""


RULES = RemedyRules()
_SHARED_OUT = "once the stream shares its items out by torch.utils.data.get_worker_info()"


class Change(NamedTuple):
    """A change in words, the seconds that a run is predicted to take with it, and what it changes."""

    text: str
    after_s: float
    changes: dict[str, int | float | bool | str]
    kind: RemedyKind


def remedies(
    predictor: Predictor,
    setting: Setting,
    items: int,
    *,
    epochs: int = 1,
    chosen: bool = False,
    measured_s: float | None = None,
) -> list[Remedy]:
    """Concrete changes that are predicted to save time, the best first; what-ifs come after all others.

    If the setting was `chosen` by runs, other batch sizes and workers are left out. `measured_s` is what the run took:
    it is the time before each change, and the prediction only says how it changes.
    """
    now = predictor.predict(setting, items, epochs=epochs)
    before_s = now.total_s if measured_s is None else measured_s
    changes = [*_settings(predictor, setting, items, epochs, chosen=chosen), *_code(predictor, setting, items, epochs)]
    found = [
        Remedy(change=each.text, before_s=before_s, after_s=after_s, changes=each.changes, kind=each.kind)
        for each in (*changes, *_what_ifs(predictor, setting, items, epochs))
        if (after_s := _after_s(before_s, now.total_s, each.after_s)) < before_s * (1 - SPACE.worth)
    ]
    return sorted(found, key=lambda remedy: (remedy.kind == "what_if", remedy.after_s))


def _after_s(before_s: float, now_s: float, after_s: float) -> float:
    """The measured time less what the prediction saves: the same share of it or the same seconds, whichever is less. A
    run that took longer than predicted had something in it that the change may leave as it is."""
    return max(before_s * after_s / now_s, before_s - (now_s - after_s))


# ---------------------------------------------------------------- settings


def _settings(predictor: Predictor, setting: Setting, items: int, epochs: int, *, chosen: bool) -> Iterator[Change]:
    """Changes of fields of the setting."""

    def seconds(**changes: int | str | bool) -> float:
        return predictor.predict(msgspec.structs.replace(setting, **changes), items, epochs=epochs).total_s

    if not chosen:
        yield from _workers(predictor, setting, items, epochs)
        yield from _batch_sizes(predictor, setting, items, epochs)
        if setting.num_workers:
            after, ahead = min((seconds(prefetch_factor=ahead), ahead) for ahead in RULES.prefetches)
            if ahead != setting.prefetch_factor:
                text = f"prefetch_factor {setting.prefetch_factor} → {ahead}"
                yield Change(text, after, {"prefetch_factor": ahead}, "setting")
    if setting.num_workers > 1 and setting.in_order:
        text = "in_order=False, if any order of batches will do"
        yield Change(text, seconds(in_order=False), {"in_order": False}, "setting")
    if epochs > 1 and setting.num_workers and not setting.persistent_workers:
        after_s = seconds(persistent_workers=True)
        yield Change("persistent_workers=True", after_s, {"persistent_workers": True}, "setting")
    pinned = {run.pinned for run in predictor.probes.of("load") if run.num_workers}
    if predictor.probes.subject.device.startswith("cuda") and len(pinned) > 1:
        other = not setting.pin_memory
        yield Change(f"pin_memory={other}", seconds(pin_memory=other), {"pin_memory": other}, "setting")
    if setting.num_workers:
        yield from _worker_kinds(predictor, setting, items, epochs)


def _worker_kinds(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """Workers that are started in another way or have more threads, where such workers were probed."""
    now = setting.multiprocessing_context or predictor.start_method
    for method in dict.fromkeys((*filter(None, [predictor.start_method]), *predictor.starts)):
        if method != now:
            other = msgspec.structs.replace(setting, multiprocessing_context=method)
            after_s = predictor.predict(other, items, epochs=epochs).total_s
            text = f'multiprocessing_context="{method}" in place of {now}'
            yield Change(text, after_s, {"multiprocessing_context": method}, "setting")
    own = predictor.probes.setting.worker_threads or 1
    for threads in {own, *predictor.thread_shares} - {setting.worker_threads or 1}:
        other = msgspec.structs.replace(setting, worker_threads=threads)
        after_s = predictor.predict(other, items, epochs=epochs).total_s
        text = f"threads in each worker {setting.worker_threads or 1} → {threads} (torch.set_num_threads)"
        yield Change(text, after_s, {"worker_threads": threads}, "setting")


def _workers(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """The number of workers with the best prediction: as many as keep the CPUs busy, which are more than there are CPUs
    if items wait for storage or a network."""
    probes, costs = predictor.probes, predictor.costs
    bounds = msgspec.structs.replace(
        bounds_of(probes.machine, waiting_share=costs.waiting_share, shards=probes.subject.shards),
        usable_cores=max(1.0, costs.cores),
    )
    item_bytes = item_bytes_of(probes)
    timed: list[tuple[float, int]] = []
    for count in sorted({*RULES.worker_counts, max(1, int(costs.cores)), workers_that_pay(bounds)}):
        other = msgspec.structs.replace(setting, num_workers=count)
        if count != setting.num_workers and ruled_out(other, item_bytes, bounds) is None:
            timed.append((predictor.predict(other, items, epochs=epochs).total_s, count))
    if not timed:
        return
    least_s = min(timed)[0]
    # The fewest workers that are about as quick: each one more takes memory.
    found = [next(each for each in timed if each[0] <= least_s * (1 + SPACE.worth))]
    if probes.subject.repeats and found[0][1] > 1:
        found += [each for each in timed if each[1] == 1]
    started = any(run.num_workers for run in probes.runs)
    for after_s, count in found:
        uncounted = "" if started or not count else " (what starting them takes was not measured)"
        text, changes = f"workers {setting.num_workers} → {count}{uncounted}", {"num_workers": count}
        if probes.subject.repeats and count > 1:  # as it is, each of them would give all items
            yield Change(f"{text}, {_SHARED_OUT}", after_s, {**changes}, "code")
        else:
            yield Change(text, after_s, {**changes}, "setting")


def _batch_sizes(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """The batch size with the best prediction, among and between sizes whose steps were measured. From a single size
    nothing is known about others: a step may cost the same at half of it."""
    probes = predictor.probes
    measured = {run.batch_size for run in probes.of("step")}
    if probes.subject.batch_sampler or len(measured) < 2 or not all(map(_has_its_size, probes.of("step"))):
        return
    sizes = measured | {int(setting.batch_size * times) for times in RULES.batch_times}
    sizes = {size for size in sizes if min(measured) <= size <= max(measured)} - {setting.batch_size}

    def seconds(size: int) -> float:
        other = msgspec.structs.replace(setting, batch_size=size)
        return predictor.predict(other, items, epochs=epochs).total_s

    after_s, size = min((seconds(size), size) for size in sizes)
    trains = probes.subject.mode == "train"
    updates = f" ({-(-items // size):,} updates an epoch in place of {-(-items // setting.batch_size):,})"
    text = f"batch {setting.batch_size} → {size}{updates if trains else ''}"
    yield Change(text, after_s, {"batch_size": size}, "setting")


def _has_its_size(run: Run) -> bool:
    """Whether batches have about the size that was asked for: a function that makes batch samplers may pass over it."""
    return run.batch_size / 2 <= fmean(run.items) <= run.batch_size


# ---------------------------------------------------------------- code and what-ifs


def _code(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """Changes of a process, and of what an item costs."""

    def seconds(share: float) -> float:
        return predictor.changed({}, item=share).predict(setting, items, epochs=epochs).total_s

    probes = predictor.probes
    prefix = deterministic_prefix(predictor.costs.shares, _output_bytes(probes))
    if prefix is not None and prefix.share > RULES.costly_share:
        share = _cached_share(predictor, setting.batch_size, prefix)
        yield Change(_caching_in_words(prefix, probes.subject.items), seconds(share), {}, "code")
    malloc = _malloc_share(probes)
    if malloc is not None and setting.num_workers:
        yield Change(f"let malloc keep memory ({ENVIRONMENT} before python)", seconds(malloc), {}, "code")
    thread = _one_thread_share(probes)
    if thread is not None and not setting.num_workers and setting.threads != 1:
        text = "load with one thread (torch.set_num_threads(1))"
        after_s = predictor.changed({}, inline=thread).predict(setting, items, epochs=epochs).total_s
        yield Change(text, after_s, {"threads": 1}, "setting")


def _what_ifs(predictor: Predictor, setting: Setting, items: int, epochs: int) -> Iterator[Change]:
    """What a faster stage or device would bring."""

    def seconds(stage: str) -> float:
        return predictor.changed({stage: 2.0}).predict(setting, items, epochs=epochs).total_s

    for stage in ("read", "decode", "transform", "item"):
        if predictor.costs.shares.get(stage, 0) > RULES.costly_share:
            words = "the dataset's own code" if stage == "item" else stage
            yield Change(f"{words} twice as fast", seconds(stage), {}, "what_if")
    collate_s = predictor.costs.collate_s.at(setting.batch_size)
    loading_s = predictor.costs.worker_item_s.at(setting.batch_size) * setting.batch_size
    if collate_s > RULES.costly_share * (collate_s + loading_s):
        yield Change("collating twice as fast", seconds("collate"), {}, "what_if")
    yield Change("a device twice as fast", seconds("step"), {}, "what_if")


def _caching_in_words(prefix: Prefix, items: int | None) -> str:
    what = "decoded images" if prefix.last is None else f"items as {prefix.last} returns them"
    stops = f", before {prefix.stops_at}" if prefix.stops_at else ""
    size = f"{format_bytes(prefix.item_bytes)} an item"
    if items is not None:
        size = f"{format_bytes(items * prefix.item_bytes)} for all {items:,} items"
    return f"cache {what}{stops} ({size})"


def _output_bytes(probes: Probes) -> dict[str, float]:
    """The mean bytes of what each stage returned for an item, over the loading runs that know."""
    found: dict[str, list[float]] = {}
    for run in probes.of("load"):
        for name, size_bytes in run.output_bytes.items():
            found.setdefault(name, []).append(size_bytes)
    return {name: fmean(values) for name, values in found.items()}


def _cached_share(predictor: Predictor, batch_size: int, prefix: Prefix) -> float:
    """The share of an item's time that is left if the prefix is cached: all the rest, and one copy of the cached bytes.
    Collating is such a copy, and was measured."""
    costs = predictor.costs
    copies = prefix.item_bytes / max(item_bytes_of(predictor.probes), 1.0)
    copying_s = costs.collate_s.at(batch_size) / batch_size * copies
    return min(1.0, 1 - prefix.share + copying_s / max(costs.worker_item_s.at(batch_size), 1e-12))


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


# ---------------------------------------------------------------- from profiled runs


def advise(trial: Trial, *others: Trial) -> list[Remedy]:
    """What would help, predicted from one profiled run alone. This is rougher than with probes.

    `others` are runs of the same workload at other settings: with another batch size among them, batch sizes are
    advised too; with fewer threads among them, and if threads of the run had to wait for CPUs, threads are. The list is
    empty for a run that did not finish, or that loaded nothing.
    """
    if not _says_enough(trial) or trial.machine is None:
        return []
    found: list[Remedy] = []
    with suppress(InputError):
        predictor, now = predictor_of(trial, *others)
        epochs = len(trial.timeline.batches)
        items = max(1, own_items(trial) // epochs)
        found = remedies(predictor, now, items, epochs=epochs, measured_s=trial.total_s)
    return sorted([*_fewer_threads(trial, others), *found], key=lambda each: (each.kind == "what_if", each.after_s))


def predictor_of(trial: Trial, *others: Trial, loads: Sequence[Trial] = ()) -> tuple[Predictor, Setting]:
    """A predictor from the samples of finished runs, and the setting of the first. `loads` are runs whose steps did
    nothing. Raises InputError for a trial that says too little: without a machine, or with no loading seen."""
    if not _says_enough(trial) or trial.machine is None:
        raise InputError("nothing can be predicted from a run that did not load anything")
    alike = [each for each in filter(_says_enough, others) if _threads_of(each) == _threads_of(trial)]
    runs = [run for each in (trial, *alike) for run in (run_of(each, "load"), run_of(each, "step"))]
    for each in filter(_says_enough, trial.started):
        sleeps = each.task is not None and each.task.options.get("sleep_s")
        runs.append(run_of(each, "slow" if sleeps else "load"))
    runs += [run_of(each, "load") for each in filter(_says_enough, loads)]
    # Its steps include accumulation already, and a batch sampler may have made batches of another size.
    method = start_method_of(trial)
    now = msgspec.structs.replace(trial.setting, accumulate=1, batch_size=batch_size_of(trial), ranks=1)
    base = msgspec.structs.replace(now, multiprocessing_context=method) if method else now
    probes = Probes(subject=trial.workload, machine=facts_of(trial.machine), setting=base, runs=tuple(runs))
    predictor = Predictor(probes, cores=_cores(trial))
    cores = step_cores(trial)
    return (predictor if cores is None else predictor.with_step_cores(cores)), now


def _cores(trial: Trial) -> float | None:
    """The CPUs of one rank, where several share the machine; None for all of them."""
    of_script = trial.task.options.get("local_world_size") if trial.task is not None else None
    ranks = trial.setting.processes if trial.rank_logs else of_script
    if trial.machine is None or not isinstance(ranks, int) or ranks < 2:
        return None
    return max(1.0, trial.machine.cpu.usable / ranks)


def _fewer_threads(trial: Trial, others: Sequence[Trial]) -> Iterator[Remedy]:
    """One thread in place of several that wait for CPUs, by a run that had one: nothing but a run says what it brings.
    What happens before the loop is steady takes as long as before."""
    changes, now = thread_change(trial), steady(trial)
    for other in filter(_says_enough, others):
        then = steady(other)
        same = other.setting == msgspec.structs.replace(trial.setting, **changes)
        if not changes or not same or now is None or then is None:
            continue
        after_s = trial.total_s - now.seconds * (1 - now.items_per_s / then.items_per_s)
        if after_s < trial.total_s * (1 - SPACE.worth):
            where, before = ("the loop's process", trial.threads)
            if "worker_threads" in changes:
                where, before = ("each worker", trial.setting.worker_threads)
            text = f"threads in {where} {before} → 1 (torch.set_num_threads(1))"
            yield Remedy(change=text, before_s=trial.total_s, after_s=after_s, changes=dict(changes), kind="setting")
            return


def _threads_of(trial: Trial) -> tuple[int | None, int | None]:
    return trial.setting.threads, trial.setting.worker_threads


def _says_enough(trial: Trial) -> bool:
    return trial.outcome == "done" and bool(trial.workers.began_s) and trial.items > 0


def settings_among(found: Sequence[Remedy]) -> list[Remedy]:
    """The remedies that a run can verify."""
    return [remedy for remedy in found if remedy.kind == "setting"]
