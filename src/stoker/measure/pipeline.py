"""One measured run of a workload under a setting: the loop, its clocks, and the trial they make."""

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch.utils.data import Subset

from stoker.errors import InputError
from stoker.machine import inspect, pagecache
from stoker.measure import spy
from stoker.measure.account import account
from stoker.measure.clock import Nap, clock_for, parse_device
from stoker.measure.feed import Feed, keep_in_memory, make_feed
from stoker.measure.keeping import Keeping
from stoker.measure.loop import Emit, Loop
from stoker.measure.score import score
from stoker.measure.steps import ModelStep, NapStep, make_step
from stoker.records import WORKER_STAGES, Extent, Machine, Mode, Setting, Stage, Subject, Timeline, Trial, WorkerLog
from stoker.workload import passes
from stoker.workload.definition import Workload

_STREAM_BATCHES = 50
"""How many batches stand for an epoch of a stream whose length nobody knows, when they are kept in memory."""


def run(workload: Workload, mode: Mode, device_name: str, setting: Setting, extent: Extent, emit: Emit) -> Trial:
    """Run the workload and measure it, in this process. Callers who want to survive it use `trial.profile`."""
    emit("phase", "preparing")
    if extent.validate and isinstance(parse_device(device_name), Nap):
        raise InputError(f"{device_name} computes nothing that could be scored; leave out --validate")
    return Opened(workload, mode, device_name, seed=extent.seed).run(setting, extent, emit)


class Opened:
    """A workload's data and model in this process, made once, for one run or for many."""

    def __init__(self, workload: Workload, mode: Mode, device_name: str, *, seed: int = 0) -> None:
        self.workload, self.mode, self._device_name = workload, mode, device_name
        self.device = parse_device(device_name)
        torch.manual_seed(seed)
        self.dataset = passes.make_dataset(workload)
        self.files = _files(workload, self.dataset)
        self._step: tuple[Setting, ModelStep | NapStep] | None = None
        self._machine: Machine | None = None

    def run(
        self,
        setting: Setting,
        extent: Extent,
        emit: Emit,
        *,
        dataset: Any = None,
        nap_s: float | None = None,
        keeps_memory: bool = False,
    ) -> Trial:
        """One trial. `dataset` stands in for the workload's own; `nap_s` is slept in place of the step; with
        `keeps_memory` the workers' malloc gives nothing back."""
        device = self.device if nap_s is None else Nap(f"{nap_s:.9f}s")
        pinned = _pinned(setting, self.device)
        unused = _unused(setting, pinned)
        setting = msgspec.structs.replace(setting, pin_memory=pinned)
        dataset = self.dataset if dataset is None else dataset
        if pinned:
            _forget_pinned()
        with _quiet_loader():
            spy.install()
            step = self.step(setting) if isinstance(device, torch.device) else NapStep(device)
            workload = self.workload
            if keeps_memory:
                workload = workload.with_(worker_init_fn=Keeping(workload.worker_init_fn))
            feed = make_feed(
                workload, dataset, self.mode, setting, extent, pinned=pinned, traced=True, seed=extent.seed
            )
            feed = _rest_in_memory(feed, step, extent)
            feed.notes.extend([*unused, *_place(extent, self.files)])
            loop, began, done, scores = self._looped(feed, step, device, setting, extent, emit)
        trial = Trial(
            outcome="done", workload=self._subject(step), setting=setting, extent=extent, notes=tuple(feed.notes)
        )
        self._machine = self._machine or inspect(data=self.files[0] if self.files else None)
        return _measured(trial, loop, began, done, scores, device, self._machine)

    def can_fork(self, nap_s: float | None) -> bool:
        """Whether a run may have a process forked for it: it needs no model, and none was run here before it."""
        self._machine = self._machine or inspect(data=self.files[0] if self.files else None)
        if isinstance(self.device, Nap):
            return True
        return nap_s is not None and self.device.type == "cpu" and self._step is None

    def step(self, setting: Setting) -> ModelStep | NapStep:
        """The model on the device; made anew only where the setting asks for another."""
        asked = Setting(
            pin_memory=setting.pin_memory,
            precision=setting.precision,
            channels_last=setting.channels_last,
            compile=setting.compile,
            cudnn_benchmark=setting.cudnn_benchmark,
        )
        if self._step is None or self._step[0] != asked:
            self._step = None  # two models at once may not fit
            made = make_step(self.workload, self.mode, setting, self.device, pinned=bool(setting.pin_memory))
            self._step = (asked, made)
        return self._step[1]

    def _looped(
        self,
        feed: Feed,
        step: ModelStep | NapStep,
        device: torch.device | Nap,
        setting: Setting,
        extent: Extent,
        emit: Emit,
    ) -> tuple[Loop, float, float, list[tuple[float, float | None]]]:
        """The loop, run: when it began and was done, and what scoring said."""
        clock = clock_for(device) if isinstance(device, torch.device) else clock_for(torch.device("cpu"))
        loop = Loop(feed, step, clock, emit, of=feed.batches and feed.batches * extent.epochs)
        scores: list[tuple[float, float | None]] = []
        emit("subject", self._subject(step))
        if isinstance(device, torch.device) and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            emit("gpu", f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        emit("phase", "running")
        began = perf_counter()
        for _ in range(extent.epochs):
            loop.epoch()
            if extent.validate:
                assert isinstance(step, ModelStep)
                clock.settle()  # what the device still has to do belongs to the epoch, not to the scoring
                with spy.paused():
                    scores.append(score(self.workload, step, setting, pinned=bool(setting.pin_memory)))
        clock.settle()
        done = perf_counter()
        emit("clock", (began, done))
        emit("phase", "over")
        return loop, began, done, scores

    def _subject(self, step: ModelStep | NapStep) -> Subject:
        return _subject(self.workload, self.dataset, self.mode, self._device_name, self.device, step)


def _measured(
    trial: Trial,
    loop: Loop,
    began: float,
    done: float,
    scores: list[tuple[float, float | None]],
    device: torch.device | Nap,
    machine: Machine,
) -> Trial:
    """The trial with what the loop saw."""
    epochs = loop.settled()
    stages = account(began, epochs, done)
    if scores:
        seconds = tuple(spent for spent, _ in scores)
        stages["score"] = Stage(clock="loop", samples_s=seconds)
        stages["other"] = _less(stages["other"], sum(seconds))
    starts = [epoch.began for epoch in epochs] + [done]
    rows = [row for *_, rows in loop.epochs for row in rows]
    return msgspec.structs.replace(
        trial,
        machine=machine,
        notes=(*trial.notes, *_crowded(trial.setting, machine)),
        items=sum(loop.items),
        total_s=done - began,
        start_s=epochs[0].started - epochs[0].began,
        stages={**stages, **_worker_stages(loop.stamps)},
        timeline=Timeline(
            asked_s=tuple(asked - began for asked, *_ in rows),
            got_s=tuple(got - began for _, got, *_ in rows),
            done_s=tuple(finished - began for _, _, finished, *_ in rows),
            items=tuple(loop.items),
            batches=tuple(len(rows) for *_, rows in loop.epochs),
            epoch_s=tuple(after - before for before, after in pairwise(starts)),
        ),
        workers=_worker_log(loop, began),
        scores=tuple(value for _, value in scores if value is not None),
        peaks=_peaks(device),
    )


def _less(other: Stage, seconds: float) -> Stage:
    """`other` without what was found to be scoring, which lies between epochs: in the largest samples."""
    samples = list(other.samples_s)
    for index in sorted(range(len(samples)), key=lambda place: -samples[place]):
        taken = min(samples[index], seconds)
        samples[index] -= taken
        seconds -= taken
    return Stage(clock="loop", samples_s=tuple(samples))


def _worker_stages(stamps: list[spy.Stamp]) -> dict[str, Stage]:
    """Seconds of each stage that the workers saw, a sample a batch; `transform` is the sum of its named members."""
    names = dict.fromkeys(name for stamp in stamps for name in stamp.sums)
    rows = {name: [stamp.sums.get(name, 0.0) for stamp in stamps] for name in names}
    members = [values for name, values in rows.items() if name.partition(".")[0] == "transform"]
    if members:
        rows["transform"] = [sum(values) for values in zip(*members, strict=True)]
    order = {name: place for place, name in enumerate(WORKER_STAGES)}
    ordered = sorted(rows, key=lambda name: (order.get(name.partition(".")[0], len(order)), name.count(".")))
    return {name: Stage(clock="worker", samples_s=tuple(rows[name])) for name in ordered}


def _crowded(setting: Setting, machine: Machine) -> list[str]:
    workers, cpus = setting.num_workers, machine.cpu.usable
    if workers <= max(1.0, cpus):
        return []
    return [f"{workers} workers on {cpus:g} usable CPUs: they take turns, and more of them will not load faster"]


def _worker_log(loop: Loop, began: float) -> WorkerLog:
    stamps = loop.stamps
    return WorkerLog(
        worker=tuple(stamp.worker for stamp in stamps),
        began_s=tuple(stamp.began - began for stamp in stamps),
        ended_s=tuple(stamp.ended - began for stamp in stamps),
        cpu_s=tuple(stamp.cpu_s for stamp in stamps),
        item_s=tuple(round(seconds, 7) for stamp in stamps for seconds in stamp.item_s),
        batch_bytes=tuple(loop.bytes),
    )


def _rest_in_memory(feed: Feed, step: ModelStep | NapStep, extent: Extent) -> Feed:
    """For pure compute: batches on the device, or in host memory, loaded before the clock starts."""
    on_device = isinstance(step, ModelStep) and step.on_device
    if not on_device and extent.source != "memory":
        return feed
    kept = keep_in_memory(feed, feed.batches or _STREAM_BATCHES)
    if on_device:
        assert isinstance(step, ModelStep)
        moved = {id(batch): step.move(_bare(batch)) for batch in kept.source}
        kept.source = [moved[id(batch)] for batch in kept.source]
    else:
        kept.source = [_bare(batch) for batch in kept.source]
    return kept


def _bare(parcel: Any) -> Any:
    return parcel.batch if isinstance(parcel, spy.Parcel) else parcel


def _place(extent: Extent, files: list[Path]) -> list[str]:
    """Bring the files into the page cache, or out of it; what there is to say of that."""
    if extent.source not in ("cached", "cold"):
        return []
    if not files:
        raise InputError(
            f"a {extent.source} run needs to know which files the dataset reads; name them: Workload(files=[...])"
        )
    if extent.source == "cached":
        pagecache.warm(files)
        return []
    share = pagecache.evict(files)
    return [f"{share:.0%} of the data's pages were evicted from the page cache before the run"]


def _files(workload: Workload, dataset: Any) -> list[Path]:
    """The files that the dataset reads, where they can be told."""
    given = workload.files() if callable(workload.files) else workload.files
    if given is None:
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        given = [sample[0] for sample in getattr(dataset, "samples", []) if isinstance(sample, tuple | list)]
    return [Path(file) for file in given if isinstance(file, str | Path)]


def _pinned(setting: Setting, device: torch.device | Nap) -> bool:
    if setting.pin_memory is None:
        return isinstance(device, torch.device) and device.type == "cuda"
    return setting.pin_memory and torch.cuda.is_available()


def _forget_pinned() -> None:
    """Give back the pinned memory that torch keeps for later: a run starts as in a process of its own."""
    forget = getattr(torch._C, "_host_emptyCache", None)
    if forget is not None:
        torch.cuda.synchronize()
        forget()


def _unused(setting: Setting, pinned: bool) -> list[str]:
    """What was asked for and cannot be had."""
    notes = []
    if setting.pin_memory and not pinned:
        notes.append("pinned memory was asked for, but there is no GPU to pin it for")
    if setting.persistent_workers and not setting.num_workers:
        notes.append("persistent workers were asked for, but there are none")
    return notes


def _subject(
    workload: Workload,
    dataset: Any,
    mode: Mode,
    device_name: str,
    device: torch.device | Nap,
    step: ModelStep | NapStep,
) -> Subject:
    name = device_name if isinstance(device, Nap) else str(device)
    model = type(step.model).__name__ if isinstance(step, ModelStep) else device_name
    items = len(dataset) if hasattr(dataset, "__len__") else None
    return Subject(
        name=workload.name,
        model=model,
        data=workload.data_name or type(dataset).__name__,
        mode=mode,
        device=name,
        items=items,
        parameters=step.parameters,
    )


def _peaks(device: torch.device | Nap) -> dict[str, int]:
    if isinstance(device, Nap) or device.type != "cuda":
        return {}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


@contextlib.contextmanager
def _quiet_loader() -> Iterator[None]:
    """The loader's warning about many workers is ours to give, in words that say what to do."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*worker processes in total.*")
        yield
