"""The largest batch that fits: five ways to find it behind one interface."""

import re
from time import perf_counter
from typing import Any, get_args

import msgspec

from stoker.errors import InputError
from stoker.events import OnEvent
from stoker.measure.session import trial_server
from stoker.memory.trace.gpus import architecture
from stoker.process import child
from stoker.records import METHODS, Limit, Method, Mode, Precision, Record, WorkloadSpec
from stoker.units import format_bytes, parse_bytes
from stoker.workload.workload import Workload

OPTIMIZER_NAMES = ("sgd", "momentum", "adam", "adamw")
_STALL_S = 600.0


class Question(Record, frozen=True):
    """What is asked of a method."""

    method: Method
    gpu_memory_bytes: int | None = None
    reserve_bytes: int = 0
    mode: Mode | None = None
    precision: Precision = "fp32"
    optimizer: str | None = None
    device: str = "auto"
    gpu: str | None = None
    gpus: int = 1
    validate: bool = False
    cudnn_benchmark: bool = False
    advise: bool = False
    tolerance: float = 0.01


def limit(
    source: Any,
    example: Any = None,
    *,
    gpu_memory: int | str | None = None,
    method: Method = "auto",
    mode: Mode | None = None,
    precision: Precision = "fp32",
    optimizer: Any = None,
    loss: Any = None,
    reserve: int | str = 0,
    device: str = "auto",
    gpu: str | None = None,
    gpus: int = 1,
    validate: bool = False,
    cudnn_benchmark: bool = False,
    advise: bool = False,
    tolerance: float = 0.01,
    on_event: OnEvent | None = None,
) -> Limit:
    """The largest batch of a workload, of a model's name, or of a live model with an example batch.

    `gpu_memory` (bytes, or `16GiB`) is what tensors may take; without it, what the device has free. With no GPU here
    and a `gpu_memory`, nothing is run: the answer is traced. `optimizer` (sgd, momentum, adam, adamw) stands in for the
    workload's own. `reserve` is left free.
    """
    began = perf_counter()
    question = Question(
        method=method,
        gpu_memory_bytes=_bytes(gpu_memory, "GPU memory", least=1) if gpu_memory is not None else None,
        reserve_bytes=_bytes(reserve, "the reserve", least=0),
        mode=mode,
        precision=precision,
        optimizer=optimizer if isinstance(optimizer, str) else None,
        device=device,
        gpu=gpu,
        gpus=gpus,
        validate=validate,
        cudnn_benchmark=cudnn_benchmark,
        advise=advise,
        tolerance=tolerance,
    )
    _check(question)
    if not isinstance(source, str | WorkloadSpec | Workload):
        from stoker.memory.live import limit_inside

        live = None if isinstance(optimizer, str) else optimizer
        found = limit_inside(source, example, question, loss=loss, optimizer=live, on_event=on_event)
    else:
        found = _elsewhere(WorkloadSpec(spec=source) if isinstance(source, str) else source, question, on_event)
    return msgspec.structs.replace(found, seconds=perf_counter() - began)


def _elsewhere(source: Workload | WorkloadSpec, question: Question, on_event: OnEvent | None) -> Limit:
    """In a process of its own."""
    from stoker.memory.methods import answer

    ended = child.run(
        answer, (source, question), kind=Limit, server=trial_server(), on_event=on_event, stall_s=_STALL_S
    )
    return child.value(ended)


def _bytes(amount: Any, what: str, *, least: int) -> int:
    if not isinstance(amount, str | int | float):
        raise InputError(f"{what} is a number of bytes, or a text like 16GiB, got {type(amount).__name__}")
    count = parse_bytes(amount) if isinstance(amount, str) else int(amount)
    if count < least:
        raise InputError(f"{what} must be at least {least} byte{'s' if least != 1 else ''}, got {count}")
    return count


def _check(question: Question) -> None:
    if question.method not in METHODS:
        raise InputError(f"no such method: {question.method!r}; choose {', '.join(METHODS)}")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", question.device):
        raise InputError(f"no such device: {question.device!r}; choose auto, cpu, cuda or cuda:N")
    for name, value, known in (
        ("mode", question.mode, (None, *get_args(Mode))),
        ("precision", question.precision, get_args(Precision)),
        ("optimizer", question.optimizer, (None, *OPTIMIZER_NAMES)),
    ):
        if value not in known:
            raise InputError(f"no such {name}: {value!r}; choose {', '.join(filter(None, known))}")
    if question.gpus < 1:
        raise InputError(f"the number of GPUs must be at least 1, got {question.gpus}")
    if not 0 <= question.tolerance < 1:
        raise InputError(f"the tolerance must be between 0 and 1, got {question.tolerance:g}")
    if question.gpu is not None:
        architecture(question.gpu)
    memory = question.gpu_memory_bytes
    if memory is not None and question.reserve_bytes >= memory:
        raise InputError(
            f"the reserve of {format_bytes(question.reserve_bytes)} leaves nothing of {format_bytes(memory)}"
        )
