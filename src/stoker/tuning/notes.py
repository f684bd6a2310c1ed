"""What a plan has to say beside its figures: what was not run and why, and what to mind."""

from collections.abc import Iterator, Sequence

from stoker.forecast.probe_runs import why
from stoker.records import OWN_UPDATES, Candidate, Probes, RuledOut, Setting, Trial
from stoker.tuning.candidates import Request
from stoker.tuning.contest import KNEE, why_not_the_quickest
from stoker.units import format_workers

_FAR_OFF = 2.0


def named(setting: Setting) -> str:
    ahead = f", {setting.prefetch_factor} ahead" if setting.num_workers and setting.prefetch_factor != 2 else ""
    return f"batch {setting.batch_size}, {format_workers(setting.num_workers)}{ahead}"


def unfinished(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.outcome != "done"]


def budget_notes(spent_s: float, budget_s: float) -> Iterator[str]:
    if spent_s > 1.25 * budget_s:
        yield f"tuning took {spent_s:.0f} s, more than its budget of {budget_s:g} s: it runs no less than this"


def run_notes(
    trials: Sequence[Trial], ran: Sequence[Candidate], wish: Request, out: Sequence[RuledOut]
) -> Iterator[str]:
    """Of runs that were disturbed, failed, or not made."""
    if any(each.measured is not None and each.measured.disturbed for each in ran):
        yield "other processes took the CPUs during the runs: figures are unstable, tune again when it is calm"
    if wish.gpus > 1:
        yield (
            f"times are of one GPU's share of the items: measured on one GPU with all CPUs, predicted for {wish.gpus} "
            "that share them"
        )
    if any(OWN_UPDATES in trial.notes for trial in trials):
        yield OWN_UPDATES
    yield from dict.fromkeys(f"{named(trial.setting)} did not finish: {why(trial)}" for trial in unfinished(trials))
    if all(each.measured is None for each in ran):
        yield "nothing could be run within the budget: the plan is predicted only"
    if not any(wish.is_current(each.setting) for each in ran):
        yield from (f"the current setting was not run: {each.sentence}" for each in out if wish.is_current(each))


def choice_notes(best: Candidate, ran: Sequence[Candidate]) -> Iterator[str]:
    """Where the choice is not what one would expect."""
    yield from why_not_the_quickest(best, ran)
    if best.measured is not None and not 1 / _FAR_OFF < best.seconds / best.predicted_s < _FAR_OFF:
        yield (
            f"the plan took {best.seconds / best.predicted_s:.2g} times what was predicted, so others may be better "
            "than they seemed: a larger budget probes more of them"
        )
    largest = max(ran, key=lambda each: each.setting.batch_size)
    size = largest.setting.batch_size
    if size > best.setting.batch_size and largest.measured and best.measured:
        more = largest.seconds / best.seconds - 1
        what = f"{more:.0%} longer" if more > KNEE else "as long, and holds more in memory"
        if more > -KNEE:
            yield f"not the largest batch, which the thesis would take: {size} took {what}"


def stream_notes(probes: Probes, best: Candidate, trials: Sequence[Trial]) -> Iterator[str]:
    if not probes.subject.stream:
        return
    if best.setting.num_workers > 1:
        yield (
            "a stream gives all its items once for each worker, unless it shares them out by "
            "torch.utils.data.get_worker_info(): see that yours does"
        )
    short = [trial for trial in trials if trial.outcome == "done" and _ended_early(trial)]
    if short:
        yield f"the stream ended after {short[0].items} items: the rest is reckoned at the same rate"


def _ended_early(trial: Trial) -> bool:
    return trial.extent.batches is not None and sum(trial.timeline.batches) < trial.extent.batches
