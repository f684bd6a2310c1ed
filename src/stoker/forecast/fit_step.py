"""What a step costs, alone and beside busy workers."""

from collections.abc import Sequence
from statistics import fmean, median

from stoker.forecast.batches import by_size, trimmed
from stoker.forecast.costs import Step, Table, table
from stoker.records import Probes, Run

_WAITED = 2.0
"""A step that took the host so many times the least had to wait for the device."""


def step_of(probes: Probes) -> Step:
    """The consumer's times, alone and beside busy workers."""
    runs = probes.of("step")
    kind = probes.subject.device.partition(":")[0]
    host = table(by_size(runs, lambda run: _later(_host(run))), median)
    device = table(by_size(runs, lambda run: _later(run.device_s)), median)
    update = table(by_size(runs, lambda run: _later(run.update_s)), median, flat=True)
    if kind == "cuda":
        return Step(host_s=_launch(runs), device_s=device, update_s=update, asynchronous=True, ahead=_ahead(runs))
    if kind == "cpu":
        crowded = [_crowded(run, host) for run in probes.of("crowded")]
        return Step(
            host_s=host,
            update_s=update,
            first_s=table(by_size(runs, _first), median),
            threads=max(1, round(probes.machine.usable_cores)),
            crowded=fmean(crowded) if crowded else 1.0,
        )
    return Step(host_s=host, late_s=_late(probes.of("slow")))


def _late(runs: Sequence[Run]) -> float:
    """How much later than it should a sleeping step comes back while workers compute."""
    return trimmed([seconds - min(_host(run)) for run in runs for seconds in _host(run)]) if runs else 0.0


def _host(run: Run) -> list[float]:
    return [done - got for got, done in zip(run.got_s, run.done_s, strict=True)]


def _later(values: Sequence[float]) -> list[float]:
    """Without the first, where there are many the first two: they make what the later ones find made."""
    return list(values[_cold(values) :]) or list(values)


def _cold(values: Sequence[float]) -> int:
    return 2 if len(values) >= _MANY else 1


_MANY = 8


def _first(run: Run) -> list[float]:
    """What the first steps took longer than the later ones: they fetch the memory that those use again, and start
    threads."""
    host = _host(run)
    cold = host[: _cold(host)]
    return [max(0.0, sum(cold) - len(cold) * median(_later(host)))] if len(host) > 1 else []


def _launch(runs: Sequence[Run]) -> Table:
    """What handing a step to a GPU costs the host while the device's queue has room."""
    return table(by_size(runs, lambda run: _free(_later(_host(run))) if run.got_s else []), median)


def _free(hosts: Sequence[float]) -> list[float]:
    """Those that did not have to wait for the device."""
    return [seconds for seconds in hosts if seconds <= _WAITED * min(hosts)]


def _ahead(runs: Sequence[Run]) -> int:
    """How many steps the host got ahead of the device before it had to wait; where it never had to, any number."""
    most = 1_000_000
    for run in runs:
        host, device = _host(run), run.device_s
        blocked = [place for place in range(1, len(host)) if host[place] > 0.5 * device[place] > 2 * min(host)]
        if blocked:
            most = min(most, max(1, blocked[0]))
    return most


_LEAST_SHARE = 0.25
"""What is left at least of a step's pace beside a worker. A thread that shares its core has half of it; the others wait
for it at every operation, and a scheduler may take long to part the two."""


def _crowded(run: Run, host: Table) -> float:
    """How many times slower a step is while a worker loads, by what steps lost for each second that they had one beside
    them: 1 for a step that only waits, 2 for one that computes on all cores, and more where these wait for each other
    often. The first step is left out, as it fetches memory too.

    Processes differ in how quick their steps are: those of the same one that had no worker beside them are what it is
    held against, and only where there are none those of another.
    """
    rows = list(zip(run.got_s, run.done_s, strict=True))[1:]
    steps = [(done - got, _beside(run, got, done)) for got, done in rows]
    alone = [step_s for step_s, shared_s in steps if shared_s < _LITTLE * step_s]
    alone_s = median(alone) if alone else host.at(run.batch_size)
    lost = [(step_s - alone_s) / shared_s for step_s, shared_s in steps if shared_s > _SOME * step_s]
    return 1 / min(1.0, max(_LEAST_SHARE, 1 - median(lost))) if lost else 1.0


_LITTLE, _SOME = 0.01, 0.1
"""Of a step, for how long a worker may load beside it for it to count as alone, and must for it to tell anything."""


def _beside(run: Run, got: float, done: float) -> float:
    """For how long any worker was loading between two moments."""
    shared_s, until = 0.0, got
    for began, ended in sorted(zip(run.began_s, run.ended_s, strict=True)):
        shared_s += max(0.0, min(ended, done) - max(began, until))
        until = max(until, ended)
    return shared_s
