"""Probes a workload: a few short runs of the real loop, over the same items, within a time budget.

Loading is probed without a step behind it, so that the costs of the device and of the loader stay apart. There is one
exception: without workers, a step that sleeps is part of the loading run. The threads of the process then sleep with
it, and have to be woken to collate the next batch.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, pstdev
from typing import Any

import msgspec

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.forecast.predictor import NO_LENGTH
from stoker.forecast.runner import ProbeRunner, unusable, why
from stoker.forecast.samples import RULES as SAMPLES
from stoker.forecast.samples import item_seconds
from stoker.measure.malloc import can_keep_memory
from stoker.measure.session import REPEATED_ITEMS, Script, run_script
from stoker.records import (
    Kind,
    Mode,
    Probes,
    Record,
    Run,
    Setting,
    StartMethod,
    Subject,
    Trial,
    WorkloadSpec,
)
from stoker.units import format_workers
from stoker.workload.workload import Workload


class ProbeRules(Record, frozen=True):
    """How long each probe is, and which probes are worth their time."""

    budget_s: float = 30.0
    """The default budget."""
    run_s: float = 0.4
    """A run of quick batches has enough of them for this long: a mean over a few milliseconds is noise."""
    most_batches: int = 48
    """But never more batches than this."""
    first_look_size: int = 8
    """The largest batch of the first look, which should be quick."""
    warm_up_share: float = 0.15
    """The share of the budget to bring the probed items into the page cache."""
    long_share: float = 0.12
    """A run that would take more than this share of the budget is made smaller, or uses a few items again and again."""
    sampling_error: float = 0.04
    """The relative standard error of the mean item from which on more items are probed."""
    step_batches: int = 12
    """Steps at the smallest size."""
    larger_step_batches: int = 6
    """Steps at larger sizes, which take longer."""
    crowded_steps: int = 16
    """Steps beside a worker. It has loaded the first two batches ahead, and loads nothing beside the last two."""
    least_crowded_steps: int = 6
    """Fewer steps beside a worker say nothing."""
    further_batches: int = 3
    """Batches of a size beyond the usual ones."""
    quick_s: float = 1e-4
    """An item that takes less than this was not read from a file."""
    cold_times: float = 2.0
    """If the first items took more than this many times as long as when read again, the plan says that predictions are
    for the page cache."""


RULES = ProbeRules()


def probe(
    source: Workload | WorkloadSpec | str,
    *,
    setting: Setting | None = None,
    batch_sizes: Sequence[int] = (8, 32, 128),
    mode: Mode | None = None,
    device: str = "auto",
    start_methods: Sequence[StartMethod] = (),
    worker_threads: Sequence[int] = (),
    budget_s: float = RULES.budget_s,
    on_event: OnEvent | None = None,
) -> Probes:
    """Probe a workload on this machine.

    `batch_sizes` are the smallest, a middle and the largest size to predict. Workers are also started by each of
    `start_methods`, and run with each number of `worker_threads`: what is probed can be predicted. Raises InputError
    for a budget or sizes that make no sense, and for a workload whose short runs fail.
    """
    made = prober(
        setting or Setting(),
        batch_sizes,
        budget_s=budget_s,
        start_methods=start_methods,
        worker_threads=worker_threads,
        on_event=on_event,
    )
    return run_script(
        source,
        made.script(),
        kind="probe",
        mode=mode,
        device=device,
        on_event=on_event,
    )


WorthOfProbing = Callable[[Subject, float], float]
"""The seconds that probing is worth, from the workload and the seconds that an item takes without workers."""


def prober(
    setting: Setting,
    batch_sizes: Sequence[int],
    *,
    budget_s: float,
    host_memory_bytes: int | None = None,
    needs_length: bool = False,
    sizes_for: Callable[[Subject], Sequence[int]] | None = None,
    start_methods: Sequence[StartMethod] = (),
    worker_threads: Sequence[int] = (),
    ends_at_s: float = math.inf,
    worth_s: "WorthOfProbing | None" = None,
    on_event: OnEvent | None = None,
) -> "Prober":
    """A `Prober`, for a session that goes on to other runs.

    If it `needs_length`, a stream of unknown length is refused. `sizes_for` chooses the sizes once the subject is
    known. After the moment `ends_at_s` of `time.perf_counter`, only probes that predictions cannot do without are made.
    `worth_s` may shrink the budget once the first probes have shown how long an item takes. Raises InputError for a
    budget, sizes or other choices that make no sense.
    """
    if not 0 < budget_s < math.inf:
        raise InputError(f"the budget must be above 0 s, got {budget_s:g}")
    if not batch_sizes or min(batch_sizes) < 1:
        raise InputError(f"batch sizes must be at least 1, got {list(batch_sizes) or 'none'}")
    runner = ProbeRunner(setting, budget_s, host_memory_bytes, on_event, ends_at_s)
    kinds: list[dict[str, Any]] = [{"multiprocessing_context": method} for method in dict.fromkeys(start_methods)]
    kinds += [{"worker_threads": count} for count in dict.fromkeys(worker_threads)]
    for changes in kinds:
        msgspec.structs.replace(setting, **changes)  # checks them
    return Prober(
        runner,
        sorted(set(batch_sizes)),
        needs_length=needs_length,
        sizes_for=sizes_for,
        kinds=kinds,
        worth_s=worth_s,
    )


class Prober:
    """Which probes are made, in the order of what they tell. The `ProbeRunner` makes them."""

    def __init__(
        self,
        runner: ProbeRunner,
        sizes: Sequence[int],
        *,
        needs_length: bool,
        sizes_for: Callable[[Subject], Sequence[int]] | None = None,
        kinds: Sequence[dict[str, Any]] = (),
        worth_s: WorthOfProbing | None = None,
    ) -> None:
        self._runner, self._sizes, self._needs_length, self._worth_s = runner, sizes, needs_length, worth_s
        self._sizes_for, self._kinds = sizes_for, kinds
        self._step_s: dict[int, float] = {}
        self._warmed_items = 0

    def script(self) -> Script[Probes]:
        """All probes, as far as the budget reaches. Raises InputError for a workload that cannot be measured."""
        first = yield from self._first_look()
        small, *rest = self._sizes_that_fit()
        middle, large = (rest[0] if rest else small), (rest[-1] if rest else small)
        yield from self._warm_up(first, small, middle, large)
        parts = [self._loading(middle), self._steps(small, middle, large)]
        for part in reversed(parts) if self._runner.step_sleeps else parts:  # a sleep is part of loading then
            yield from part
        if self._worth_s is not None:
            step_s = min((seconds / size for size, seconds in self._step_s.items()), default=0.0)
            self._runner.budget.shrink(self._worth_s(self._runner.subject, self._runner.item_s + step_s))
        yield from self._contention(middle)
        yield from self._worker_kinds(middle)
        yield from self._other_sizes(small, middle, large)
        yield from self._slow_consumers(small, middle, large)
        yield from self._repeat(middle)
        if can_keep_memory():
            yield from self._record("kept", middle, 1, batches=self._worker_batches(middle, 4))
        if self._runner.subject.device != "cpu" and self._runner.cores > 1:
            yield from self._inline(middle, 4, "single")  # a step on the CPU needs all threads
        return self._runner.probes()

    def further(self, size: int, budget_s: float) -> Script[Probes | None]:
        """A size beyond those that were probed: its step and its loading. None if there is no time or no memory."""
        self._runner.budget.extend(budget_s)
        largest = max(self._step_s, default=size)
        step_s = self._step_s.get(largest, budget_s) * size / largest
        batches = RULES.further_batches
        if 2 * batches * (self._runner.item_s * size + step_s) > budget_s or not self._runner.fits(size, 0):
            return None
        if (yield from self._step(size, 2 * batches, larger=True)) is None:
            return None
        yield from self._record("load", size, 1, batches=batches)
        yield from self._inline(size, batches)
        return self._runner.probes()

    def _sizes_that_fit(self) -> list[int]:
        """The sizes, but no batch larger than the data set, or than host memory takes."""
        most = min(self._items or self._sizes[-1], self._sizes[-1])
        while most > 1 and not self._runner.fits(most, 0):
            most //= 2
        return sorted({min(size, most) for size in self._sizes})

    @property
    def _items(self) -> int | None:
        return self._runner.subject.items

    def _record(
        self,
        kind: Kind,
        size: int,
        workers: int,
        *,
        batches: int,
        sleep_s: float | None = 0.0,
        repeats: int | None = None,
        memory: bool = False,
        larger: bool = False,
        changes: dict[str, Any] | None = None,
    ) -> Script[Run | None]:
        """Run a probe and record it. It is left out if the budget is spent and the probes so far are enough."""
        if self._runner.budget.spent and self._is_enough():
            self._runner.log.left_out += 1
            return None
        return (
            yield from self._runner.record(
                kind,
                size,
                workers,
                batches=batches,
                sleep_s=sleep_s,
                repeats=repeats,
                memory=memory,
                larger=larger,
                changes=changes,
            )
        )

    def _is_enough(self) -> bool:
        """Whether the probes so far suffice for predictions: loading without and with a worker, and a step."""
        log = self._runner.log
        loads = {min(run.num_workers, 1) for run in log.of("load")}
        wanted = {0, 1} if self._runner.fits(self._sizes[0], 1) else {0}
        return loads >= wanted and bool(log.of("step"))

    # ------------------------------------------------------------ runs

    def _first_look(self) -> Script[Trial]:
        trial = yield from self._runner.first_look(min(self._sizes[0], RULES.first_look_size))
        if self._items is None and self._needs_length:
            raise InputError(NO_LENGTH)
        if self._sizes_for is not None:
            self._sizes = sorted(set(self._sizes_for(trial.workload)))
        if trial.workload.batch_sampler:
            self._sizes = [max(1, round(trial.items / len(trial.timeline.items)))]
            self._runner.log.notes.append(
                "the dataset gives whole batches: only the workers can be chosen"
                if trial.workload.batching == "dataset"
                else "the workload's batch_sampler sets its batches: only the workers can be chosen"
            )
        return trial

    def _warm_up(self, first: Trial, small: int, middle: int, large: int) -> Script[None]:
        """Bring the probed items into the page cache, so that all probes find them there.

        How many items are probed depends on how quick a cached item is, so a second pass may have to follow.
        """
        runner = self._runner
        cores = runner.most_workers(middle, runner.cores)
        batches = max(4, -(-large // middle), 3 * cores)
        trial = yield runner.job(middle, cores, batches=batches)
        if trial.outcome == "timed_out" and cores:  # each further run with workers would take as long
            raise unusable(trial, f"loading with {format_workers(cores)} makes no progress")
        if trial.outcome != "done" and cores:
            runner.log.notes.append(f"{format_workers(cores)} with batches of {middle} did not finish: {why(trial)}")
            cores = 0
            trial = yield runner.job(middle, cores, batches=batches)
        if trial.outcome != "done":
            raise unusable(trial)
        again = yield runner.job(min(self._sizes[0], RULES.first_look_size), 0, batches=4)
        if again.outcome == "done":
            runner.update_item_s(again)
        self._warmed_items = batches * middle
        sizes = (small, middle, large)
        wanted = max(size * self._batches(size, 1, most=RULES.most_batches * size) for size in sizes)
        item_s = trial.total_s / max(1, trial.items)
        affordable = int(RULES.warm_up_share * runner.budget.seconds / max(item_s, 1e-9))
        more = min(wanted, self._items or wanted, self._warmed_items + affordable)
        if more > self._warmed_items:
            trial = yield runner.job(middle, cores, batches=-(-more // middle))
            self._warmed_items = sum(trial.timeline.items) if trial.outcome == "done" else self._warmed_items
        times = _times_as_long(first, again)
        if times > RULES.cold_times and runner.item_s > RULES.quick_s:
            runner.log.notes.append(
                f"the first items took {times:.1f} times as long as when read again: "
                "predictions are for files in the page cache"
            )

    def _loading(self, middle: int) -> Script[None]:
        """Loading without workers and with one, over the same items."""
        yield from self._inline(middle, 4)
        yield from self._record("load", middle, 1, batches=self._worker_batches(middle, 4))

    def _inline(self, size: int, least: int, kind: Kind = "load") -> Script[None]:
        """Loading without workers; with the step if that sleeps."""
        step_s = self._step_s.get(size, 0.0) if self._runner.step_sleeps else 0.0
        count = self._batches(size, least, self._runner.item_s * size + step_s)
        if step_s and count * step_s <= RULES.long_share * self._runner.budget.seconds:
            yield from self._record(kind, size, 0, batches=count, sleep_s=None)
        else:
            yield from self._record(kind, size, 0, batches=self._batches(size, least))

    def _other_sizes(self, small: int, middle: int, large: int) -> Script[None]:
        """Loading at two other sizes; the large one first, as it tells more."""
        if large != middle and self._runner.item_s * large * 3 <= RULES.long_share * self._runner.budget.seconds:
            yield from self._record("load", large, 1, batches=self._worker_batches(large, 3))
            yield from self._inline(large, SAMPLES.pinned_at_once + 1)
        elif large != middle:
            yield from self._record("transport", large, 1, batches=4, repeats=REPEATED_ITEMS)
        if small != middle:
            yield from self._inline(small, 8)
            yield from self._record("load", small, 1, batches=self._worker_batches(small, 12))

    def _contention(self, middle: int) -> Script[None]:
        """Loading with all cores busy, and with half of them."""
        cores = self._runner.cores
        for count in dict.fromkeys(count for count in (cores, cores // 2) if count > 1):
            yield from self._record("load", middle, count, batches=self._batches(middle, 3 * count))

    def _worker_kinds(self, middle: int) -> Script[None]:
        """Workers that are started in another way, and workers with more threads: alone, and on all cores."""
        for changes in self._kinds:
            if "multiprocessing_context" in changes:
                if changes["multiprocessing_context"] != self._runner.start_method:
                    batches = self._worker_batches(middle, 4)
                    yield from self._record("started", middle, 1, batches=batches, changes=changes)
                continue
            for count in dict.fromkeys((1, self._runner.cores)):
                batches = self._batches(middle, 3 * count) if count > 1 else self._worker_batches(middle, 4)
                yield from self._record("threaded", middle, count, batches=batches, changes=changes)

    def _repeat(self, middle: int) -> Script[None]:
        """One of the first probes again: is the machine as fast as before? If item times vary too much, repeat over
        more items, read once beforehand so that they are cached."""
        batches = self._worker_batches(middle, 4)
        more = self._items_to_sample() // middle
        if more > batches:
            cores = self._runner.most_workers(middle, self._runner.cores)
            trial = yield self._runner.job(middle, cores, batches=more)
            batches = more if trial.outcome == "done" else batches
        yield from self._record("load", middle, 1, batches=batches)

    def _items_to_sample(self) -> int:
        """How many items have to be probed to know their mean, as far as the budget and the data set allow. 0 if the
        mean is known."""
        loads = [run for run in self._runner.log.of("load") if run.num_workers < 2]
        most = max(loads, key=lambda run: sum(run.items), default=None)
        if most is None or self._runner.budget.spent:
            return 0
        times = item_seconds(most)
        times = times[most.items[0] :] or times  # the first batch is cold
        mean = fmean(times)
        error = pstdev(times) / max(mean, 1e-12) / len(times) ** 0.5
        if error <= RULES.sampling_error:
            return 0
        affordable = int(RULES.long_share * self._runner.budget.seconds / max(mean, 1e-9))
        return min(int(len(times) * (error / RULES.sampling_error) ** 2), affordable, self._items or affordable)

    def _slow_consumers(self, small: int, middle: int, large: int) -> Script[None]:
        """Loading for a loop that lets batches wait."""
        if any(run.pinned for run in self._runner.log.runs):
            return  # a thread of its own receives batches then, independent of the loop
        for size in dict.fromkeys((small, middle)):
            for share in (0.6, 1.2):  # of a batch's loading time: workers are still busy, or idle, when the loop asks
                sleep_s = share * self._batch_s(size)
                yield from self._record("slow", size, 2, batches=self._batches(size, 6, sleep_s), sleep_s=sleep_s)
        if large != middle:  # the time to receive a batch depends on its bytes: its items need not be loaded anew
            sleep_s = 0.6 * self._collate_s(large)
            yield from self._record("slow", large, 2, batches=8, sleep_s=sleep_s, repeats=REPEATED_ITEMS)

    def _batch_s(self, size: int) -> float:
        """A single worker's time for a batch, as measured or else estimated."""
        spans = [
            ended - began
            for run in self._runner.log.of("load")
            if run.num_workers == 1 and run.batch_size == size
            for began, ended in zip(run.began_s[1:], run.ended_s[1:], strict=True)
        ]
        return median(spans) if spans else self._runner.item_s * size

    def _collate_s(self, size: int) -> float:
        """A single worker's time to collate a batch, as measured or else estimated."""
        spans = [
            seconds
            for run in self._runner.log.runs
            if run.num_workers == 1 and run.batch_size == size
            for seconds in run.collate_s
        ]
        return median(spans) if spans else self._runner.item_s * size

    def _batches(self, size: int, least: int, batch_s: float | None = None, *, most: int | None = None) -> int:
        """How many batches a run has: at least `least`, and more if they are quick, of the first `most` items. Without
        `most`, of the items in the page cache."""
        each_s = self._runner.item_s * size if batch_s is None else batch_s
        quick = min(RULES.most_batches, int(RULES.run_s / max(each_s, 1e-4)))
        return max(least, min(quick, (self._warmed_items if most is None else most) // size))

    def _worker_batches(self, size: int, least: int) -> int:
        """The same for a single worker: to send a quick batch takes about as long as to load it."""
        return self._batches(size, least, 2 * self._runner.item_s * size)

    def _steps(self, small: int, middle: int, large: int) -> Script[None]:
        """Steps alone at three sizes. If the step computes on the CPU, also steps beside a worker."""
        on_cpu, each_s = self._runner.step_on_cpu, 0.0
        for size in dict.fromkeys((small, middle, large)):
            most = RULES.step_batches if size == small else RULES.larger_step_batches
            if on_cpu and each_s:  # the scheduler makes some quick steps many times as long: more of them are needed
                most = max(most, min(RULES.most_batches, int(RULES.run_s / max(each_s * size, 1e-4))))
            count = self._affordable(each_s * size, most=most)
            if count < 1:
                self._runner.log.notes.append(f"steps of {size} items were not probed: the budget is too short")
                continue
            yield from self._step(size, max(2, count))
            each_s = self._step_s.get(size, each_s * size) / size
        if on_cpu:
            count = self._affordable(2 * each_s * small, most=RULES.crowded_steps)
            yield from self._record("crowded", small, 1, batches=max(count, RULES.least_crowded_steps))

    def _step(self, size: int, batches: int, *, larger: bool = False) -> Script[Run | None]:
        run = yield from self._record(
            "step", size, 0, batches=batches, repeats=REPEATED_ITEMS, memory=True, larger=larger
        )
        if run is not None:
            hosts = [done - got for got, done in zip(run.got_s, run.done_s, strict=True)]
            self._step_s[size] = max(median(hosts[1:] or hosts), median(run.device_s[1:] or run.device_s))
        return run

    def _affordable(self, step_s: float, *, most: int) -> int:
        return most if step_s <= 0 else min(most, int(RULES.long_share * self._runner.budget.seconds / step_s))


def _times_as_long(first: Trial, again: Trial) -> float:
    """How much longer a batch took than the same items did later. The very first batch also makes memory and caches,
    and is left out."""
    if again.outcome != "done":
        return 1.0
    one, other = (
        [got - asked for asked, got in zip(trial.timeline.asked_s, trial.timeline.got_s, strict=True)]
        for trial in (first, again)
    )
    pairs = list(zip(one, other, strict=False))[1:]
    return median(before / max(after, 1e-9) for before, after in pairs) if pairs else 1.0
