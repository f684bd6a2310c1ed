"""Two clocks with one face: the host's, and a CUDA stream's, whose events are read once the run is over."""

from time import perf_counter
from typing import Any, Protocol

import torch

from stoker.errors import InputError, MachineError
from stoker.units import parse_seconds


class Clock(Protocol):
    """`mark` notes a moment of the device's work without waiting for it; `seconds` tells when it was, on the host."""

    def mark(self) -> Any: ...
    def settle(self) -> None: ...
    def seconds(self, mark: Any) -> float: ...


class HostClock:
    """For devices that work in step with the host: a mark is the time itself."""

    def mark(self) -> float:
        return perf_counter()

    def settle(self) -> None:
        """Nothing is under way when the host gets here."""

    def seconds(self, mark: float) -> float:
        return mark


class CudaClock:
    """Events on the current stream, tied to the host's clock at one moment when both stood still."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.synchronize(device)
        self._base = self.mark()
        self._base.synchronize()
        self._base_s = perf_counter()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, mark: torch.cuda.Event) -> float:
        return self._base_s + float(self._base.elapsed_time(mark)) / 1e3


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()


class Nap:
    """What a `sleep:` device costs: so much a batch, or so much an item."""

    def __init__(self, text: str) -> None:
        cost, per, unit = text.partition("/")
        if per and unit not in ("item", "batch"):
            raise InputError(f"sleep:{text} is not a device; write sleep:20ms or sleep:0.5ms/item")
        self._cost_s = parse_seconds(cost)
        self._per_item = unit == "item"

    def seconds(self, items: int) -> float:
        return self._cost_s * items if self._per_item else self._cost_s


def parse_device(name: str) -> torch.device | Nap:
    """`auto`, `cpu`, `cuda`, `cuda:1`, or `sleep:20ms`, checked against what is here."""
    if name.startswith("sleep:"):
        return Nap(name.removeprefix("sleep:"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"no such device: {name!r}; choose auto, cpu, cuda, cuda:N or sleep:20ms")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise MachineError(f"{name} was asked for, but torch finds no GPU here; `stoker doctor` says why")
        if (device.index or 0) >= count:
            raise InputError(f"{name} was asked for, but there are only {count} GPUs here")
        return torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())
    return device
