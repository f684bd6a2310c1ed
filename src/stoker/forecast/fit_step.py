"""Fits what a step costs, alone and beside workers that load."""

from collections.abc import Sequence
from statistics import fmean, median

from stoker.forecast.costs import StepCosts, Table, table
from stoker.forecast.samples import by_size, trimmed_mean
from stoker.records import Probes, Record, Run


class StepRules(Record, frozen=True):
    """How samples of steps are read."""

    blocked: float = 2.0
    """A step that took the host this many times the least had to wait for the GPU's queue."""
    many_steps: int = 8
    """From this many steps on, the first two are cold, not only the first: they make what later steps find made."""
    least_pace: float = 0.25
    """The least pace of a CPU step beside a worker. A thread that shares its core has half of it, the other threads
    wait for it at every operation, and the scheduler may take long to separate the two."""
    alone_share: float = 0.01
    """A step counts as alone if a worker loaded beside it for less than this share of its time."""
    beside_share: float = 0.1
    """A step counts as beside a worker from this share on."""


RULES = StepRules()


def fit_step(probes: Probes) -> StepCosts:
    """The costs of the consumer's step on its device."""
    runs = probes.of("step")
    kind = probes.subject.device.partition(":")[0]
    host = table(by_size(runs, lambda run: _warm(_host_s(run))), median)
    device = table(by_size(runs, lambda run: _warm(run.device_s)), median)
    update = table(by_size(runs, lambda run: _warm(run.update_s)), median, flat=True)
    if kind == "cuda":
        return StepCosts(
            host_s=_launch(runs), device_s=device, update_s=update, asynchronous=True, ahead=_steps_ahead(runs)
        )
    if kind == "cpu":
        crowded = [_slowdown_beside_worker(run, host) for run in probes.of("crowded")]
        return StepCosts(
            host_s=host,
            update_s=update,
            first_s=_first(runs),
            threads=probes.setting.threads or max(1, round(probes.machine.usable_cores)),
            crowded=fmean(crowded) if crowded else 1.0,
        )
    return StepCosts(host_s=host, late_s=_late_s(probes.of("slow")))


def _late_s(runs: Sequence[Run]) -> float:
    """How much later than it should a sleeping step wakes up while workers compute."""
    return trimmed_mean([seconds - min(_host_s(run)) for run in runs for seconds in _host_s(run)]) if runs else 0.0


def _host_s(run: Run) -> list[float]:
    return [done - got for got, done in zip(run.got_s, run.done_s, strict=True)]


def _warm(values: Sequence[float]) -> list[float]:
    """The values without those of cold steps; all of them if every step is cold."""
    return list(values[_cold_steps(values) :]) or list(values)


def _cold_steps(values: Sequence[float]) -> int:
    return 2 if len(values) >= RULES.many_steps else 1


def _first_extra(run: Run) -> list[float]:
    """The extra time of the first steps: they allocate memory that later steps use again, and start threads."""
    host = _host_s(run)
    cold = host[: _cold_steps(host)]
    return [max(0.0, sum(cold) - len(cold) * median(_warm(host)))] if len(host) > 1 else []


def _first(runs: Sequence[Run]) -> Table:
    """The extra time of the first steps by batch size. From a single size it stays as it is at every other: one-off
    work, such as a compilation, does not grow with the batch."""
    return table(by_size(runs, _first_extra), median, flat=len({run.batch_size for run in runs}) == 1)


def _launch(runs: Sequence[Run]) -> Table:
    """The host's time to launch a step on a GPU whose queue has room."""
    return table(by_size(runs, lambda run: _unblocked(_warm(_host_s(run))) if run.got_s else []), median)


def _unblocked(hosts: Sequence[float]) -> list[float]:
    """Steps that did not wait for the device."""
    return [seconds for seconds in hosts if seconds <= RULES.blocked * min(hosts)]


def _steps_ahead(runs: Sequence[Run]) -> int:
    """How many steps the host got ahead of the device before it had to wait. If it never waited, any number."""
    most = 1_000_000
    for run in runs:
        host, device = _host_s(run), run.device_s
        blocked = [place for place in range(1, len(host)) if host[place] > 0.5 * device[place] > 2 * min(host)]
        if blocked:
            most = min(most, max(1, blocked[0]))
    return most


def _slowdown_beside_worker(run: Run, host: Table) -> float:
    """Slowdown of a CPU step while a worker loads, from the time lost per second of overlap.

    It is 1 for a step that only waits, 2 for one that computes on all cores, and more if its threads often wait for
    each other. The first step is left out, as it allocates memory too. Processes differ in how quick their steps are:
    the reference is a step of the same process with no worker beside it, or where there is none, that of another run.
    """
    rows = list(zip(run.got_s, run.done_s, strict=True))[1:]
    steps = [(done - got, _overlap_s(run, got, done)) for got, done in rows]
    alone = [step_s for step_s, shared_s in steps if shared_s < RULES.alone_share * step_s]
    alone_s = median(alone) if alone else host.at(run.batch_size)
    lost = [(step_s - alone_s) / shared_s for step_s, shared_s in steps if shared_s > RULES.beside_share * step_s]
    return 1 / min(1.0, max(RULES.least_pace, 1 - median(lost))) if lost else 1.0


def _overlap_s(run: Run, got: float, done: float) -> float:
    """How long any worker was loading between two moments."""
    shared_s, until = 0.0, got
    for began, ended in sorted(zip(run.began_s, run.ended_s, strict=True)):
        shared_s += max(0.0, min(ended, done) - max(began, until))
        until = max(until, ended)
    return shared_s
