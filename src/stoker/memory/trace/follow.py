"""Logs what a step allocates and releases on a simulated CUDA device: no GPU, and no memory for what it logs."""

import math
import traceback
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

import msgspec
import torch

from stoker.errors import InputError, StokerError
from stoker.measure.steps import ModelStep
from stoker.memory.trace import fake_cuda, layers, quirks
from stoker.memory.trace.fake_cuda import CUDA
from stoker.memory.trace.gpus import DEFAULT_GPU, Architecture, architecture
from stoker.memory.trace.kernels import attention, recurrent
from stoker.memory.trace.log import BUCKETS, AllocationLog
from stoker.memory.trace.recorder import AllocationRecorder
from stoker.process.failures import TRAIN_REMEDY, own_place
from stoker.records import Mode, Record, Setting
from stoker.workload import calls
from stoker.workload.batch import mapped
from stoker.workload.example import EXAMPLE_ITEMS, Example, worst_example
from stoker.workload.workload import Workload

_BATCH_SIZES = (251, 257, 263, 269, 271, 277, 281, 283, 293, 307, 311, 313)
"""Primes. A size that the batch size divides grows with the batch, unless a side of the model's own is a multiple."""


def record(
    workload: Workload,
    mode: Mode,
    setting: Setting,
    *,
    gpu: str = DEFAULT_GPU,
    validate: bool = False,
    example: Example | None = None,
) -> AllocationLog:
    """Log one step of a workload on a simulated CUDA device. Run it in a child process: it changes torch for good.

    `gpu` names the device; its generation decides on kernels. With `validate`, training is followed by a pass over the
    validation data (the training data if a workload has none) at the same batch size. `example` is the batch to take
    shapes from, if it has been loaded already. Raises `InputError` with the place if the step cannot be followed: it
    fails, or depends on values that only a run has.
    """
    try:
        return _record(workload, mode, setting, architecture(gpu), validate, example)
    except StokerError:
        raise
    except Exception as error:
        raise InputError(_cannot_follow(error)) from error


def _record(
    workload: Workload, mode: Mode, setting: Setting, card: Architecture, validate: bool, example: Example | None
) -> AllocationLog:
    began = perf_counter()
    _install(card, mode)
    batch = _growing(example or worst_example(workload))
    validation = None
    if validate and mode == "train":
        apart = workload.validation is not None
        validation = _growing(worst_example(workload, "validation")) if apart else batch
    trace = _StepTrace(workload, mode, setting, card, batch, validation)
    return msgspec.structs.replace(trace.log(), seconds=perf_counter() - began)


class _StepTrace:
    """One step, followed at one batch size or two."""

    def __init__(
        self, workload: Workload, mode: Mode, setting: Setting, card: Architecture, batch: Any, validation: Any
    ) -> None:
        self._workload, self._mode, self._setting = workload, mode, setting
        self._card, self._batch, self._validation = card, batch, validation

    def log(self) -> AllocationLog:
        """Follow the step at a prime that divides no side of the model's tensors or of the batch's.

        If something seems to grow with the square of the batch, a side in between may be a multiple of the prime.
        So it is followed with another prime too, and the log with fewer squares is right.
        """
        model = self._make_model()
        first, *others = _primes(_sides(model, (self._batch, self._validation)))
        found = self._with_either_value(first, model)
        if not others or not _squares(found):
            return found
        again = self._with_either_value(others[0])
        return min((found, again), key=lambda log: len(_squares(log)))

    def _with_either_value(self, batch_size: int, model: torch.nn.Module | None = None) -> AllocationLog:
        """If the step reads a value that only a run has, follow it with 0 and with 1 in its place.

        If both take the same memory, or only one of them does not raise, that is the answer.
        """
        found: dict[int, AllocationLog] = {}
        refused: list[Exception] = []
        read_at = None
        for value in (0, 1):
            recorder = AllocationRecorder(self._card, batch_size, value)
            try:
                found[value] = self._logged(self._make_model() if model is None else model, recorder)
            except Exception as error:
                refused.append(error)
            model = None
            read_at = read_at or recorder.read_at
            if read_at is None:
                break
        if not found:
            raise refused[0]
        first = next(iter(found.values()))
        if not all(_are_alike(first, other) for other in found.values()):
            raise InputError(
                f"this step cannot be followed without a GPU: what it takes depends on a value that only a run has, "
                f"at {read_at}"
            )
        if read_at is None:
            return first
        ways = "0 and with 1, alike" if len(found) == 2 else f"{next(iter(found))}, as the other raises"
        unseen = f"what else the step may do by a value that it reads at {read_at} (followed with {ways})"
        return msgspec.structs.replace(first, unseen=(*first.unseen, unseen))

    def _make_model(self) -> torch.nn.Module:
        with fake_cuda.LazyBuild():
            model = calls.make_model(self._workload)
        quirks.answer_masks_from(self._batch)  # the modules that the model is made with are imported by now
        return model

    def _logged(self, model: torch.nn.Module, recorder: AllocationRecorder) -> AllocationLog:
        channels_last = self._setting.channels_last
        with fake_cuda.fake_tensors(), recorder:
            fake_cuda.to_fake_cuda(model, recorder.allocate, channels_last=channels_last)
            step = ModelStep(
                self._workload,
                self._mode,
                self._setting,
                CUDA,
                model=model,
                make_batch=lambda example: _fake_batch(example, recorder.batch_size, channels_last),
            )
            if self._setting.ranks > 1 and self._mode == "train":
                for size in bucket_bytes(model, self._workload.ddp or {}):
                    recorder.allocate_for_good(size, BUCKETS)
            init = recorder.steps_begin()
            for _ in range(self._setting.accumulate if self._mode == "train" else 1):
                step(self._batch)
            first = len(recorder.events)
            if self._validation is not None:
                step.evaluate(self._validation)
            events = tuple(recorder.events)
        return AllocationLog(
            allocations=tuple(recorder.allocations),
            init=events[:init],
            first=events[init:first],
            steady=_repeated(events[init:first]),
            validate=events[first:],
            batch_size=recorder.batch_size,
            workspace_bytes=self._card.workspace_bytes,
            attention=tuple(sorted(attention.used)),
            unseen=(*_unseen(model, recorder.custom), *_unseen_of_ranks(self._workload, self._setting, self._mode)),
        )


def _are_alike(one: AllocationLog, other: AllocationLog) -> bool:
    return (one.allocations, one.init, one.first, one.validate) == (
        other.allocations,
        other.init,
        other.first,
        other.validate,
    )


def _primes(sides: set[int]) -> list[int]:
    """The batch sizes that divide none of these sides; all of them if each divides some."""
    return [prime for prime in _BATCH_SIZES if all(side % prime for side in sides)] or list(_BATCH_SIZES)


def _sides(model: torch.nn.Module, examples: Any) -> set[int]:
    """The sides of every tensor, without the one that counts the items."""
    sides: set[int] = set()
    for tensor in (*model.parameters(), *model.buffers()):
        sides.update(tensor.shape)

    def look(tensor: torch.Tensor) -> torch.Tensor:
        sides.update(tensor.shape[1:])
        return tensor

    mapped(examples, look)
    return sides - {0}


def _squares(log: AllocationLog) -> list[float]:
    return [each.square_bytes for each in log.allocations if each.square_bytes]


def _install(card: Architecture, mode: Mode) -> None:
    fake_cuda.install(backward=mode == "train")
    attention.install(card)
    recurrent.install()
    layers.install()


def _repeated(first: tuple[int, ...]) -> tuple[int, ...]:
    """A later step is the first one without what lasts, which exists by then."""
    released = {-event - 1 for event in first if event < 0}
    return tuple(event for event in first if event < 0 or event in released)


def _unseen(model: torch.nn.Module, custom: Iterable[str]) -> tuple[str, ...]:
    """What takes memory on a GPU and is in no log."""
    found = [f"what {name}, an operator of your own, takes inside" for name in sorted(custom)]
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        found.append(recurrent.UNSEEN)
    if quirks.is_compiled(model):
        found.append(quirks.UNSEEN_COMPILED)
    return tuple(found)


class BucketRules(Record, frozen=True):
    """The sizes of DistributedDataParallel's buckets, unless Workload(ddp=...) says otherwise."""

    first_bytes: int = 2**20
    """The first bucket is small, so that its exchange begins early..."""
    cap_bytes: int = 25 * 2**20
    """... and each further one is closed by the gradient that makes it at least this large."""


BUCKET_RULES = BucketRules()


def bucket_bytes(model: torch.nn.Module, ddp: Mapping[str, Any]) -> list[int]:
    """The buffers that a rank holds beside its gradients.

    Where every parameter has a gradient, the first step has them in one buffer for each type. Then
    DistributedDataParallel cuts buckets in the order in which gradients came. On an H200 with torch 2.11 the first
    buffer stayed: a rank held both from the second step on.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    cap_mb = ddp.get("bucket_cap_mb")
    cap = BUCKET_RULES.cap_bytes if cap_mb is None else int(cap_mb * 2**20)
    first = min(cap, BUCKET_RULES.first_bytes) if cap_mb is None else cap
    if ddp.get("find_unused_parameters") and not ddp.get("static_graph"):
        return _cut(parameters, first, cap)
    return [*_cut(parameters), *_cut(parameters[::-1], first, cap)]


def _cut(parameters: Iterable[torch.nn.Parameter], first: float = math.inf, later: float = math.inf) -> list[int]:
    """Buckets of one type each; a gradient that makes one as large as this closes it."""
    open_bytes: dict[torch.dtype, int] = {}
    closed: list[int] = []
    for parameter in parameters:
        size = open_bytes.pop(parameter.dtype, 0) + parameter.nbytes
        if size >= (later if closed else first):
            closed.append(size)
        else:
            open_bytes[parameter.dtype] = size
    return [*closed, *open_bytes.values()]


def _unseen_of_ranks(workload: Workload, setting: Setting, mode: Mode) -> tuple[str, ...]:
    """What ranks take on a GPU and is in no log."""
    if setting.ranks == 1 or mode != "train":
        return ()
    found = ["what NCCL takes for its own buffers, beside torch's allocator"]
    if (workload.ddp or {}).get("gradient_as_bucket_view"):
        found.append("that gradients lie in their buckets (gradient_as_bucket_view): a rank needs less than this")
    return tuple(found)


def _fake_batch(example: Any, batch_size: int, channels_last: bool) -> Any:
    """The example as fake CUDA tensors, with the traced batch size in place of its few items."""

    def grow(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if shape and shape[0] == EXAMPLE_ITEMS:
            shape[0] = batch_size
        layout = torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format
        return torch.empty(shape, dtype=tensor.dtype, device=CUDA, memory_format=layout)

    return mapped(example, grow)


def _growing(example: Example) -> Any:
    """The example's batch, if its first dimension counts the items."""
    if not example.grows:
        raise InputError(
            "this step cannot be followed without a GPU: a batch's first dimension does not count its items, "
            f"so its size at another batch cannot be told (its type is {type(example.batch).__name__}); a collate_fn "
            "may give tensors with the items first, which Workload(forward=...) or Workload(step=...) makes fit"
        )
    return example.batch


def _cannot_follow(error: Exception) -> str:
    """The sentence for a step that depends on values, or fails on the simulated device."""
    from torch._subclasses import fake_tensor

    names = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException")
    kinds: Any = tuple(getattr(fake_tensor, name) for name in names if hasattr(fake_tensor, name))
    why = next(iter(str(error).splitlines()), "")
    place = own_place("".join(traceback.format_exception(error)))
    where = f", at {place}" if place else ""
    if isinstance(error, kinds):
        return f"this step cannot be followed without a GPU: {why} depends on values that only a run has{where}"
    what = f"{type(error).__name__}: {why}" if why else type(error).__name__
    hint = f"; {TRAIN_REMEDY}" if "does not require grad" in why or "inference tensor" in why.lower() else ""
    return f"the step fails where it is followed without a GPU: {what}{where}{hint}"
