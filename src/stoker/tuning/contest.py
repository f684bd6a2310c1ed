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
    """Settings this close to the best always count as tied; the cheapest wins."""
    most_tied: float = 0.03
    """Settings further than this from the best are never tied. In simulated tunings with single runs of settings
    that differ by 1 to 6 %, a bound of 5 % made the mean regret half as large again, and choices agreed no more
    often."""
    prediction_error: float = 0.05
    """The least standard error of a prediction: the median error over our benchmarks, where nothing is unusual."""
    run_error: float = 0.04
    """How far runs of one setting on a shared machine scatter..."""
    known_runs: float = 4.0
    """... which counts as much as this many residuals: two or three runs do not tell their scatter."""
    round_error: float = 0.05
    """How far a machine gets slower or faster from round to round. Such changes are common to all runs of a round."""
    most_residual: float = 0.1
    """A disturbed run counts as this in the scatter: one must not make all runs look noisy."""
    far_residual: float = 1.5
    """A sample this many standard deviations off has less weight: the usual constant of Huber."""
    sweeps: int = 100
    """Coordinate descent has converged to well below a thousandth by then."""
    optimism: float = 2.0
    """Another setting may be faster than believed by this many standard errors."""
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


class Belief(NamedTuple):
    """What runs and prediction together say of a candidate: its seconds, and the standard error of their logarithm."""

    seconds: float
    error: float


def beliefs(scored: Sequence[Candidate]) -> list[Belief]:
    """What is known of each candidate that ran: the posterior of a Gaussian model of the logarithms of times.

    A candidate i takes x_i, was predicted to take p_i, and took y_ir in round r:

        x_i  = p_i + c + N(0, s_i)          c: what all predictions are off by; it says nothing about the order
        y_ir = x_i + b_r + N(0, s)          b_r = N(0, RULES.round_error): how slow the machine is in round r

    s_i is half of the half-width of the prediction's interval, at least `RULES.prediction_error`. s is the scatter of
    the runs, together with `RULES.known_runs` residuals of `RULES.run_error`. Samples of one round are thus compared
    with each other. A sample far from the others has less weight (Huber). The posterior mean of x_i is found by
    coordinate descent; its standard error is 1 / sqrt(1 / s_i² + n_i / s²), with n_i runs.
    """
    if not scored:
        return []
    rough = _Posterior(scored, RULES.run_error)
    fine = _Posterior(scored, rough.scatter())
    return [Belief(math.exp(x), error) for x, error in zip(fine.x, fine.errors, strict=True)]


class _Posterior:
    """The posterior of the model of `beliefs`, for a scatter of the runs."""

    def __init__(self, scored: Sequence[Candidate], run_error: float) -> None:
        self._run_error = run_error
        self._prior = [math.log(each.predicted_s) for each in scored]
        self._prior_errors = [_prediction_error(each) for each in scored]
        self._samples = [_samples_of(each) for each in scored]
        numbers = {number for samples in self._samples for number, _ in samples}
        self._slow: dict[int | None, float] = dict.fromkeys(numbers, 0.0)
        self.x = [fmean(y for _, y in samples) for samples in self._samples]
        for _ in range(RULES.sweeps):
            self._sweep()

    @property
    def errors(self) -> list[float]:
        precision = 1 / self._run_error**2
        return [
            (error**-2 + len(samples) * precision) ** -0.5
            for error, samples in zip(self._prior_errors, self._samples, strict=True)
        ]

    def scatter(self) -> float:
        """The standard deviation of a run."""
        residuals = [
            min(abs(y - x - self._slow[number]), RULES.most_residual)
            for x, samples in zip(self.x, self._samples, strict=True)
            for number, y in samples
        ]
        free = max(0, len(residuals) - len(self.x))
        known = RULES.known_runs * RULES.run_error**2
        return math.sqrt((known + (sum(each**2 for each in residuals) if free else 0.0)) / (RULES.known_runs + free))

    def _sweep(self) -> None:
        weights = [error**-2 for error in self._prior_errors]
        offsets = [weight * (x - prior) for weight, x, prior in zip(weights, self.x, self._prior, strict=True)]
        common = sum(offsets) / sum(weights)
        for place, samples in enumerate(self._samples):
            top, bottom = weights[place] * (self._prior[place] + common), weights[place]
            for number, y in samples:
                weight = self._weight(y - self.x[place] - self._slow[number])
                top, bottom = top + weight * (y - self._slow[number]), bottom + weight
            self.x[place] = top / bottom
        for number in self._slow.keys() - {None}:
            top, bottom = 0.0, RULES.round_error**-2
            for x, samples in zip(self.x, self._samples, strict=True):
                for y in (y for own, y in samples if own == number):
                    weight = self._weight(y - x - self._slow[number])
                    top, bottom = top + weight * (y - x), bottom + weight
            self._slow[number] = top / bottom

    def _weight(self, residual: float) -> float:
        far = RULES.far_residual * self._run_error
        return self._run_error**-2 * min(1.0, far / max(abs(residual), 1e-12))


def _prediction_error(candidate: Candidate) -> float:
    if candidate.predicted is None:
        return RULES.prediction_error
    low, high = candidate.predicted.interval_s
    return max(RULES.prediction_error, (high - low) / 4 / candidate.predicted.total_s)


def _samples_of(candidate: Candidate) -> list[tuple[int | None, float]]:
    """The logarithms of what the runs took, each with its round, if known."""
    assert candidate.measured is not None
    seen = candidate.measured
    rounds = seen.rounds or (None,) * len(seen.samples_s)
    return [(number, math.log(seconds)) for number, seconds in zip(rounds, seen.samples_s, strict=True)]


def standings(scored: Sequence[Candidate]) -> list[float]:
    """Seconds of each candidate by its runs and its prediction."""
    return [each.seconds for each in beliefs(scored)]


def tied(scored: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate, and all that are within noise of it: further by no more than the standard error of the
    difference. A difference below `RULES.knee` never counts, and one above `RULES.most_tied` always does.

    A candidate that ran once is not tied with one that ran more often: a single run may be luck.
    """
    known = beliefs(scored)
    place, best = min(enumerate(known), key=lambda each: each[1].seconds)
    found: list[Candidate] = []
    for each, belief in zip(scored, known, strict=True):
        noise = math.hypot(belief.error, best.error)
        near = math.log(belief.seconds / best.seconds) <= min(RULES.most_tied, max(RULES.knee, noise))
        if near and (each.runs > 1 or scored[place].runs == 1):
            found.append(each)
    return found


def knee(scored: Sequence[Candidate]) -> Candidate:
    """The cheapest of the tied candidates: the fewest workers, then the fewest items held in memory."""
    return min(tied(scored), key=lambda each: (each.setting.num_workers, each.in_flight_items))


def most_saved_s(scored: Sequence[Candidate]) -> float:
    """What further runs may save of the objective's time at most: the best is taken now, and another one may in truth
    be faster, by as much as `RULES.optimism` standard errors allow."""
    known = beliefs(scored)
    best = min(known, key=lambda each: each.seconds, default=None)
    if best is None:
        return math.inf
    lows = [
        each.seconds * math.exp(-RULES.optimism * math.hypot(each.error, best.error))
        for each in known
        if each is not best
    ]
    return best.seconds - min([best.seconds, *lows])


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
        self,
        chosen: Sequence[Candidate],
        objective: Objective,
        left_s: float,
        listener: Listener,
        *,
        on_gpu: bool,
        free_s: float = math.inf,
        first_s: float = 0.0,
    ) -> None:
        """The first round may go on for `first_s`, if that is longer than `left_s`. Beyond the first `free_s` seconds,
        a round has to be able to save more than it costs."""
        self._free_s, self._first_s = free_s, max(first_s, left_s)
        self._chosen, self._objective, self._left_s, self._listener = chosen, objective, left_s, listener
        self._on_gpu, self._began = on_gpu, perf_counter()
        self._trials: dict[int, list[Trial]] = {place: [] for place in range(len(chosen))}
        self._numbers: dict[int, list[int]] = {place: [] for place in self._trials}
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
            if not (yield from self._round(number)) or not self._pays(warm_up_s):
                break
        ran = [place for place, trials in self._trials.items() if trials]
        seen = {number: self._measured.get(place) for number, place in enumerate(ran)}
        return with_measured([self._chosen[place] for place in ran], seen)

    def _round(self, number: int) -> Script[bool]:
        """One run of each candidate that may still be the best. Returns whether another round makes sense."""
        for place in self._order(number):
            if number and self._remaining_s() < min(self._target_s, self._last_s(place)):
                return False
            remaining_s = self._first_s - (perf_counter() - self._began)
            if not number and self._leader() is not None and remaining_s < self._first_run_s(place):
                return False
            if number and not self._is_open(place):
                continue
            job = job_of(self._chosen[place], self._objective, self._target_s)
            self._trials[place].append((yield from run_job(job, self._listener)))
            self._numbers[place].append(number)
            seen = measured(self._trials[place], self._objective)
            rounds = tuple(self._numbers[place][each] for each in seen.rounds) if seen else ()
            self._measured[place] = seen and msgspec.structs.replace(seen, rounds=rounds)
        return not number or any(self._is_open(place) for place in self._trials if place != self._leader())

    def _pays(self, warm_up_s: float) -> bool:
        """Whether another round may save more than it costs. For the steady rate, no number of items says what a saving
        is worth."""
        cost_s = warm_up_s + sum(
            self._last_s(place) + RULES.between_s for place in self._trials if self._is_open(place)
        )
        if perf_counter() - self._began + cost_s <= self._free_s or self._objective.kind == "throughput":
            return True
        return most_saved_s(self._scored()) >= cost_s

    def _scored(self) -> list[Candidate]:
        return [
            msgspec.structs.replace(self._chosen[place], measured=each)
            for place, each in self._measured.items()
            if each is not None
        ]

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

    def _first_run_s(self, place: int) -> float:
        """How long the candidate's first run takes as predicted."""
        return _run_s(self._chosen[place], self._objective, self._target_s)

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
