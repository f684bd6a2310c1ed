"""Which stage costs a finished trial most of its time."""

from stoker.analysis.spans import COMPUTE, Span, steady, whole
from stoker.records import Trial, Verdict
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


def verdict(trial: Trial) -> Verdict | None:
    """The stage that costs a finished trial most of its time; None for a trial that did not finish."""
    if trial.outcome != "done" or not trial.items:
        return None
    run = whole(trial)
    starting = run.share("start") + (trial.first_batch_s or 0.0) / run.seconds
    span = steady(trial)
    if starting > 0.5 or span is None:
        return _start(trial, run, starting)
    shares = {
        "wait": span.share("wait"),
        "copy": span.share("copy"),
        "compute": span.compute_s / span.seconds,
        "other": span.share("other"),
    }
    worst = max(shares, key=lambda name: shares[name])
    if worst == "wait":
        return _loading(trial, span)
    if worst == "compute":
        return _computing(span)
    words = "copying to the device" if worst == "copy" else "the loop itself, between batches,"
    return Verdict(bottleneck=worst, share=shares[worst], sentence=f"{words} takes {shares[worst]:.0%} of the time")


def _start(trial: Trial, run: Span, share: float) -> Verdict:
    first_s = trial.start_s + (trial.first_batch_s or 0.0)
    sentence = (
        f"the first batch comes after {format_seconds(first_s)} of {format_seconds(run.seconds)}: starting takes most "
        "of so short a run"
    )
    return Verdict(bottleneck="start", share=min(1.0, share), sentence=sentence)


def _loading(trial: Trial, span: Span) -> Verdict:
    waiting = span.share("wait")
    parts = span.worker_parts
    if not parts:
        return Verdict(
            bottleneck="wait", share=waiting, sentence=f"the device waits for data {waiting:.0%} of the time"
        )
    stage = max(parts, key=lambda name: parts[name])
    of_workers = span.share(stage)
    who = "the workers'" if trial.setting.num_workers else "the loading"
    sentence = (
        f"the device waits for data {waiting:.0%} of the time, and {_DOING.get(stage, stage)} takes "
        f"{of_workers:.0%} of {who} time"
    )
    if not trial.setting.num_workers:
        sentence += "; with 0 workers nothing is loaded while the device works"
    return Verdict(bottleneck=stage, share=waiting * of_workers, sentence=sentence)


def _computing(span: Span) -> Verdict:
    stage = max(COMPUTE, key=lambda name: span.loop_s.get(name, 0.0))
    computing = span.compute_s / span.seconds
    sentence = (
        f"the device computes {computing:.0%} of the time, most of it {_DOING[stage]} ({span.share(stage):.0%}); "
        f"it waits for data {span.share('wait'):.0%}"
    )
    return Verdict(bottleneck=stage, share=span.share(stage), sentence=sentence)
