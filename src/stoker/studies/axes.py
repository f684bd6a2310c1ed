"""What a grid may vary or fix: the names of its axes, and which values each of them takes."""

import datetime
import difflib
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from msgspec.structs import fields

from stoker.errors import InputError
from stoker.memory.trace.gpus import architecture
from stoker.ranking.scores import SCORES
from stoker.records import METHODS, Extent, LearningRateScale, Mode, OptimizerName, Planner, Precision, Setting
from stoker.records.part import parse_part
from stoker.records.task import Parallel, StartMethod
from stoker.tuning.request import parse_current
from stoker.units import parse_bytes, parse_seconds
from stoker.workload.data.open import KINDS as DATA_KINDS

Value = str | int | float | bool
Kind = Literal["profile", "limit", "tune", "search", "converge"]

WORKLOAD = ("workload", "data", "items", "weights")
COMMON = (*WORKLOAD, "mode", "device")
SETTING = tuple(each.name for each in fields(Setting))
LABELS = ("family",)
"""Axes that are no part of a task: they split its tables."""
EXTENT = ("batches", "warmup", "epochs", "source", "validate", "memory_limit")
_LIMIT = ("gpu_memory", "method", "optimizer", "reserve", "gpu", "gpus", "ranks", "validate")
_TUNE = ("epochs", "throughput", "batch_size", "max_batch", "global_batch", "gpus", "ranks", "current", "gpu_memory")
_TUNE_MORE = ("host_memory", "budget", "planner", "precision")
SEARCH = ("part", "scores", "classes", "labels", "resamples", "weights_cache")
"""What only a candidate of a search has: options of its task."""
_SEARCH = ("batch_size", "num_workers", "batches", "warmup")
_CONVERGE = ("against", "epochs", "updates", "seeds", "scale_lr")
_NOT_CONVERGE = ("accumulate", "ranks", "parallel")
"""One process trains, and each of its batches is an update."""
NAMES: dict[str, tuple[str, ...]] = {
    "profile": tuple(dict.fromkeys((*COMMON, *LABELS, *SETTING, *EXTENT))),
    "limit": tuple(dict.fromkeys((*COMMON, *LABELS, "precision", "cudnn_benchmark", "accumulate", *_LIMIT))),
    "tune": tuple(dict.fromkeys((*COMMON, *LABELS, *_TUNE, *_TUNE_MORE))),
    "search": tuple(dict.fromkeys((*WORKLOAD, "device", *LABELS, *SEARCH, *_SEARCH))),
    "converge": tuple(
        dict.fromkeys(
            (*WORKLOAD, "device", *LABELS, *(name for name in SETTING if name not in _NOT_CONVERGE), *_CONVERGE)
        )
    ),
}
"""The axes and fixed values that each kind of study knows."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": get_args(Mode),
    "precision": get_args(Precision),
    "source": get_args(get_type_hints(Extent)["source"]),
    "multiprocessing_context": get_args(StartMethod),
    "parallel": get_args(Parallel),
    "method": METHODS,
    "optimizer": get_args(OptimizerName),
    "planner": get_args(Planner),
    "labels": ("classes", "random"),
    "weights_cache": ("warm", "cold"),
    "scale_lr": get_args(LearningRateScale),
}
_FLAGS = (
    *("pin_memory", "persistent_workers", "in_order", "channels_last", "compile", "cudnn_benchmark"),
    *("validate", "throughput"),
)
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|sleep:.+")
_PLAIN = (str, int, float, list, dict, datetime.date, datetime.time)
"""What TOML can hold."""
_LARGEST = 2**63 - 1
"""What a database can hold, and more than anything here can be."""


def checked(name: str, value: Any) -> Value:
    """The value, if an axis of this name takes it. Raises InputError with the nearest valid value."""
    if name in _FLAGS:
        return _flag(name, value)
    if name in _CHOICES:
        return _choice(name, value)
    if name in _FORMS:
        return _formed(name, value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        raise InputError(f"{name} must be a whole number, got {value!r}")
    return value


def nearest(name: str, names: Iterable[str]) -> str:
    """` (did you mean …?)` for a name that is close to one of these, otherwise nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}")
    return value


def _choice(name: str, value: Any) -> str:
    known = _CHOICES[name]
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}")
    return value


def _formed(name: str, value: Any) -> Value:
    if name == "workload" and not isinstance(value, _PLAIN):
        raise InputError("a live Workload object has no key, and a study needs one: name it as file.py:function")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not isinstance(value, str) and not (is_number and name in _AMOUNTS):
        raise InputError(f"{name} must be a text{' or a number' if name in _AMOUNTS else ''}, got {value!r}")
    try:
        _FORMS[name](str(value))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return value if isinstance(value, str | int) else float(value)


def _workload(text: str) -> None:
    if not text.strip():
        raise InputError("it must name a model or a function, got an empty text")


def _data(text: str) -> None:
    known = (*(kind for kind in DATA_KINDS if not kind.startswith("device-")), "device")
    if text not in known and not Path(text).expanduser().exists():
        raise InputError(f"{text!r} is no folder and none of {', '.join(known)}{nearest(text, known)}")


def _weights(text: str) -> None:
    if not Path(text).expanduser().is_file():
        raise InputError(f"there is no file {text!r}")


def _scores(text: str) -> None:
    """Raise InputError unless the text names one or more scores of features, separated by commas."""
    for name in text.split(","):
        if name.strip() not in SCORES:
            raise InputError(
                f"there is no score {name.strip()!r}{nearest(name, SCORES)}; choose from {', '.join(SCORES)}"
            )


def _device(text: str) -> None:
    if not _DEVICE.fullmatch(text):
        known = ("auto", "cpu", "cuda", "cuda:0", "sleep:20ms")
        raise InputError(f"{text!r} is no device{nearest(text, known)}; write auto, cpu, cuda, cuda:N or sleep:20ms")


_FORMS: dict[str, Callable[[str], object]] = {
    "family": str,
    "part": parse_part,
    "scores": _scores,
    "workload": _workload,
    "data": _data,
    "weights": _weights,
    "device": _device,
    "gpu": architecture,
    "current": parse_current,
    "gpu_memory": parse_bytes,
    "reserve": parse_bytes,
    "host_memory": parse_bytes,
    "memory_limit": parse_bytes,
    "budget": parse_seconds,
}
_AMOUNTS = ("gpu_memory", "reserve", "host_memory", "memory_limit", "budget")
