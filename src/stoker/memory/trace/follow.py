"""Logs every storage that a step makes and drops on a fake CUDA device: no GPU, and no memory for what it logs."""

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import msgspec
import torch

from stoker.errors import InputError
from stoker.memory.trace import compiled, fake_cuda, layers, masks
from stoker.memory.trace.fake_cuda import CUDA
from stoker.memory.trace.gpus import DEFAULT_GPU, Architecture, architecture
from stoker.memory.trace.kernels import attention, recurrent
from stoker.memory.trace.log import AllocationLog
from stoker.memory.trace.recorder import Recorder
from stoker.records import Mode, Precision
from stoker.workload import calls
from stoker.workload.batch import mapped
from stoker.workload.example import EXAMPLE_ITEMS, Example, worst_example
from stoker.workload.workload import Workload

_PRIMES = (251, 257, 263, 269, 271, 277, 281, 283, 293, 307, 311, 313)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def record(
    workload: Workload,
    mode: Mode,
    precision: Precision,
    optimizer: str | None,
    *,
    gpu: str = DEFAULT_GPU,
    validate: bool = False,
    channels_last: bool = False,
    example: Example | None = None,
) -> AllocationLog:
    """Log one step of a workload on a fake CUDA device. Runs in a process of its own: it changes torch for good.

    `gpu` names the card, whose generation decides on kernels; with `validate`, training is followed by a pass over the
    validation data (the training data where a workload has none) at the same batch size; with `channels_last`, model
    and images are in that layout. `example` is the batch to see the shapes of, where it has been loaded already.
    """
    began = perf_counter()
    card = architecture(gpu)
    _install(card, mode)
    batch = _followed(example or worst_example(workload))
    validation = None
    if validate and mode == "train":
        apart = workload.validation is not None
        validation = _followed(worst_example(workload, "validation")) if apart else batch
    chosen = workload.with_(optimizer=OPTIMIZERS[optimizer]) if optimizer else workload
    following = _Following(chosen, mode, precision, channels_last, card, batch, validation)
    return msgspec.structs.replace(following.log(), seconds=perf_counter() - began)


class _Following:
    """One step, to be followed at one batch size or two."""

    def __init__(
        self,
        workload: Workload,
        mode: Mode,
        precision: Precision,
        channels_last: bool,
        card: Architecture,
        batch: Any,
        validation: Any,
    ) -> None:
        self._workload, self._mode, self._precision, self._channels_last = workload, mode, precision, channels_last
        self._card, self._batch, self._validation = card, batch, validation

    def log(self) -> AllocationLog:
        """At a prime that divides no side of the model's tensors or of the batch's. Where something seems to grow with
        the square of the batch, a side in between may be a multiple of it: another prime tells."""
        model = self._made()
        first, *others = _primes(_sides(model, (self._batch, self._validation)))
        found = self._either_way(first, model)
        if not others or not _squares(found):
            return found
        again = self._either_way(others[0])
        return min((found, again), key=lambda log: len(_squares(log)))

    def _either_way(self, batch_size: int, model: torch.nn.Module | None = None) -> AllocationLog:
        """Where the step reads a value that only a run has, it is followed with 0 and with 1 in its place: where both
        take the same memory, or only one of them is a way that does not raise, that is the answer."""
        found: dict[int, AllocationLog] = {}
        refused: list[Exception] = []
        asked_at = None
        for value in (0, 1):
            log = Recorder(self._card, batch_size, value)
            try:
                found[value] = self._logged(self._made() if model is None else model, log)
            except Exception as error:
                refused.append(error)
            model = None
            asked_at = asked_at or log.asked_at
            if asked_at is None:
                break
        if not found:
            raise refused[0]
        first = next(iter(found.values()))
        if not all(_are_alike(first, other) for other in found.values()):
            raise InputError(
                f"this step cannot be followed without a GPU: what it takes depends on a value that only a run has, "
                f"at {asked_at}"
            )
        if asked_at is None:
            return first
        ways = "0 and with 1, alike" if len(found) == 2 else f"{next(iter(found))}, as the other raises"
        said = f"what else the step may do by a value that it reads at {asked_at} (followed with {ways})"
        return msgspec.structs.replace(first, unseen=(*first.unseen, said))

    def _made(self) -> torch.nn.Module:
        with fake_cuda.LazyBuild():
            model = calls.make_model(self._workload)
        masks.answer_from(self._batch)  # by now, what the model is made with has been imported
        return model

    def _logged(self, model: torch.nn.Module, log: Recorder) -> AllocationLog:
        with fake_cuda.fake_tensors(), log:
            fake_cuda.to_fake_cuda(model, log.born, channels_last=self._channels_last).train(self._mode == "train")
            step = _Step(self._workload, model, self._mode, self._precision, log.batch_size, self._channels_last)
            init = log.steps_begin()
            step(self._batch)
            first = len(log.events)
            if self._validation is not None:
                step.infer(self._validation)
            events = tuple(log.events)
        return AllocationLog(
            storages=tuple(log.storages),
            init=events[:init],
            first=events[init:first],
            steady=_repeated(events[init:first]),
            validate=events[first:],
            batch_size=log.batch_size,
            workspace_bytes=self._card.workspace_bytes,
            attention=tuple(sorted(attention.used)),
            unseen=_unseen(model, log.custom),
        )


def _are_alike(one: AllocationLog, other: AllocationLog) -> bool:
    return (one.storages, one.init, one.first, one.validate) == (
        other.storages,
        other.init,
        other.first,
        other.validate,
    )


def _primes(sides: set[int]) -> list[int]:
    """Those of a table that divide none of these; the whole table where each divides some."""
    return [prime for prime in _PRIMES if all(side % prime for side in sides)] or list(_PRIMES)


def _sides(model: torch.nn.Module, examples: Any) -> set[int]:
    """Of every tensor, but for the one that counts the items."""
    sides: set[int] = set()
    for tensor in (*model.parameters(), *model.buffers()):
        sides.update(tensor.shape)

    def look(tensor: torch.Tensor) -> torch.Tensor:
        sides.update(tensor.shape[1:])
        return tensor

    mapped(examples, look)
    return sides - {0}


def _squares(log: AllocationLog) -> list[float]:
    return [storage.square_bytes for storage in log.storages if storage.square_bytes]


def _install(card: Architecture, mode: Mode) -> None:
    fake_cuda.install(backward=mode == "train")
    attention.install(card)
    recurrent.install()
    layers.install()


def _repeated(first: tuple[int, ...]) -> tuple[int, ...]:
    """A later step is the first one without what lasts: it is there already."""
    died = {-event - 1 for event in first if event < 0}
    return tuple(event for event in first if event < 0 or event in died)


def _unseen(model: torch.nn.Module, custom: Iterable[str]) -> tuple[str, ...]:
    """What takes memory on a GPU and shows in no log."""
    found = [f"what {name}, an operator of your own, takes inside" for name in sorted(custom)]
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        found.append(recurrent.UNSEEN)
    if compiled.is_used(model):
        found.append(compiled.UNSEEN)
    return tuple(found)


class _Step:
    """One step as the loop makes it: the batch on the device, forward, backward, update."""

    def __init__(
        self,
        workload: Workload,
        model: torch.nn.Module,
        mode: Mode,
        precision: Precision,
        batch_size: int,
        channels_last: bool,
    ) -> None:
        self._workload, self._model, self._mode, self._channels_last = workload, model, mode, channels_last
        self._batch_size = batch_size
        self._dtype = _DTYPES.get(precision)
        self._optimizer = calls.make_optimizer(workload, model) if mode == "train" else None
        self._scaler = torch.amp.GradScaler("cuda") if mode == "train" and precision == "fp16" else None

    def __call__(self, example: Any) -> None:
        if self._mode == "infer":
            self.infer(example)
            return
        batch = self._inflated(example)  # a loop holds on to its batch to the end of the step
        with self._autocast():
            loss = self._loss(batch)
        if loss is None:
            return
        assert self._optimizer is not None
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def infer(self, example: Any) -> None:
        self._model.eval()
        with torch.inference_mode(), self._autocast():
            self._forward(self._inflated(example))

    def _inflated(self, example: Any) -> Any:
        """The example as fake CUDA tensors, with the traced batch in the place of its few items."""

        def grow(tensor: torch.Tensor) -> torch.Tensor:
            shape = list(tensor.shape)
            if shape and shape[0] == EXAMPLE_ITEMS:
                shape[0] = self._batch_size
            layout = torch.channels_last if self._channels_last and len(shape) == 4 else torch.contiguous_format
            return torch.empty(shape, dtype=tensor.dtype, device=CUDA, memory_format=layout)

        return mapped(example, grow)

    def _autocast(self) -> Any:
        return torch.autocast("cuda", dtype=self._dtype) if self._dtype else nullcontext()

    def _forward(self, batch: Any) -> Any:
        if self._workload.step is not None:
            return self._workload.step(self._model, batch)
        return calls.forward(self._workload, self._model, calls.split(batch)[0])

    def _loss(self, batch: Any) -> torch.Tensor | None:
        output = self._forward(batch)
        if self._workload.step is not None:
            return calls.step_loss(output)
        return calls.loss_of(self._workload, output, calls.split(batch)[1])


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.01),
    "momentum": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def _followed(example: Example) -> Any:
    """The example's batch, where it can be told which dimension counts the items."""
    if not example.grows:
        raise InputError(
            "this step cannot be followed without a GPU: a batch's first dimension does not count its items, "
            "so its size at another batch cannot be told"
        )
    return example.batch
