"""What to set: probe a little, predict every setting, run the best few in turns, and answer with the best of those."""

import math
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import get_args

from stoker.errors import InputError, MachineError
from stoker.events import OnEvent
from stoker.measure.session import run_script
from stoker.memory.limit import limit
from stoker.records import Mode, Plan, Planner, Precision, Setting, WorkloadSpec
from stoker.tuning.candidates import Request, parse_current
from stoker.tuning.tuner import Tuner, find_ceiling
from stoker.workload.workload import Workload

__all__ = ["Plan", "Planner", "tune"]


def tune(
    source: Workload | WorkloadSpec | str,
    *,
    items: int | None = None,
    epochs: int = 1,
    throughput: bool = False,
    batch_size: int | None = None,
    max_batch: int | None = None,
    global_batch: int | None = None,
    gpus: int = 1,
    current: Setting | str | None = None,
    gpu_memory: int | str | None = None,
    host_memory_bytes: int | None = None,
    mode: Mode | None = None,
    device: str = "auto",
    precision: Precision = "fp32",
    budget_s: float = 60.0,
    planner: Planner = "simulate",
    on_event: OnEvent | None = None,
) -> Plan:
    """Find the batch size and the workers that finish soonest, and prove it with runs."""
    began = perf_counter()
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    current = parse_current(current) if isinstance(current, str) else current
    wish = Request(batch_size=batch_size, max_batch=max_batch, global_batch=global_batch, gpus=gpus, current=current)
    for name, value in (("items", items), ("epochs", epochs)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if not 0 < budget_s < math.inf:
        raise InputError(f"the budget must be above 0 s, got {budget_s:g}")
    if planner not in get_args(Planner):
        raise InputError(f"no such planner: {planner!r}; choose {', '.join(get_args(Planner))}")
    find = partial(limit, source, mode=mode, precision=precision, device=_gpu(device), on_event=on_event)
    ceiling = find_ceiling(partial(find, gpu_memory=gpu_memory), wish) if gpu_memory is not None else None
    tuner = Tuner(
        wish=wish,
        ceiling=ceiling,
        asked=(items, epochs, throughput),
        host_memory_bytes=host_memory_bytes,
        precision=precision,
        budget_s=budget_s,
        planner=planner,
        on_event=on_event,
        began=began,
    )
    plan = run_script(source, tuner.talk(), mode=mode, device=device, on_event=on_event)
    if plan is None:  # a step ran out of device memory: find the ceiling between two children, then go on
        with suppress(InputError, MachineError):
            tuner.ceiling = find_ceiling(find, wish)
        plan = run_script(source, tuner.rest(), mode=mode, device=device, on_event=on_event)
    return plan


def _gpu(device: str) -> str:
    """Which GPU's memory is asked about, where it is one of several."""
    return device if device.startswith("cuda") else "auto"
