"""One step: what the device does with one batch, in the stages copy, forward, backward and update.

The measured loop, the attempts of `limit` and the trace on a simulated GPU all run the step of this module.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from stoker.measure.device import Device, SleepDevice
from stoker.measure.group import Alone, RankGroup, Tick
from stoker.records import Mode, Setting
from stoker.workload import calls
from stoker.workload.workload import Workload

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def no_tick(name: str, at: Any = None) -> None:
    """For steps whose stages are not timed."""


class SleepStep:
    """Stands in for a model: sleeps as long as one would take. Ranks of a `group` wait for each other after it."""

    parameters: int | None = None

    def __init__(self, device: SleepDevice, group: RankGroup | None = None) -> None:
        self._device, self._group = device, group
        self.items = 0
        """How many items the next batch holds."""

    def begin(self, accumulate: int) -> None:
        """It has no updates."""

    def __call__(self, batch: Any, tick: Tick) -> None:
        time.sleep(self._device.seconds(self.items))
        tick("forward")
        if self._group is not None:
            self._group.meet(tick)


class ModelStep:
    """A model on a device. Make it once, `begin` it once a trial, call it once a batch.

    The step makes the workload's model and moves it to the device, unless `model` is given, which is there already.
    `make_batch` turns what the step is called with into a batch on the device; by default it copies a batch of the
    host, and leaves batches alone that are made on the device (`on_device`). In a `group` of ranks, a model that trains
    exchanges its gradients with the others.
    """

    def __init__(
        self,
        workload: Workload,
        mode: Mode,
        setting: Setting,
        device: torch.device,
        *,
        pinned: bool = False,
        model: torch.nn.Module | None = None,
        make_batch: Callable[[Any], Any] | None = None,
        group: RankGroup | None = None,
    ) -> None:
        self._group: Alone = group if group is not None and mode == "train" else Alone()
        self._workload, self._mode, self._setting, self._device = workload, mode, setting, device
        self._pinned = pinned
        self._make_batch = make_batch
        self.on_device = workload.on_device
        torch.backends.cudnn.benchmark = setting.cudnn_benchmark
        if model is None:
            model = calls.make_model(workload).to(device)
            if setting.channels_last:
                model = model.to(memory_format=torch.channels_last)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.model = model.train(mode == "train")
        self._optimizer = calls.make_optimizer(workload, self.model) if mode == "train" else None
        called = self._group.wrap(self.model, workload.ddp)
        if setting.parallel == "dp" and setting.ranks > 1:
            called = torch.nn.DataParallel(self.model, device_ids=list(range(setting.ranks)))
        self._called: torch.nn.Module = torch.compile(called) if setting.compile else called  # type: ignore[assignment]
        scaled = mode == "train" and setting.precision == "fp16"
        self._scaler = torch.amp.GradScaler(device.type) if scaled else None
        self._accumulate, self._batches = setting.accumulate, 0
        self.updates_itself = False
        self.on_loss: Callable[[torch.Tensor], None] | None = None
        """Called with the loss of each training step."""
        self._steps = 0

    def begin(self, accumulate: int) -> None:
        """From here on make one update every `accumulate` batches. Gradients of an unfinished update are dropped."""
        self._accumulate, self._batches = accumulate, 0
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)

    @property
    def returns_loss(self) -> bool:
        """Whether the workload's own step is known to return a loss: it has been called, and did."""
        return self._steps > 0 and not self.updates_itself

    def scale_learning_rates(self, factor: float) -> tuple[float, ...]:
        """Multiply the optimizer's learning rates; what they are then, a number for each group of parameters."""
        groups = getattr(self._optimizer, "param_groups", [])
        for group in groups:
            if "lr" in group and factor != 1.0:
                group["lr"] = group["lr"] * factor
        return tuple(float(group["lr"]) for group in groups if "lr" in group)

    def move(self, batch: Any) -> Any:
        """The batch on the device, in the memory format of the setting."""
        return calls.to_device(
            batch,
            self._device,
            non_blocking=self._pinned,
            channels_last=self._setting.channels_last,
            leave_unknown=self._workload.step is not None or self._workload.forward is not None,
        )

    def _ready(self, batch: Any) -> Any:
        if self._make_batch is not None:
            return self._make_batch(batch)
        return batch if self.on_device else self.move(batch)

    def __call__(self, batch: Any, tick: Tick = no_tick) -> None:
        batch = self._ready(batch)
        tick("copy")
        if self._mode == "infer":
            with torch.inference_mode(), self.precision():
                self._infer(batch, tick)
        else:
            self._train(batch, tick)

    def evaluate(self, batch: Any) -> None:
        """One forward pass as between two epochs: in evaluation mode and without gradients. Training can go on."""
        batch = self._ready(batch)
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), self.precision():
                calls.forward(self._workload, self.model, calls.split(batch)[0])
        finally:
            self.model.train(training)

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast for bf16 and fp16."""
        dtype = _DTYPES.get(self._setting.precision)
        return torch.autocast(self._device.type, dtype=dtype) if dtype else nullcontext()

    def _infer(self, batch: Any, tick: Tick) -> None:
        if self._workload.step is not None:
            self._workload.step(self._called, batch)
            tick("step")
            return
        inputs, _ = calls.split(batch)
        calls.forward(self._workload, self._called, inputs)
        tick("forward")

    def _train(self, batch: Any, tick: Tick) -> None:
        group, is_update = self._group, (self._batches + 1) % self._accumulate == 0
        with group.exchanges(adds=not is_update):
            with self.precision():
                loss = self._loss(batch)
            self._steps += 1
            if loss is None:
                self.updates_itself = True
                group.tick_step(tick)
                return
            if self.on_loss is not None:
                self.on_loss(loss)
            group.tick_forward(tick)
            loss = loss if self._accumulate == 1 else loss / self._accumulate
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            group.tick_backward(tick)
        self._batches += 1
        if is_update:
            self._update()
        tick("update")

    def _update(self) -> None:
        assert self._optimizer is not None
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def _loss(self, batch: Any) -> Any:
        if self._workload.step is not None:
            return calls.step_loss(self._workload.step(self._called, batch))
        inputs, target = calls.split(batch)
        output = calls.forward(self._workload, self._called, inputs)
        return calls.loss_of(self._workload, output, target)


def make_step(
    workload: Workload,
    mode: Mode,
    setting: Setting,
    device: Device,
    *,
    pinned: bool,
    group: RankGroup | None = None,
) -> SleepStep | ModelStep:
    if isinstance(device, SleepDevice):
        return SleepStep(device, group if mode == "train" else None)
    return ModelStep(workload, mode, setting, device, pinned=pinned, group=group)
