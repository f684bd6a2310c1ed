"""Runs remedies beside the present setting, in pairs: what was predicted, and what came out."""

import math
from collections.abc import Sequence

import msgspec

from stoker.analysis.objective import own_items, trial_s
from stoker.events import OnEvent
from stoker.forecast.probes import batch_size_of
from stoker.measure.session import Job, Script, run_script
from stoker.records import (
    Extent,
    Mode,
    Objective,
    Record,
    Remedy,
    Setting,
    Trial,
    VerifiedRemedy,
    WorkloadSpec,
)
from stoker.tuning.remedies import settings_among
from stoker.workload.workload import Workload


class VerificationRules(Record, frozen=True):
    """How many remedies are run, how often and how long."""

    remedies: int = 2
    """The best few are verified."""
    pairs: int = 2
    """Runs of each. They alternate with runs of the present setting, so that a drift of the machine affects both..."""
    close: float = 0.1
    """... and a third pair is run if the first two differ by more than this."""
    run_s: float = 3.0
    """A run has as many batches as the present setting loads in about this time..."""
    least_batches: int = 8
    """... but at least so many for each worker."""


RULES = VerificationRules()


def verification(
    now: Setting,
    tried: Sequence[Remedy],
    objective: Objective,
    seconds: float,
    extent: Extent | None = None,
    *,
    pairs: int | None = None,
) -> Script[list[VerifiedRemedy]]:
    """Run each remedy and the present setting one after the other. `seconds` is what the objective takes now; `extent`
    says where the data lies and what seeds the order. `pairs` is how many runs each has; by default as many as tell."""
    found: list[VerifiedRemedy] = []
    for remedy in tried:
        other = msgspec.structs.replace(now, **remedy.changes)
        befores: list[float] = []
        afters: list[float] = []
        problem: str | None = None
        while problem is None and _wants_more(befores, afters, pairs):
            # Forwards and backwards in turns: the second of two runs may find what the first one left in caches.
            order = [(now, befores), (other, afters)]
            for setting, into in order if len(befores) % 2 == 0 else order[::-1]:
                trial = yield Job(setting=setting, extent=_extent(setting, now, other, objective, seconds, extent))
                if trial.outcome != "done":
                    problem = _why(trial)
                    break
                into.append(trial_s(objective, trial))
        whole = min(len(befores), len(afters))
        found.append(
            VerifiedRemedy(
                remedy=remedy, before_s=tuple(befores[:whole]), after_s=tuple(afters[:whole]), problem=problem
            )
        )
    return found


def verify(
    source: Workload | WorkloadSpec | str,
    trial: Trial,
    found: Sequence[Remedy],
    *,
    mode: Mode | None = None,
    device: str = "auto",
    pairs: int | None = None,
    on_event: OnEvent | None = None,
) -> list[VerifiedRemedy]:
    """Run the first two of the remedies that are settings, each in pairs with the setting of the profiled run: so many
    `pairs`, or two or three.

    Empty if none is a setting. Raises InputError or MachineError for a workload that cannot be run.
    """
    tried = settings_among(found)[: RULES.remedies]
    if not tried or trial.outcome != "done":
        return []
    epochs = len(trial.timeline.batches)
    objective = Objective(items=max(1, own_items(trial) // epochs), epochs=epochs)
    now = msgspec.structs.replace(trial.setting, batch_size=batch_size_of(trial))
    extent = msgspec.structs.replace(trial.extent, epochs=1)
    script = verification(now, tried, objective, trial.total_s, extent, pairs=pairs)
    return run_script(source, script, kind="profile", mode=mode, device=device, on_event=on_event)


def _wants_more(befores: Sequence[float], afters: Sequence[float], pairs: int | None) -> bool:
    if pairs is not None or len(befores) < RULES.pairs:
        return len(befores) < (pairs or RULES.pairs)
    ratios = [before / after for before, after in zip(befores, afters, strict=True)]
    return len(ratios) == RULES.pairs and max(ratios) > (1 + RULES.close) * min(ratios)


def _extent(
    setting: Setting, now: Setting, other: Setting, objective: Objective, seconds: float, extent: Extent | None
) -> Extent:
    """As many items for both settings, whole batches of either."""
    share = min(1.0, RULES.run_s / max(seconds / objective.epochs, 1e-9))
    largest = max(now.batch_size, other.batch_size)
    workers = max(now.num_workers, other.num_workers, 1)
    items = max(math.ceil(objective.items * share), RULES.least_batches * workers * largest)
    items = min(math.ceil(items / largest) * largest, objective.items)
    batches = math.ceil(items / setting.batch_size)
    return msgspec.structs.replace(extent or Extent(), batches=batches, warmup=0, validate=False)


def _why(trial: Trial) -> str:
    return trial.problem.sentence if trial.problem is not None else trial.outcome
