"""What a step costs, alone and beside busy workers."""

from collections.abc import Sequence
from statistics import fmean, median

from stoker.predict.batches import by_size, trimmed
from stoker.predict.costs import Step, Table, table
from stoker.predict.probes import Probes, Run

_WAITED = 2.0
"""A step that took the host so many times the least had to wait for the device."""


def step_of(probes: Probes) -> Step:
    """The consumer's times, alone and beside busy workers."""
    runs = probes.of("step")
    kind = probes.subject.device.partition(":")[0]
    host = table(by_size(runs, lambda run: _later(_host(run))), median)
    device = table(by_size(runs, lambda run: _later(run.device_s)), median)
    if kind == "cuda":
        return Step(host_s=_launch(runs), device_s=device, asynchronous=True, ahead=_ahead(runs))
    if kind == "cpu":
        crowded = [_crowded(run, host) for run in probes.of("crowded")]
        threads = max(1, round(probes.machine.usable_cores))
        return Step(host_s=host, threads=threads, crowded=fmean(crowded) if crowded else 1.0)
    return Step(host_s=host, late_s=_late(probes.of("slow")))


def _late(runs: Sequence[Run]) -> float:
    """How much later than it should a sleeping step comes back while workers compute."""
    return trimmed([seconds - min(_host(run)) for run in runs for seconds in _host(run)]) if runs else 0.0


def _host(run: Run) -> list[float]:
    return [done - got for got, done in zip(run.got_s, run.done_s, strict=True)]


def _later(values: Sequence[float]) -> list[float]:
    """Without the first: it makes what the later ones find made."""
    return list(values[1:]) or list(values)


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


_SHARED = 0.5
"""A thread of a step that shares its core with a worker has half of it. Where steps seem to have less, it was a bad
moment: with few steps to go by, one of them decides."""


def _crowded(run: Run, host: Table) -> float:
    """How many times slower a step is while a worker loads, by what steps lost for each second that they had one beside
    them: 1 for a step that only waits, 2 for one that computes on all cores."""
    steps = list(zip(run.got_s, run.done_s, strict=True))
    beside = [_beside(run, got, done) for got, done in steps]
    alone_s = host.at(run.batch_size)
    lost_s = sum(done - got - alone_s for (got, done), shared_s in zip(steps, beside, strict=True) if shared_s)
    return 1 / min(1.0, max(_SHARED, 1 - lost_s / max(sum(beside), 1e-9)))


def _beside(run: Run, got: float, done: float) -> float:
    """For how long any worker was loading between two moments."""
    shared_s, until = 0.0, got
    for began, ended in sorted(zip(run.began_s, run.ended_s, strict=True)):
        shared_s += max(0.0, min(ended, done) - max(began, until))
        until = max(until, ended)
    return shared_s
