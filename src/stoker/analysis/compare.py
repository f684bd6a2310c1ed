"""Two sides of measured runs: is the second faster or slower, where, and how sure is that.

The logarithms of times are compared, because noise in run times is about proportional to the time. The interval is
that of Student's t with the spread between runs of one task on one side, which is measured and not assumed. Sides of
equal size are pooled, because that is robust against unequal spreads; otherwise it is Welch's test. Where there are
too few runs to measure a spread, the known one of such machines takes its place, together with what the batches of
each run say about its own mean.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean, median, stdev, variance
from typing import Any, Literal, NamedTuple

from msgspec import field

from stoker.analysis.interference import disturbed
from stoker.analysis.machines import facts_of, label
from stoker.analysis.spans import PER_EPOCH, Span, steady, steady_batches, whole
from stoker.analysis.student import student_quantile
from stoker.errors import InputError
from stoker.records import Basis, Change, ChangeKind, Comparison, Difference, Plan, Record, Side, Trial, Unit
from stoker.units import format_count


class CompareRules(Record, frozen=True):
    """The numbers of a comparison."""

    confidence: float = 0.95
    """Of every interval. Two sides without a difference are called different once in twenty times."""
    cpu_spread: float = 0.034
    """How much runs of one setting differ on a machine without a GPU (standard deviation of log times): 109 degrees of
    freedom over 25 settings in benchmarks/results/two-cores-cpu/regret-runs.jsonl; `benchmarks/compare.py --spread`
    computes it."""
    gpu_spread: float = 0.104
    """The same with a GPU: 159 degrees of freedom over 89 settings in benchmarks/results/h200/regret-runs.jsonl. These
    runs took seconds, and starting was a large part of them."""
    first_spread: float = 0.249
    """The same of the first batch alone, which nothing averages: of all machines there, the largest."""
    least_freedom: int = 2
    """With fewer degrees of freedom, Student's t makes any interval useless, and the known spread is better."""
    least_spread: float = 0.002
    """Two runs are never taken to be more alike than this: clocks and schedulers are not. A tenth of the settings of
    those files have a smaller spread, by chance."""
    least_share: float = 0.01
    """A stage below this share of the time counts as so much of it, and is not compared if it is on both sides: the
    relative change of next to nothing says nothing."""
    drift: float = 0.03
    """The machine counts as faster or slower if the reference job surely differs, and by more than this."""


RULES = CompareRules()


class Part(Record, frozen=True):
    """Seconds an item, and their standard error as the run's own batches tell it."""

    item_s: float
    error_s: float = 0.0


class Pace(Record, frozen=True):
    """Seconds an item of one run: the whole, the stages of its loop, and those of its workers."""

    total: Part
    stages: dict[str, Part] = field(default_factory=dict)
    workers: dict[str, Part] = field(default_factory=dict)


class Measurement(Record, frozen=True):
    """One finished run. `paces` are by basis; `once_s` are seconds that a run takes once, such as its start.

    `values` say what was asked and set. Runs of one side that differ in them are runs of several tasks, which are
    compared one by one. `facts` are all that may explain a difference.
    """

    paces: dict[str, Pace]
    what: str = ""
    values: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, ChangeKind] = field(default_factory=dict)
    once_s: dict[str, float] = field(default_factory=dict)
    items_a_batch: float | None = None
    items: int = 0
    machine: dict[str, Any] | None = None
    reference_s: float | None = None
    disturbed: bool = False


FIRST_BATCH = "first batch"
"""The time from the start of a run until its loop has the first batch."""


class Measurements(Record, frozen=True):
    """The runs of one side, with the names of their files, and why others were left out."""

    runs: tuple[Measurement, ...]
    sources: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


# ---------------------------------------------------------------- what is compared


def of_trial(trial: Trial, values: Mapping[str, Any] | None = None) -> Measurement:
    """What a finished trial says. Raises InputError for one that did not finish.

    `values` are those that tell its task apart; without them, what was asked and set, but not how long it ran.
    """
    if trial.outcome != "done" or not trial.items:
        raise InputError(f"the run ended with {trial.outcome.replace('_', ' ')}")
    places = steady_batches(trial)
    paces = {"run": _pace(trial, whole(trial), trial.items, ())}
    later = steady(trial)
    if later is not None and later.items and later.seconds > 0:
        paces["steady"] = _pace(trial, later, later.items, places)
    counts = trial.timeline.items
    first_s = {} if trial.first_batch_s is None else {FIRST_BATCH: trial.start_s + trial.first_batch_s}
    ran, mode = trial.workload, trial.workload.mode
    facts, kinds = _facts(trial)
    if ran.model == ran.device:  # a device that sleeps stands in for a model
        del facts["model"]
    return Measurement(
        paces=paces,
        what=f"{ran.name} · {mode} on {ran.device}",
        values={name: _word(value) for name, value in values.items()}
        if values is not None
        else _identity(trial, facts, kinds),
        facts=facts,
        kinds=kinds,
        once_s={**first_s, "whole run": trial.total_s},
        items_a_batch=sum(counts) / len(counts) if counts else None,
        items=trial.items,
        machine=None if trial.machine is None else facts_of(trial.machine),
        reference_s=median(trial.reference_s) if trial.reference_s else None,
        disturbed=disturbed(trial),
    )


def _pace(trial: Trial, span: Span, items: int, places: Sequence[int]) -> Pace:
    """Of a span with so many items, whose batches are at these places."""
    loop = {name: spent for name, spent in span.loop_s.items() if name not in PER_EPOCH}
    size = max(1, trial.setting.num_workers)

    def part(seconds: float, names: Iterable[str]) -> Part:
        """The sum of some stages. Workers deliver in rounds: the mean of a round is one sample."""
        rows = [trial.stages[name].samples_s for name in names]
        sums = [sum(row[place] for row in rows if place < len(row)) for place in places]
        means = [fmean(sums[at : at + size]) for at in range(0, len(sums) - size + 1, size)]
        error_s = stdev(means) / math.sqrt(len(means)) * len(sums) if len(means) > 1 else 0.0
        return Part(item_s=seconds / items, error_s=error_s / items)

    return Pace(
        # A run of another kind than `profile` may have no loop stages that add up to it.
        total=part(span.seconds if places else trial.total_s, loop),
        stages={name: part(spent, [name]) for name, spent in loop.items()},
        workers={name: part(spent, [name]) for name, spent in span.worker_s.items()},
    )


def of_plan(plan: Plan) -> list[Measurement]:
    """A measurement for each run of the planned setting. Raises InputError for a plan that was not measured."""
    if plan.measured is None:
        raise InputError("the plan was not measured")
    wanted = plan.objective
    count = wanted.items * wanted.epochs
    facts = {
        "workload": plan.workload,
        "mode": plan.mode,
        "objective": wanted.kind,
        "items": f"{wanted.items:,}",
        "epochs": str(wanted.epochs),
    }
    kinds: dict[str, ChangeKind] = dict.fromkeys(facts, "task")
    for name in ("batch_size", "num_workers", "prefetch_factor", "accumulate", "multiprocessing_context"):
        facts[name], kinds[name] = _word(getattr(plan, name)), "setting"
    return [
        Measurement(
            paces={"objective": Pace(total=Part(item_s=seconds / count))},
            what=f"{plan.workload} · {plan.mode}",
            values={"workload": plan.workload, "mode": plan.mode, "objective": wanted.kind},
            facts=facts,
            kinds=kinds,
            items=count,
            disturbed=plan.measured.disturbed,
        )
        for seconds in plan.measured.samples_s
    ]


def _facts(trial: Trial) -> tuple[dict[str, str], dict[str, ChangeKind]]:
    """What was asked, set and installed, in words, and which of the three each is."""
    ran, extent = trial.workload, trial.extent
    asked = {"workload": ran.name, "model": ran.model, "data": ran.data, "mode": ran.mode, "device": ran.device}
    asked |= {"items of the set": _word(ran.items), "batches": _word(extent.batches), "epochs": _word(extent.epochs)}
    asked |= {"source": extent.source}
    if trial.task is not None:
        asked |= {name: _word(value)[:_LONGEST] for name, value in trial.task.options.items()}
    fields = (name for name in trial.setting.__struct_fields__)
    setting = {name: _word(getattr(trial.setting, name)) for name in fields}
    if not trial.setting.num_workers:
        del setting["prefetch_factor"]
    software = trial.machine.software if trial.machine is not None else None
    versions = {name: getattr(software, name) for name in ("python", "torch", "torchvision", "numpy", "pillow")}
    installed = {name: str(value) for name, value in versions.items() if value} if software else {}
    kinds: dict[str, ChangeKind] = {
        **dict.fromkeys(asked, "task"),
        **dict.fromkeys(setting, "setting"),
        **dict.fromkeys(installed, "version"),
    }
    return {**asked, **setting, **installed}, kinds


_LENGTHS = ("model", "items of the set", "batches", "epochs")
"""Facts that make no other task: how long it ran, and what follows from the workload."""


_LONGEST = 40
"""Characters of a fact: of a command or a hash, enough to see that they differ."""


def _identity(trial: Trial, facts: Mapping[str, str], kinds: Mapping[str, ChangeKind]) -> dict[str, str]:
    """What tells tasks apart. The command and the content of a script do not: they are what a user changes."""
    others = (*_LENGTHS, *(trial.task.options if trial.task is not None else ()))
    return {name: each for name, each in facts.items() if kinds[name] != "version" and name not in others}


def _word(value: Any) -> str:
    return "default" if value is None else str(value)


# ---------------------------------------------------------------- the interval


class Estimate(NamedTuple):
    """A ratio, where the true one lies, and the spread that this comes from."""

    ratio: float
    interval: tuple[float, float]
    spread: float
    freedom: int
    known: bool


Group = tuple[Sequence[float], Sequence[float]]
"""Times of one task: those of A and those of B."""


def estimate(
    groups: Sequence[Group], known: float, errors: Sequence[float] = (), rules: CompareRules = RULES
) -> Estimate:
    """The ratio B / A, a geometric mean over the groups, with its interval.

    `known` is the spread that is taken where it cannot be measured; `errors` are the standard errors of the single
    runs, which then widen it.
    """
    logs = [([math.log(each) for each in a], [math.log(each) for each in b]) for a, b in groups]
    middle = fmean(fmean(b) - fmean(a) for a, b in logs)
    freedom = sum(len(a) + len(b) - 2 for a, b in logs)
    squares = sum((len(side) - 1) * variance(side) for group in logs for side in group if len(side) > 1)
    spread = math.sqrt(squares / freedom) if freedom else 0.0
    weight = sum(1 / len(a) + 1 / len(b) for a, b in logs) / len(logs) ** 2
    if freedom >= rules.least_freedom:
        spread = max(spread, rules.least_spread)
        error, freedom = _welch(logs[0], rules) if _unequal(logs) else (spread * math.sqrt(weight), freedom)
        half = student_quantile((1 + rules.confidence) / 2, freedom) * error
        return Estimate(math.exp(middle), (math.exp(middle - half), math.exp(middle + half)), spread, freedom, False)
    within = fmean(each**2 for each in errors) if errors else 0.0
    spread = max(spread, math.sqrt(known**2 + within))
    error = max(spread * math.sqrt(weight), _between_tasks(logs))
    half = NormalDist().inv_cdf((1 + rules.confidence) / 2) * error
    return Estimate(math.exp(middle), (math.exp(middle - half), math.exp(middle + half)), spread, freedom, True)


def _unequal(logs: Sequence[Group]) -> bool:
    """Whether there is one task, with several runs on both sides, and not as many on each."""
    return len(logs) == 1 and len(logs[0][0]) != len(logs[0][1]) and min(map(len, logs[0])) > 1


def _welch(group: Group, rules: CompareRules) -> tuple[float, int]:
    """The standard error of the difference, and Welch's degrees of freedom, rounded down."""
    parts = [(max(variance(side), rules.least_spread**2) / len(side), len(side) - 1) for side in group]
    whole_variance = sum(part for part, _ in parts)
    freedom = whole_variance**2 / sum(part**2 / count for part, count in parts)
    return math.sqrt(whole_variance), max(1, math.floor(freedom))


def _between_tasks(logs: Sequence[Group]) -> float:
    """The standard error of the mean over tasks as the tasks' own ratios tell it; 0 for one task."""
    ratios = [fmean(b) - fmean(a) for a, b in logs]
    return stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0


# ---------------------------------------------------------------- the comparison


def compare_runs(a: Measurements, b: Measurements, *, anyway: bool = False, rules: CompareRules = RULES) -> Comparison:
    """Compare the runs of two sides, task by task and stage by stage.

    Raises InputError for a side without a run, sides without a common task or of unlike kinds, and unlike machines
    unless `anyway`.
    """
    for name, side in (("A", a), ("B", b)):
        if not side.runs:
            raise InputError(f"side {name} has no finished run: {'; '.join(side.left_out) or 'it is empty'}")
    basis = _basis(a.runs, b.runs)
    notes = _check_machines(a.runs, b.runs, anyway=anyway)
    axes = _axes(a.runs, b.runs)
    tasks = [{_task(run, axes): None for run in side.runs} for side in (a, b)]
    shared = [task for task in tasks[0] if task in tasks[1]]
    if not shared:
        raise InputError(f"the sides have no task in common: A has {_some(tasks[0])}; B has {_some(tasks[1])}")
    notes += _unshared(tasks, shared)
    rows: dict[str, Row] = {task: (_of_task(a.runs, axes, task), _of_task(b.runs, axes, task)) for task in shared}
    pairs = _Pairs(list(rows.values()), basis, _known_spread(a.runs, b.runs, rules), rules)
    total, found = pairs.total()
    reference = pairs.reference()
    drifted = reference is not None and reference.answer != "cannot_tell"
    drifted = drifted and reference is not None and abs(math.log(reference.ratio or 1.0)) > rules.drift
    return Comparison(
        a=_side(a, list(rows.values()), 0),
        b=_side(b, list(rows.values()), 1),
        what=_common([run.what for group in rows.values() for side in group for run in side]),
        basis=basis,
        total=total,
        stages=tuple(pairs.stages()),
        tasks=tuple(pairs.tasks(list(rows))) if len(rows) > 1 else (),
        changes=tuple(_changes(list(rows.values()), axes)),
        confidence=rules.confidence,
        spread=found.spread,
        spread_known=found.known,
        freedom=found.freedom,
        reference=reference,
        drifted=drifted,
        notes=tuple(notes),
    )


Row = tuple[Sequence[Measurement], Sequence[Measurement]]
"""The runs of one task on both sides."""


class _Pairs:
    """Runs of the tasks that both sides have."""

    def __init__(
        self,
        rows: Sequence[Row],
        basis: Basis,
        known: float,
        rules: CompareRules,
    ) -> None:
        self._rows, self._basis, self._known, self._rules = rows, basis, known, rules
        self._scale, self._unit = _unit([run for group in rows for side in group for run in side], basis)

    def total(self) -> tuple[Difference, Estimate]:
        groups = [tuple([self._item_s(run) for run in side] for side in group) for group in self._rows]
        totals = [run.paces[self._basis].total for group in self._rows for side in group for run in side]
        errors = [part.error_s / part.item_s for part in totals]
        found = estimate([(a, b) for a, b in groups], self._known, errors, self._rules)
        name = {"steady": "total, once steady", "run": "whole run", "objective": "objective"}[self._basis]
        clock = "loop" if self._basis == "steady" else "run"
        return self._difference(name, clock, self._unit, groups, found, self._scale), found

    def stages(self) -> Iterable[Difference]:
        """The parts of the total, then those of the workers' time, then what a run has once."""
        runs = [run.paces[self._basis] for group in self._rows for side in group for run in side]
        for name in dict.fromkeys(name for pace in runs for name in pace.stages):
            yield self._part(name, "loop")
        for name in dict.fromkeys(name for pace in runs for name in pace.workers):
            yield self._part(name, "worker")
        yield from self._once()

    def _part(self, name: str, clock: Literal["loop", "worker"]) -> Difference:
        """One stage. A value below the least share of the whole counts as that share."""
        share, shown, floored = self._rules.least_share, [], []
        errors, is_long, is_missing = [], False, False
        for group in self._rows:
            sides = [[_part_of(run.paces[self._basis], name, clock) for run in side] for side in group]
            is_missing |= any(part is None for side in sides for part, _ in side)
            is_long |= any(
                fmean((part.item_s if part else 0.0) / of_s for part, of_s in side) >= share for side in sides
            )
            shown.append([[part.item_s for part, _ in side if part is not None] for side in sides])
            floored.append([[max(part.item_s if part else 0.0, share * of_s) for part, of_s in side] for side in sides])
            errors += [part.error_s / max(part.item_s, share * of_s) for side in sides for part, of_s in side if part]
        scale, unit = (self._scale, self._unit) if clock == "loop" else (1.0, "item")
        found = None
        if is_long and not is_missing:
            found = estimate([(a, b) for a, b in floored], self._known, errors, self._rules)
        return self._difference(name, clock, unit, shown, found, scale)

    def _once(self) -> Iterable[Difference]:
        """Seconds that a run takes once. The whole run is compared only if all runs had as many items."""
        runs = [run for group in self._rows for side in group for run in side]
        for name in dict.fromkeys(name for run in runs for name in run.once_s):
            if any(run.once_s.get(name, 0.0) <= 0 for run in runs):  # not measured in all
                continue
            alike = all(len({run.items for side in group for run in side}) == 1 for group in self._rows)
            if name == "whole run" and (self._basis == "run" or not alike):
                continue
            groups = [[[run.once_s[name] for run in side] for side in group] for group in self._rows]
            known = self._rules.first_spread if name == FIRST_BATCH else self._known
            totals = [run.paces[self._basis].total for run in runs] if name != FIRST_BATCH else []
            errors = [part.error_s / part.item_s for part in totals]
            found = estimate([(a, b) for a, b in groups], known, errors, self._rules)
            yield self._difference(name, "run", "run", groups, found, 1.0)

    def tasks(self, names: Sequence[str]) -> Iterable[Difference]:
        """The total of each task by itself."""
        for name, (a, b) in zip(names, self._rows, strict=True):
            times = [[self._item_s(run) for run in side] for side in (a, b)]
            found = estimate([(times[0], times[1])], self._known, (), self._rules)
            yield self._difference(name, "loop", self._unit, [times], found, self._scale)

    def reference(self) -> Difference | None:
        """The fixed job: it differs where the machine itself was faster or slower."""
        sides = [
            [run.reference_s for group in self._rows for run in group[side] if run.reference_s is not None]
            for side in (0, 1)
        ]
        if not all(sides):
            return None
        found = estimate([(sides[0], sides[1])], self._known, (), self._rules)
        return self._difference("reference job", "run", "run", [sides], found, 1.0)

    def _item_s(self, run: Measurement) -> float:
        return run.paces[self._basis].total.item_s

    @staticmethod
    def _difference(
        name: str, clock: Any, unit: Unit, groups: Sequence[Sequence[Sequence[float]]], found: Any, scale: float
    ) -> Difference:
        """With a value a run; of several tasks, the mean of each."""
        a, b = (
            [fmean(group[side]) for group in groups if group[side]] if len(groups) > 1 else list(groups[0][side])
            for side in (0, 1)
        )
        return Difference(
            name=name,
            unit=unit,
            clock=clock,
            a_s=tuple(scale * each for each in a),
            b_s=tuple(scale * each for each in b),
            ratio=None if found is None else found.ratio,
            interval=None if found is None else found.interval,
        )


def _part_of(pace: Pace, name: str, clock: Literal["loop", "worker"]) -> tuple[Part | None, float]:
    """A stage, and the seconds an item of all that it is a part of."""
    if clock == "loop":
        return pace.stages.get(name), pace.total.item_s
    whole_s = sum(part.item_s for each, part in pace.workers.items() if "." not in each)
    return pace.workers.get(name), whole_s or pace.total.item_s


def _unit(runs: Sequence[Measurement], basis: Basis) -> tuple[float, Unit]:
    """How many items the compared times are of: a batch where all have as many, the same objective, or one item."""
    if basis == "objective":
        counts = {run.items for run in runs}
        return (float(counts.pop()), "run") if len(counts) == 1 else (1.0, "item")
    if basis == "run" and len({run.items for run in runs}) == 1:
        return float(runs[0].items), "run"
    sizes = [run.items_a_batch for run in runs]
    if None not in sizes and basis == "steady":
        known = [size for size in sizes if size is not None]
        if max(known) - min(known) <= _ALIKE * max(known):
            return fmean(known), "batch"
    return 1.0, "item"


_ALIKE = 1e-3
"""Mean sizes of batches may differ by this: the last batch of an epoch is smaller."""


def _basis(a: Sequence[Measurement], b: Sequence[Measurement]) -> Basis:
    """What all runs have: the steady part, else the whole run. Plans are compared with plans only."""
    runs = [*a, *b]
    for basis in ("steady", "run", "objective"):
        if all(basis in run.paces for run in runs):
            return basis
    raise InputError("plans hold the time of their objective and runs that of their batches: compare like with like")


def _known_spread(a: Sequence[Measurement], b: Sequence[Measurement], rules: CompareRules) -> float:
    on_gpu = any(run.facts.get("device", "").startswith("cuda") for run in (*a, *b))
    return rules.gpu_spread if on_gpu else rules.cpu_spread


def _check_machines(a: Sequence[Measurement], b: Sequence[Measurement], *, anyway: bool) -> list[str]:
    """Notes on machines. Raises InputError where they are not alike, unless they are to be compared anyway."""
    labels = {name: _machines(runs) for name, runs in (("A", a), ("B", b))}
    known = [run.machine for run in (*a, *b) if run.machine is not None]
    notes = []
    if any(each != known[0] for each in known):
        apart = f"A on {' and '.join(labels['A'])}; B on {' and '.join(labels['B'])}"
        if not anyway:
            raise InputError(f"the machines are not alike ({apart}); --anyway compares them nevertheless")
        notes.append(f"the machines are not alike: {apart}")
    if any(run.machine is None for run in (*a, *b)):
        notes.append("not every result says which machine it came from")
    return notes


def _machines(runs: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(label(run.machine) for run in runs if run.machine is not None))


def _side(side: Measurements, rows: Sequence[Row], place: int) -> Side:
    runs = [run for group in rows for run in group[place]]
    return Side(
        sources=side.sources,
        runs=len(runs),
        tasks=len(rows),
        disturbed=sum(run.disturbed for run in runs),
        machines=tuple(_machines(runs)),
        left_out=side.left_out,
    )


def _changes(rows: Sequence[Row], axes: Sequence[str]) -> Iterable[Change]:
    """What differs between the sides, or within one of them, in any task. `axes` tell the tasks apart."""
    seen: dict[str, tuple[ChangeKind, dict[str, None], dict[str, None]]] = {}
    for a, b in rows:
        for name in dict.fromkeys(name for run in (*a, *b) for name in run.facts if name not in axes):
            values = [dict.fromkeys(run.facts[name] for run in side if name in run.facts) for side in (a, b)]
            if all(values) and (values[0] != values[1] or len(values[0]) > 1):
                kind = next(run.kinds[name] for run in (*a, *b) if name in run.kinds)
                _, left, right = seen.setdefault(name, (kind, {}, {}))
                left |= values[0]
                right |= values[1]
    for name, (kind, left, right) in seen.items():
        yield Change(name=name, kind=kind, a=", ".join(left), b=", ".join(right))


def _axes(a: Sequence[Measurement], b: Sequence[Measurement]) -> list[str]:
    """What differs between runs of one side: these values tell its tasks apart."""
    names = dict.fromkeys(name for run in (*a, *b) for name in run.values)
    return [
        name
        for name in names
        if any(len({run.values[name] for run in side if name in run.values}) > 1 for side in (a, b))
    ]


def _of_task(runs: Sequence[Measurement], axes: Sequence[str], task: str) -> list[Measurement]:
    return [run for run in runs if _task(run, axes) == task]


def _task(run: Measurement, axes: Sequence[str]) -> str:
    return ", ".join(f"{name}={run.values[name]}" for name in axes if name in run.values)


def _unshared(tasks: Sequence[Iterable[str]], shared: Sequence[str]) -> list[str]:
    notes = []
    for name, names in zip("AB", tasks, strict=True):
        alone = [task for task in names if task not in shared]
        if alone:
            notes.append(f"{format_count(len(alone), 'task')} only on side {name}, left out: {_some(alone)}")
    return notes


def _some(tasks: Iterable[str]) -> str:
    names = [task or "one task" for task in tasks]
    return "; ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


_SHOWN = 3
"""So many tasks are named in a sentence."""


def _common(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    return " / ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def of_figures(figures: Mapping[str, Any], values: Mapping[str, Any], machine: dict[str, Any] | None) -> Measurement:
    """What a row of a study's table says: its steady time an item, or its whole time. Raises InputError for a row
    without times."""
    items, seconds, steady_s = (_number(figures.get(name)) for name in ("run_items", "seconds", "steady_item_s"))
    items = items or _number(values.get("items"))
    paces = {} if steady_s is None else {"steady": Pace(total=Part(item_s=steady_s))}
    if seconds is not None and items is not None:
        paces["run"] = Pace(total=Part(item_s=seconds / items))
    if not paces:
        raise InputError(f"the trial ended with {figures.get('outcome', 'no outcome')} and has no time")
    words = {name: _word(value) for name, value in values.items()}
    size = _number(values.get("batch_size"))
    workload, mode, device = (figures.get(name, values.get(name, "")) for name in ("workload", "mode", "device"))
    return Measurement(
        paces=paces,
        what=f"{workload} · {mode}" + (f" on {device}" if device else ""),
        values=words,
        facts=words,
        kinds=dict.fromkeys(words, "task"),
        once_s={} if seconds is None else {"whole run": seconds},
        items_a_batch=size if items is None or size is None or items % size == 0 else None,
        items=round(items or 0),
        machine=machine,
        reference_s=_number(figures.get("reference_s")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None
