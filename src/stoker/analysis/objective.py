"""What a person pays for: the time of so many items, start and first batch included, or the steady rate alone."""

from collections.abc import Sequence
from statistics import median

from stoker.analysis.interference import disturbed
from stoker.analysis.spans import PER_EPOCH, steady
from stoker.records import Measured, Objective, Prediction, Trial

_ENOUGH = 3


def prediction_s(objective: Objective, found: Prediction) -> float:
    """Seconds of the objective, as predicted."""
    if objective.kind == "throughput":
        return objective.items * objective.epochs / max(found.steady_items_per_s, 1e-12)
    return found.total_s


def trial_s(objective: Objective, trial: Trial) -> float:
    """Seconds of the objective, from a run that may have been shorter: the rest at its steady rate. With several ranks,
    the objective is one rank's share."""
    each_s, items = steady_item_s(trial), own_items(trial)
    if objective.kind == "throughput":
        return objective.items * objective.epochs * each_s
    epoch_s = trial.total_s + (objective.items - items) * each_s
    # One batch may hold more items than the objective asks for.
    epoch_s = max(epoch_s, trial.total_s * min(1.0, objective.items / items))
    if not trial.setting.persistent_workers:
        return objective.epochs * epoch_s
    return epoch_s + (objective.epochs - 1) * objective.items * each_s


def measured(trials: Sequence[Trial], objective: Objective) -> Measured | None:
    """The runs of one setting, one a round, that finished, those that nothing disturbed before others; None where none
    did."""
    numbered = [(number, trial) for number, trial in enumerate(trials) if trial.outcome == "done" and trial.items]
    if not numbered:
        return None
    quiet = [(number, trial) for number, trial in numbered if not disturbed(trial)]
    disturbed_only, numbered = not quiet, quiet or numbered
    done = [trial for _, trial in numbered]
    return Measured(
        samples_s=tuple(trial_s(objective, trial) for trial in done),
        run_s=tuple(trial.total_s for trial in done),
        items=own_items(done[0]),
        first_batch_s=median(trial.timeline.got_s[0] for trial in done),
        steady_items_per_s=1 / median(steady_item_s(trial) for trial in done),
        disturbed=disturbed_only,
        rounds=tuple(number for number, _ in numbered),
    )


def own_items(trial: Trial) -> int:
    """The items of one loop: of a run of several ranks, those of the one whose stages stand for the run."""
    return sum(trial.timeline.items) if trial.rank_logs else trial.items


def _steady_batches(trial: Trial) -> tuple[int, int]:
    """Which batches tell the steady rate: as many as make whole updates; none where the run is too short."""
    setting, count = trial.setting, len(trial.timeline.items)
    updates = setting.accumulate if trial.workload.mode == "train" else 1
    skip = max(3, setting.num_workers)
    if count <= 2 * skip:
        return 0, 0
    ahead = setting.prefetch_factor * setting.num_workers if trial.workload.device == "cpu" else 0
    for most in (count - ahead, count):
        whole = (most - skip) // updates * updates
        if whole >= (_ENOUGH if most < count else 1):
            return skip, skip + whole
    return 0, count // updates * updates


def steady_item_s(trial: Trial) -> float:
    """Seconds of a loop for an item, once the first batches of all workers are through; over the whole run where it is
    too short.

    By the stages, which share the wall clock: the moments at which the loop went on are those of the host, and a GPU
    may be far behind it. Beside the last batches, which were loaded ahead, nothing is loaded any more: a step on the
    CPU has its cores to itself then, and is not taken for one that shares them, where there are enough others.
    """
    begin, end = _steady_batches(trial)
    if begin < end:
        loop = [stage for name, stage in trial.stages.items() if stage.clock == "loop" and name not in PER_EPOCH]
        return max(1e-9, sum(sum(stage.samples_s[begin:end]) for stage in loop) / sum(trial.timeline.items[begin:end]))
    span = steady(trial)
    if span is not None and span.items and span.seconds > 0:
        return len(trial.rank_logs or (trial,)) * span.seconds / span.items
    return max(1e-9, trial.total_s / max(1, own_items(trial)))
