"""One tuning, from the first probe to the plan: probes, predictions, runs, and the choice."""

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple, TypeVar

import msgspec

from stoker.analysis import ranks
from stoker.analysis.verdict import verdict
from stoker.errors import InputError
from stoker.events import AnyEvent, OnEvent, ProbesReady, RunEnded, RunStarted
from stoker.forecast.constraints import Bounds, bounds_of
from stoker.forecast.predictor import Predictor, items_of
from stoker.forecast.probe import prober as prober_of
from stoker.forecast.runner import unusable
from stoker.machine import inspect
from stoker.measure.session import REPEATED_ITEMS, Job, Script, ending_at
from stoker.records import (
    Candidate,
    Extent,
    Limit,
    Objective,
    Plan,
    Probes,
    Record,
    Remedy,
    RuledOut,
    Setting,
    Subject,
    Trial,
)
from stoker.tuning import notes
from stoker.tuning.contest import Listener, knee, tied
from stoker.tuning.planners import PLANNERS, Choice, Chosen
from stoker.tuning.remedies import remedies, settings_among
from stoker.tuning.request import TuneRequest
from stoker.tuning.space import RULES as SPACE
from stoker.tuning.space import Space, candidates_of, larger_size
from stoker.tuning.verification import RULES as VERIFICATION
from stoker.tuning.verification import verification

R = TypeVar("R")


class TunerRules(Record, frozen=True):
    """How the budget is divided."""

    probe_share: float = 0.5
    """Probing may take this share of the time; running the best few gets the rest."""
    least_worth_s: float = 16.0
    """Tuning may take as long as the items that were asked for, loaded and computed without workers: it cannot save
    more. This much it may take for any job; with the run in flight, it is below 20 s."""
    least_end_s: float = 20.0
    """The run in flight is ended when the budget is spent, but not before this: importing torch, opening the workload
    and the probes that no prediction can do without take some seconds."""
    ceiling_share: float = 0.5
    """The largest batch has to be found in this share of the time that is left: runs need the rest."""
    exchanges: int = 12
    """Steps of all ranks from which an exchange of gradients is known..."""
    first_exchanges: int = 3
    """... after so many: DistributedDataParallel arranges its buckets anew after the first."""
    exchange_limit_s: float = 60.0
    """The time limit of this run, which starts every rank."""
    further_times: int = 2
    """If the largest size seems best, larger sizes are probed up to this many times..."""
    further_share: float = 0.15
    """... each time for this share of the time."""


RULES = TunerRules()


class Ceiling(NamedTuple):
    """The largest batch that fits without a retry of the allocator, and the largest if gradients are accumulated."""

    batch_size: int
    accumulating: int


def find_ceiling(find: Callable[..., Limit], request: TuneRequest) -> Ceiling:
    """Ask `limit` for the ceiling. With an effective batch almost every setting accumulates gradients: only the one
    that does not can be larger, so it is asked about if it does not fit anyway."""
    if request.global_batch is None:
        found = _largest_batch(find())
        return Ceiling(found, found)
    accumulating = find(accumulate=2)
    fits = _largest_batch(accumulating)
    if accumulating.mode == "infer" or request.global_batch <= fits * request.replicas:
        return Ceiling(fits, fits)
    return Ceiling(max(fits, _largest_batch(find())), fits)


def _largest_batch(found: Limit) -> int:
    return found.comfortable_batch or found.max_batch


def time_of(request: TuneRequest) -> float:
    """The seconds after which tuning ends whatever runs then. A grid runs every setting, however long that takes."""
    return math.inf if request.planner == "grid" else max(request.budget_s, RULES.least_end_s)


class Tuner:
    """One tuning as scripts of runs. `ceiling` may be set between `script` and `choose`."""

    def __init__(
        self, request: TuneRequest, *, ceiling: Ceiling | None, began: float, on_event: OnEvent | None
    ) -> None:
        self._request, self._space, self.ceiling = request, Space(request=request), ceiling
        self._began, self._on_event = began, on_event
        now = request.current or Setting()
        self._base = Setting(
            precision=request.precision,
            persistent_workers=request.epochs > 1,
            multiprocessing_context=now.multiprocessing_context,
            worker_threads=now.worker_threads,
            threads=max(1, int(inspect().cpu.usable / request.ranks)) if request.ranks > 1 else None,
            ranks=request.ranks,
        )
        self._ends_at_s = began + time_of(request)
        self._spend_s = request.budget_s
        self._trials: list[Trial] = []
        self._notes: list[str] = []
        self._probes: Probes | None = None

    def script(self) -> Script[Plan | None]:
        """The whole tuning. Returns None if a step ran out of device memory and the limit must be found first; then
        `choose` goes on. Raises InputError for a workload that cannot be measured in the time, and as `choose` does.
        """
        return self._ending(self._script())

    def choose(self) -> Script[Plan]:
        """Everything after the probes. Raises InputError if nothing fits the machine, or if no run finishes."""
        return self._ending(self._choose())

    def _ending(self, script: Script[R]) -> Script[R]:
        """The script, whose runs end with the budget."""
        return ending_at(script, self._ends_at_s) if math.isfinite(self._ends_at_s) else script

    def _script(self) -> Script[Plan | None]:
        request = self._request
        prober = prober_of(
            msgspec.structs.replace(self._base, ranks=1),
            self._space.probe_sizes(self.ceiling and self.ceiling.batch_size),
            budget_s=RULES.probe_share * request.budget_s,
            host_memory_bytes=request.host_memory_bytes,
            needs_length=request.items is None,
            sizes_for=self._probe_sizes,
            start_methods=request.start_methods,
            worker_threads=request.worker_threads,
            ends_at_s=self._began + RULES.probe_share * max(request.budget_s, RULES.least_end_s),
            worth_s=self._worth_of_probing_s,
            on_event=self._on_event,
        )
        probes = yield from prober.script()
        self._check_probes(probes)
        subject = probes.subject
        request, context = self._request, probes.setting.multiprocessing_context
        self._base = msgspec.structs.replace(self._base, pin_memory=_on_gpu(probes), multiprocessing_context=context)
        request.check_epoch(subject.mode, subject.items)
        self._notes += notes.global_batch_notes(request, subject.mode)
        if subject.batch_sampler:
            self._request = request.with_batch(probes.runs[0].batch_size)
            self._space = Space(request=self._request)
        for _ in range(RULES.further_times):
            size = self._larger_size(probes)
            more = size and (yield from prober.further(size, RULES.further_share * self._spend_s))
            if not size or not more:
                break
            probes, self._space = more, msgspec.structs.replace(self._space, largest=size)
        if request.ranks > 1 and subject.mode == "train":
            probes = yield from self._with_exchange(probes)
        self._emit(ProbesReady(probes=probes))
        self._probes = probes
        if self.ceiling is None and _on_gpu(probes) and probes.ran_out:
            return None
        return (yield from self._choose())

    def _with_exchange(self, probes: Probes) -> Script[Probes]:
        """The probes with what ranks spend on one exchange of gradients, seen in a short run of all of them."""
        size = min(run.batch_size for run in probes.of("step") or probes.runs)
        setting = msgspec.structs.replace(self._base, batch_size=size, num_workers=0)
        self._emit(RunStarted(setting=setting, purpose="probe", text=f"probing an exchange of {setting.ranks} ranks"))
        extent = Extent(batches=RULES.exchanges, warmup=RULES.first_exchanges, source="memory")
        trial = yield Job(setting=setting, extent=extent, repeats=REPEATED_ITEMS, limit_s=RULES.exchange_limit_s)
        if trial.outcome == "timed_out" and perf_counter() >= self._ends_at_s:
            raise self._too_short("probing did not finish")
        if trial.outcome != "done":
            raise unusable(trial, f"not even a short run of {setting.ranks} ranks ends well")
        return msgspec.structs.replace(probes, exchange_s=ranks.exchange_samples(trial))

    def _probe_sizes(self, subject: Subject) -> list[int]:
        """The sizes to probe, once it is known whether the workload trains, and whether it came as a DataLoader."""
        self._take_loaders_setting(subject)
        self._space = Space.of(self._request, subject.mode)
        return self._space.probe_sizes(self.ceiling and self.ceiling.batch_size)

    def _take_loaders_setting(self, subject: Subject) -> None:
        """The setting of the workload's DataLoader is the current one, unless the request names another. The loader's
        start method counts in both cases."""
        own = subject.current
        if own is None:
            return
        if self._request.current is None:
            self._notes.append(f"current: the setting of the loader, {notes.named(own)}")
        current = self._request.current or own
        if current.multiprocessing_context is None:
            current = msgspec.structs.replace(current, multiprocessing_context=own.multiprocessing_context)
        self._request = msgspec.structs.replace(self._request, current=current)

    def _worth_of_probing_s(self, subject: Subject, item_s: float) -> float:
        """Limit all that is spent to what the job takes without workers; the share of it for probing."""
        request = self._request
        items = subject.items if request.items is None else request.items
        if not request.throughput and items is not None:
            job_s = math.ceil(items / request.replicas) * request.epochs * item_s
            self._spend_s = min(request.budget_s, max(RULES.least_worth_s, job_s))
            if self._spend_s < request.budget_s and request.planner == "simulate":
                self._notes.append(notes.worth_note(job_s, self._spend_s))
        return RULES.probe_share * self._spend_s

    def _choose(self) -> Script[Plan]:
        probes = self._probes
        assert probes is not None
        objective, per_gpu, predictor = self._objective(probes), self._per_gpu(probes), self._predictor(probes)
        bounds = bounds_of(
            probes.machine,
            host_memory_bytes=self._request.host_memory_bytes,
            max_batch=self._largest_that_ran(probes),
            max_accumulating_batch=self.ceiling.accumulating if self.ceiling else None,
            waiting_share=predictor.costs.waiting_share,
            gpus=self._request.replicas,
            shards=probes.subject.shards,
        )
        found, out = candidates_of(self._space, self._base, predictor, per_gpu, bounds)
        if not any(each.asked_for for each in found):
            searches = "; --batch-size free searches one that fits" if self._request.fixed_batch is None else ""
            searches = searches if self._space.kept is not None else ""
            why = f"nothing fits this machine: {out[0].sentence}{searches}" if out else "there is nothing to choose"
            raise InputError(why)
        chosen = yield from PLANNERS[self._request.planner](self._choice(found, per_gpu, predictor, bounds))
        self._check(chosen.ran)
        plan = self._plan(objective, per_gpu, predictor, chosen, out)
        if not self._request.verify:
            return plan
        tried = settings_among(plan.remedies)[: VERIFICATION.remedies]
        best = self._best(chosen.ran)
        verified = yield from verification(best.setting, tried, per_gpu, best.seconds)
        return msgspec.structs.replace(plan, verified=tuple(verified), seconds=perf_counter() - self._began)

    def _choice(self, found: Sequence[Candidate], per_gpu: Objective, predictor: Predictor, bounds: Bounds) -> Choice:
        return Choice(
            candidates=found,
            request=self._request,
            objective=per_gpu,
            predictor=predictor,
            bounds=bounds,
            left_s=max(1.0, self._spend_s - (perf_counter() - self._began)),
            listener=Listener(self._run_started, self._run_ended),
            on_gpu=_on_gpu(predictor.probes),
            first_s=self._ends_at_s - perf_counter(),
            free_s=RULES.least_worth_s - (perf_counter() - self._began),
        )

    def _larger_size(self, probes: Probes) -> int | None:
        """A size beyond those that were probed, if the request bounds nothing and the size is predicted to pay.

        In training this is only a note: how many items an update sees changes what is learned.
        """
        if self._request.planner != "simulate" or probes.ran_out or self._space.kept is not None:
            return None
        per_gpu = self._per_gpu(probes)
        items = min(probes.subject.items or self._objective(probes).items, per_gpu.items)
        ceiling = self.ceiling.batch_size if self.ceiling else items
        size = larger_size(self._space, self._base, self._predictor(probes), per_gpu, min(items, ceiling))
        if size is None or probes.subject.mode == "infer":
            return size
        self._notes.append(
            f"larger batches seem faster still, but the batch size changes what is learned: none above "
            f"{self._space.largest} was tried; --max-batch {size} looks further"
        )
        return None

    # ------------------------------------------------------------ events

    def _run_started(self, setting: Setting) -> None:
        self._emit(RunStarted(setting=setting, purpose="candidate", text=f"trying {notes.named(setting)}"))

    def _run_ended(self, trial: Trial) -> None:
        self._trials.append(trial)
        self._emit(RunEnded(trial=trial, purpose="candidate"))

    def _emit(self, event: AnyEvent) -> None:
        if self._on_event:
            self._on_event(event)

    # ------------------------------------------------------------ what the probes say

    def _predictor(self, probes: Probes) -> Predictor:
        return Predictor(probes, cores=probes.machine.usable_cores / self._request.gpus)

    def _objective(self, probes: Probes) -> Objective:
        return self._request.objective(items_of(probes) if self._request.items is None else self._request.items)

    def _per_gpu(self, probes: Probes) -> Objective:
        """The share of the objective that one GPU or rank has."""
        whole = self._objective(probes)
        return msgspec.structs.replace(whole, items=math.ceil(whole.items / self._request.replicas))

    def _largest_that_ran(self, probes: Probes) -> int | None:
        """The ceiling, or the largest batch whose step ran if a larger one did not."""
        if self.ceiling is not None:
            return self.ceiling.batch_size
        return max((run.batch_size for run in probes.of("step")), default=None) if probes.ran_out else None

    # ------------------------------------------------------------ the plan

    def _check(self, ran: Sequence[Candidate]) -> None:
        """Raises InputError with the first failure, or with what to change, if no run finished."""
        if any(each.measured for each in ran if each.asked_for):
            return
        failed = [trial for trial in notes.unfinished(self._trials) if trial.outcome != "timed_out"]
        if failed:
            raise unusable(failed[0], "not one run of the best settings ended well")
        raise self._too_short("no run of a setting finished")

    def _check_probes(self, probes: Probes) -> None:
        """Raises InputError if the time was up before the probes that no prediction can do without."""
        if not (probes.of("load") and probes.of("step")) and perf_counter() >= self._ends_at_s:
            raise self._too_short("probing did not finish")

    def _too_short(self, what: str) -> InputError:
        return InputError(
            f"{what} within the budget of {self._request.budget_s:g} s: give a larger --budget or a smaller "
            "--max-batch, or try again on an idle machine"
        )

    def _best(self, ran: Sequence[Candidate]) -> Candidate:
        asked = [each for each in ran if each.asked_for]
        scored = [each for each in asked if each.measured is not None]
        return knee(scored) if scored and self._request.planner == "simulate" else asked[0]

    def _with_ties(self, ran: Sequence[Candidate]) -> list[Candidate]:
        """The candidates, marked where they are tied for the best."""
        scored = [each for each in ran if each.asked_for and each.measured is not None]
        ties = tied(scored) if scored and self._request.planner == "simulate" else []
        if len(ties) < 2:
            return list(ran)
        return [msgspec.structs.replace(each, tied=each in ties) for each in ran]

    def _trial_of(self, setting: Setting) -> Trial | None:
        """The last finished run of a setting."""
        done = (trial for trial in reversed(self._trials) if trial.outcome == "done")
        return next((trial for trial in done if _same(trial.setting, setting)), None)

    def _remedies(self, predictor: Predictor, best: Candidate, per_gpu: Objective) -> list[Remedy]:
        measured_s = best.measured.total_s if best.measured else None
        return remedies(
            predictor, best.setting, per_gpu.items, epochs=per_gpu.epochs, chosen=True, measured_s=measured_s
        )

    def _all_notes(self, best: Candidate, probes: Probes, chosen: Chosen, out: Sequence[RuledOut]) -> Iterator[str]:
        request, subject = self._request, probes.subject
        yield from probes.notes
        yield from self._notes
        if chosen.algebra is not None:
            yield from notes.algebra_notes(chosen.algebra)
        yield from notes.budget_notes(perf_counter() - self._began, request.budget_s)
        yield from notes.run_notes(self._trials, chosen.ran, request, out)
        yield from notes.choice_notes(best, chosen.ran)
        yield from notes.stream_notes(probes, best, self._trials)
        yield from notes.training_notes(request, subject.mode, best.setting.batch_size, subject.items)
        if not subject.batch_sampler:
            yield from notes.batch_notes(request, subject.mode, self._space.kept)
        yield from notes.alternative_notes(best, _alternative(best, chosen.ran), subject.items)
        yield from notes.worker_notes(best.setting)

    def _plan(
        self,
        objective: Objective,
        per_gpu: Objective,
        predictor: Predictor,
        chosen: Chosen,
        out: Sequence[RuledOut],
    ) -> Plan:
        chosen = chosen._replace(ran=self._with_ties(chosen.ran))
        best, probes = self._best(chosen.ran), predictor.probes
        setting, trial = best.setting, self._trial_of(best.setting)
        return Plan(
            batch_size=setting.batch_size,
            num_workers=setting.num_workers,
            prefetch_factor=setting.prefetch_factor,
            pin_memory=bool(setting.pin_memory),
            persistent_workers=setting.persistent_workers and setting.num_workers > 0,
            accumulate=setting.accumulate,
            gpus=self._request.gpus,
            ranks=self._request.ranks,
            batch_sampler=probes.subject.batch_sampler,
            batching=probes.subject.batching,
            mode_reason=probes.subject.mode_reason,
            workload=probes.subject.name,
            mode=probes.subject.mode,
            planner=self._request.planner,
            objective=objective,
            predicted=best.predicted,
            measured=best.measured,
            current=next((each for each in chosen.ran if self._request.is_current(each.setting)), None),
            candidates=tuple(self._rows(best, chosen.ran, probes)),
            ruled_out=tuple(out),
            verdict=verdict(trial) if trial else None,
            predicted_s=best.predicted_s,
            remedies=tuple(self._remedies(predictor, best, per_gpu)),
            notes=tuple(self._all_notes(best, probes, chosen, out)),
            seconds=perf_counter() - self._began,
            probe_s=probes.seconds,
            algebra=chosen.algebra,
            multiprocessing_context=setting.multiprocessing_context,
            worker_threads=setting.worker_threads,
        )

    def _rows(self, best: Candidate, ran: Sequence[Candidate], probes: Probes) -> Iterator[Candidate]:
        """The candidates as the plan shows them: the best, a faster batch size if there is one, the others."""
        first = [best, *filter(None, [_alternative(best, ran)])]
        items = probes.subject.items
        for each in (*first, *(other for other in ran if other not in first)):
            trains = probes.subject.mode == "train" and items is not None
            per_update = each.setting.batch_size * each.setting.accumulate * self._request.replicas
            yield msgspec.structs.replace(each, updates=-(-(items or 0) // per_update) if trains else None)


def _on_gpu(probes: Probes) -> bool:
    return probes.subject.device.startswith("cuda")


def _same(one: Setting, other: Setting) -> bool:
    names = ("batch_size", "num_workers", "prefetch_factor", "multiprocessing_context", "worker_threads")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _alternative(best: Candidate, ran: Sequence[Candidate]) -> Candidate | None:
    """The fastest setting with a batch size that is not the one that was kept, if it was faster than the plan."""
    faster = [
        each
        for each in ran
        if not each.asked_for
        and each.measured is not None
        and each.setting.batch_size != best.setting.batch_size
        and each.seconds < best.seconds * (1 - SPACE.worth)
    ]
    return min(faster, key=lambda each: each.seconds, default=None)
