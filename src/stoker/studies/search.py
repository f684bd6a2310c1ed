"""A model search: its candidates are run and recorded like the tasks of a study, and then ranked."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import msgspec

from stoker.analysis.machines import facts_of
from stoker.errors import InputError, StokerError
from stoker.events import AnyEvent, CandidateStarted, OnEvent, Phase, Progress
from stoker.ranking.combine import ModelScores, rank
from stoker.ranking.request import SearchRequest, search_request
from stoker.ranking.resampling import RESAMPLING, score_model
from stoker.records import CandidateTrial, Extent, Problem, RankedModels, Ranking, Record, Task, parse
from stoker.studies.driver import RULES as DRIVER
from stoker.studies.driver import place_of
from stoker.studies.executors import Executor, Finished, LocalExecutor
from stoker.studies.fingerprint import fingerprint_of
from stoker.studies.grid import Grid
from stoker.studies.store import Place, Slot, Store, TrialRow
from stoker.studies.study import DEFAULT_STORE
from stoker.units import format_count

SOURCE = "search"
"""Where the study of a search comes from, as the store says it."""


class ForecastRules(Record, frozen=True):
    """How a search is estimated before it runs."""

    probe_items: int = 16
    """A batch that warms up and one that is timed."""
    score_items: int = 500
    """Scores are timed on so many random features, and taken to grow with the items."""
    score_resamples: int = 2
    """Of these two, the others follow."""


FORECAST = ForecastRules()


def search(
    models: str | Sequence[str],
    *,
    data: str | None = None,
    score: str | None = None,
    part: str = "full",
    items: int | None = None,
    classes: int | None = None,
    device: str = "auto",
    budget_s: float | None = None,
    host_memory_bytes: int | None = None,
    db: str | Path = DEFAULT_STORE,
    executor: Executor | None = None,
    on_event: OnEvent | None = None,
) -> Ranking:
    """Rank pretrained models on labelled data, without training any of them.

    `models` are names as on the command line, with weights as `resnet18@FILE`. `data` is a folder of class folders,
    `FILE.py:workload`, or a synthetic set, which gives times alone. `part` is where a candidate is cut: `last:25%` runs
    the last quarter of its blocks on the stored outputs of those before.

    Finished candidates are recorded in `db`, and a search that is repeated takes them from there; failed ones are tried
    again. No candidate is begun that would end after `budget_s`. Raises InputError for what cannot be searched at all;
    a candidate that fails is part of the answer.
    """
    if budget_s is not None and budget_s <= 0:
        raise InputError(f"the budget must be above 0 s, got {budget_s:g}")
    request = search_request(models, data=data, score=score, part=part, items=items, classes=classes, device=device)
    with Store(Path(db)) as store:
        store.check()
        run = _Search(request, store, executor or LocalExecutor(), budget_s, host_memory_bytes, on_event)
        return run.run()


class _OutOfBudget(Exception):
    """The next candidate would not end within the budget."""


class _Search:
    """One process' part in a search."""

    def __init__(
        self,
        request: SearchRequest,
        store: Store,
        executor: Executor,
        budget_s: float | None,
        host_memory_bytes: int | None,
        on_event: OnEvent | None,
    ) -> None:
        self._request, self._store, self._executor = request, store, executor
        self._host_memory_bytes, self._on_event = host_memory_bytes, on_event
        self._began = monotonic()
        self._deadline = math.inf if budget_s is None else self._began + budget_s
        executor.begin(list(request.tasks.values()))
        self._tasks = {task.key(): task for task in request.tasks.values()}
        self._names = {task.key(): name for name, task in request.tasks.items()}
        self._claimed: list[Slot] = []
        self._batch: list[Slot] = []
        self._seconds: list[float] = []
        self._over = 0

    def run(self) -> Ranking:
        when = datetime.now(UTC)
        request = self._request
        for machine in self._executor.machines():
            self._store.add_machine(fingerprint_of(machine), facts_of(machine))
        cells = {key: (task, _cell(self._names[key], request)) for key, task in self._tasks.items()}
        self._store.add_study(request.study, _grid(request), SOURCE, cells)
        last = self._store.last_attempts(place_of(self._executor))
        slots = [Slot(key, 0) for key in self._tasks]
        reused = {slot.key for slot in slots if slot in last and last[slot][0] == "done"}
        pending = dict.fromkeys(slot for slot in slots if slot.key not in reused)
        retries = {slot: last[slot][1] for slot in pending if slot in last}
        self._over = len(reused)
        stopped = None
        try:
            self._run_pending(pending, retries)
        except _OutOfBudget as spent:
            stopped = str(spent)
        finally:
            self._release()
        return self._ranking(when, reused, stopped)

    # ------------------------------------------------------------ running

    def _run_pending(self, pending: dict[Slot, None], retries: dict[Slot, int]) -> None:
        """Run what nobody else runs; wait for what others run."""
        while pending:
            while self._claim(pending, retries):
                pass
            if not self._claimed:
                if pending:
                    self._emit(Phase(name="preparing", text="waiting for another search of this store"))
                    sleep(DRIVER.poll_s)
                continue
            self._batch = list(self._claimed)
            self._executor.search(
                [self._tasks[slot.key] for slot in self._batch],
                self._finished,
                host_memory_bytes=self._host_memory_bytes,
                on_event=self._event,
            )

    def _claim(self, pending: dict[Slot, None], retries: dict[Slot, int]) -> bool:
        """Claim one more candidate. Only one search or study of a store runs at a time: they would disturb each
        other."""
        if monotonic() >= self._deadline:
            raise _OutOfBudget("the budget is spent")
        claimed = self._store.claim(pending, place_of(self._executor), jobs=len(self._claimed) + 1, retries=retries)
        for slot in (*claimed.finished, claimed.slot):
            if slot is not None:
                del pending[slot]
        self._over += len(claimed.finished)
        if claimed.slot is None:
            return False
        self._claimed.append(claimed.slot)
        return True

    def _finished(self, place: int, finished: Finished) -> None:
        slot = self._batch[place]
        machine = finished.machine or self._executor.machines()[0]
        self._store.add_machine(fingerprint_of(machine), facts_of(machine))
        self._store.record(
            TrialRow(
                key=slot.key,
                repeat=slot.repeat,
                machine=fingerprint_of(machine),
                outcome=finished.outcome,
                began=finished.began,
                wall_s=finished.wall_s,
                figures=finished.figures,
                problem=finished.problem,
                versions=finished.versions,
                document=finished.document,
            ),
            place_of(self._executor),
        )
        self._claimed.remove(slot)
        self._over += 1
        if finished.outcome == "done":
            self._seconds.append(finished.wall_s)

    def _event(self, event: AnyEvent) -> None:
        if isinstance(event, CandidateStarted):
            self._check_budget()
            self._emit(Progress(what=event.model, done=self._over, of=len(self._tasks)))
            return
        self._emit(event)

    def _emit(self, event: AnyEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def _check_budget(self) -> None:
        """End the search before a candidate that would not end in time, as far as those before it show."""
        now = monotonic()
        if now >= self._deadline:
            raise _OutOfBudget("the budget is spent")
        if self._seconds and now + median(self._seconds) > self._deadline:
            raise _OutOfBudget("the next candidate would not end within the budget")

    def _release(self) -> None:
        for slot in self._claimed:
            with suppress(StokerError):
                self._store.release(slot, place_of(self._executor))
        self._claimed = []

    # ------------------------------------------------------------ the answer

    def _ranking(self, when: datetime, reused: set[str], stopped: str | None) -> Ranking:
        request = self._request
        trials = self._trials()
        found = [trials[key] for key in self._tasks if key in trials]
        candidates, ranked = ranked_trials(found, request)
        return Ranking(
            data=next((each.data for each in candidates if each.outcome == "done"), request.data),
            device=next((each.device for each in candidates if each.outcome == "done"), request.device),
            part=request.part,
            scores=request.scores,
            labels=request.labels,
            ranked=ranked,
            candidates=tuple(candidates),
            unfinished=tuple(self._names[key] for key in self._tasks if key not in trials),
            reused=tuple(self._names[key] for key in self._tasks if key in reused),
            stopped=stopped,
            notes=tuple(_notes(candidates, request)),
            wall_s=monotonic() - self._began,
            machine=self._executor.machines()[0],
            when=when,
        )

    def _trials(self) -> dict[str, CandidateTrial]:
        """The last attempt of every candidate that was run on this machine, or in the cluster."""
        machines = {fingerprint_of(machine) for machine in self._executor.machines()}
        per = self._executor.per
        rows = [
            row
            for row in self._store.trials(self._request.study, documents=True, keys=list(self._tasks))
            if (row.machine in machines or (per is not None and row.figures.get("per") == per))
            and row.document is not None
        ]
        found = {}
        for row in sorted(rows, key=lambda row: row.attempt):
            trial = parse(row.document or b"")
            if isinstance(trial, CandidateTrial):
                found[row.key] = msgspec.structs.replace(trial, machine=None)
        return found


def ranked_trials(
    trials: Sequence[CandidateTrial], request: SearchRequest
) -> tuple[list[CandidateTrial], RankedModels | None]:
    """The trials, with a problem for each that cannot be ranked beside the others, and the ranking of the rest.

    Labels at random give no ranking. Candidates are compared on the same items: those that saw others are left out.
    """
    if request.labels == "random":
        return list(trials), None
    done = [each for each in trials if each.outcome == "done"]
    digests = Counter(each.labels_digest for each in done)
    usual = digests.most_common(1)[0][0] if digests else ""
    found: list[CandidateTrial] = []
    models: list[ModelScores] = []
    for trial in trials:
        why = _unranked_reason(trial, usual, request.combined) if trial.outcome == "done" else None
        if why is not None:
            trial = msgspec.structs.replace(trial, outcome="failed", problem=Problem(sentence=why))
        elif trial.outcome == "done":
            models.append(ModelScores(model=trial.model, scores=trial.scores, static=trial.static))
        found.append(trial)
    return found, rank(models, combined=request.combined) if models else None


def _unranked_reason(trial: CandidateTrial, digest: str, combined: Sequence[str]) -> str | None:
    if trial.labels_digest != digest:
        return f"it was scored on other items than the rest ({trial.items:,}), so it cannot be compared"
    lacking = [name for name in combined if name not in {each.score for each in trial.scores}]
    if lacking:
        return f"{lacking[0]} cannot be computed: {trial.score_problems.get(lacking[0], 'it was not asked for')}"
    broken = next((each for each in trial.scores if each.score in combined and not math.isfinite(each.value)), None)
    return None if broken is None else f"{broken.score} is not a finite number"


def _notes(trials: Sequence[CandidateTrial], request: SearchRequest) -> list[str]:
    notes: list[str] = []
    done = [each for each in trials if each.outcome == "done"]
    if request.labels == "random":
        notes.append("labels are random, for times alone: there is no ranking")
    random_weights = [each.model for each in done if each.weights == "random"]
    if random_weights:
        notes.append(
            f"random weights: {', '.join(random_weights)}. A ranking of random weights means nothing; name files with "
            "MODEL@FILE"
        )
    skipped = max((each.skipped for each in done), default=0)
    if skipped:
        verb = "was" if skipped == 1 else "were"
        notes.append(f"{format_count(skipped, 'item')} could not be read and {verb} left out")
    for each in done:
        if each.whole_reason is not None and request.part != "full":
            notes.append(f"{each.model} ran whole, because it cannot be divided: {each.whole_reason}")
        notes += [f"{each.model}: {note}" for note in each.notes]
    return notes


def _grid(request: SearchRequest) -> Grid:
    """The search as a store keeps it."""
    fixed: dict[str, Any] = {"data": request.data, "device": request.device, "part": request.part}
    fixed["scores"] = ",".join(request.scores)
    if request.items is not None:
        fixed["items"] = request.items
    axes: tuple[dict[str, tuple[Any, ...]], ...] = ({"workload": tuple(request.tasks)},)
    return Grid(name=request.study, kind="search", fixed=fixed, axes=axes)


def _cell(name: str, request: SearchRequest) -> dict[str, Any]:
    return {**_grid(request).fixed, "workload": name}


# ---------------------------------------------------------------- before it runs


class CandidateForecast(Record, frozen=True):
    """One candidate of a search that is not run yet. `seconds` is None where nothing tells; `basis` says what does:
    finished trials of the model, a probe on a few items, or nothing, with the `problem`."""

    model: str
    is_done: bool
    weights: str | None
    seconds: float | None
    basis: str
    problem: str | None = None


class SearchForecast(Record, frozen=True):
    """What a search would do. `left_s` is None where a candidate's time is unknown."""

    study: str
    data: str
    part: str
    scores: tuple[str, ...]
    items: int | None
    candidates: tuple[CandidateForecast, ...]
    left_s: float | None


def forecast(
    request: SearchRequest,
    *,
    db: str | Path = DEFAULT_STORE,
    executor: Executor | None = None,
    on_event: OnEvent | None = None,
) -> SearchForecast:
    """What a search would execute and how long it should take, from its finished trials or a probe of each model on a
    few items. Writes nothing. What candidates share makes the search shorter than the sum."""
    executor = executor or LocalExecutor()
    executor.begin(list(request.tasks.values()))
    known = _known_seconds(Path(db), place_of(executor))
    rows = {name: known.get(task.key()) for name, task in request.tasks.items()}
    probes = _probed([task for name, task in request.tasks.items() if rows[name] is None], executor, on_event)
    candidates = []
    for name, task in request.tasks.items():
        done_s, probe = rows[name], probes.get(name)
        seconds = done_s if done_s is not None else _estimated_s(probe, request)
        basis = "a finished trial" if done_s is not None else "a probe" if seconds is not None else "unknown"
        problem = probe.problem.sentence if probe is not None and probe.problem is not None else None
        weights = task.workload.weights if task.workload is not None else None
        candidates.append(
            CandidateForecast(
                model=name,
                is_done=done_s is not None,
                weights=weights,
                seconds=seconds,
                basis=basis,
                problem=problem,
            )
        )
    left = [each.seconds for each in candidates if not each.is_done and each.problem is None]
    return SearchForecast(
        study=request.study,
        data=request.data,
        part=request.part,
        scores=request.scores,
        items=request.items,
        candidates=tuple(candidates),
        left_s=None if None in left else sum(each or 0.0 for each in left),
    )


def _known_seconds(db: Path, place: Place) -> dict[str, float]:
    """Seconds of candidates that are done on this machine, by key."""
    if not db.exists():
        return {}
    with Store(db, create=False) as store:
        done = {slot.key for slot, (outcome, _) in store.last_attempts(place).items() if outcome == "done"}
        return {key: seconds[-1] for key, seconds in store.wall_seconds(place).items() if key in done}


def _probed(tasks: Sequence[Task], executor: Executor, on_event: OnEvent | None) -> dict[str, CandidateTrial]:
    """A short run of each candidate, without scores."""
    found: dict[str, CandidateTrial] = {}

    def ended(place: int, finished: Finished) -> None:
        trial = parse(finished.document or b"")
        assert isinstance(trial, CandidateTrial)
        found[str(tasks[place].options["name"])] = trial

    short = [
        msgspec.structs.replace(
            task,
            workload=msgspec.structs.replace(task.workload, items=_fewer(task)),
            options={**task.options, "scores": "", "part": "full"},
            extent=Extent(batches=None),
        )
        for task in tasks
        if task.workload is not None
    ]
    if short:
        executor.search(short, ended, on_event=on_event)
    return found


def _fewer(task: Task) -> int:
    asked = task.workload.items if task.workload is not None else None
    return FORECAST.probe_items if asked is None else min(asked, FORECAST.probe_items)


def _estimated_s(probe: CandidateTrial | None, request: SearchRequest) -> float | None:
    """Seconds of a whole candidate: its preparation, its items at the rate of the last batch, and its scores."""
    if probe is None or probe.outcome != "done" or request.items is None or not probe.stages.batch_items:
        return None
    stages = probe.stages
    last = stages.batch_items[-1]
    item_s = (stages.load_s[-1] + stages.copy_s[-1] + stages.infer_s[-1]) / last
    prepare_s = stages.groups_s["prepare"] + stages.totals_s["start"]
    return prepare_s + item_s * request.items + _score_s(request, probe.feature_size or 1, probe.classes)


def _score_s(request: SearchRequest, width: int, classes: int) -> float:
    """How long the scores take: timed on random features, in proportion to the items."""
    import numpy as np

    count = min(request.items or 0, FORECAST.score_items)
    generator = np.random.default_rng(0)
    labels = np.arange(count) % max(2, classes)
    rules = msgspec.structs.replace(RESAMPLING, resamples=FORECAST.score_resamples)
    inputs = {"features": generator.normal(size=(count, width))}
    probabilities = generator.dirichlet(np.ones(10), size=count)
    try:
        samples = score_model(
            labels,
            **inputs,
            source_probabilities=probabilities,
            source_labels=probabilities.argmax(axis=1),
            scores=request.scores,
            rules=rules,
        )
    except InputError:
        return 0.0
    more = RESAMPLING.resamples / FORECAST.score_resamples
    scale = (request.items or count) / count
    return sum(each.seconds * scale + each.resample_s * more for each in samples)
