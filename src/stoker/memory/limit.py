"""The largest batch that fits: the request, checked where it is made, and `limit()`, which answers it."""

import re
from datetime import UTC, datetime
from math import isfinite
from time import perf_counter
from typing import Any, TypedDict, Unpack, get_args

import msgspec

from stoker.errors import InputError, OutOfTime
from stoker.events import OnEvent
from stoker.machine import software
from stoker.measure.session import trial_server
from stoker.memory.trace.gpus import architecture
from stoker.process import child
from stoker.records import METHODS, Limit, Method, Mode, OptimizerName, Precision, Record, Setting, WorkloadSpec
from stoker.units import format_bytes, format_seconds, parse_bytes
from stoker.workload.workload import Workload

_STALL_S = 600.0
_BATCHES_TO_AN_UPDATE = 2
"""Memory no longer changes from the second batch of an update on: its gradients are added to those of the first."""


class LimitRequest(Record, frozen=True):
    """What is asked about the largest batch. Raises `InputError` if the options contradict each other.

    - `gpu_memory`: bytes, or a text like `16GiB`, that tensors may take; by default what the device has free.
    - `reserve`: bytes, or a text, of that memory to leave free.
    - `mode`: by default `train` for a workload with a loss, else `infer`.
    - `optimizer`: stands in for the workload's own.
    - `accumulate`: batches to one update; above 1, gradients are kept from one batch to the next.
    - `gpu`: the GPU that a trace simulates, by name or compute capability; by default the one that is here.
    - `gpus`: how many GPUs the two-point method multiplies its answer by.
    - `ranks`: how many ranks train together; each holds its gradients two further times, in buckets. The answer is
      the batch of one rank.
    - `validate`: whether a pass over validation data at the same batch size must fit too.
    - `advise`: whether to try what changes in the order of allocations would bring.
    - `tolerance`: how far the size that ran and the one that failed may be apart, as a share.
    """

    method: Method = "auto"
    gpu_memory: int | float | str | None = None
    reserve: int | float | str = 0
    mode: Mode | None = None
    precision: Precision = "fp32"
    optimizer: OptimizerName | None = None
    accumulate: int = 1
    device: str = "auto"
    gpu: str | None = None
    gpus: int = 1
    ranks: int = 1
    validate: bool = False
    cudnn_benchmark: bool = False
    advise: bool = False
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        for name, value, known in (
            ("method", self.method, METHODS),
            ("mode", self.mode, (None, *get_args(Mode))),
            ("precision", self.precision, get_args(Precision)),
            ("optimizer", self.optimizer, (None, *get_args(OptimizerName))),
        ):
            if value not in known:
                raise InputError(f"no such {name}: {value!r}; choose {', '.join(filter(None, known))}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise InputError(f"no such device: {self.device!r}; choose auto, cpu, cuda or cuda:N")
        counts = {"the number of GPUs": self.gpus, "ranks": self.ranks, "accumulate": self.accumulate}
        for name, count in counts.items():
            if count < 1:
                raise InputError(f"{name} must be at least 1, got {count}")
        if not 0 <= self.tolerance < 1:
            raise InputError(f"the tolerance must be between 0 and 1, got {self.tolerance:g}")
        if self.gpu is not None:
            architecture(self.gpu)
        memory, reserve = self.gpu_memory_bytes, self.reserve_bytes
        if memory is not None and reserve >= memory:
            raise InputError(f"the reserve of {format_bytes(reserve)} leaves nothing of {format_bytes(memory)}")

    @property
    def gpu_memory_bytes(self) -> int | None:
        return None if self.gpu_memory is None else _bytes(self.gpu_memory, "GPU memory", least=1)

    @property
    def reserve_bytes(self) -> int:
        return _bytes(self.reserve, "the reserve", least=0)

    @property
    def setting(self) -> Setting:
        """How steps run; of an update's batches, as many as memory depends on."""
        return Setting(
            precision=self.precision,
            cudnn_benchmark=self.cudnn_benchmark,
            accumulate=min(self.accumulate, _BATCHES_TO_AN_UPDATE),
            ranks=self.ranks,
        )


class LimitOptions(TypedDict, total=False):
    """The fields of `LimitRequest` that have no argument of their own, as keyword arguments of `limit`."""

    method: Method
    gpu_memory: int | float | str | None
    reserve: int | float | str
    mode: Mode | None
    precision: Precision
    accumulate: int
    device: str
    gpu: str | None
    gpus: int
    ranks: int
    validate: bool
    cudnn_benchmark: bool
    advise: bool
    tolerance: float


def limit(
    source: Any,
    example: Any = None,
    *,
    request: LimitRequest | None = None,
    loss: Any = None,
    optimizer: Any = None,
    on_event: OnEvent | None = None,
    **options: Unpack[LimitOptions],
) -> Limit:
    """The largest batch of a workload, of a model's name, or of a live model with an example batch.

    `options` are the fields of `LimitRequest`; they win over those of a `request` that is given. Without a GPU here and
    with a `gpu_memory`, nothing is run: the answer is traced. `optimizer` is a name (sgd, momentum, adam, adamw); for
    a live model it may be its optimizer. `loss` is the loss of a live model. Raises `InputError` for a bad request or
    a step that fails, `MachineError` where the method needs a GPU and there is none.
    """
    began, when = perf_counter(), datetime.now(UTC)
    chosen: dict[str, Any] = dict(options)
    if isinstance(optimizer, str):
        chosen["optimizer"] = optimizer
    request = msgspec.structs.replace(request or LimitRequest(), **chosen)
    if not isinstance(source, str | WorkloadSpec | Workload):
        from stoker.memory.live import limit_of_live_model

        live = None if isinstance(optimizer, str) else optimizer
        found = limit_of_live_model(source, example, request, loss=loss, optimizer=live, on_event=on_event)
    else:
        found = limit_in_child(WorkloadSpec(spec=source) if isinstance(source, str) else source, request, on_event)
    return msgspec.structs.replace(found, seconds=perf_counter() - began, software=software.read(), when=when)


def limit_in_child(
    source: Workload | WorkloadSpec,
    request: LimitRequest,
    on_event: OnEvent | None,
    *,
    stall_s: float = _STALL_S,
    timeout_s: float | None = None,
) -> Limit:
    """The answer to a request, found in a process of its own: tracing changes torch for good.

    Raises `OutOfTime` after `timeout_s`, however far it is then.
    """
    from stoker.memory.methods import answer

    began = perf_counter()
    ended = child.run(
        answer,
        (source, request),
        kind=Limit,
        server=trial_server(),
        on_event=on_event,
        stall_s=stall_s,
        timeout_s=timeout_s,
    )
    if ended.how == "timed_out" and timeout_s is not None and perf_counter() - began >= timeout_s:
        raise OutOfTime(f"the largest batch was not found within {format_seconds(timeout_s)}")
    return child.value(ended)


def _bytes(amount: Any, what: str, *, least: int) -> int:
    if not isinstance(amount, str | int | float):
        raise InputError(f"{what} is a number of bytes, or a text like 16GiB, got {type(amount).__name__}")
    if isinstance(amount, float) and not isfinite(amount):
        raise InputError(f"{what} must be a finite number of bytes, got {amount}")
    count = parse_bytes(amount) if isinstance(amount, str) else int(amount)
    if count < least:
        raise InputError(f"{what} must be at least {least} byte{'s' if least != 1 else ''}, got {count}")
    return count
