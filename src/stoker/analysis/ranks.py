"""Ranks that train together: what each one waits for, which one the others wait for, and how uneven they are.

Ranks meet at the end of every backward pass. What a rank does by itself until then is its own work: loading, its step,
the loop. The rank with the most own work sets the pace of that step, and the others wait for it as long as it has more
than the second. The exchange itself takes what the last rank spends on it: nobody waits for that one.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from stoker.analysis.spans import PER_EPOCH, steady_batches
from stoker.records import RankLog, Record, Trial


class RankFigures(Record, frozen=True):
    """One rank, once steady: mean seconds of a step.

    `own_s` is its own work, of which it waits `wait_s` for its loader and computes `step_s`; `other_s` is the rest.
    `idle_s` is how long it waits for slower ranks, `exchange_s` the exchange itself. `held_s` is how long all others
    wait for it; `ahead_s` is how much more own work it has than the busiest of them, below 0 where it has less.
    """

    rank: int
    steps: int
    own_s: float
    wait_s: float
    step_s: float
    other_s: float
    idle_s: float
    exchange_s: float
    held_s: float
    ahead_s: float
    ahead_error_s: float
    stages_s: dict[str, float]

    @property
    def period_s(self) -> float:
        return self.own_s + self.idle_s + self.exchange_s


class RankRules(Record, frozen=True):
    """When one rank sets the pace."""

    least_held: float = 0.05
    """It has more own work than any other by this share of a step at least..."""
    standard_errors: float = 2.0
    """... and by so many standard errors: ranks that are late in turns set no pace."""


RULES = RankRules()
_STEP = ("copy", "forward", "backward", "update", "step")


def figures(trial: Trial) -> list[RankFigures]:
    """Every rank's steady figures; empty for a run of one rank, and where no step came after the warm-up."""
    logs = trial.rank_logs
    places = [place for place in steady_batches(trial) if all(place < len(log.timeline.items) for log in logs)]
    if not logs or not places:
        return []
    own = [[_own_s(log, place) for place in places] for log in logs]
    spent = [[_sample(log, "exchange", place) for place in places] for log in logs]
    exchanges = [min(samples) for samples in zip(*spent, strict=True)]
    return [_figures(log, number, places, own, spent[number], exchanges) for number, log in enumerate(logs)]


def _figures(
    log: RankLog,
    number: int,
    places: Sequence[int],
    own: Sequence[Sequence[float]],
    spent: Sequence[float],
    exchanges: Sequence[float],
) -> RankFigures:
    ahead = [_ahead_s(number, each) for each in zip(*own, strict=True)]
    stages = {name: fmean(_sample(log, name, place) for place in places) for name in _names(log)}
    step_s = sum(stages.get(name, 0.0) for name in _STEP)
    mean_s, wait_s = fmean(own[number]), stages.get("wait", 0.0)
    return RankFigures(
        rank=log.rank,
        steps=len(places),
        own_s=mean_s,
        wait_s=wait_s,
        step_s=step_s,
        other_s=max(0.0, mean_s - wait_s - step_s),
        idle_s=fmean(mine - least for mine, least in zip(spent, exchanges, strict=True)),
        exchange_s=fmean(exchanges),
        held_s=fmean(max(0.0, seconds) for seconds in ahead),
        ahead_s=fmean(ahead),
        ahead_error_s=stdev(ahead) / sqrt(len(ahead)) if len(ahead) > 1 else 0.0,
        stages_s=stages,
    )


def exchange_samples(trial: Trial) -> tuple[float, ...]:
    """Seconds of each exchange, once steady, without any waiting for slower ranks: what the last one spends on it.
    Empty where ranks exchange nothing."""
    logs = trial.rank_logs
    if not any("exchange" in log.stages for log in logs):
        return ()
    return tuple(min(_sample(log, "exchange", place) for log in logs) for place in steady_batches(trial))


def imbalance(found: Sequence[RankFigures]) -> float:
    """The own work of the busiest rank over the mean of all: 1 where they are even."""
    mean = fmean(each.own_s for each in found)
    return max(each.own_s for each in found) / mean if mean > 0 else 1.0


def slowest(found: Sequence[RankFigures]) -> RankFigures:
    """The rank with the most own work."""
    return max(found, key=lambda each: each.own_s)


def sets_pace(found: Sequence[RankFigures]) -> RankFigures | None:
    """The one rank that the others regularly wait for; None where the ranks are even."""
    if len(found) < 2:
        return None
    first = slowest(found)
    is_regular = first.ahead_s >= RULES.standard_errors * first.ahead_error_s
    return first if first.ahead_s >= RULES.least_held * first.period_s and is_regular else None


def excess(found: Sequence[RankFigures], rank: RankFigures) -> tuple[str, float]:
    """The stage in which a rank takes most longer than the others do on average, and by how much."""
    others = [each for each in found if each.rank != rank.rank]
    more = {
        name: seconds - fmean(each.stages_s.get(name, 0.0) for each in others)
        for name, seconds in rank.stages_s.items()
        if name != "exchange"
    }
    name = max(more, key=lambda each: more[each])
    return name, more[name]


def pace_rank(logs: Sequence[RankLog], trial: Trial) -> int:
    """The rank whose figures stand for the run: the one with the most own work where they wait for each other, and the
    last to end where they do not."""
    if not any("exchange" in log.stages for log in logs):
        return max(range(len(logs)), key=lambda place: logs[place].total_s)
    places = steady_batches(trial) or range(len(trial.timeline.items))
    count = min(len(log.timeline.items) for log in logs)
    own = [sum(_own_s(log, place) for place in places if place < count) for log in logs]
    return max(range(len(logs)), key=lambda place: own[place])


def shifted(log: RankLog, seconds: float) -> RankLog:
    """The log with its moments counted from an earlier start."""
    if not seconds:
        return log
    line, workers = log.timeline, log.workers
    moved = {name: _moved(getattr(line, name), seconds) for name in ("asked_s", "got_s", "done_s")}
    began = {name: _moved(getattr(workers, name), seconds) for name in ("began_s", "ended_s")}
    return msgspec.structs.replace(
        log,
        timeline=msgspec.structs.replace(line, **moved),
        workers=msgspec.structs.replace(workers, **began),
    )


def _moved(moments: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    return tuple(moment + seconds for moment in moments)


def _ahead_s(number: int, own: Sequence[float]) -> float:
    """How much more own work this rank has than any other, in one step."""
    others = [seconds for place, seconds in enumerate(own) if place != number]
    return own[number] - max(others) if others else 0.0


def _own_s(log: RankLog, place: int) -> float:
    return sum(_sample(log, name, place) for name in _names(log) if name != "exchange")


def _names(log: RankLog) -> list[str]:
    """The stages that have a sample for each step."""
    return [name for name, stage in log.stages.items() if stage.clock == "loop" and name not in PER_EPOCH]


def _sample(log: RankLog, name: str, place: int) -> float:
    stage = log.stages.get(name)
    return stage.samples_s[place] if stage is not None and place < len(stage.samples_s) else 0.0
