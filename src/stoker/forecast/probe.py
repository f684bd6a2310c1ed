"""Measures what a prediction needs: a few short runs of the real loop, over the same items, within a budget.

Loading is probed with no step behind it, so that what the device costs and what the loader costs stay apart; but where
a process without workers sleeps through its step, as then its threads do too, and have to be woken to collate.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, pstdev
from time import perf_counter

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.forecast.batches import PINNED_AT_ONCE
from stoker.forecast.items import per_item
from stoker.forecast.predictor import NO_LENGTH
from stoker.forecast.probe_runs import ProbeRuns, unusable, why
from stoker.forecast.probes import facts_of
from stoker.machine import inspect
from stoker.measure.malloc import can_keep_memory
from stoker.measure.session import REPEATED_ITEMS, Script, run_script
from stoker.records import Kind, Mode, Probes, Setting, Trial, WorkloadSpec
from stoker.units import format_workers
from stoker.workload.workload import Workload

DEFAULT_BUDGET_S = 30.0
_RUN_S, _MOST_BATCHES = 0.4, 48
_WARM_SHARE = 0.15
"""Of the budget, what may be spent on reading the items that the probes go over for the first time."""
_SAMPLING = 0.04
"""What the mean of the items that are probed may be off by, about, before more of them are."""
_CROWDED_STEPS, _LEAST_CROWDED_STEPS = 16, 6
"""How many steps beside a worker: it has loaded the first two batches ahead, and beside the last two loads no more."""
_FURTHER_BATCHES = 3
_QUICK_S = 1e-4
"""An item that takes less than this was not read from a file."""
_LONG_SHARE = 0.12
"""A run that would take more than this share of the budget is made smaller, or done with items kept in memory."""


def probe(
    source: Workload | WorkloadSpec | str,
    *,
    setting: Setting | None = None,
    batch_sizes: Sequence[int] = (8, 32, 128),
    mode: Mode | None = None,
    device: str = "auto",
    budget_s: float = DEFAULT_BUDGET_S,
    on_event: OnEvent | None = None,
) -> Probes:
    """Probe a workload on this machine. `batch_sizes` are the smallest, a middle and the largest size to predict."""
    return run_script(
        source,
        prober(setting or Setting(), batch_sizes, budget_s=budget_s, on_event=on_event).talk(),
        kind="probe",
        mode=mode,
        device=device,
        on_event=on_event,
    )


def prober(
    setting: Setting,
    batch_sizes: Sequence[int],
    *,
    budget_s: float,
    host_memory_bytes: int | None = None,
    needs_length: bool = False,
    on_event: OnEvent | None = None,
) -> "Prober":
    """The same, for a bench that may go on to other things; a set without a length is refused where it
    `needs_length`."""
    if not 0 < budget_s < math.inf:
        raise InputError(f"the budget must be above 0 s, got {budget_s:g}")
    if not batch_sizes or min(batch_sizes) < 1:
        raise InputError(f"batch sizes must be at least 1, got {list(batch_sizes) or 'none'}")
    sizes = sorted(set(batch_sizes))
    return Prober(setting, sizes, budget_s, host_memory_bytes, needs_length, on_event)


class Prober(ProbeRuns):
    """Which runs are made, in the order of what they tell."""

    def talk(self) -> Script[Probes]:
        yield from self._first()
        small, *rest = self._clamped()
        middle, large = (rest[0] if rest else small), (rest[-1] if rest else small)
        yield from self._warm_up(small, middle, large)
        parts = [self._loading(middle), self._steps(small, middle, large)]
        for part in reversed(parts) if self._sleeps else parts:  # loading without workers has the sleep in it then
            yield from part
        yield from self._crowds(middle)
        yield from self._other_sizes(small, middle, large)
        yield from self._slow_consumers(small, middle, large)
        yield from self._again(middle)
        if can_keep_memory():
            yield from self._keep("kept", middle, 1, batches=self._sent(middle, 4))
        if self._subject is not None and self._subject.device != "cpu" and self._cores > 1:
            yield from self._alone(middle, 4, "single")  # a step on the CPU needs them all
        return self._probes()

    def further(self, size: int, budget_s: float) -> Script[Probes | None]:
        """A size beyond those probed: its step and its loading. None where there is no time for that, or no room."""
        self._earlier_s += perf_counter() - self._began
        self._began, self._budget_s = perf_counter(), budget_s
        largest = max(self._step_s, default=size)
        step_s = self._step_s.get(largest, budget_s) * size / largest
        if 2 * _FURTHER_BATCHES * (self._item_s * size + step_s) > budget_s or self._breaks(size, 0):
            return None
        ran_out, before = self._ran_out, len(self._runs)
        yield from self._step(size, 2 * _FURTHER_BATCHES)
        self._ran_out = ran_out  # the sizes below it fit, as was seen
        if len(self._runs) == before:
            return None
        yield from self._keep("load", size, 1, batches=_FURTHER_BATCHES)
        yield from self._alone(size, _FURTHER_BATCHES)
        return self._probes()

    def _clamped(self) -> list[int]:
        """No batch larger than the set, or than host memory takes."""
        most = min(self._items or self._sizes[-1], self._sizes[-1])
        while most > 1 and self._breaks(most, 0):
            most //= 2
        return sorted({min(size, most) for size in self._sizes})

    # ------------------------------------------------------------ runs

    def _first(self) -> Script[None]:
        """A small look: what an item takes, and whether anything runs at all."""
        size = min(self._sizes[0], 8)
        trial = yield self._job(size, 0, batches=2)
        if trial.outcome != "done":
            raise unusable(trial)
        self._began = perf_counter()  # what came before was importing and opening, not probing
        self._subject, self._items = trial.workload, trial.workload.items
        self._facts = facts_of(trial.machine or inspect())
        self._item_s, self._looked = _item_s(trial), trial
        self._item_bytes = max(trial.workers.batch_bytes, default=0) / max(trial.timeline.items)
        if self._items is None and self._needs_length:
            raise InputError(NO_LENGTH)
        if trial.workload.batch_sampler:
            self._sizes = [max(1, round(trial.items / len(trial.timeline.items)))]
            self._notes.append("the workload's batch_sampler sets its batches: only the workers can be chosen")

    def _warm_up(self, small: int, middle: int, large: int) -> Script[None]:
        """Bring the items that the probes go over into the page cache, so that all of them find them there.

        How many those are depends on how quick an item is once it lies there, so a second pass may have to follow.
        """
        cores = self._bearable(middle, self._cores)
        batches = max(4, -(-large // middle), 3 * cores)
        trial = yield self._job(middle, cores, batches=batches)
        if trial.outcome == "timed_out" and cores:  # each further one with workers would take as long
            raise unusable(trial, f"loading with {format_workers(cores)} gets nowhere")
        if trial.outcome != "done" and cores:
            self._notes.append(f"{format_workers(cores)} with batches of {middle} did not finish: {why(trial)}")
            cores = 0
            trial = yield self._job(middle, cores, batches=batches)
        if trial.outcome != "done":
            raise unusable(trial)
        again = yield self._job(min(self._sizes[0], 8), 0, batches=4)
        if again.outcome == "done":
            self._item_s = _item_s(again)
        self._warmed = batches * middle
        wanted = max(size * self._batches(size, 1, most=_MOST_BATCHES * size) for size in (small, middle, large))
        affordable = int(_WARM_SHARE * self._budget_s / max(trial.total_s / max(1, trial.items), 1e-9))
        more = min(wanted, self._items or wanted, self._warmed + affordable)
        if more > self._warmed:
            trial = yield self._job(middle, cores, batches=-(-more // middle))
            self._warmed = sum(trial.timeline.items) if trial.outcome == "done" else self._warmed
        times = _times_as_long(self._looked, again)
        if times > 2 and self._item_s > _QUICK_S:
            self._notes.append(
                f"the first items took {times:.1f} times as long as when read again: "
                "predictions are for files in the page cache"
            )

    def _loading(self, middle: int) -> Script[None]:
        """No worker and one, over the same items: the first batch apart, then warm ones."""
        yield from self._alone(middle, 4)
        yield from self._keep("load", middle, 1, batches=self._sent(middle, 4))

    def _alone(self, size: int, least: int, kind: Kind = "load") -> Script[None]:
        """No worker; with its sleep where the step is one."""
        step_s = self._step_s.get(size, 0.0) if self._sleeps else 0.0
        count = self._batches(size, least, self._item_s * size + step_s)
        if step_s and count * step_s <= _LONG_SHARE * self._budget_s:
            yield from self._keep(kind, size, 0, batches=count, nap_s=None)
        else:
            yield from self._keep(kind, size, 0, batches=self._batches(size, least))

    def _other_sizes(self, small: int, middle: int, large: int) -> Script[None]:
        """The same at two other sizes; the large one first, as it tells more."""
        if large != middle and self._item_s * large * 3 <= _LONG_SHARE * self._budget_s:
            yield from self._keep("load", large, 1, batches=self._sent(large, 3))
            yield from self._alone(large, PINNED_AT_ONCE + 1)
        elif large != middle:
            yield from self._keep("transport", large, 1, batches=4, repeats=REPEATED_ITEMS)
        if small != middle:
            yield from self._alone(small, 8)
            yield from self._keep("load", small, 1, batches=self._sent(small, 12))

    def _crowds(self, middle: int) -> Script[None]:
        """All cores busy, and half of them."""
        cores = self._cores
        for count in dict.fromkeys(count for count in (cores, cores // 2) if count > 1):
            yield from self._keep("load", middle, count, batches=self._batches(middle, 3 * count))

    def _again(self, middle: int) -> Script[None]:
        """One of the first runs again: is the machine as fast as before? Where items differ so much that their mean is
        not known yet, over more of them, which are read for nobody's account before."""
        batches = self._sent(middle, 4)
        more = self._unsampled() // middle
        if more > batches:
            cores = self._bearable(middle, self._cores)
            trial = yield self._job(middle, cores, batches=more)
            batches = more if trial.outcome == "done" else batches
        yield from self._keep("load", middle, 1, batches=batches)

    def _unsampled(self) -> int:
        """How many items would have to be probed for their mean to be known; as many as the budget and the set have."""
        loads = [run for run in self._runs if run.kind == "load" and run.num_workers < 2]
        most = max(loads, key=lambda run: sum(run.items), default=None)
        if most is None or self._spent():
            return 0
        times = per_item(most)
        times = times[most.items[0] :] or times  # the first batch is cold
        mean = fmean(times)
        error = pstdev(times) / max(mean, 1e-12) / len(times) ** 0.5
        if error <= _SAMPLING:
            return 0
        affordable = int(_LONG_SHARE * self._budget_s / max(mean, 1e-9))
        return min(int(len(times) * (error / _SAMPLING) ** 2), affordable, self._items or affordable)

    def _slow_consumers(self, small: int, middle: int, large: int) -> Script[None]:
        """Those that let batches wait."""
        if any(run.pinned for run in self._runs):
            return  # a thread of its own receives batches then, whatever the loop does meanwhile
        for size in dict.fromkeys((small, middle)):
            for share in (0.6, 1.2):  # of a batch's loading: workers still busy when the loop asks, and idle again
                nap_s = share * self._batch_s(size)
                yield from self._keep("slow", size, 2, batches=self._batches(size, 6, nap_s), nap_s=nap_s)
        if large != middle:  # how long a batch takes to be received goes by its bytes: its items need not be loaded
            yield from self._keep(
                "slow", large, 2, batches=8, nap_s=0.6 * self._collate_s(large), repeats=REPEATED_ITEMS
            )

    def _batch_s(self, size: int) -> float:
        """What one worker takes for a batch, as seen."""
        spans = [
            ended - began
            for run in self._runs
            if run.num_workers == 1 and run.batch_size == size and run.kind == "load"
            for began, ended in zip(run.began_s[1:], run.ended_s[1:], strict=True)
        ]
        return median(spans) if spans else self._item_s * size

    def _collate_s(self, size: int) -> float:
        """What collating a batch takes a worker, as seen."""
        spans = [
            seconds
            for run in self._runs
            if run.num_workers == 1 and run.batch_size == size
            for seconds in run.collate_s
        ]
        return median(spans) if spans else self._item_s * size

    def _batches(self, size: int, least: int, batch_s: float | None = None, *, most: int | None = None) -> int:
        """At least so many, and more where they are quick, of `most` items or those that lie in the page cache: a mean
        over a few milliseconds is noise."""
        each_s = self._item_s * size if batch_s is None else batch_s
        quick = min(_MOST_BATCHES, int(_RUN_S / max(each_s, 1e-4)))
        return max(least, min(quick, (self._warmed if most is None else most) // size))

    def _sent(self, size: int, least: int) -> int:
        """The same for a worker's batches, which are quick where items are: to be sent takes them about as long."""
        return self._batches(size, least, 2 * self._item_s * size)

    def _steps(self, small: int, middle: int, large: int) -> Script[None]:
        """Steps alone at three sizes, and where the step needs the cores that workers need, both together."""
        each_s = 0.0
        for size in dict.fromkeys((small, middle, large)):
            most = 12 if size == small else 6
            if self._on_cpu and each_s:  # where steps are quick, the scheduler makes some of them many times as long
                most = max(most, min(_MOST_BATCHES, int(_RUN_S / max(each_s * size, 1e-4))))
            count = self._affordable(each_s * size, most=most)
            if count < 1:
                self._notes.append(f"steps of {size} items were not probed: the budget is too short")
                continue
            yield from self._step(size, max(2, count))
            each_s = self._step_s.get(size, each_s * size) / size
        if self._on_cpu:
            count = self._affordable(2 * each_s * small, most=_CROWDED_STEPS)
            yield from self._keep("crowded", small, 1, batches=max(count, _LEAST_CROWDED_STEPS))

    def _step(self, size: int, batches: int) -> Script[None]:
        yield from self._keep("step", size, 0, batches=batches, repeats=REPEATED_ITEMS, memory=True)
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.kind, last.batch_size) == ("step", size):
            hosts = [done - got for got, done in zip(last.got_s, last.done_s, strict=True)]
            self._step_s[size] = max(median(hosts[1:] or hosts), median(last.device_s[1:] or last.device_s))

    def _affordable(self, step_s: float, *, most: int) -> int:
        return most if step_s <= 0 else min(most, int(_LONG_SHARE * self._budget_s / step_s))


def _item_s(trial: Trial) -> float:
    """What an item took in the later half of the batches: the first two fetch the memory that all others use again."""
    line = trial.timeline
    later = range(len(line.items) // 2, len(line.items))
    return median((line.got_s[place] - line.asked_s[place]) / max(1, line.items[place]) for place in later)


def _times_as_long(first: Trial | None, again: Trial) -> float:
    """How much longer a batch took than the same items did later; the very first also makes memory and caches."""
    if first is None or first.outcome != "done" or again.outcome != "done":
        return 1.0
    one, other = (
        [got - asked for asked, got in zip(trial.timeline.asked_s, trial.timeline.got_s, strict=True)]
        for trial in (first, again)
    )
    pairs = list(zip(one, other, strict=False))[1:]
    return median(before / max(after, 1e-9) for before, after in pairs) if pairs else 1.0
