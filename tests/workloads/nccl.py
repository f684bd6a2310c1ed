"""A rank under NCCL. A module of its own: importing one that asks for GPUs keeps CUDA from forked processes."""

from typing import Any

import stoker
from stoker import Extent, Setting
from stoker.events import LoopReady

NET = stoker.WorkloadSpec(spec="resnet18", data="device")


def one_nccl_rank(batches: int, emit: Any) -> stoker.Trial:
    """One rank under NCCL, started as several would be: by a process that touches no GPU."""
    from stoker.measure.group import RankGroup
    from stoker.measure.ranks import run_ranks
    from stoker.measure.run import Bench
    from stoker.measure.session import open_workload
    from stoker.records import Subject

    setting, extent = Setting(batch_size=16), Extent(batches=batches, warmup=2)

    def run_rank(place: Any, steps: Any, released: Any, emit: Any) -> stoker.Trial:
        bench = Bench(open_workload(NET, "train", emit), "train", "cuda:0")
        group = RankGroup(place, bench.device, steps)
        group.join()

        def ready() -> None:
            emit(LoopReady())
            released.readline()

        return bench.run(setting, extent, emit, before_loop=ready, group=group)

    subject = Subject(name="resnet18", model="resnet18", data="device", mode="train", device="cuda:0", items=None)
    fallback = stoker.Trial(outcome="failed", workload=subject, setting=setting, extent=extent)
    return run_ranks(1, run_rank, lambda: None, fallback, emit)
