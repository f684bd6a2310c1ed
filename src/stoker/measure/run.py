"""One measured run of a workload under a setting: the loop, its clocks, and the trial they make."""

import contextlib
from collections.abc import Iterator, Sized
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch.utils.data import IterableDataset, Subset

from stoker.errors import InputError
from stoker.events import ClockRead, GpuUsed, OnEvent, Phase, SubjectKnown
from stoker.machine import inspect, pagecache
from stoker.measure.assemble import measured
from stoker.measure.device import Nap, clock_for, parse_device
from stoker.measure.feed import KEPT_BATCHES, NO_ITEMS, Feed, keep_in_memory, make_feed
from stoker.measure.loop import Loop
from stoker.measure.malloc import Keeping
from stoker.measure.spy import wrappers
from stoker.measure.steps import ModelStep, NapStep, make_step
from stoker.measure.validation import score
from stoker.records import OWN_UPDATES, Extent, Machine, Mode, Setting, Subject, Trial
from stoker.workload import calls
from stoker.workload.workload import Workload

_ALIKE_BATCHES = 2
_STREAM_BATCHES = 50
"""How many batches stand for an epoch of a stream whose length nobody knows, when they are kept in memory."""


class Opened:
    """A workload's data and model in this process, made once, for one run or for many."""

    def __init__(self, workload: Workload, mode: Mode, device_name: str, *, seed: int = 0) -> None:
        self.workload, self.mode, self._device_name = workload, mode, device_name
        self.device = parse_device(device_name)
        torch.manual_seed(seed)
        self.dataset = calls.make_dataset(workload)
        self.files = _files(workload, self.dataset)
        self._step: tuple[Setting, ModelStep | NapStep] | None = None
        self._machine: Machine | None = None
        self._ran = False
        self.running = False

    def run(
        self,
        setting: Setting,
        extent: Extent,
        emit: OnEvent,
        *,
        dataset: Any = None,
        nap_s: float | None = None,
        keeps_memory: bool = False,
    ) -> Trial:
        """One trial. `dataset` stands in for the workload's own; `nap_s` is slept in place of the step; with
        `keeps_memory` the workers' malloc gives nothing back."""
        if extent.validate and isinstance(self.device, Nap):
            raise InputError(f"{self._device_name} computes nothing that could be scored; leave out --validate")
        device = self.device if nap_s is None else Nap(f"{nap_s:.9f}s")
        pinned = _pinned(setting, self.device)
        unused = _unused(setting, pinned, self.mode)
        setting = msgspec.structs.replace(setting, pin_memory=pinned)
        dataset = self.dataset if dataset is None else dataset
        if pinned and self._ran:
            _forget_pinned(self.device)
        self._ran = True
        with _quiet_loader():
            wrappers.install()
            if isinstance(self.device, torch.device) and self.device.type == "cuda":
                self.step(setting)  # loading finds memory as it does beside a model that was brought to the device
            step = self.step(setting) if isinstance(device, torch.device) else NapStep(device)
            workload = self.workload
            if keeps_memory:
                workload = workload.with_(worker_init_fn=Keeping(workload.worker_init_fn))
            feed = make_feed(
                workload, dataset, self.mode, setting, extent, pinned=pinned, traced=True, seed=extent.seed
            )
            feed = _rest_in_memory(feed, step, extent, alike=dataset is not self.dataset)
            feed.notes.extend([*unused, *_place(extent, self.files)])
            loop, began, done, scores = self._looped(feed, step, device, setting, extent, emit)
        updates_itself = setting.accumulate > 1 and isinstance(step, ModelStep) and step.updates_itself
        if updates_itself:
            feed.notes.append(OWN_UPDATES)
        elif setting.accumulate > len(loop.items) and self.mode == "train":
            feed.notes.append(
                f"{len(loop.items)} batches are fewer than the {setting.accumulate} of one update: none was made"
            )
        trial = Trial(
            outcome="done",
            workload=self._subject(step),
            setting=setting,
            extent=extent,
            notes=tuple(feed.notes),
            updates_itself=updates_itself,
        )
        return measured(trial, loop, began, done, scores, device, self.see_machine())

    def see_machine(self) -> Machine:
        """The machine, looked at once."""
        self._machine = self._machine or inspect(data=self.files[0] if self.files else None)
        return self._machine

    def can_fork(self) -> bool:
        """Whether a run may have a process forked for it: it touches no GPU."""
        return isinstance(self.device, Nap) or self.device.type == "cpu"

    def make_model(self) -> None:
        """Once, for all the processes that are forked from this one; what fails is said by the one that needs it."""
        if isinstance(self.device, torch.device) and not isinstance(self.workload.model, torch.nn.Module):
            with contextlib.suppress(Exception):
                self.workload = self.workload.with_(model=calls.make_model(self.workload))

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
        self._step[1].begin(setting.accumulate)
        return self._step[1]

    def _looped(
        self,
        feed: Feed,
        step: ModelStep | NapStep,
        device: torch.device | Nap,
        setting: Setting,
        extent: Extent,
        emit: OnEvent,
    ) -> tuple[Loop, float, float, list[tuple[float, float | None]]]:
        """The loop, run: when it began and was done, and what scoring said."""
        clock = clock_for(device) if isinstance(device, torch.device) else clock_for(torch.device("cpu"))
        loop = Loop(feed, step, clock, emit, of=feed.batches and feed.batches * extent.epochs)
        scores: list[tuple[float, float | None]] = []
        emit(SubjectKnown(subject=self._subject(step)))
        if isinstance(device, torch.device) and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            emit(GpuUsed(uuid=f"GPU-{torch.cuda.get_device_properties(device).uuid}"))
        emit(Phase(name="running"))
        self.running = True
        began = perf_counter()
        for _ in range(extent.epochs):
            loop.epoch()
            if not loop.items:
                raise InputError(NO_ITEMS)
            if extent.validate:
                assert isinstance(step, ModelStep)
                clock.settle()  # what the device still has to do belongs to the epoch, not to the scoring
                with wrappers.paused():
                    scores.append(score(self.workload, step, setting, pinned=bool(setting.pin_memory)))
        clock.settle()
        done = perf_counter()
        self.running = False
        emit(ClockRead(began_s=began, over_s=done))
        emit(Phase(name="over"))
        return loop, began, done, scores

    def _subject(self, step: ModelStep | NapStep) -> Subject:
        return _subject(self.workload, self.dataset, self.mode, self._device_name, self.device, step)


def _rest_in_memory(feed: Feed, step: ModelStep | NapStep, extent: Extent, *, alike: bool) -> Feed:
    """For pure compute: batches on the device, or in host memory, loaded before the clock starts. Of batches that are
    all alike, two will do."""
    on_device = isinstance(step, ModelStep) and step.on_device
    if not on_device and extent.source != "memory":
        return feed
    most = _ALIKE_BATCHES if alike else KEPT_BATCHES
    kept = keep_in_memory(feed, feed.batches or _STREAM_BATCHES, most=most)
    if on_device:
        assert isinstance(step, ModelStep)
        moved = {id(batch): step.move(_bare(batch)) for batch in kept.source}
        kept.source = [moved[id(batch)] for batch in kept.source]
    else:
        kept.source = [_bare(batch) for batch in kept.source]
    return kept


def _bare(parcel: Any) -> Any:
    return parcel.batch if isinstance(parcel, wrappers.Parcel) else parcel


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


def _forget_pinned(device: torch.device | Nap) -> None:
    """Give back the pinned memory that torch keeps for later: a run starts as in a process of its own."""
    forget = getattr(torch._C, "_host_emptyCache", None)
    if forget is not None:
        if isinstance(device, torch.device) and device.type == "cuda":
            torch.cuda.synchronize(device)
        forget()


def _unused(setting: Setting, pinned: bool, mode: Mode) -> list[str]:
    """What was asked for and cannot be had."""
    notes = []
    if setting.pin_memory and not pinned:
        notes.append("pinned memory was asked for, but there is no GPU to pin it for")
    if setting.persistent_workers and not setting.num_workers:
        notes.append("persistent workers were asked for, but there are none")
    if setting.accumulate > 1 and mode == "infer":
        notes.append("batches were to be gathered into one update, but inference has none")
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
    source = workload.sampler if isinstance(workload.sampler, Sized) else dataset
    items = len(source) if isinstance(source, Sized) else None
    return Subject(
        name=workload.name,
        model=model,
        data=workload.data_name or type(dataset).__name__,
        mode=mode,
        device=name,
        items=items,
        parameters=step.parameters,
        stream=isinstance(dataset, IterableDataset),
        batch_sampler=workload.batch_sampler is not None,
    )


@contextlib.contextmanager
def _quiet_loader() -> Iterator[None]:
    """The loader's warning about many workers is ours to give, in words that say what to do."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*worker processes in total.*")
        yield
