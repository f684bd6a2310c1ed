"""Which candidates are run, how long and how often: in turns, so that what disturbs the machine disturbs them all."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from time import perf_counter
from typing import NamedTuple

import msgspec

from stoker.analysis.objective import measured
from stoker.errors import InputError
from stoker.forecast.algebra import ITERATIONS, Timing, solve
from stoker.forecast.constraints import Bounds
from stoker.forecast.predictor import Predictor
from stoker.measure.session import REPEATED_ITEMS, Job, Script
from stoker.records import Candidate, Extent, Measured, Objective, Setting, Trial
from stoker.tuning.candidates import Request, bytes_of_an_item, candidate_of, with_measured
from stoker.units import format_workers

KNEE = 0.02
_RUNNERS, _MOST_RUNNERS = 3, 8
_ROUNDS = 5
_LEAST_RUN_S, _MOST_RUN_S, _BETWEEN_S = 1.0, 5.0, 0.3
_WARM_UP_BATCHES, _WARM_UP_S = 2, 20.0
_FRESH_SHARE = 0.1
"""Where to begin a new process takes more than this of the time, as where a model is long in the making, one does."""
_APART, _APART_ONCE = 0.05, 0.15
"""Two settings whose runs differ by more than this, without overlap, need no more runs to be told apart; and where one
of them has been run only once, which may have been in a bad moment."""


class Listener(NamedTuple):
    """Who hears of a run: before it, with the setting, and after it, with the trial."""

    trying: Callable[[Setting], None]
    ran: Callable[[Trial], None]


def contend(
    found: Sequence[Candidate], wish: Request, objective: Objective, left_s: float, told: Listener
) -> Script[list[Candidate]]:
    """Run the predicted best few, and the current setting, in rounds, until their order is clear or time is up."""
    began = perf_counter()
    chosen = _runners([each for each in found if each.asked_for], objective, left_s)
    now = [each for each in found if wish.is_current(each.setting)]
    same = [each for each in found if wish.current and each.setting.batch_size == wish.current.batch_size]
    for each in (*now[:1], *same[:1]):  # what they have, and the best they can do without changing the batch
        if each not in chosen:
            chosen.append(each)
    return (yield from _rounds(chosen, objective, began, left_s, told))


def knee(scored: Sequence[Candidate]) -> Candidate:
    """Of all that were run and are within 2 % of the best, the one that holds the fewest items in memory.

    What was run only once may be there by luck: it is not taken in place of the best, nor another for it.
    """
    takes = standings(scored)
    least = min(takes)
    best = scored[takes.index(least)]
    if best.runs == 1:
        return best
    close = [
        each for each, seconds in zip(scored, takes, strict=True) if each.runs > 1 and seconds <= least * (1 + KNEE)
    ]
    return min(close, key=lambda each: (each.in_flight_items, each.setting.num_workers))


def standings(scored: Sequence[Candidate]) -> list[float]:
    """Seconds of each by its runs and its prediction, which counts as one more run: it is about as far off.

    By how much all of them took longer or shorter than predicted says nothing of one against another, and is taken off.
    """
    apart = [math.log(each.seconds / each.predicted_s) for each in scored]
    common = fmean(apart) if apart else 0.0
    return [each.seconds * math.exp((common - own) / (each.runs + 1)) for each, own in zip(scored, apart, strict=True)]


def why_not_the_quickest(best: Candidate, ran: Sequence[Candidate]) -> Iterator[str]:
    """A sentence, where the one that was chosen is notably slower in its runs than another."""
    scored = [each for each in ran if each.measured is not None]
    quickest = min(scored, key=lambda each: each.seconds, default=best)
    if best not in scored or best.seconds <= quickest.seconds * (1 + KNEE):
        return
    takes = standings(scored)
    slower = takes[scored.index(quickest)] > takes[scored.index(best)]
    setting, faster = quickest.setting, best.seconds / quickest.seconds - 1
    yield (
        f"batch {setting.batch_size} with {format_workers(setting.num_workers)} was {faster:.0%} "
        f"faster in few runs, and is {'slower' if slower else f'less than {KNEE:.0%} faster'} by runs and predictions "
        "together: a larger budget would tell"
    )


def _runners(found: Sequence[Candidate], objective: Objective, left_s: float) -> list[Candidate]:
    """The predicted best few; more where time allows two runs of each, of those that may be better than predicted."""
    best_s = found[0].predicted_s
    chosen = list(found[:_RUNNERS])
    spent_s = sum(2 * _run_s(each, objective) for each in chosen)
    for each in found[_RUNNERS:]:
        spent_s += 2 * _run_s(each, objective)
        if len(chosen) == _MOST_RUNNERS or spent_s > left_s or _least_s(each) > best_s:
            break
        chosen.append(each)
    return chosen


def _run_s(candidate: Candidate, objective: Objective) -> float:
    """What its shortest run would take, and what lies between two."""
    whole = math.ceil(objective.items / candidate.setting.batch_size)
    share = (_job(candidate, objective, _LEAST_RUN_S).extent.batches or whole) / whole
    return share * _epoch_s(candidate, objective) + _BETWEEN_S


def _epoch_s(candidate: Candidate, objective: Objective) -> float:
    return candidate.predicted.total_s / objective.epochs if candidate.predicted else candidate.predicted_s


def _least_s(candidate: Candidate) -> float:
    """What it would take if all went as well as its prediction allows."""
    told = candidate.predicted
    return candidate.predicted_s * told.interval_s[0] / told.total_s if told else candidate.predicted_s


def _rounds(
    chosen: list[Candidate], objective: Objective, began: float, left_s: float, told: Listener
) -> Script[list[Candidate]]:
    trials: dict[int, list[Trial]] = {place: [] for place in range(len(chosen))}
    seen: dict[int, Measured | None] = {}
    target_s = min(_MOST_RUN_S, max(_LEAST_RUN_S, left_s / (len(chosen) * 3)))
    fresh_s = 0.0
    for number in range(_ROUNDS):
        if not number or (fresh_s < _FRESH_SHARE * left_s and not chosen[0].setting.pin_memory):
            fresh_s = perf_counter()
            yield from _warm_up(chosen)
            fresh_s = perf_counter() - fresh_s
        order = _order(number, chosen, trials, seen, left_s - (perf_counter() - began))
        for place in order:
            if number and perf_counter() - began > left_s - min(target_s, _last_s(trials[place])):
                return with_measured(chosen, seen)
            if number and not _open(place, seen):
                continue
            trial = yield from _one(_job(chosen[place], objective, target_s), told)
            trials[place].append(trial)
            seen[place] = measured(trials[place], objective)
        if number and not any(_open(place, seen) for place in trials if place != _leader(seen)):
            break
    return with_measured(chosen, seen)


def _order(
    number: int,
    chosen: Sequence[Candidate],
    trials: dict[int, list[Trial]],
    seen: dict[int, Measured | None],
    left_s: float,
) -> list[int]:
    """Forth and back in turns; in a round that time will cut, whoever stands best comes first."""
    order = list(trials) if number % 2 == 0 else list(reversed(trials))
    wanted_s = sum(_last_s(trials[place]) + _BETWEEN_S for place in order if _open(place, seen))
    if number == 0 or wanted_s <= left_s:
        return order
    ran = {place: each for place, each in seen.items() if each is not None}
    scored = [msgspec.structs.replace(chosen[place], measured=each) for place, each in ran.items()]
    return [place for _, place in sorted(zip(standings(scored), ran, strict=True))]


def _warm_up(chosen: Sequence[Candidate]) -> Script[None]:
    """Two batches in a new process, for nobody's account; on a GPU two of each size.

    How a process' memory lies favours some settings by luck, for as long as it lives: by half, for batches that the
    loop collates itself. So each round has a process of its own, but on a GPU, where to begin one takes seconds: its
    first steps take up to a second longer, and its first of a size, for which kernels are chosen, some tenths; that
    would be held against whoever comes first.
    """
    sizes = sorted({each.setting.batch_size for each in chosen})
    base = chosen[0].setting
    for size in sizes if base.pin_memory else sizes[:1]:
        yield Job(
            setting=msgspec.structs.replace(base, batch_size=size, num_workers=0, accumulate=1),
            extent=Extent(batches=_WARM_UP_BATCHES, warmup=0, source="memory"),
            repeats=REPEATED_ITEMS,
            limit_s=_WARM_UP_S,
            fresh=size == sizes[0],
        )


def _one(job: Job, told: Listener) -> Script[Trial]:
    told.trying(job.setting)
    trial = yield job
    told.ran(trial)
    return trial


def _last_s(trials: Sequence[Trial]) -> float:
    return trials[-1].total_s if trials else 0.0


def _leader(seen: dict[int, Measured | None]) -> int | None:
    scored = {place: each.total_s for place, each in seen.items() if each is not None}
    return min(scored, key=lambda place: scored[place]) if scored else None


def _open(place: int, seen: dict[int, Measured | None]) -> bool:
    """Whether a setting may still turn out to be the best: no run of the leader's is far better than its best."""
    mine, first = seen.get(place), _leader(seen)
    if mine is None or first is None or place == first:
        return place == first or place not in seen
    if mine.disturbed:
        return True
    leader = seen[first]
    assert leader is not None
    apart = _APART if min(len(mine.samples_s), len(leader.samples_s)) > 1 else _APART_ONCE
    return min(mine.samples_s) <= max(leader.samples_s) * (1 + apart)


def _job(candidate: Candidate, objective: Objective, target_s: float) -> Job:
    """A run of all the items, or of as many as fit the time: enough for every worker's first batches and more, and for
    whole updates."""
    setting = candidate.setting
    epoch_s = _epoch_s(candidate, objective)
    whole = math.ceil(objective.items / setting.batch_size)
    least = max(3, setting.prefetch_factor + 1) * max(1, setting.num_workers) + 5  # not all of it loaded ahead
    least += 2 * (setting.accumulate - 1)
    batches = whole if epoch_s <= 1.5 * target_s else max(least, int(whole * target_s / epoch_s))
    batches = -(-batches // setting.accumulate) * setting.accumulate
    limit_s = 10 + 6 * max(target_s, epoch_s * batches / whole)
    return Job(setting=setting, extent=Extent(batches=min(batches, whole), warmup=0), limit_s=limit_s)


def everything(found: Sequence[Candidate], objective: Objective, told: Listener) -> Script[list[Candidate]]:
    """The exhaustive grid: every setting once, whole."""
    seen: dict[int, Measured | None] = {}
    for place, candidate in enumerate(found):
        batches = math.ceil(objective.items / candidate.setting.batch_size)
        trial = yield from _one(Job(setting=candidate.setting, extent=Extent(batches=batches, warmup=0)), told)
        seen[place] = measured([trial], objective)
    return with_measured(found, seen)


def thesis(
    found: Sequence[Candidate],
    objective: Objective,
    predictor: Predictor,
    wish: Request,
    bounds: Bounds,
    left_s: float,
    told: Listener,
) -> Script[tuple[list[Candidate], str]]:
    """The algebra's answer, and the current setting, each run once; and a note on what it takes for granted.

    Loading and the step are averaged with 0 workers at two batch sizes. Where an effective batch is to be kept, the
    largest that divides it stands for the algebra's.
    """
    sizes = sorted({each.setting.batch_size for each in found if each.asked_for})
    two = sorted({sizes[0], sizes[len(sizes) // 2]})
    timings: list[Timing] = []
    for size in two:
        trial = yield from _one(thesis_job(found[0].setting, size, left_s / 4), told)
        if trial.outcome == "done":
            timings.append(timing_of(trial))
    plan = solve(
        timings,
        max_batch=min(sizes[-1], bounds.max_batch or sizes[-1]),
        item_bytes=max(1, round(bytes_of_an_item(predictor.probes))),
        memory_bytes=bounds.memory_bytes * wish.gpus,
        gpus=wish.gpus,
    )
    size = plan.batch_size
    if wish.global_batch is not None:
        size = max((each for each in sizes if each <= size), default=sizes[0])
    setting = msgspec.structs.replace(
        found[0].setting, batch_size=size, num_workers=plan.num_workers, prefetch_factor=2
    )
    chosen = candidate_of(setting, wish, predictor, objective)
    now = [each for each in found if wish.is_current(each.setting) and each.setting != chosen.setting]
    seen: dict[int, Measured | None] = {}
    for place, each in enumerate((chosen, *now[:1])):
        trial = yield from _one(_job(each, objective, _MOST_RUN_S), told)
        seen[place] = measured([trial], objective)
    ratios = ", ".join(f"{timing.ratio:.2g} at batch {timing.batch_size}" for timing in timings)
    note = f"t_d / t_g, which the thesis takes to be the same at every batch, is {ratios}"
    return [msgspec.structs.replace(each, measured=seen[place]) for place, each in enumerate((chosen, *now[:1]))], note


def thesis_job(base: Setting, size: int, limit_s: float) -> Job:
    setting = msgspec.structs.replace(base, batch_size=size, num_workers=0, accumulate=1)
    return Job(setting=setting, extent=Extent(batches=ITERATIONS, warmup=0), limit_s=max(10.0, limit_s))


def timing_of(trial: Trial) -> Timing:
    """t_d and t_g: the averages of loading a batch and of computing it."""
    line = trial.timeline
    count = len(line.got_s)
    if not count:
        raise InputError("the thesis' planner needs a run with at least one batch")
    compute = [stage.total_s for name, stage in trial.stages.items() if stage.clock == "loop" and name in _COMPUTE]
    load_s = sum(got - asked for asked, got in zip(line.asked_s, line.got_s, strict=True)) / count
    return Timing(batch_size=trial.setting.batch_size, load_s=load_s, compute_s=sum(compute) / count)


_COMPUTE = ("copy", "forward", "backward", "update", "step")
