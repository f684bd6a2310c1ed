"""What to set: probe a little, predict every setting, run the best few in rounds, answer with the best measured one."""

from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from stoker.errors import InputError, MachineError
from stoker.events import OnEvent
from stoker.measure.session import run_script
from stoker.memory.limit import limit
from stoker.records import Plan, Planner, WorkloadSpec
from stoker.tuning.request import TuneRequest
from stoker.tuning.tuner import Tuner, find_ceiling
from stoker.workload.workload import Workload

__all__ = ["Plan", "Planner", "TuneRequest", "tune"]


def tune(
    source: Workload | WorkloadSpec | str,
    request: TuneRequest | None = None,
    *,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Plan:
    """Find the batch size and the workers that finish soonest, and prove it with runs.

    The options are the fields of `TuneRequest`: `tune(workload, items=10_000, max_batch=256, budget_s=60)`. Raises
    InputError for options that make no sense, for a workload that cannot be run, and if nothing fits the machine.
    """
    began = perf_counter()
    if request is not None and options:
        raise InputError("give tune a TuneRequest or options, not both")
    request = request or TuneRequest.of(**options)
    source = WorkloadSpec(spec=source) if isinstance(source, str) else source
    # The GPU whose memory counts is the one that is tuned for.
    gpu = request.device if request.device.startswith("cuda") else "auto"
    find = partial(limit, source, mode=request.mode, precision=request.precision, device=gpu, on_event=on_event)
    ceiling = None
    if request.gpu_memory is not None:
        ceiling = find_ceiling(partial(find, gpu_memory=request.gpu_memory), request)
    tuner = Tuner(request, ceiling=ceiling, began=began, on_event=on_event)
    run = partial(run_script, source, mode=request.mode, device=request.device, on_event=on_event)
    plan = run(tuner.script())
    if plan is None:  # a step ran out of device memory: find the ceiling between two sessions, then go on
        with suppress(InputError, MachineError):
            tuner.ceiling = find_ceiling(find, request)
        plan = run(tuner.choose())
    return plan
