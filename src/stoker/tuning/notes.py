"""Notes of a plan: what was not run and why, why this setting was chosen, and what to mind."""

from collections.abc import Iterator, Sequence

from stoker.forecast.runner import why
from stoker.records import (
    OWN_UPDATES,
    AlgebraAnswer,
    Candidate,
    Mode,
    Probes,
    Record,
    RuledOut,
    Setting,
    Trial,
)
from stoker.tuning.contest import RULES as CONTEST
from stoker.tuning.contest import standings
from stoker.tuning.request import TuneRequest
from stoker.units import format_bytes, format_seconds, format_workers


class NoteRules(Record, frozen=True):
    """When a note is worth a line."""

    far_off: float = 2.0
    """A plan that took this many times what was predicted, or less than the inverse, was predicted badly."""
    over_budget: float = 1.25
    """Tuning may take this many times its budget before a note says so."""


RULES = NoteRules()


def named(setting: Setting) -> str:
    """A setting in words."""
    ahead = f", {setting.prefetch_factor} ahead" if setting.num_workers and setting.prefetch_factor != 2 else ""
    kind = f", by {setting.multiprocessing_context}" if setting.num_workers and setting.multiprocessing_context else ""
    if setting.num_workers and setting.worker_threads:
        kind += f", {setting.worker_threads} threads each"
    return f"batch {setting.batch_size}, {format_workers(setting.num_workers)}{ahead}{kind}"


def unfinished(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.outcome != "done"]


def budget_notes(spent_s: float, budget_s: float) -> Iterator[str]:
    """A note if tuning took much longer than its budget."""
    if spent_s > RULES.over_budget * budget_s:
        yield f"tuning took {spent_s:.0f} s, more than its budget of {budget_s:g} s: it runs no less than this"


def worth_note(job_s: float, spend_s: float) -> str:
    """Why tuning ends before its budget."""
    return (
        f"the items take about {format_seconds(job_s)} without workers, so tuning was to take about "
        f"{spend_s:.0f} s: for a longer job, give its --items and --epochs"
    )


def run_notes(
    trials: Sequence[Trial], ran: Sequence[Candidate], request: TuneRequest, out: Sequence[RuledOut]
) -> Iterator[str]:
    """Notes on runs that were disturbed, that failed, or that were not made."""
    if any(each.measured is not None and each.measured.disturbed for each in ran):
        yield "other processes took the CPUs during the runs: figures are unstable, tune again on an idle machine"
    if request.gpus > 1:
        yield (
            f"times are of one GPU's share of the items: measured on one GPU with all CPUs, predicted for "
            f"{request.gpus} that share them"
        )
    if request.ranks > 1:
        yield (
            f"batch size, workers and prefetch are those of one rank: {request.ranks} ranks share the CPUs, the memory "
            "and /dev/shm; the loader of each takes sampler=DistributedSampler(dataset)"
        )
    if any(trial.updates_itself for trial in trials):
        yield OWN_UPDATES
    yield from dict.fromkeys(f"{named(trial.setting)} did not finish: {why(trial)}" for trial in unfinished(trials))
    if not any(request.is_current(each.setting) for each in ran):
        yield from (f"the current setting was not run: {each.sentence}" for each in out if request.is_current(each))


def choice_notes(best: Candidate, ran: Sequence[Candidate]) -> Iterator[str]:
    """Notes on a choice that is not what one would expect."""
    ties = sum(each.tied for each in ran)
    if ties > 1:
        yield f"{ties} settings are tied, within noise of each other: the plan is the one with the fewest workers"
    yield from not_the_quickest_notes(best, ran)
    if best.measured is not None and not 1 / RULES.far_off < best.seconds / best.predicted_s < RULES.far_off:
        yield (
            f"the plan took {best.seconds / best.predicted_s:.2g} times what was predicted, so others may be better "
            "than they seemed: a larger budget probes more of them"
        )
    largest = max(ran, key=lambda each: each.setting.batch_size)
    size = largest.setting.batch_size
    if size > best.setting.batch_size and largest.measured and best.measured:
        more = largest.seconds / best.seconds - 1
        what = f"{more:.0%} longer" if more > CONTEST.knee else "as long, and holds more in memory"
        if more > -CONTEST.knee:
            yield f"a larger batch is not faster here: batch {size} took {what}"


def not_the_quickest_notes(best: Candidate, ran: Sequence[Candidate]) -> Iterator[str]:
    """A note if the chosen setting was notably slower in its runs than another one."""
    scored = [each for each in ran if each.measured is not None]
    quickest = min(scored, key=lambda each: each.seconds, default=best)
    if best not in scored or best.seconds <= quickest.seconds * (1 + CONTEST.knee):
        return
    takes = standings(scored)
    slower = takes[scored.index(quickest)] > takes[scored.index(best)]
    share = "tied with the plan, but dearer," if quickest.tied else f"less than {CONTEST.knee:.0%} faster"
    setting, faster = quickest.setting, best.seconds / quickest.seconds - 1
    yield (
        f"batch {setting.batch_size} with {format_workers(setting.num_workers)} was {faster:.0%} "
        f"faster in few runs, and is {'slower' if slower else share} by runs and "
        "predictions together: a larger budget would tell"
    )


def algebra_notes(answer: AlgebraAnswer) -> Iterator[str]:
    """The equations with their numbers, and the assumption that they rest on."""
    ratios = ", ".join(f"{timing.ratio:.2g} at batch {timing.batch_size}" for timing in answer.timings)
    yield f"algebra: t_d / t_g is taken to be the same at every batch, and is {ratios}"
    workers = format_workers(answer.num_workers)
    yield f"algebra: the fewest workers that keep up with the step (4.17): {workers}"
    loaded = answer.num_workers * answer.batch_size * answer.item_bytes
    yield (
        f"algebra: W·B·I = {answer.num_workers} · {answer.batch_size} · {format_bytes(answer.item_bytes)} = "
        f"{format_bytes(loaded)} is below the host memory of {format_bytes(answer.memory_bytes)} (4.10)"
    )
    bound = "host memory (4.14)" if answer.bound_by == "host_memory" else "the largest batch allowed (4.16)"
    yield (
        f"algebra: the batch is bounded by {bound}; at batch {answer.batch_size} host memory allows "
        f"up to {answer.most_workers:,} workers (corollary, 4.14)"
    )


def stream_notes(probes: Probes, best: Candidate, trials: Sequence[Trial]) -> Iterator[str]:
    """Notes on a stream: several workers may repeat it, and it may be shorter than was said."""
    if not probes.subject.stream:
        return
    if best.setting.num_workers > 1 and probes.subject.repeats:
        yield (
            f"items are duplicated: {probes.subject.data} gives all its items once for each worker; share them out by "
            "torch.utils.data.get_worker_info(), or use at most one worker"
        )
    short = [trial for trial in trials if trial.outcome == "done" and _ended_early(trial)]
    if short:
        yield f"the stream ended after {short[0].items} items: the rest is extrapolated at the same rate"


def _ended_early(trial: Trial) -> bool:
    return trial.extent.batches is not None and sum(trial.timeline.batches) < trial.extent.batches


def global_batch_notes(request: TuneRequest, mode: Mode) -> Iterator[str]:
    """A note if an effective batch was asked for, but there are no updates."""
    if request.global_batch is not None and mode == "infer":
        yield "inference has no updates: a global batch only says which sizes may be chosen"


def batch_notes(request: TuneRequest, mode: Mode, keeps: int | None) -> Iterator[str]:
    """Whether the batch size was kept or searched, in training: it changes what is learned."""
    if mode != "train" or request.batch_size == "free" or request.global_batch is not None:
        return
    if keeps is not None and request.fixed_batch is None:
        yield f"the current batch of {keeps} is kept, because it changes what is learned; --batch-size free searches it"
    if keeps is None and request.max_batch is None:
        yield "nobody named a batch size, so it was searched; --batch-size N keeps yours and tunes the loader"


def alternative_notes(best: Candidate, other: Candidate | None, items: int | None) -> Iterator[str]:
    """What a faster batch size than the one that was kept would change."""
    if other is None:
        return
    size, kept = other.setting.batch_size, best.setting.batch_size
    updates = (
        "" if items is None else f", with {-(-items // size):,} updates an epoch in place of {-(-items // kept):,}"
    )
    yield f"batch {size} was {best.seconds / other.seconds:.2f} times as fast{updates}: adapt the learning rate"


def worker_notes(setting: Setting) -> Iterator[str]:
    """What the line of the plan cannot say."""
    if setting.num_workers and setting.worker_threads is not None:
        yield (
            f"each worker computes with {setting.worker_threads} threads: call "
            f"torch.set_num_threads({setting.worker_threads}) in your worker_init_fn"
        )


def training_notes(request: TuneRequest, mode: Mode, batch_size: int, items: int | None) -> Iterator[str]:
    """A note if the plan changes the number of updates."""
    if mode != "train" or request.global_batch is not None or request.current is None or items is None:
        return
    before, after = (-(-items // size) for size in (request.current.batch_size, batch_size))
    if before != after:
        yield (
            f"training: {after} updates an epoch instead of {before}; adapt the learning rate, "
            f"or keep the effective batch with --global-batch {request.current.batch_size}"
        )
