"""One tuning, from the first probe to the plan: probes, predictions, runs, and the choice."""

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import msgspec

from stoker.analysis.verdict import verdict
from stoker.errors import InputError
from stoker.events import AnyEvent, OnEvent, ProbesReady, RunEnded, RunStarted
from stoker.forecast.constraints import Bounds, bounds_of
from stoker.forecast.predictor import Predictor, items_of
from stoker.forecast.probe import prober as prober_of
from stoker.forecast.probe_runs import unusable
from stoker.measure.session import Script
from stoker.records import Candidate, Limit, Objective, Plan, Planner, Precision, Probes, RuledOut, Setting, Trial
from stoker.tuning.candidates import Request, candidates_of, larger
from stoker.tuning.contest import Listener, contend, everything, knee, thesis
from stoker.tuning.notes import budget_notes, choice_notes, named, run_notes, stream_notes, unfinished
from stoker.tuning.remedies import remedies, waited

_PROBE_SHARE = 0.5
"""Of the budget, what probing may take; running the best few gets the rest."""
_TIMES_FURTHER, _FURTHER_SHARE = 2, 0.15
"""How often larger sizes are probed where the largest seems best, and what each time may take of the budget."""


class Ceiling(NamedTuple):
    """The largest batch that fits without a retry of the allocator, and the largest if gradients are accumulated."""

    batch_size: int
    accumulating: int


def find_ceiling(find: Callable[..., Limit], request: Request) -> Ceiling:
    """Ask `limit` for the ceiling. With an effective batch almost every setting accumulates gradients: only the one
    that does not can be larger, so it is asked about if it does not fit anyway."""
    if request.global_batch is None:
        found = _largest_batch(find())
        return Ceiling(found, found)
    accumulating = find(accumulate=2)
    fits = _largest_batch(accumulating)
    if accumulating.mode == "infer" or request.global_batch <= fits * request.gpus:
        return Ceiling(fits, fits)
    return Ceiling(max(fits, _largest_batch(find())), fits)


def _largest_batch(found: Limit) -> int:
    return found.comfortable_batch or found.max_batch


class Tuner:
    """One tuning, from the first probe to the plan."""

    def __init__(
        self,
        *,
        wish: Request,
        ceiling: Ceiling | None,
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

    def talk(self) -> Script[Plan | None]:
        """All of it in one child; None where it has to stop for the ceiling of device memory."""
        prober = prober_of(
            self._base,
            self._wish.probe_sizes(self.ceiling and self.ceiling.batch_size),
            budget_s=_PROBE_SHARE * self._budget_s,
            host_memory_bytes=self._host_memory_bytes,
            needs_length=self._asked[0] is None,
            on_event=self._on_event,
        )
        probes = yield from prober.talk()
        self._base = msgspec.structs.replace(self._base, pin_memory=probes.subject.device.startswith("cuda"))
        self._more_notes += self._wish.effective_notes(probes.subject.mode, probes.subject.items)
        if probes.subject.batch_sampler:
            self._wish = self._wish.with_batch(probes.runs[0].batch_size)
        for _ in range(_TIMES_FURTHER):
            larger = self._larger(probes)
            more = larger and (yield from prober.further(larger, _FURTHER_SHARE * self._budget_s))
            if not larger or not more:
                break
            probes, self._wish = more, msgspec.structs.replace(self._wish, largest=larger)
        self._tell(ProbesReady(probes=probes))
        self._probes = probes
        if self.ceiling is None and probes.subject.device.startswith("cuda") and probes.ran_out:
            return None
        return (yield from self.rest())

    def _larger(self, probes: Probes) -> int | None:
        """A size beyond those that were probed, where nobody set a bound and it is predicted to pay.

        In training that is only said: how many items an update sees is for a person to choose.
        """
        if self._planner != "simulate" or probes.ran_out:
            return None
        items = min(probes.subject.items or self._objective(probes).items, self._share(probes).items)
        ceiling = self.ceiling.batch_size if self.ceiling else items
        found = larger(self._wish, self._base, self._predictor(probes), self._share(probes), min(items, ceiling))
        if found is None or probes.subject.mode == "infer":
            return found
        self._more_notes.append(
            f"larger batches seem faster still; none above {self._wish.largest} was tried, as a batch is part of what "
            f"is learned: --max-batch {found} looks further"
        )
        return None

    def _predictor(self, probes: Probes) -> Predictor:
        return Predictor(probes, cores=probes.machine.usable_cores / self._wish.gpus)

    def rest(self) -> Script[Plan]:
        """Everything that follows the probes."""
        probes = self._probes
        assert probes is not None
        objective, per_gpu, predictor = self._objective(probes), self._share(probes), self._predictor(probes)
        bounds = bounds_of(
            probes.machine,
            host_memory_bytes=self._host_memory_bytes,
            max_batch=self._largest(probes),
            max_accumulating_batch=self.ceiling.accumulating if self.ceiling else None,
            waiting_share=predictor.costs.waiting_share,
            gpus=self._wish.gpus,
        )
        found, out = candidates_of(self._wish, self._base, probes, predictor, per_gpu, bounds)
        if not any(each.asked_for for each in found):
            raise InputError(f"nothing fits this machine: {out[0].sentence}" if out else "there is nothing to choose")
        ran = yield from self._contest(found, per_gpu, bounds, predictor)
        self._check(ran)
        return self._plan(objective, per_gpu, predictor, ran, out)

    def _contest(
        self, found: Sequence[Candidate], objective: Objective, bounds: Bounds, predictor: Predictor
    ) -> Script[list[Candidate]]:
        """Run what the planner would run."""
        left_s = max(1.0, self._budget_s - (perf_counter() - self._began))
        told = Listener(self._trying, self._keep)
        if self._planner == "grid":
            return (yield from everything(found, objective, told))
        if self._planner == "thesis":
            ran, note = yield from thesis(found, objective, predictor, self._wish, bounds, left_s, told)
            self._more_notes.append(note)
            return ran
        return (yield from contend(found, self._wish, objective, left_s, told))

    def _trying(self, setting: Setting) -> None:
        self._tell(RunStarted(setting=setting, purpose="candidate", text=f"trying {named(setting)}"))

    def _keep(self, trial: Trial) -> None:
        self._trials.append(trial)
        self._tell(RunEnded(trial=trial, purpose="candidate"))

    def _tell(self, event: AnyEvent) -> None:
        if self._on_event:
            self._on_event(event)

    def _objective(self, probes: Probes) -> Objective:
        items, epochs, throughput = self._asked
        count = items_of(probes) if items is None else items
        return Objective(items=count, epochs=epochs, kind="throughput" if throughput else "time")

    def _share(self, probes: Probes) -> Objective:
        """One GPU's part of it."""
        whole = self._objective(probes)
        return msgspec.structs.replace(whole, items=math.ceil(whole.items / self._wish.gpus))

    def _largest(self, probes: Probes) -> int | None:
        """The largest batch whose step ran, where a larger one did not."""
        if self.ceiling is not None:
            return self.ceiling.batch_size
        return max((run.batch_size for run in probes.of("step")), default=None) if probes.ran_out else None

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
