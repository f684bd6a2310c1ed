"""Which stage costs a finished trial most of its time.

With workers, loading and computing run side by side, and the slower of the two sets the pace: the loader does if the
loop regularly waits. Without workers the two add up, and the larger one is named.
"""

from math import sqrt
from statistics import stdev

from stoker.analysis import ranks
from stoker.analysis.interference import disturbance_note, thread_hint
from stoker.analysis.spans import COMPUTE, Span, steady, steady_batches, whole
from stoker.records import Record, Trial, Verdict
from stoker.units import format_seconds

_DOING = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transforming",
    "item": "loading items",
    "collate": "collating",
    "send": "sending batches to the loop",
    "pin": "pinning memory",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "update": "the optimizer's update",
    "step": "the workload's own step",
}

_BESIDE = {
    "copy": "copying to the device",
    "exchange": "exchanging gradients with the other ranks",
    "other": "the loop itself, between batches,",
}


class VerdictRules(Record, frozen=True):
    """When the loader sets the pace of a loop with workers."""

    least_wait: float = 0.05
    """The least share of a period that the loop waits for a batch..."""
    standard_errors: float = 2.0
    """... and by how many standard errors the wait differs from none: a few late batches are no pace."""
    start_share: float = 0.5
    """Starting is the bottleneck if it takes more than this share of a run."""
    transport_share: float = 0.5
    """If more than this share of the waiting passed after the batch had been loaded, it is for sending or pinning..."""
    busy_workers: float = 0.9
    """... unless workers load for more than this share of the time: quicker sending would give them no time to load."""
    costly_copy: float = 0.05
    """A copy to the device that takes more than this share of the time is worth a hint."""
    busy_wait: float = 0.1
    """If the device waits for less than this share of the time, more workers will not help."""


RULES = VerdictRules()


def verdict(trial: Trial) -> Verdict | None:
    """The stage that costs a finished trial most of its time; None for a trial that did not finish.

    The verdict is `uncertain` if the run's threads had to wait for CPUs.
    """
    if trial.outcome != "done" or not trial.items:
        return None
    run, span = whole(trial), steady(trial)
    found = ranks.figures(trial)
    pace = ranks.sets_pace(found)
    starting = run.share("start") + (trial.first_batch_s or 0.0) / run.seconds
    if starting > RULES.start_share or span is None:
        bottleneck, share, sentence = _start(trial, run, starting)
    else:
        bottleneck, share, sentence = _steady(trial, span, None if pace is None else ranks.excess(found, pace)[0])
    if pace is not None and bottleneck != "start":
        sentence = f"{_pace_in_words(found, pace)}; {sentence}"
    doubt = disturbance_note(trial)
    return Verdict(
        bottleneck=bottleneck,
        share=share,
        sentence=sentence,
        uncertain=doubt is not None,
        doubt=doubt or "",
        findings=tuple(_findings(trial, span, bottleneck)),
        rank=None if pace is None else pace.rank,
    )


Judged = tuple[str, float, str]
"""A stage, its share, and a sentence."""


def _pace_in_words(found: list[ranks.RankFigures], pace: ranks.RankFigures) -> str:
    """Which rank the others wait for, how long, and in which stage it differs from them."""
    stage, more_s = ranks.excess(found, pace)
    doing = {"wait": "waiting for its loader", "copy": "copying to its device"}.get(stage, _DOING.get(stage, stage))
    return (
        f"rank {pace.rank} sets the pace of {len(found)}: in a step of {format_seconds(pace.period_s)} the others wait "
        f"{format_seconds(pace.held_s)} for it ({pace.held_s / pace.period_s:.0%}), and {doing} takes it "
        f"{format_seconds(more_s)} longer than them"
    )


def _findings(trial: Trial, span: Span | None, bottleneck: str) -> list[str]:
    """What else was seen, and what to try. Hints have no figures: nothing like them was run."""
    found = [hint] if (hint := thread_hint(trial)) else []
    found += _hints(trial, span, bottleneck)
    if span is not None and span.share("wait") < RULES.busy_wait and not loader_sets_pace(trial, span):
        found.append(f"more workers will not help: the device waits for data {span.share('wait'):.0%} of the time")
    return found


def _hints(trial: Trial, span: Span | None, bottleneck: str) -> list[str]:
    setting, on_gpu = trial.setting, trial.workload.device.startswith("cuda")
    method = setting.multiprocessing_context or (trial.machine.host.start_method if trial.machine else None)
    found = []
    if bottleneck == "start" and setting.num_workers and method in ("spawn", "forkserver"):
        found.append(f"each worker was started by {method} and imports everything anew; fork does not")
    if bottleneck == "exchange" and setting.accumulate == 1:
        found.append("gradients are exchanged once for each update: try --accumulate, or a larger batch")
    if bottleneck == "pin":
        found.append("try pin_memory=False: copying batches into pinned memory holds the loop up")
    if span is not None and on_gpu and not setting.pin_memory and span.share("copy") > RULES.costly_copy:
        found.append("try pin_memory=True: copying from pinned memory is quicker")
    resizes = any(name.startswith(("transform.Resize", "transform.RandomResizedCrop")) for name in trial.stages)
    if bottleneck in ("decode", "transform") and resizes and "decode" in trial.stages:
        found.append(
            "if images are decoded by PIL: torchvision.io.decode_jpeg with torchvision.transforms.v2 on uint8 tensors "
            "resizes with less CPU time"
        )
    return found


def _start(trial: Trial, run: Span, share: float) -> Judged:
    first_s = trial.start_s + (trial.first_batch_s or 0.0)
    sentence = (
        f"the first batch comes after {format_seconds(first_s)} of {format_seconds(run.seconds)}: starting takes most "
        "of so short a run"
    )
    return "start", min(1.0, share), sentence


def _steady(trial: Trial, span: Span, slow: str | None) -> Judged:
    """The stage that sets the pace. Of one rank that others wait for, it is the one that makes it `slow`."""
    shares = {
        "wait": span.share("wait"),
        "copy": span.share("copy"),
        "compute": span.compute_s / span.seconds,
        "exchange": span.share("exchange"),
        "other": span.share("other"),
    }
    worst = max(shares, key=lambda name: shares[name])
    if trial.setting.num_workers:
        del shares["wait"]
        worst = "wait" if loader_sets_pace(trial, span) else max(shares, key=lambda name: shares[name])
    if slow is not None:
        worst = "compute" if slow in COMPUTE else slow
    if worst == "wait":
        return _loading(trial, span)
    if worst == "compute":
        return _computing(span)
    return worst, shares[worst], f"{_BESIDE[worst]} takes {shares[worst]:.0%} of the time"


# ---------------------------------------------------------------- the pace


def loader_sets_pace(trial: Trial, span: Span) -> bool:
    """Whether the loop of a trial regularly waits for its loader once it is steady."""
    if span.share("wait") < RULES.least_wait:
        return False
    places = steady_batches(trial)
    waits = [trial.stages["wait"].samples_s[place] for place in places] if "wait" in trial.stages else []
    return bool(waits) and sum(waits) / len(waits) >= RULES.standard_errors * _standard_error(
        waits, trial.setting.num_workers
    )


def _standard_error(waits: list[float], workers: int) -> float:
    """Of the mean wait. Workers deliver in rounds, one long wait and then short ones: the mean of a round is one
    sample."""
    rounds = max(1, workers)
    means = [sum(waits[at : at + rounds]) / rounds for at in range(0, len(waits) - rounds + 1, rounds)]
    samples = means if len(means) > 1 else waits
    return stdev(samples) / sqrt(len(samples)) if len(samples) > 1 else 0.0


def _transport_share(trial: Trial) -> float:
    """The share of the loop's waiting, once steady, that passed after the batch had been loaded in its worker."""
    line, ended = trial.timeline, trial.workers.ended_s
    waited_s = after_s = 0.0
    for place in steady_batches(trial):
        if place < min(len(ended), len(line.got_s)):
            asked, got = line.asked_s[place], line.got_s[place]
            waited_s += got - asked
            after_s += max(0.0, got - max(asked, ended[place]))
    return after_s / waited_s if waited_s > 0 else 0.0


def _loading(trial: Trial, span: Span) -> Judged:
    waiting, workers = span.share("wait"), trial.setting.num_workers
    parts = span.worker_parts
    if not parts:
        return "wait", waiting, f"the device waits for data {waiting:.0%} of the time"
    pace = ""
    if workers:
        pace = (
            f"the loader sets the pace: a batch every {format_seconds(span.seconds / span.batches)}, and the device "
            f"waits {format_seconds(span.loop_s.get('wait', 0.0) / span.batches)} of it ({waiting:.0%}); "
        )
    sent = {name: seconds for name, seconds in parts.items() if name in ("send", "pin")}
    loading = {name: seconds for name, seconds in parts.items() if name not in sent} or parts
    busy = sum(loading.values()) > RULES.busy_workers * workers * span.seconds
    late = _transport_share(trial) > RULES.transport_share
    if workers and sent and late and not (busy and sum(loading.values()) > sum(sent.values())):
        stage = max(sent, key=lambda name: sent[name])
        return stage, waiting, f"{pace}batches are loaded in time, and it waits for {_DOING[stage]}"
    stage = max(loading, key=lambda name: loading[name])
    of_workers, doing = span.share(stage), _DOING.get(stage, stage)
    if workers:
        return stage, waiting * of_workers, f"{pace}{doing} takes {of_workers:.0%} of the workers' time"
    sentence = (
        f"the device waits for data {waiting:.0%} of the time, and {doing} takes {of_workers:.0%} of the loading time; "
        "with 0 workers nothing is loaded while the device works"
    )
    return stage, waiting * of_workers, sentence


def _computing(span: Span) -> Judged:
    stage = max(COMPUTE, key=lambda name: span.loop_s.get(name, 0.0))
    computing = span.compute_s / span.seconds
    sentence = (
        f"the device computes {computing:.0%} of the time, most of it {_DOING[stage]} ({span.share(stage):.0%}); "
        f"it waits for data {span.share('wait'):.0%}"
    )
    return stage, span.share(stage), sentence
