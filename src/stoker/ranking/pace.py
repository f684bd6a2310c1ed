"""Batch size and workers of a candidate: chosen on its first batches, whose features count like the others."""

import math

import psutil
import torch

from stoker.machine import host
from stoker.machine.cpu import usable
from stoker.ranking.supply import Supply, fork_s
from stoker.records import Record, Task
from stoker.units import format_seconds, format_workers

MEASURED = "measured"
"""The value of the option `batch_size` with which batch size and workers are chosen by measuring."""


class PaceRules(Record, frozen=True):
    """How batch size and workers are chosen."""

    first_cpu: int = 8
    """The first batch size on a CPU: from there on, larger batches bring little."""
    first_gpu: int = 32
    """On a GPU smaller ones leave most of it idle."""
    gain: float = 0.05
    """A batch of twice the size must take at least this share less for each item; less than this is noise."""
    largest: int = 512
    """No larger batch is tried: on published grids nothing gained beyond it."""
    memory_share: float = 0.5
    """Of the memory that is free, a batch may take so much: what is kept of earlier candidates needs room, too."""
    tail_batches: int = 4
    """A size is tried only if as many items are left as this many of its batches have: otherwise it brings nothing."""
    worker_gain: float = 0.1
    """Workers must save at least this share of the time that is left, as predicted."""
    worker_start_forks: float = 5.0
    """A worker is ready after about so many times the time of a bare fork: it imports nothing, but queues are made."""


RULES = PaceRules()


class Pace:
    """Says how large the next batch is while it is being found out, then which setting the rest has.

    On the first batches of the set, the size doubles while an item takes less time and memory allows it. Then workers
    are taken if they are predicted to save more than their start costs. A separate probe or a search for the limit
    would run the model as often again as these batches do, and their features could not be used.
    """

    def __init__(self, task: Task, supply: Supply, device: torch.device) -> None:
        self._supply, self._device = supply, device
        self._is_gpu = device.type == "cuda"
        self.prefetch = task.setting.prefetch_factor
        self.limit = _batch_limit(task)
        self.batch_size, self.num_workers = task.setting.batch_size, task.setting.num_workers
        self.reason = "as asked"
        self._is_measured = task.options.get("batch_size") == MEASURED
        self._size = RULES.first_gpu if self._is_gpu else RULES.first_cpu
        self._item_s: dict[int, float] = {}
        self._load_s: list[float] = []
        self._seen = 0
        self._rss_bytes = psutil.Process().memory_info().rss
        if self._is_measured:
            self.batch_size, self.num_workers = self._size, 0
            if supply.is_stream:
                self.fix()
                self.reason = "a stream: nothing can be tried on a part of it"

    def fix(self) -> None:
        """Take what is known: nothing is tried any more."""
        if self._is_measured:
            self._is_measured = False
            self.reason = "the first size that is tried: all batches are loaded before the first is timed"

    def next_size(self) -> int | None:
        """The size of the next batch that is tried; None when the choice is made."""
        if not self._is_measured:
            return None
        count = self._supply.items.count or 0
        if count <= self._seen:
            return None
        return self._size

    def saw(self, items: int, load_s: float, infer_s: float) -> None:
        """A batch of the asked size is over. The very first one warms up and says nothing."""
        self._seen += self._size
        if items:
            self._load_s.append(load_s / items)
        if self._seen == self._size and not self._is_last():
            return
        if items:
            self._item_s[self._size] = infer_s / items
        if self._is_last() or not self._should_grow():
            self._decide()
        else:
            self._size *= 2

    def too_large(self, items: int) -> None:
        """A batch did not fit into the device's memory."""
        self.batch_size = max(1, items // 2)
        self.reason = f"a batch of {items} did not fit into the GPU's memory"
        self._is_measured = False

    def _is_last(self) -> bool:
        return self._seen >= (self._supply.items.count or 0)

    def _should_grow(self) -> bool:
        """Whether a batch of twice the size is worth trying."""
        sizes = sorted(self._item_s)
        improved = len(sizes) < 2 or self._item_s[sizes[-1]] < self._item_s[sizes[-2]] * (1 - RULES.gain)
        larger = self._size * 2
        left = (self._supply.items.count or 0) - self._seen
        self._stopped = (
            "larger batches bring less than 5 %"
            if not improved
            else "a larger one was not tried for so few items"
            if left < RULES.tail_batches * larger
            else "the largest that is tried"
            if larger > RULES.largest
            else "a larger one would take too much memory"
            if not self._fits(larger)
            else ""
        )
        return not self._stopped

    def _fits(self, size: int) -> bool:
        """Whether a batch of that size takes at most the allowed share of the free memory, as the last one shows."""
        if self._is_gpu:
            taken = torch.cuda.max_memory_allocated(self._device)
            free = torch.cuda.mem_get_info(self._device)[0] + torch.cuda.memory_reserved(self._device)
            return taken * size / self._size <= free * RULES.memory_share
        taken = max(0, psutil.Process().memory_info().rss - self._rss_bytes)
        return taken * size / self._size <= host.available_bytes() * RULES.memory_share

    def _decide(self) -> None:
        self._is_measured = False
        if not self._item_s:
            self.reason = "as many as there are items"
            return
        best = min(self._item_s, key=self._item_s.__getitem__)
        self.batch_size = best
        tried = ", ".join(f"{size}: {format_seconds(item_s)}" for size, item_s in sorted(self._item_s.items()))
        self.reason = f"an item took by batch size {tried}; {getattr(self, '_stopped', '') or 'the set ended'}"
        self._choose_workers(self._item_s[best])

    def _choose_workers(self, infer_s: float) -> None:
        left = max(0, (self._supply.items.count or 0) - self._seen)
        if self._supply.in_memory or not left or not self._load_s:
            self.reason += "; no workers: " + (
                "the items are in memory" if self._supply.in_memory else "nothing is left"
            )
            return
        load_s = sum(self._load_s) / len(self._load_s)
        cpus = usable()
        start_s = RULES.worker_start_forks * fork_s()
        times = {0: left * (load_s + infer_s)}
        for workers in range(1, max(1, math.ceil(cpus)) + (0 if self._is_gpu else -1) + 1):
            times[workers] = self._with_workers(workers, left, load_s, infer_s, cpus) + workers * start_s
        best = min(times, key=times.__getitem__)
        if times[best] > times[0] * (1 - RULES.worker_gain):
            best = 0
        self.num_workers = best
        alone, chosen = format_seconds(times[0]), format_seconds(min(times.values()))
        self.reason += (
            f"; {format_workers(best)}: loading an item takes {format_seconds(load_s)}, the {left:,} that are left "
            f"{alone} without workers and {chosen} at best with them, as predicted"
        )

    def _with_workers(self, workers: int, left: int, load_s: float, infer_s: float, cpus: float) -> float:
        """Seconds with workers. On a GPU loading runs beside the device's work; on a CPU both share the cores, of which
        inference uses all and a worker one."""
        if self._is_gpu:
            return self.batch_size * load_s + left * max(load_s / min(workers, cpus), infer_s)
        return self.batch_size * load_s + left * max(infer_s + load_s / cpus, load_s / workers)


def _batch_limit(task: Task) -> int | None:
    """How many batches the extent asks for; None for all."""
    extent = task.extent
    if extent.batches is None:
        return None
    return extent.batches + extent.warm_batches(task.setting.num_workers)
