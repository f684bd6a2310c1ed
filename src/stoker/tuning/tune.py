"""What to set: probe a little, predict every setting, run the best few in rounds, answer with the best measured one."""

import math
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from stoker.errors import InputError, MachineError, OutOfTime
from stoker.events import OnEvent
from stoker.measure.session import run_script
from stoker.memory.limit import LimitRequest, limit_in_child
from stoker.records import Limit, Plan, Planner, WorkloadSpec
from stoker.tuning.request import TuneRequest
from stoker.tuning.tuner import RULES, Tuner, find_ceiling, time_of
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
    asked = LimitRequest(
        mode=request.mode,
        precision=request.precision,
        device=gpu,
        gpu_memory=request.gpu_memory,
        ranks=request.ranks,
    )
    find = partial(_limit_in_time, source, asked, ends_at_s=began + time_of(request), on_event=on_event)
    ceiling = None
    if request.gpu_memory is not None:
        try:
            ceiling = find_ceiling(find, request)
        except OutOfTime as error:
            raise InputError(
                f"{error}, and runs need the rest of the budget: give a larger --budget, or --max-batch in place of "
                "--gpu-memory"
            ) from None
    tuner = Tuner(request, ceiling=ceiling, began=began, on_event=on_event)
    run = partial(run_script, source, mode=request.mode, device=request.device, on_event=on_event)
    plan = run(tuner.script())
    if plan is None:  # a step ran out of device memory: find the ceiling between two sessions, then go on
        with suppress(InputError, MachineError):
            tuner.ceiling = find_ceiling(find, request)
        plan = run(tuner.choose())
    return plan


def _limit_in_time(
    source: Workload | WorkloadSpec,
    request: LimitRequest,
    *,
    ends_at_s: float,
    on_event: OnEvent | None,
    accumulate: int = 1,
) -> Limit:
    """The largest batch, found in a share of the time that tuning has left. Raises OutOfTime after it."""
    left_s = RULES.ceiling_share * max(0.0, ends_at_s - perf_counter())
    request = msgspec.structs.replace(request, accumulate=accumulate)
    return limit_in_child(source, request, on_event, timeout_s=left_s if math.isfinite(left_s) else None)
