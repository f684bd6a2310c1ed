"""One measured run of a workload under a setting: the loop, its clocks, and the trial they make."""

import contextlib
from collections.abc import Callable, Iterator, Sized
from multiprocessing import get_start_method
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import torch
from torch.utils.data import IterableDataset, Subset

from stoker.errors import InputError
from stoker.events import ClockRead, GpuUsed, OnEvent, Phase, SubjectKnown
from stoker.machine import inspect, pagecache
from stoker.measure import feed as feeds
from stoker.measure import spy
from stoker.measure.assemble import assemble
from stoker.measure.device import Device, SleepDevice, clock_for, parse_device, peaks_of
from stoker.measure.feed import NO_ITEMS, Feed, Share, load_into_memory, make_feed
from stoker.measure.group import RankGroup
from stoker.measure.interference import InterferenceGauge
from stoker.measure.log import LoopLog
from stoker.measure.loop import Loop
from stoker.measure.malloc import MallocSetting
from stoker.measure.steps import ModelStep, SleepStep, make_step
from stoker.measure.validation import score
from stoker.records import OWN_UPDATES, Extent, Machine, Mode, Setting, Subject, Trial
from stoker.workload import calls
from stoker.workload.streams import repeats_items, shards_of
from stoker.workload.workload import Workload


class Bench:
    """A workload opened in this process: its data, and its model on the device. Made once, for one run or for many."""

    def __init__(
        self, workload: Workload, mode: Mode, device_name: str, *, seed: int = 0, mode_reason: str = ""
    ) -> None:
        self.mode, self._mode_reason, self._device_name = mode, mode_reason, device_name
        self.device = parse_device(device_name)
        torch.manual_seed(seed)
        self.workload = workload = calls.opened(workload)
        self.dataset = calls.make_dataset(workload)
        self.files = _files(workload, self.dataset)
        self.running = False
        """Whether the loop runs: what goes wrong then is the run's outcome."""
        self.subject = self._subject_of(None)
        """What is run; complete once the model has been made."""
        self._step: tuple[Setting, ModelStep | SleepStep] | None = None
        self._machine: Machine | None = None
        self._ran = False
        self._gauge: InterferenceGauge | None = None
        self._interference: tuple[float, float] | None = None

    def run(
        self,
        setting: Setting,
        extent: Extent,
        emit: OnEvent,
        *,
        dataset: Any = None,
        sleep_s: float | None = None,
        keeps_memory: bool = False,
        deadline_s: float | None = None,
        before_loop: Callable[[], None] | None = None,
        group: RankGroup | None = None,
    ) -> Trial:
        """One trial; of one rank, if there is a `group`.

        `dataset` replaces the workload's own. `sleep_s` is slept in place of the step. With `keeps_memory` the workers'
        malloc keeps freed memory. `deadline_s`, a moment of `time.perf_counter`, ends the loop with DeadlinePassed.
        `before_loop` is called when all is ready. Errors of the workload are raised as they are.
        """
        if extent.validate and isinstance(self.device, SleepDevice):
            raise InputError(f"{self._device_name} computes nothing that could be scored; leave out --validate")
        _check_worker_threads(setting, self.device)
        _check_gpus(setting, self.device)
        device = self.device if sleep_s is None else SleepDevice(f"{sleep_s:.9f}s")
        pinned = pinned_memory(setting, self.device)
        unused = _unused(setting, pinned, self.mode)
        setting = msgspec.structs.replace(setting, pin_memory=pinned)
        dataset = self.dataset if dataset is None else dataset
        self._gauge = self._interference = None
        if pinned and self._ran:
            _free_pinned_memory(self.device)
        self._ran = True
        with _quiet_loader(), spy.installed(dataset) as watched:
            step = self._step_on(device, setting, group)
            feed = make_feed(
                self._with_malloc(keeps_memory),
                dataset,
                self.mode,
                setting,
                extent,
                pinned=pinned,
                watched=watched,
                in_turn=_is_on_device(step) or extent.source == "memory",
                share=None if group is None else Share(group.place.rank, group.place.of),
            )
            feed = _into_memory(feed, step, extent, alike=dataset is not self.dataset)
            is_first = group is None or group.place.rank == 0  # one rank places the files for all
            feed.notes.extend([*unused, *(_place(extent, self.files) if is_first else [])])
            log = LoopLog(clock_for(device))
            loop = Loop(feed, step, log, emit, of=feed.batches and feed.batches * extent.epochs, deadline_s=deadline_s)
            self._announce(step, device, emit)
            if before_loop is not None:
                before_loop()
            self._run_loop(loop, log, step, setting, extent, emit)
        notes = (*feed.notes, *_update_notes(setting, self.mode, step, len(log.items)))
        trial = Trial(
            outcome="done",
            workload=self.subject,
            setting=setting,
            extent=extent,
            notes=notes,
            threads=torch.get_num_threads(),
            updates_itself=setting.accumulate > 1 and isinstance(step, ModelStep) and step.updates_itself,
        )
        return self.with_interference(assemble(trial, log, self.see_machine(), peaks_of(device)))

    def with_interference(self, trial: Trial) -> Trial:
        """The trial with what other processes used since the loop began, if it did."""
        if self._interference is None and self._gauge is not None:
            self._interference = self._gauge.read()
        if self._interference is None:
            return trial
        interference, idle_cpus = self._interference
        return msgspec.structs.replace(trial, interference=interference, idle_cpus=idle_cpus)

    def see_machine(self) -> Machine:
        """The machine, inspected once."""
        self._machine = self._machine or inspect(data=self.files[0] if self.files else None)
        return self._machine

    def can_fork(self) -> bool:
        """Whether a run may have a process forked for it: not if it uses a GPU."""
        return self.device.type != "cuda"

    def make_model(self) -> None:
        """Make the model for all processes that are forked from this one. Errors are left to the one that needs it."""
        if isinstance(self.device, torch.device) and not isinstance(self.workload.model, torch.nn.Module):
            with contextlib.suppress(Exception):
                self.workload = self.workload.with_(model=calls.make_model(self.workload))

    def step(self, setting: Setting, group: RankGroup | None = None) -> ModelStep | SleepStep:
        """The model on the device; made again only if the setting asks for another."""
        asked = Setting(
            pin_memory=setting.pin_memory,
            precision=setting.precision,
            channels_last=setting.channels_last,
            compile=setting.compile,
            cudnn_benchmark=setting.cudnn_benchmark,
            ranks=setting.ranks,
            parallel=setting.parallel,
        )
        if self._step is None or self._step[0] != asked:
            self._step = None  # two models at once may not fit
            pinned = bool(setting.pin_memory)
            made = make_step(self.workload, self.mode, setting, self.device, pinned=pinned, group=group)
            self._step = (asked, made)
        self._step[1].begin(setting.accumulate)
        return self._step[1]

    def _step_on(self, device: Device, setting: Setting, group: RankGroup | None) -> ModelStep | SleepStep:
        """The run's step. A run that only sleeps still has the model on its GPU, so that loading finds the memory that
        it finds in other runs."""
        if isinstance(device, SleepDevice) and self.device.type != "cuda":
            return SleepStep(device, group if self.mode == "train" else None)
        step = self.step(setting, group)
        return SleepStep(device) if isinstance(device, SleepDevice) else step

    def _with_malloc(self, keeps_memory: bool) -> Workload:
        if not keeps_memory:
            return self.workload
        return self.workload.with_(worker_init_fn=MallocSetting(self.workload.worker_init_fn))

    def _announce(self, step: ModelStep | SleepStep, device: Device, emit: OnEvent) -> None:
        self.subject = self._subject_of(step)
        emit(SubjectKnown(subject=self.subject))
        if isinstance(device, torch.device) and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            emit(GpuUsed(uuid=f"GPU-{torch.cuda.get_device_properties(device).uuid}"))

    def _run_loop(
        self,
        loop: Loop,
        log: LoopLog,
        step: ModelStep | SleepStep,
        setting: Setting,
        extent: Extent,
        emit: OnEvent,
    ) -> None:
        emit(Phase(name="running"))
        self.running = True
        self._gauge = InterferenceGauge()
        log.run_began()
        for _ in range(extent.epochs):
            loop.epoch()
            if not log.items:
                raise InputError(NO_ITEMS)
            if extent.validate:
                assert isinstance(step, ModelStep)
                log.clock.settle()  # what the device still has to do belongs to the epoch, not to the scoring
                with spy.paused():
                    log.scored(*score(self.workload, step, setting, pinned=bool(setting.pin_memory)))
        log.run_ended()
        self._interference = self._gauge.read()
        self.running = False
        emit(ClockRead(began_s=log.began_s, over_s=log.ended_s))
        emit(Phase(name="over"))

    def _subject_of(self, step: ModelStep | SleepStep | None) -> Subject:
        workload, dataset = self.workload, self.dataset
        source = workload.sampler if isinstance(workload.sampler, Sized) else dataset
        model = self._device_name if step else workload.name
        return Subject(
            name=workload.name,
            model=type(step.model).__name__ if isinstance(step, ModelStep) else model,
            data=workload.data_name or type(dataset).__name__,
            mode=self.mode,
            device=str(self.device),
            items=len(source) if isinstance(source, Sized) and not workload.batched else None,
            parameters=step.parameters if step is not None else None,
            stream=isinstance(dataset, IterableDataset),
            batch_sampler=workload.sets_batches,
            batching=workload.batching,
            mode_reason=self._mode_reason,
            current=workload.current,
            repeats=repeats_items(dataset, workload.worker_init_fn),
            shards=shards_of(dataset),
        )


def _is_on_device(step: ModelStep | SleepStep) -> TypeGuard[ModelStep]:
    """Whether the workload's batches are made on the device and stay there."""
    return isinstance(step, ModelStep) and step.on_device


def _into_memory(feed: Feed, step: ModelStep | SleepStep, extent: Extent, *, alike: bool) -> Feed:
    """For pure compute: batches on the device, or in host memory, loaded before the clock starts."""
    if not _is_on_device(step) and extent.source != "memory":
        return feed
    rules = feeds.RULES
    most = rules.alike_batches if alike else rules.memory_batches
    loaded = load_into_memory(feed, feed.batches or rules.stream_batches, most=most)
    if _is_on_device(step):
        moved = {id(batch): step.move(_batch_of(batch)) for batch in loaded.source}
        loaded.source = [moved[id(batch)] for batch in loaded.source]
    else:
        loaded.source = [_batch_of(batch) for batch in loaded.source]
    return loaded


def _batch_of(parcel: Any) -> Any:
    return parcel.batch if isinstance(parcel, spy.Parcel) else parcel


def _update_notes(setting: Setting, mode: Mode, step: ModelStep | SleepStep, batches: int) -> list[str]:
    """What gathering several batches into one update came to."""
    if setting.accumulate > 1 and isinstance(step, ModelStep) and step.updates_itself:
        return [OWN_UPDATES]
    if setting.accumulate > batches and mode == "train":
        return [f"{batches} batches are fewer than the {setting.accumulate} of one update: none was made"]
    return []


def _place(extent: Extent, files: list[Path]) -> list[str]:
    """Bring the files into the page cache, or evict them from it; notes on how far that went."""
    if extent.source not in ("cached", "cold"):
        return _place_within_limit(files) if extent.memory_limit_bytes is not None and extent.source == "files" else []
    if not files:
        raise InputError(
            f"a {extent.source} run needs to know which files the dataset reads; name them: Workload(files=[...])"
        )
    if extent.source == "cached":
        pagecache.warm(files)
        return []
    share = pagecache.evict(files)
    return [f"{share:.0%} of the data's pages were evicted from the page cache before the run"]


def _place_within_limit(files: list[Path]) -> list[str]:
    """Evict the files: the kernel counts a page of the page cache against the limit of whoever brought it there."""
    if not files:
        return [
            "the files of the dataset are not known: what others have read of them does not count against the limit"
        ]
    share = pagecache.evict(files)
    return [f"{share:.0%} of the data's pages were evicted first, so that the limit counts those that the run reads"]


def _files(workload: Workload, dataset: Any) -> list[Path]:
    """The files that the dataset reads, as far as they can be known."""
    given = workload.files() if callable(workload.files) else workload.files
    if given is None:
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        given = [sample[0] for sample in getattr(dataset, "samples", []) if isinstance(sample, tuple | list)]
    return [Path(file) for file in given if isinstance(file, str | Path)]


def _check_worker_threads(setting: Setting, device: Device) -> None:
    """Raise InputError for workers that would hang: a forked process has no threads of the pool that the loop's process
    computes with, and waits for them for ever."""
    threads, method = setting.worker_threads or 1, setting.multiprocessing_context or get_start_method()
    if setting.num_workers and threads > 1 and method == "fork" and device.type == "cpu":
        raise InputError(
            f"{threads} threads in forked workers hang if the loop's process computes on the CPU, too: start the "
            "workers by forkserver or spawn (--start-method; in tune: --current …,start=forkserver)"
        )


def _check_gpus(setting: Setting, device: Device) -> None:
    """Raise InputError if DataParallel has too few GPUs to split batches over."""
    if setting.parallel == "ddp" or setting.ranks == 1:
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type != "cuda" or found < setting.ranks:
        raise InputError(
            f"DataParallel splits each batch over {setting.ranks} GPUs, and here are {found}; --parallel ddp runs "
            "ranks on a CPU, too"
        )


def pinned_memory(setting: Setting, device: Device) -> bool:
    """Whether batches are pinned: as the setting says, by default on a GPU."""
    if setting.pin_memory is None:
        return device.type == "cuda"
    return setting.pin_memory and torch.cuda.is_available()


def _free_pinned_memory(device: Device) -> None:
    """Free the pinned memory that torch keeps for later, so that a run starts as in a process of its own."""
    free = getattr(torch._C, "_host_emptyCache", None)
    if free is not None:
        if isinstance(device, torch.device) and device.type == "cuda":
            torch.cuda.synchronize(device)
        free()


def _unused(setting: Setting, pinned: bool, mode: Mode) -> list[str]:
    """Notes on what was asked for and cannot be had."""
    notes = []
    if setting.pin_memory and not pinned:
        notes.append("pinned memory was asked for, but there is no GPU to pin it for")
    if setting.persistent_workers and not setting.num_workers:
        notes.append("persistent workers were asked for, but there are none")
    if setting.accumulate > 1 and mode == "infer":
        notes.append("batches were to be gathered into one update, but inference has none")
    return notes


@contextlib.contextmanager
def _quiet_loader() -> Iterator[None]:
    """Without torch's warning about many workers: the trial has a note that says what to do."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*worker processes in total.*")
        yield
