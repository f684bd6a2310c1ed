"""Devices that a step runs on, and their clocks."""

from time import perf_counter
from typing import Any, Protocol

import torch

from stoker.errors import InputError, MachineError
from stoker.units import parse_seconds


class Clock(Protocol):
    """`mark` notes a moment of the device's work without waiting for it; `settle` waits until the device has finished;
    `seconds` says when a mark was, by the host's clock."""

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


class SleepDevice:
    """A device that computes nothing: it sleeps as long as a step would take, given for a batch or for each item."""

    type = "sleep"

    def __init__(self, cost: str) -> None:
        amount, per, unit = cost.partition("/")
        if per and unit not in ("item", "batch"):
            raise InputError(f"sleep:{cost} is not a device; write sleep:20ms or sleep:0.5ms/item")
        self._cost = cost
        self._cost_s = parse_seconds(amount)
        self._per_item = unit == "item"

    def seconds(self, items: int) -> float:
        return self._cost_s * items if self._per_item else self._cost_s

    def __str__(self) -> str:
        return f"sleep:{self._cost}"


Device = torch.device | SleepDevice
"""Both have a `type`: cpu, cuda or sleep."""


def clock_for(device: Device) -> Clock:
    return CudaClock(device) if isinstance(device, torch.device) and device.type == "cuda" else HostClock()


def peaks_of(device: Device) -> dict[str, int]:
    """The most memory that torch used on the device since its peaks were reset."""
    if isinstance(device, SleepDevice) or device.type != "cuda":
        return {}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def parse_device(name: str) -> Device:
    """`auto`, `cpu`, `cuda`, `cuda:1`, or `sleep:20ms`. Raises InputError for anything else and for a GPU beyond those
    there are, and MachineError if torch finds none."""
    if name.startswith("sleep:"):
        return SleepDevice(name.removeprefix("sleep:"))
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
