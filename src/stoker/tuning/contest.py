"""Runs candidates against each other, in alternating rounds: a disturbance of the machine then affects all of them."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from time import perf_counter
from typing import NamedTuple

import msgspec

from stoker.analysis.objective import measured
from stoker.measure.session import REPEATED_ITEMS, Job, Script
from stoker.records import Candidate, Extent, Measured, Objective, Record, Setting, Trial
from stoker.tuning.space import with_measured


class ContestRules(Record, frozen=True):
    """How many candidates run, how long and how often, and when their order is clear."""

    knee: float = 0.02
    """Settings this close to the best count as equal; the one that holds the fewest items in memory wins."""
    runners: int = 3
    """The predicted best candidates that always run..."""
    most_runners: int = 8
    """... and how many may run if time allows two runs of each."""
    rounds: int = 5
    """After this many rounds the answer rarely changes."""
    planned_rounds: int = 3
    """A run's length is chosen so that the time left suffices for this many rounds."""
    least_run_s: float = 1.0
    """Shorter runs are dominated by starting workers."""
    most_run_s: float = 5.0
    """Longer runs leave too few of them."""
    between_s: float = 0.3
    """About the time between two runs."""
    limit_s: float = 10.0
    """A run may take this long, and..."""
    limit_times: float = 6.0
    """... in addition this many times as long as expected."""
    whole_epoch: float = 1.5
    """An epoch that takes less than this many times the planned length of a run is run as a whole."""
    warm_up_batches: int = 2
    """Batches of a warm-up run in a new process."""
    warm_up_s: float = 20.0
    """The time limit of a warm-up run."""
    fresh_share: float = 0.1
    """If starting a process costs more than this share of the time left, all further rounds share one process."""
    apart: float = 0.05
    """Two settings whose runs differ by more than this, without overlap, need no more runs..."""
    apart_once: float = 0.15
    """... and by more than this if one of them ran only once, maybe in a bad moment."""


RULES = ContestRules()


class Listener(NamedTuple):
    """Called before a run, with its setting, and after it, with its trial."""

    started: Callable[[Setting], None]
    ended: Callable[[Trial], None]


def run_job(job: Job, listener: Listener) -> Script[Trial]:
    """One run, reported to the listener."""
    listener.started(job.setting)
    trial = yield job
    listener.ended(trial)
    return trial


def job_of(candidate: Candidate, objective: Objective, target_s: float) -> Job:
    """A run of all the items, or of as many as fit the time: enough for the first batches of every worker and more, and
    for whole updates."""
    setting = candidate.setting
    epoch_s = _epoch_s(candidate, objective)
    whole = math.ceil(objective.items / setting.batch_size)
    # Not all batches of a run may be loaded ahead.
    least = max(3, setting.prefetch_factor + 1) * max(1, setting.num_workers) + 5
    least += 2 * (setting.accumulate - 1)
    batches = whole if epoch_s <= RULES.whole_epoch * target_s else max(least, int(whole * target_s / epoch_s))
    batches = -(-batches // setting.accumulate) * setting.accumulate
    limit_s = RULES.limit_s + RULES.limit_times * max(target_s, epoch_s * batches / whole)
    return Job(setting=setting, extent=Extent(batches=min(batches, whole), warmup=0), limit_s=limit_s)


def _epoch_s(candidate: Candidate, objective: Objective) -> float:
    return candidate.predicted.total_s / objective.epochs if candidate.predicted else candidate.predicted_s


# ---------------------------------------------------------------- judging


def standings(scored: Sequence[Candidate]) -> list[float]:
    """Seconds of each candidate by its runs and its prediction. The prediction counts as one more run, as it is about
    as far off.

    The common ratio of measured to predicted times says nothing about the order and is taken off.
    """
    ratios = [math.log(each.seconds / each.predicted_s) for each in scored]
    common = fmean(ratios) if ratios else 0.0
    return [each.seconds * math.exp((common - own) / (each.runs + 1)) for each, own in zip(scored, ratios, strict=True)]


def knee(scored: Sequence[Candidate]) -> Candidate:
    """Of all candidates that are about as good as the best, the one that holds the fewest items in memory.

    A single run may be luck: a candidate that ran once never replaces the best, and is not replaced if it is the best.
    """
    takes = standings(scored)
    least = min(takes)
    best = scored[takes.index(least)]
    if best.runs == 1:
        return best
    close = [
        each
        for each, seconds in zip(scored, takes, strict=True)
        if each.runs > 1 and seconds <= least * (1 + RULES.knee)
    ]
    return min(close, key=lambda each: (each.in_flight_items, each.setting.num_workers))


# ---------------------------------------------------------------- choosing who runs


def best_predicted(found: Sequence[Candidate], objective: Objective, left_s: float) -> list[Candidate]:
    """The predicted best few. If time allows two runs of each, also others that may be better than predicted."""
    best_s = found[0].predicted_s
    chosen = list(found[: RULES.runners])
    spent_s = sum(2 * _least_run_s(each, objective) for each in chosen)
    for each in found[RULES.runners :]:
        spent_s += 2 * _least_run_s(each, objective)
        if len(chosen) == RULES.most_runners or spent_s > left_s or _optimistic_s(each) > best_s:
            break
        chosen.append(each)
    return chosen


def _least_run_s(candidate: Candidate, objective: Objective) -> float:
    """The time of the candidate's shortest run, and between two runs."""
    return _run_s(candidate, objective, RULES.least_run_s) + RULES.between_s


def _run_s(candidate: Candidate, objective: Objective, target_s: float) -> float:
    """The predicted time of a run of about `target_s`."""
    whole = math.ceil(objective.items / candidate.setting.batch_size)
    share = (job_of(candidate, objective, target_s).extent.batches or whole) / whole
    return share * _epoch_s(candidate, objective)


def _optimistic_s(candidate: Candidate) -> float:
    """The candidate's time at the lower end of its interval."""
    predicted = candidate.predicted
    if predicted is None:
        return candidate.predicted_s
    return candidate.predicted_s * predicted.interval_s[0] / predicted.total_s


# ---------------------------------------------------------------- rounds


class Contest:
    """Candidates that run in rounds, until their order is clear or the time is up.

    Each round has a process of its own, because memory layout alone can make one process faster. On a GPU, where a new
    process takes seconds, all rounds share one.
    """

    def __init__(
        self, chosen: Sequence[Candidate], objective: Objective, left_s: float, listener: Listener, *, on_gpu: bool
    ) -> None:
        self._chosen, self._objective, self._left_s, self._listener = chosen, objective, left_s, listener
        self._on_gpu, self._began = on_gpu, perf_counter()
        self._trials: dict[int, list[Trial]] = {place: [] for place in range(len(chosen))}
        self._measured: dict[int, Measured | None] = {}
        rounds_s = left_s / (len(chosen) * RULES.planned_rounds)
        self._target_s = min(RULES.most_run_s, max(RULES.least_run_s, rounds_s))

    def script(self) -> Script[list[Candidate]]:
        """All rounds. Returns the candidates that ran with what was measured, the best first."""
        warm_up_s = 0.0
        for number in range(RULES.rounds):
            if not number or (warm_up_s < RULES.fresh_share * self._left_s and not self._on_gpu):
                warm_up_s = perf_counter()
                yield from self._warm_up()
                warm_up_s = perf_counter() - warm_up_s
            if not (yield from self._round(number)):
                break
        ran = [place for place, trials in self._trials.items() if trials]
        seen = {number: self._measured.get(place) for number, place in enumerate(ran)}
        return with_measured([self._chosen[place] for place in ran], seen)

    def _round(self, number: int) -> Script[bool]:
        """One run of each candidate that may still be the best. Returns whether another round makes sense."""
        for place in self._order(number):
            if number and self._remaining_s() < min(self._target_s, self._last_s(place)):
                return False
            if self._leader() is not None and self._remaining_s() < self._shortest_s(place):
                return False
            if number and not self._is_open(place):
                continue
            job = job_of(self._chosen[place], self._objective, self._target_s)
            self._trials[place].append((yield from run_job(job, self._listener)))
            self._measured[place] = measured(self._trials[place], self._objective)
        return not number or any(self._is_open(place) for place in self._trials if place != self._leader())

    def _remaining_s(self) -> float:
        return self._left_s - (perf_counter() - self._began)

    def _order(self, number: int) -> list[int]:
        """Forwards and backwards in turns. In a round that time will cut, the best so far come first."""
        order = list(self._trials) if number % 2 == 0 else list(reversed(self._trials))
        wanted_s = sum(self._last_s(place) + RULES.between_s for place in order if self._is_open(place))
        if number == 0 or wanted_s <= self._remaining_s():
            return order
        ran = {place: each for place, each in self._measured.items() if each is not None}
        scored = [msgspec.structs.replace(self._chosen[place], measured=each) for place, each in ran.items()]
        return [place for _, place in sorted(zip(standings(scored), ran, strict=True))]

    def _warm_up(self) -> Script[None]:
        """Two batches in a new process, not counted for any candidate; on a GPU two batches of each size.

        The first steps on a GPU take up to a second longer, and the first step of each size some tenths, as kernels are
        chosen for it: that would count against the candidate that runs first.
        """
        sizes = sorted({each.setting.batch_size for each in self._chosen})
        base = self._chosen[0].setting
        for size in sizes if self._on_gpu else sizes[:1]:
            yield Job(
                setting=msgspec.structs.replace(base, batch_size=size, num_workers=0, accumulate=1),
                extent=Extent(batches=RULES.warm_up_batches, warmup=0, source="memory"),
                repeats=REPEATED_ITEMS,
                limit_s=RULES.warm_up_s,
                fresh=size == sizes[0],
            )

    def _last_s(self, place: int) -> float:
        return self._trials[place][-1].total_s if self._trials[place] else 0.0

    def _shortest_s(self, place: int) -> float:
        """How long the candidate's first run takes at best; 0 for one that ran before."""
        return 0.0 if self._trials[place] else _run_s(self._chosen[place], self._objective, self._target_s)

    def _leader(self) -> int | None:
        scored = {place: each.total_s for place, each in self._measured.items() if each is not None}
        return min(scored, key=lambda place: scored[place]) if scored else None

    def _is_open(self, place: int) -> bool:
        """Whether a candidate may still turn out to be the best: its best run is not far behind all of the leader's."""
        mine, first = self._measured.get(place), self._leader()
        if mine is None or first is None or place == first:
            return place == first or place not in self._measured
        if mine.disturbed:
            return True
        leader = self._measured[first]
        assert leader is not None
        runs = min(len(mine.samples_s), len(leader.samples_s))
        apart = RULES.apart if runs > 1 else RULES.apart_once
        return min(mine.samples_s) <= max(leader.samples_s) * (1 + apart)
