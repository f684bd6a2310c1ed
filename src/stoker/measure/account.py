"""Accounts for every second of a loop: what the device did, and what it waited for.

The device's stages lie on one line, one after another. Between two batches it stands idle; of that time, what the host
spent starting workers is `start`, what it spent asking the loader for a batch is `wait`, and the rest is `other`. So a
wait that the device does not feel, because it still works on the batch before, is not counted as one.
"""

from collections.abc import Sequence

import msgspec

from stoker.records import Stage


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: when the loop asked for it and had it, then the device's moments: (stage, when it ended)."""

    asked: float
    got: float
    began: float
    ends: tuple[tuple[str, float], ...]


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The host's moments of one epoch: its iterator asked for and there, its batches, its end asked for and over."""

    began: float
    started: float
    steps: tuple[Step, ...]
    exhausted: float
    ended: float


def overlap(first: tuple[float, float], second: tuple[float, float]) -> float:
    return max(0.0, min(first[1], second[1]) - max(first[0], second[0]))


def account(began: float, epochs: Sequence[Epoch], done: float) -> dict[str, Stage]:
    """Seconds of each loop stage, a sample a batch (`start`, `stop`: an epoch); all samples add up to the whole.

    `other` has one sample more: what came after the last batch.
    """
    names = list(dict.fromkeys(name for epoch in epochs for step in epoch.steps for name, _ in step.ends))
    samples: dict[str, list[float]] = {name: [] for name in ("start", "wait", *names, "stop", "other")}
    free = began
    stop = (began, began)
    for number, epoch in enumerate(epochs):
        starts = 0.0
        for step in epoch.steps:
            idle = (free, max(free, step.began))
            start = overlap(idle, (epoch.began, epoch.started))
            wait = overlap(idle, (step.asked, step.got))
            stopping = overlap(idle, stop)
            starts += start
            if step is epoch.steps[0] and number:
                samples["stop"].append(stopping)
            samples["wait"].append(wait)
            samples["other"].append(max(0.0, idle[1] - idle[0] - start - wait - stopping))
            free = _device_stages(step, idle[1], names, samples)
        samples["start"].append(starts)
        stop = (epoch.exhausted, epoch.ended)
    samples["stop"].append(overlap((free, done), stop))
    samples["other"].append(max(0.0, done - max(free, began) - samples["stop"][-1]))
    return {name: Stage(clock="loop", samples_s=tuple(values)) for name, values in samples.items()}


def _device_stages(step: Step, moment: float, names: Sequence[str], samples: dict[str, list[float]]) -> float:
    """Append what each stage of one step took; when the device is free again."""
    spent = dict.fromkeys(names, 0.0)
    for name, end in step.ends:
        spent[name] += max(0.0, end - moment)
        moment = max(moment, end)
    for name, seconds in spent.items():
        samples[name].append(seconds)
    return moment
