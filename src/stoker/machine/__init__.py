"""What we run on, in a container or out of one: CPUs, memory, GPUs, storage, and what about them breaks runs."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from stoker.machine import cpu, gpu, host, memory_group, software, torch_probe
from stoker.machine.disk import measure as measure_disk
from stoker.machine.disk import storage as storage_behind
from stoker.machine.hints import hints as find_hints
from stoker.records import Machine

__all__ = ["inspect"]


def inspect(
    *,
    root: Path = Path("/"),
    disk: Path | None = None,
    check_torch: bool = False,
    check_limits: bool = False,
    data: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    environ: Mapping[str, str] | None = None,
) -> Machine:
    """Look at the machine. Torch is asked (in a child process) and a disk is read only where told.

    With `check_limits` a memory limit is tried: a control group is made and removed.
    `root` points the readers of /proc and /sys to a recorded tree; `progress` hears what is being done.
    """
    environ = os.environ if environ is None else environ
    here = torch_probe.ask_here()
    if check_torch and here is None:
        progress("asking torch")
    facts = here or (torch_probe.ask() if check_torch else None)
    gpus, cuda = gpu.read(environ=environ, facts=facts, holding=here is not None)
    machine = Machine(
        cpu=cpu.read(root),
        host=host.read(root),
        gpus=gpus,
        cuda=cuda,
        software=software.read(facts.torch if facts else None),
        storage=storage_behind(data, root) if data else None,
        disk=measure_disk(disk, root=root, progress=progress) if disk else None,
    )
    if check_limits:
        problem = memory_group.problem(root)
        limited = msgspec.structs.replace(machine.host, limits_memory=problem is None, limits_problem=problem)
        machine = msgspec.structs.replace(machine, host=limited)
    found = find_hints(machine, environ=environ, opencv=software.has_opencv(), holds_gpu=here is not None)
    return msgspec.structs.replace(machine, hints=found)
