"""Settings of a loader that are predicted to be faster than that of a run, from the samples of the run alone."""

from collections.abc import Sequence

import msgspec

from stoker.analysis.spans import steady
from stoker.errors import InputError
from stoker.forecast.constraints import WORKER_COUNTS, bounds_of, ruled_out, workers_that_pay
from stoker.forecast.predictor import Predictor
from stoker.forecast.samples import item_bytes_of
from stoker.records import Record, Remedy, Setting, Trial
from stoker.tuning.remedies import predictor_of


class ProposalRules(Record, frozen=True):
    """Which settings are considered, and which are named."""

    worth: float = 0.05
    """A setting must save this share of a batch's time: less cannot be told from noise by two runs."""
    alike: float = 0.03
    """Settings this close are the same: the one with fewer workers is named, as each one more takes memory."""
    prefetches: tuple[int, ...] = (4, 8)
    """Beside the present one. More batches ahead even out items of very different times."""
    most: int = 2
    """So many settings are named."""
    margin: float = 1.15
    """Settings are compared as if items took this many times as long: one that only just keeps up with the step falls
    behind when the machine has other work."""
    workers_a_cpu: int = 8
    """Items that wait are loaded by any number of workers, says a simulation. Each one takes memory, and what they wait
    for has limits of its own that one run does not show."""
    batches: int = 160
    """The pace is predicted over so many batches."""
    seeds: int = 5


RULES = ProposalRules()


def propose(trial: Trial, *loads: Trial, rules: ProposalRules = RULES) -> list[Remedy]:
    """The best settings of the loader, the fastest first, with the seconds of one batch, once steady, before and after.

    Only workers and what belongs to them change: other batch sizes train otherwise. Empty where no setting is
    predicted to be faster, and for a run that says too little. `loads` are of the same loader with other numbers of
    workers and with steps that do nothing: what several workers cost each other is predicted from those.
    """
    span = steady(trial)
    if span is None or trial.outcome != "done":
        return []
    try:
        predictor, now = predictor_of(trial, loads=loads)
    except InputError:
        return []
    pace = _Pace(predictor, now, rules)
    before_s = span.seconds / span.batches
    now_s = pace.seconds(now)
    found = []
    slower = _Pace(predictor.changed({}, item=rules.margin), now, rules)
    for setting in _ranked(slower, predictor, now, rules):
        after_s = pace.seconds(setting)
        expected_s = max(before_s * after_s / now_s, before_s - (now_s - after_s), 0.0)
        if expected_s < before_s * (1 - rules.worth):
            changes = _changes(now, setting, trial)
            words = ", ".join(f"{name}={value}" for name, value in changes.items())
            found.append(Remedy(change=words, before_s=before_s, after_s=expected_s, changes=changes, kind="setting"))
    return found[: rules.most]


class _Pace:
    """Predicted seconds of one batch, once steady."""

    def __init__(self, predictor: Predictor, now: Setting, rules: ProposalRules) -> None:
        self._predictor, self._items, self._seeds = predictor, now.batch_size * rules.batches, rules.seeds

    def seconds(self, setting: Setting) -> float:
        found = self._predictor.predict(setting, self._items, seeds=self._seeds)
        return setting.batch_size / max(found.steady_items_per_s, 1e-12)


def _ranked(pace: _Pace, predictor: Predictor, now: Setting, rules: ProposalRules) -> Sequence[Setting]:
    """One setting for each worker count, the best first."""
    probes, costs = predictor.probes, predictor.costs
    bounds = bounds_of(probes.machine, waiting_share=costs.waiting_share, shards=probes.subject.shards)
    bounds = msgspec.structs.replace(bounds, usable_cores=max(1.0, costs.cores))
    item_bytes = item_bytes_of(probes)
    counts = {*WORKER_COUNTS, max(1, int(costs.cores)), workers_that_pay(bounds)} - {0}
    best: list[tuple[float, int, Setting]] = []
    most = max(1.0, costs.cores) * rules.workers_a_cpu
    if probes.subject.repeats:  # several workers would each give all items: the script would train otherwise
        counts = {1, now.num_workers} - {0}
    for count in sorted(count for count in counts if count <= most):
        other = msgspec.structs.replace(now, num_workers=count)
        if ruled_out(other, item_bytes, bounds) is not None:
            continue
        seconds, setting = pace.seconds(other), other
        for ahead in rules.prefetches:
            more = msgspec.structs.replace(other, prefetch_factor=ahead)
            if ahead > other.prefetch_factor and ruled_out(more, item_bytes, bounds) is None:
                more_s = pace.seconds(more)
                if more_s < seconds * (1 - rules.alike):
                    seconds, setting = more_s, more
        best.append((seconds, count, setting))
    ordered = []
    while best:
        least = min(best)[0]
        chosen = next(each for each in best if each[0] <= least * (1 + rules.alike))
        ordered.append(chosen[2])
        best.remove(chosen)
    return ordered


def _changes(now: Setting, setting: Setting, trial: Trial) -> dict[str, int | float | bool | str]:
    """The fields that differ. Where the loader is read again and again, its workers are to stay."""
    changes: dict[str, int | float | bool | str] = {}
    for name in ("num_workers", "prefetch_factor"):
        if getattr(setting, name) != getattr(now, name):
            changes[name] = getattr(setting, name)
    if len(trial.timeline.batches) > 1 and not now.persistent_workers:
        changes["persistent_workers"] = True
    return changes
