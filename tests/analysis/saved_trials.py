"""Finished trials with times of our choice."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from stoker.records import Cpu, Cuda, Extent, Host, Machine, Setting, Software, Stage, Subject, Timeline, Trial

_BEGAN = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
_SUBJECT = Subject(name="net", model="Net", data="set", mode="train", device="cpu", items=1000)


def machine(cpu: str = "a CPU", cpus: float = 4.0) -> Machine:
    return Machine(
        cpu=Cpu(model=cpu, logical=4, physical=4, affinity=4, quota=None, usable=cpus),
        host=Host(
            ram_bytes=1,
            cgroup_limit_bytes=None,
            limit_bytes=1,
            available_bytes=1,
            shm_bytes=None,
            shm_free_bytes=None,
            open_files_soft=1,
            open_files_hard=1,
            start_method="fork",
        ),
        gpus=(),
        cuda=Cuda(),
        software=Software(
            stoker="0", python="3.12", torch="2.9", torchvision=None, numpy="2", pillow="12", system="Linux"
        ),
    )


def trial(
    stages_s: Mapping[str, float],
    *,
    workers_s: Mapping[str, float] | None = None,
    batches: int = 20,
    batch_size: int = 8,
    number: int = 0,
    **changes: Any,
) -> Trial:
    """A trial whose batches all take the same time: `stages_s` each in the loop, `workers_s` each in the workers."""
    period_s = sum(stages_s.values())
    loop = {name: Stage(clock="loop", samples_s=(seconds,) * batches) for name, seconds in stages_s.items()}
    others = {
        name: Stage(clock="worker", samples_s=(seconds,) * batches) for name, seconds in (workers_s or {}).items()
    }
    made = Trial(
        outcome="done",
        workload=_SUBJECT,
        setting=Setting(batch_size=batch_size),
        extent=Extent(batches=batches),
        machine=machine(),
        items=batches * batch_size,
        total_s=period_s * batches,
        stages={**loop, **others},
        timeline=Timeline(items=(batch_size,) * batches, batches=(batches,)),
        when=_BEGAN + timedelta(seconds=number),
        reference_s=(0.002,) * 5,
    )
    return msgspec.structs.replace(made, **changes)
