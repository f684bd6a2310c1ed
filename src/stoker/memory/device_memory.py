"""What a process finds and takes of a device's memory, or of the host's."""

import re
import resource
from pathlib import Path

import torch

from stoker.machine import host
from stoker.measure.device import SleepDevice, parse_device
from stoker.records import Record


class Room(Record, frozen=True):
    """What a process finds when it comes to the device: its name, its memory, and what of that is free for tensors."""

    device: str
    total_bytes: int
    free_bytes: int


def room_of(device_name: str) -> Room:
    """Look at the device; a process that does so has touched it."""
    device = parse_device(device_name)
    assert not isinstance(device, SleepDevice)
    if device.type != "cuda":
        found = host.read()
        return Room(device="host memory", total_bytes=found.limit_bytes, free_bytes=found.available_bytes)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info(device)
    return Room(device=torch.cuda.get_device_name(device), total_bytes=total, free_bytes=free)


class CudaMemory:
    """The caching allocator's view of a device, capped where a budget is given."""

    def __init__(self, device: torch.device, budget_bytes: int | None, expandable: bool) -> None:
        if expandable:
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.cuda.init()
        self._device = device
        self.free_bytes, total = torch.cuda.mem_get_info(device)
        if budget_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / total), device)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def reserved_peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    def retries(self) -> int:
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))


class HostMemory:
    """The process's own memory, beyond what it had when the try began."""

    def __init__(self, budget_bytes: int | None) -> None:
        self.free_bytes = host.available_bytes()
        self._before = _status("VmRSS")
        budget = self.free_bytes if budget_bytes is None else budget_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = _status("VmData") + budget
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))

    def settle(self) -> None:
        """Nothing is under way when the host gets here."""

    def reserved(self) -> int:
        return max(0, _status("VmRSS") - self._before)

    def peak(self) -> int:
        return max(0, _status("VmHWM") - self._before)

    def reserved_peak(self) -> int:
        return self.peak()

    def retries(self) -> int:
        return 0


def _status(name: str) -> int:
    """A line of this process's status, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
