"""Three ways to choose: simulate and run the best few, solve the algebra, or run the whole grid."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from stoker.analysis.objective import measured
from stoker.analysis.spans import COMPUTE
from stoker.errors import InputError
from stoker.forecast import algebra
from stoker.forecast.constraints import Bounds
from stoker.forecast.predictor import Predictor
from stoker.forecast.samples import item_bytes_of
from stoker.measure.session import Job, Script
from stoker.records import (
    AlgebraAnswer,
    AlgebraTiming,
    Candidate,
    Extent,
    Measured,
    Objective,
    Planner,
    Record,
    Setting,
    Trial,
)
from stoker.tuning.contest import RULES as CONTEST
from stoker.tuning.contest import Contest, Listener, best_predicted, job_of, run_job
from stoker.tuning.request import TuneRequest
from stoker.tuning.space import RULES as SPACE
from stoker.tuning.space import candidate_of, with_measured


class PlannerRules(Record, frozen=True):
    """How the algebra's runs are limited."""

    timing_share: float = 0.25
    """A run that times the algebra may take this share of the time left..."""
    least_timing_s: float = 10.0
    """... but at least this long."""


RULES = PlannerRules()


class Choice(NamedTuple):
    """What a planner chooses from."""

    candidates: Sequence[Candidate]
    """The best prediction first."""
    request: TuneRequest
    objective: Objective
    """One GPU's share of it."""
    predictor: Predictor
    bounds: Bounds
    left_s: float
    listener: Listener
    on_gpu: bool
    free_s: float = math.inf
    """Runs may take this long whatever they bring."""
    first_s: float = 0.0
    """One run of each may take this long, if that is more than what is left."""


class Chosen(NamedTuple):
    """What a planner ran, and the algebra's answer if it was solved.

    `algebra` and `grid` put their choice first; runs of `simulate` have to be judged.
    """

    ran: list[Candidate]
    algebra: AlgebraAnswer | None = None


def simulate(choice: Choice) -> Script[Chosen]:
    """Run the predicted best few and the current setting in rounds."""
    found, request = choice.candidates, choice.request
    runners = best_predicted([each for each in found if each.asked_for], choice.objective, choice.left_s)
    current = [each for each in found if request.is_current(each.setting)]
    same_batch = [each for each in found if request.current and each.setting.batch_size == request.current.batch_size]
    others = [each for each in found if not each.asked_for and each.predicted_s < quicker_s(runners)]
    # The current setting, the best with its batch size, and the best with another size than the one that is kept.
    for each in (*current[:1], *same_batch[:1], *others[:1]):
        if each not in runners:
            runners.insert(1, each)  # early, as time may be too short for all
    contest = Contest(
        runners,
        choice.objective,
        choice.left_s,
        choice.listener,
        on_gpu=choice.on_gpu,
        free_s=choice.free_s,
        first_s=choice.first_s,
    )
    return Chosen((yield from contest.script()))


def quicker_s(runners: Sequence[Candidate]) -> float:
    """What a size that nobody asked for must be predicted to take at most, to be worth a comparison."""
    return (1 - SPACE.worth) * min((each.predicted_s for each in runners), default=math.inf)


def grid(choice: Choice) -> Script[Chosen]:
    """Run every setting once, over all items."""
    results: dict[int, Measured | None] = {}
    for place, candidate in enumerate(choice.candidates):
        batches = math.ceil(choice.objective.items / candidate.setting.batch_size)
        job = Job(setting=candidate.setting, extent=Extent(batches=batches, warmup=0))
        trial = yield from run_job(job, choice.listener)
        results[place] = measured([trial], choice.objective)
    return Chosen(with_measured(choice.candidates, results))


def solve_algebra(choice: Choice) -> Script[Chosen]:
    """Solve the algebra; run its answer and the current setting once each.

    Loading and computing are timed with 0 workers at two batch sizes. If the request keeps an effective batch, the
    largest size that divides it stands in for the algebra's.
    """
    found, request = choice.candidates, choice.request
    sizes = sorted({each.setting.batch_size for each in found if each.asked_for})
    timings: list[AlgebraTiming] = []
    for size in sorted({sizes[0], sizes[len(sizes) // 2]}):
        trial = yield from run_job(_timing_job(found[0].setting, size, choice.left_s), choice.listener)
        if trial.outcome == "done":
            timings.append(timing_of(trial))
    answer = algebra.solve(
        timings,
        max_batch=min(sizes[-1], choice.bounds.max_batch or sizes[-1]),
        item_bytes=round(item_bytes_of(choice.predictor.probes)),
        memory_bytes=choice.bounds.memory_bytes * request.replicas,
        gpus=request.replicas,
    )
    size = answer.batch_size
    if request.global_batch is not None:
        size = max((each for each in sizes if each <= size), default=sizes[0])
    setting = msgspec.structs.replace(
        found[0].setting, batch_size=size, num_workers=answer.num_workers, prefetch_factor=2
    )
    chosen = candidate_of(setting, request, choice.predictor, choice.objective)
    current = [each for each in found if request.is_current(each.setting) and each.setting != chosen.setting]
    ran: list[Candidate] = []
    for each in (chosen, *current[:1]):
        job = job_of(each, choice.objective, CONTEST.most_run_s)
        trial = yield from run_job(job, choice.listener)
        ran.append(msgspec.structs.replace(each, measured=measured([trial], choice.objective)))
    return Chosen(ran, answer)


def _timing_job(base: Setting, size: int, left_s: float) -> Job:
    setting = msgspec.structs.replace(base, batch_size=size, num_workers=0, accumulate=1)
    extent = Extent(batches=algebra.RULES.iterations, warmup=0)
    return Job(setting=setting, extent=extent, limit_s=max(RULES.least_timing_s, RULES.timing_share * left_s))


def timing_of(trial: Trial) -> AlgebraTiming:
    """t_d and t_g of a run without workers: the mean times of loading a batch and of computing it.

    Raises InputError for a run without batches.
    """
    line = trial.timeline
    count = len(line.got_s)
    if not count:
        raise InputError("the algebra needs a run with at least one batch")
    stages = ("copy", *COMPUTE)
    compute_s = sum(stage.total_s for name, stage in trial.stages.items() if stage.clock == "loop" and name in stages)
    load_s = sum(got - asked for asked, got in zip(line.asked_s, line.got_s, strict=True))
    return AlgebraTiming(batch_size=trial.setting.batch_size, load_s=load_s / count, compute_s=compute_s / count)


PLANNERS: dict[Planner, Callable[[Choice], Script[Chosen]]] = {
    "simulate": simulate,
    "algebra": solve_algebra,
    "grid": grid,
}
"""What each planner does."""
