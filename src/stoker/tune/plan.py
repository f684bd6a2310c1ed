"""What to set: probe a little, predict every setting, run the best few in turns, and answer with the best of those."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from stoker.errors import InputError, MachineError
from stoker.measure.bench import Talk, drive
from stoker.measure.trial import Named, OnEvent
from stoker.predict.forecast import Prediction, Predictor, items_of
from stoker.predict.probes import Probes
from stoker.records import Mode, Precision, Record, Setting, Trial, Verdict
from stoker.tune.advise import Remedy, remedies, verdict, waited
from stoker.tune.candidates import Candidate, Wish, candidates_of, parse_current
from stoker.tune.constrain import Bounds, RuledOut, bounds_of
from stoker.tune.contest import Told, contend, everything, knee, thesis
from stoker.tune.limit import Limit, limit
from stoker.tune.objective import Measured, Objective
from stoker.tune.probe import probing
from stoker.tune.probe_runs import unusable
from stoker.tune.remarks import budget_notes, choice_notes, named, run_notes, stream_notes, unfinished
from stoker.workload.definition import Workload

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Planner = Literal["simulate", "thesis", "grid"]
_PROBE_SHARE = 0.5
"""Of the budget, what probing may take; running the best few gets the rest."""
_GRADIENT_BYTES = 4


class Plan(Record, frozen=True):
    """What to set, what it was predicted to cost and what it did, beside the current setting and the runners-up."""

    batch_size: int
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    persistent_workers: bool
    accumulate: int
    gpus: int
    batch_sampler: bool
    workload: str
    mode: Mode
    planner: Planner
    objective: Objective
    predicted: Prediction | None
    predicted_s: float
    measured: Measured | None
    current: Candidate | None
    candidates: tuple[Candidate, ...]
    ruled_out: tuple[RuledOut, ...]
    verdict: Verdict | None
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...]
    seconds: float
    probe_s: float

    @property
    def gain(self) -> float | None:
        """How many times faster than the current setting, as measured."""
        if self.current is None or self.current.measured is None or self.measured is None:
            return None
        return self.current.measured.total_s / self.measured.total_s

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for a DataLoader."""
        options: dict[str, Any] = {} if self.batch_sampler else {"batch_size": self.batch_size}
        options["num_workers"] = self.num_workers
        if self.num_workers:
            options["prefetch_factor"] = self.prefetch_factor
            options["persistent_workers"] = self.persistent_workers
        return {**options, "pin_memory": self.pin_memory}

    @property
    def line(self) -> str:
        """A line to paste."""
        options = {"batch_sampler": "batch_sampler", **self.options} if self.batch_sampler else self.options
        return f"DataLoader(dataset, {', '.join(f'{name}={value}' for name, value in options.items())})"

    def loader(self, dataset: Any, **options: Any) -> "DataLoader[Any]":
        """A DataLoader as planned; `options` (shuffle, collate_fn, ...) are passed on and win."""
        from torch.utils.data import DataLoader

        planned = self.options
        if options.get("num_workers") == 0:
            planned = {name: planned[name] for name in planned if name not in ("prefetch_factor", "persistent_workers")}
        if options.get("batch_sampler") is not None:
            planned.pop("batch_size", None)
        return DataLoader(dataset, **{**planned, **options})


def tune(
    source: Workload | Named | str,
    *,
    items: int | None = None,
    epochs: int = 1,
    throughput: bool = False,
    batch_size: int | None = None,
    max_batch: int | None = None,
    global_batch: int | None = None,
    gpus: int = 1,
    current: Setting | str | None = None,
    gpu_memory: int | str | None = None,
    host_memory_bytes: int | None = None,
    mode: Mode | None = None,
    device: str = "auto",
    precision: Precision = "fp32",
    budget_s: float = 60.0,
    planner: Planner = "simulate",
    on_event: OnEvent | None = None,
) -> Plan:
    """Find the batch size and the workers that finish soonest, and prove it with runs."""
    began = perf_counter()
    source = Named(spec=source) if isinstance(source, str) else source
    current = parse_current(current) if isinstance(current, str) else current
    wish = Wish(batch_size=batch_size, max_batch=max_batch, global_batch=global_batch, gpus=gpus, current=current)
    for name, value in (("items", items), ("epochs", epochs)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if not 0 < budget_s < math.inf:
        raise InputError(f"the budget must be above 0 s, got {budget_s:g}")
    if planner not in get_args(Planner):
        raise InputError(f"no such planner: {planner!r}; choose {', '.join(get_args(Planner))}")
    find = partial(limit, source, mode=mode, precision=precision, device=_gpu(device), on_event=on_event)
    ceiling = _ceiling(find(gpu_memory=gpu_memory)) if gpu_memory is not None else None
    tuner = _Tuner(
        wish=wish,
        ceiling=ceiling,
        asked=(items, epochs, throughput),
        host_memory_bytes=host_memory_bytes,
        precision=precision,
        budget_s=budget_s,
        planner=planner,
        on_event=on_event,
        began=began,
    )
    plan = drive(source, tuner.talk(), mode=mode, device=device, on_event=on_event)
    if plan is None:  # a step ran out of device memory: find the ceiling between two children, then go on
        with suppress(InputError, MachineError):
            tuner.ceiling = _ceiling(find())
        plan = drive(source, tuner.rest(), mode=mode, device=device, on_event=on_event)
    return plan


def _gpu(device: str) -> str:
    """Which GPU's memory is asked about, where it is one of several."""
    return device if device.startswith("cuda") else "auto"


class _Ceiling(NamedTuple):
    """The largest batch that the device takes at ease, and what an item takes there."""

    batch_size: int
    item_bytes: int


def _ceiling(found: Limit) -> _Ceiling:
    return _Ceiling(found.comfortable_batch or found.max_batch, found.bytes_per_item)


class _Tuner:
    """One tuning, from the first probe to the plan."""

    def __init__(
        self,
        *,
        wish: Wish,
        ceiling: _Ceiling | None,
        asked: tuple[int | None, int, bool],
        host_memory_bytes: int | None,
        precision: Precision,
        budget_s: float,
        planner: Planner,
        on_event: OnEvent | None,
        began: float,
    ) -> None:
        self._wish, self.ceiling, self._asked = wish, ceiling, asked
        self._host_memory_bytes, self._budget_s, self._planner = host_memory_bytes, budget_s, planner
        self._on_event, self._began = on_event, began
        self._base = Setting(precision=precision, persistent_workers=asked[1] > 1)
        self._trials: list[Trial] = []
        self._more_notes: list[str] = []
        self._probes: Probes | None = None

    def talk(self) -> Talk[Plan | None]:
        """All of it in one child; None where it has to stop for the ceiling of device memory."""
        sizes = self._wish.probe_sizes(self.ceiling and self.ceiling.batch_size)
        probes = yield from probing(
            self._base,
            sizes,
            budget_s=_PROBE_SHARE * self._budget_s,
            host_memory_bytes=self._host_memory_bytes,
            needs_length=self._asked[0] is None,
            on_event=self._on_event,
        )
        if probes.subject.batch_sampler:
            self._wish = self._wish.with_batch(probes.runs[0].batch_size)
        self._tell("probes", msgspec.to_builtins(probes))
        self._probes = probes
        if self.ceiling is None and probes.subject.device.startswith("cuda") and probes.ran_out:
            return None
        return (yield from self.rest())

    def rest(self) -> Talk[Plan]:
        """Everything that follows the probes."""
        probes = self._probes
        assert probes is not None
        self._base = msgspec.structs.replace(self._base, pin_memory=probes.subject.device.startswith("cuda"))
        objective = self._objective(probes)
        predictor = Predictor(probes, cores=probes.machine.usable_cores / self._wish.gpus)
        bounds = bounds_of(
            probes.machine,
            host_memory_bytes=self._host_memory_bytes,
            max_batch=self._largest(probes),
            kept_items=self._kept_items(probes),
            waiting_share=predictor.costs.waiting_share,
            gpus=self._wish.gpus,
        )
        per_gpu = msgspec.structs.replace(objective, items=math.ceil(objective.items / self._wish.gpus))
        found, out = candidates_of(self._wish, self._base, probes, predictor, per_gpu, bounds)
        if not any(each.asked_for for each in found):
            raise InputError(f"nothing fits this machine: {out[0].sentence}" if out else "there is nothing to choose")
        ran = yield from self._contest(found, per_gpu, bounds, predictor)
        self._check(ran)
        return self._plan(objective, per_gpu, predictor, ran, out)

    def _contest(
        self, found: Sequence[Candidate], objective: Objective, bounds: Bounds, predictor: Predictor
    ) -> Talk[list[Candidate]]:
        """Run what the planner would run."""
        left_s = max(1.0, self._budget_s - (perf_counter() - self._began))
        told = Told(self._trying, self._keep)
        if self._planner == "grid":
            return (yield from everything(found, objective, told))
        if self._planner == "thesis":
            ran, note = yield from thesis(found, objective, predictor, self._wish, bounds, left_s, told)
            self._more_notes.append(note)
            return ran
        return (yield from contend(found, self._wish, objective, left_s, told))

    def _trying(self, setting: Setting) -> None:
        self._tell("build", {"what": f"trying {named(setting)}", "done": 0, "of": 0})

    def _keep(self, trial: Trial) -> None:
        self._trials.append(trial)
        self._tell("measured", msgspec.to_builtins(trial))

    def _tell(self, name: str, data: Any) -> None:
        if self._on_event:
            self._on_event(name, data)

    def _objective(self, probes: Probes) -> Objective:
        items, epochs, throughput = self._asked
        count = items_of(probes) if items is None else items
        return Objective(items=count, epochs=epochs, kind="throughput" if throughput else "time")

    def _largest(self, probes: Probes) -> int | None:
        """The largest batch whose step ran, where a larger one did not."""
        if self.ceiling is not None:
            return self.ceiling.batch_size
        return max((run.batch_size for run in probes.of("step")), default=None) if probes.ran_out else None

    def _kept_items(self, probes: Probes) -> int:
        """How many items' memory the gradients take, which an accumulating loop keeps between batches."""
        if self.ceiling is None or not self.ceiling.item_bytes:
            return 0
        return -(-_GRADIENT_BYTES * (probes.subject.parameters or 0) // self.ceiling.item_bytes)

    def _plan(
        self,
        objective: Objective,
        per_gpu: Objective,
        predictor: Predictor,
        ran: Sequence[Candidate],
        out: Sequence[RuledOut],
    ) -> Plan:
        best, probes = self._choose(ran), predictor.probes
        current = next((each for each in ran if self._wish.is_current(each.setting)), None)
        done = (trial for trial in reversed(self._trials) if trial.outcome == "done")
        trial = next((trial for trial in done if _same(trial.setting, best.setting)), None)
        setting = best.setting
        return Plan(
            batch_size=setting.batch_size,
            num_workers=setting.num_workers,
            prefetch_factor=setting.prefetch_factor,
            pin_memory=bool(setting.pin_memory),
            persistent_workers=setting.persistent_workers and setting.num_workers > 0,
            accumulate=setting.accumulate,
            gpus=self._wish.gpus,
            batch_sampler=probes.subject.batch_sampler,
            workload=probes.subject.name,
            mode=probes.subject.mode,
            planner=self._planner,
            objective=objective,
            predicted=best.predicted,
            measured=best.measured,
            current=current,
            candidates=tuple(ran),
            ruled_out=tuple(out),
            verdict=verdict(trial) if trial else None,
            predicted_s=best.predicted_s,
            remedies=tuple(
                remedies(
                    predictor,
                    setting,
                    per_gpu.items,
                    epochs=per_gpu.epochs,
                    chosen=True,
                    waited=waited(trial) if trial else None,
                )
            ),
            notes=(
                *probes.notes,
                *self._more_notes,
                *budget_notes(perf_counter() - self._began, self._budget_s),
                *run_notes(self._trials, ran, self._wish, out),
                *choice_notes(best, ran),
                *stream_notes(probes, best, self._trials),
                *self._wish.training_notes(probes.subject.mode, setting.batch_size, probes.subject.items),
            ),
            seconds=perf_counter() - self._began,
            probe_s=probes.seconds,
        )

    def _choose(self, ran: Sequence[Candidate]) -> Candidate:
        asked = [each for each in ran if each.asked_for]
        scored = [each for each in asked if each.measured is not None]
        return knee(scored) if scored and self._planner == "simulate" else asked[0]

    def _check(self, ran: Sequence[Candidate]) -> None:
        """Where all runs ended badly, there is nothing to advise; the first says why."""
        failed = [trial for trial in unfinished(self._trials) if trial.outcome != "timed_out"]
        if failed and not any(each.measured for each in ran if each.asked_for):
            raise unusable(failed[0], "not one run of the best settings ended well")


def _same(one: Setting, other: Setting) -> bool:
    return (one.batch_size, one.num_workers, one.prefetch_factor) == (
        other.batch_size,
        other.num_workers,
        other.prefetch_factor,
    )
