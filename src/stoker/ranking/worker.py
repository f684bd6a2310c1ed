"""Runs the candidates of a search one after another in a process of its own, and outlives the death of that process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import msgspec

from stoker.errors import InputError, StokerError
from stoker.events import AnyEvent, CandidateEnded, CandidateStarted, OnEvent
from stoker.machine import host, inspect
from stoker.measure import reference
from stoker.measure.session import judge, trial_server
from stoker.process import child
from stoker.process.failures import of_error
from stoker.ranking.candidate import Shared, candidate_name, crashed, run_candidate
from stoker.ranking.preprocessing import preparation
from stoker.ranking.supply import HostStore
from stoker.records import CandidateTrial, Machine, Record, Task, WorkloadSpec
from stoker.workload import models

OnTrial = Callable[[int, CandidateTrial], None]


class WorkerRules(Record, frozen=True):
    """How long a candidate may be silent, and how much memory its items may take."""

    stall_s: float = 600.0
    """Reading tens of gigabytes of weights, or one score of 100,000 items, takes minutes and says nothing meanwhile."""
    memory_share: float = 0.25
    """Of the free memory, unless --host-memory says otherwise: models, features and scores need the rest."""


RULES = WorkerRules()


def run_candidates(
    tasks: Sequence[Task],
    on_trial: OnTrial,
    *,
    host_memory_bytes: int | None = None,
    timeout_s: float | None = None,
    on_event: OnEvent | None = None,
) -> None:
    """Run candidates in one child process, and give each trial to `on_trial` with its place, when it is over.

    While one candidate computes, the weights of the next are read. Items are kept between candidates, in at most
    `host_memory_bytes` (by default a quarter of what is free). If the process dies, the candidate that it ran is
    recorded as crashed, and a new one goes on with the rest. `timeout_s` limits each candidate. What `on_trial` and
    `on_event` raise ends the search.
    """
    if host_memory_bytes is None:
        host_memory_bytes = int(host.available_bytes() * RULES.memory_share)
    machine = inspect()
    left = list(range(len(tasks)))
    while left:
        follower = _Follower(left, on_trial, machine, timeout_s, on_event)
        kills = host.out_of_memory_kills()
        ended = child.run(
            _serve,
            ([tasks[place] for place in left], host_memory_bytes),
            kind=bool,
            server=trial_server(),
            stall_s=RULES.stall_s,
            remaining_s=follower.remaining_s,
            on_event=follower.event,
        )
        left = [place for place in left if place not in follower.over]
        if left:
            place = left[0] if follower.running is None else follower.running
            outcome, problem = judge(ended, timeout_s, host.out_of_memory_kills() > kills, RULES.stall_s)
            trial = crashed(tasks[place], outcome, problem, follower.seconds)
            on_trial(place, msgspec.structs.replace(trial, machine=machine))
            left.remove(place)


class _Follower:
    """Follows one process: which candidate it runs, and which are over."""

    def __init__(
        self,
        places: Sequence[int],
        on_trial: OnTrial,
        machine: Machine,
        timeout_s: float | None,
        on_event: OnEvent | None,
    ) -> None:
        self._places, self._on_trial, self._machine = list(places), on_trial, machine
        self._timeout_s, self._on_event = timeout_s, on_event
        self._reference_s: tuple[float, ...] = reference.reference_s()
        self._began = monotonic()
        self.running: int | None = None
        self.over: set[int] = set()

    @property
    def seconds(self) -> float:
        """How long the candidate that runs has taken so far."""
        return monotonic() - self._began

    def remaining_s(self) -> float | None:
        if self._timeout_s is None or self.running is None:
            return None
        return max(0.0, self._timeout_s - self.seconds)

    def event(self, event: AnyEvent) -> None:
        match event:
            case CandidateStarted(index=index):
                self.running, self._began = self._places[index], monotonic()
            case CandidateEnded(index=index, trial=trial):
                place = self._places[index]
                self.over.add(place)
                self.running = None
                trial = msgspec.structs.replace(trial, machine=self._machine, reference_s=self._reference_s)
                self._reference_s = ()
                self._on_trial(place, trial)
                return  # the trial is handed over; as an event it would be so twice
        if self._on_event is not None:
            self._on_event(event)


# ---------------------------------------------------------------- in the child


def _serve(tasks: Sequence[Task], host_memory_bytes: int, emit: OnEvent) -> bool:
    """Run the candidates, those together that can share prepared items."""
    shared = Shared(store=HostStore(limit_bytes=host_memory_bytes))
    order, keys = _in_order(tasks)
    for number, index in enumerate(order):
        later = order[number + 1 :]
        name = str(tasks[index].options.get("name", ""))
        emit(CandidateStarted(index=index, model=name))
        of_data = [keys[each] for each in later if keys[each][0] == keys[index][0]]
        shared.keeps_prepared = any(each == keys[index] for each in of_data)
        shared.keeps_decoded = any(each != keys[index] for each in of_data)
        shared.next_weights = _weights(tasks[later[0]]) if later else None
        trial = run_candidate(tasks[index], shared=shared, on_event=emit)
        emit(CandidateEnded(index=index, trial=trial))
        if not later or keys[later[0]] != keys[index]:
            shared.store.prepared_over()
        if not of_data:
            shared.store.clear()
    return True


Key = tuple[str, str]
"""What a candidate's data and its preprocessing depend on."""


def _in_order(tasks: Sequence[Task]) -> tuple[list[int], list[Key]]:
    """The order in which to run them, and the key of each. Candidates stay in their order, save that those with equal
    preprocessing follow each other."""
    keys = [_key(task) for task in tasks]
    first = {key: keys.index(key) for key in keys}
    data = {key[0]: next(place for place, other in enumerate(keys) if other[0] == key[0]) for key in keys}
    order = sorted(range(len(tasks)), key=lambda place: (data[keys[place][0]], first[keys[place]], place))
    return order, keys


def _key(task: Task) -> Key:
    spec = task.workload
    assert spec is not None
    data = f"{spec.data}:{spec.items}:{task.options.get('classes')}"
    try:
        return data, "" if spec.from_function else preparation(models.describe(spec.spec)).key
    except (StokerError, ValueError, RuntimeError):  # the candidate says itself what is wrong
        return data, spec.spec


def _weights(task: Task) -> Path | None:
    return Path(task.workload.weights).expanduser() if task.workload and task.workload.weights else None


# ---------------------------------------------------------------- before anything runs


class Checked(Record, frozen=True):
    """A candidate as it will be run: with the weights that were found for it, or with what is wrong with it."""

    name: str
    weights: str | None = None
    medium: str = "image"
    problem: str | None = None


class CheckedAll(Record, frozen=True):
    """All candidates of a search, checked."""

    candidates: tuple[Checked, ...]


def check_candidates(specs: Sequence[WorkloadSpec]) -> tuple[Checked, ...]:
    """What the models' names mean, found out in a child process: to know them takes torch."""
    return child.value(child.run(_check, (tuple(specs),), kind=CheckedAll, server=trial_server())).candidates


def _check(specs: Sequence[WorkloadSpec], emit: OnEvent) -> CheckedAll:
    return CheckedAll(candidates=tuple(_checked(spec) for spec in specs))


def _checked(spec: WorkloadSpec) -> Checked:
    name = candidate_name(spec)
    if spec.from_function:
        return Checked(name=name, medium="own")
    try:
        kind = models.describe(spec.spec)
        if not kind.trainable or kind.medium == "video":
            raise InputError(
                f"{kind.name} is a {kind.family} model; a search compares classifiers of images and of texts"
            )
        weights = spec.weights or found_weights(kind)
        return Checked(name=name, weights=weights, medium=kind.medium)
    except StokerError as error:
        return Checked(name=name, problem=str(error))
    except Exception as error:  # a library may raise anything over a name
        return Checked(name=name, problem=of_error(error)[1].sentence)


def found_weights(kind: models.ModelKind) -> str | None:
    """Weights that are on this machine already: those in a folder of transformers, or torch's earlier downloads."""
    import torch

    if kind.source == "hf":
        folder = Path(kind.name.removeprefix("hf/")).expanduser()
        found = [folder / name for name in ("model.safetensors", "pytorch_model.bin")]
        return next((str(each.resolve()) for each in found if each.is_file()), None)
    if kind.source == "torchvision":
        from torchvision import models as known

        try:
            weights = known.get_model_weights(kind.name)
        except ValueError:
            return None
        if len(weights):
            file = Path(torch.hub.get_dir(), "checkpoints", weights.DEFAULT.url.rsplit("/", 1)[-1])
            return str(file.resolve()) if file.is_file() else None
    return None
