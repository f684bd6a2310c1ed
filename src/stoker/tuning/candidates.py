"""Which settings a person would accept, and what each is predicted to cost."""

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.analysis.objective import prediction_s
from stoker.errors import InputError
from stoker.forecast.constraints import Bounds, ruled_out, workers_that_pay
from stoker.forecast.predictor import SEEDS, Predictor
from stoker.records import Candidate, Measured, Mode, Objective, Probes, Record, RuledOut, Setting

_SMALLEST, _TIMES = 8, 8
_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FEW_SEEDS, _LOOKED_AT = 3, 16
"""All settings are predicted roughly, and the best of them again with care, which takes a slow core seconds for all."""
_PREFETCHES, _FURTHER = (4, 8), 6
_WORTH = 0.03
"""Loading further ahead is looked at for the best few; it takes memory, so it has to save this much."""


class Request(Record, frozen=True):
    """What a person fixed, and what they have now. Where they set no bound, sizes up to the `largest` are looked at."""

    batch_size: int | None = None
    max_batch: int | None = None
    global_batch: int | None = None
    gpus: int = 1
    current: Setting | None = None
    largest: int = 512

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_batch", "global_batch", "gpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name.replace('_', ' ')} must be at least 1, got {value}")
        if self.global_batch is not None and self.global_batch % self.gpus:
            raise InputError(f"a global batch of {self.global_batch} cannot be split evenly over {self.gpus} GPUs")
        if self.global_batch is not None and self.batch_size is not None:
            self.accumulation(self.batch_size)

    def accumulation(self, batch_size: int) -> int:
        """How many micro-batches make one update, so that the effective batch is exactly what was asked for."""
        if self.global_batch is None:
            return 1
        share = self.global_batch // self.gpus
        if share % batch_size:
            raise InputError(f"a batch of {batch_size} does not divide {share}, each GPU's share of the global batch")
        return share // batch_size

    def accumulating(self, setting: Setting, asked_for: bool) -> Setting:
        """The same with its number of batches to an update; a size that was not asked for stays as it is."""
        return msgspec.structs.replace(
            setting, accumulate=self.accumulation(setting.batch_size) if asked_for else setting.accumulate
        )

    def batch_sizes(self, ceiling: int | None, items: int | None) -> list[int]:
        """The sizes to consider, from the least to the largest."""
        if self.batch_size is not None:
            return [self.batch_size]
        most = min(size for size in (self.max_batch or self.largest, ceiling, items) if size is not None)
        if self.global_batch is not None:
            share = self.global_batch // self.gpus
            sizes = [size for size in range(1, min(share, most) + 1) if share % size == 0]
            return sizes[-8:]
        least = _SMALLEST if most >= _SMALLEST else 1
        sizes = [2**power for power in range(least.bit_length() - 1, 31) if 2**power <= most]
        if most < _SMALLEST or (self.max_batch is not None and self.max_batch <= most):
            sizes.append(most)
        if self.current is not None and self.current.batch_size <= most:
            sizes.append(self.current.batch_size)
        return sorted(set(sizes))

    def probe_sizes(self, ceiling: int | None) -> list[int]:
        """The least, a middle and the largest: what lies between is interpolated."""
        sizes = self.batch_sizes(ceiling, None)
        return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})

    def with_batch(self, batch_size: int) -> "Request":
        """The same for a loader whose batches are set by something else."""
        current = self.current and msgspec.structs.replace(self.current, batch_size=batch_size)
        return msgspec.structs.replace(self, batch_size=batch_size, current=current)

    def is_current(self, setting: Setting | RuledOut) -> bool:
        """Whether it is what the person has now; of what was ruled out, batch and workers are known."""
        now = self.current
        if now is None or (now.batch_size, now.num_workers) != (setting.batch_size, setting.num_workers):
            return False
        return isinstance(setting, RuledOut) or now.prefetch_factor == setting.prefetch_factor or not now.num_workers

    def effective_notes(self, mode: Mode, items: int | None) -> list[str]:
        """What is to be said of an effective batch; one that no epoch fills is refused."""
        if self.global_batch is None:
            return []
        if mode == "train" and items is not None and self.global_batch > items:
            raise InputError(
                f"a global batch of {self.global_batch} is more than the set's {items} items: no epoch has an update"
            )
        return (
            ["inference has no updates: a global batch only says which sizes may be chosen"] if mode == "infer" else []
        )

    def training_notes(self, mode: Mode, batch_size: int, items: int | None) -> list[str]:
        """What another batch does to training, said where it was not fixed."""
        if mode != "train" or self.global_batch is not None or self.current is None or items is None:
            return []
        before, after = (-(-items // size) for size in (self.current.batch_size, batch_size))
        if before == after:
            return []
        return [
            f"training: {after} updates an epoch instead of {before}; adapt the learning rate, "
            f"or keep the effective batch with --global-batch {self.current.batch_size}"
        ]


def candidates_of(
    wish: Request, base: Setting, probes: Probes, predictor: Predictor, objective: Objective, bounds: Bounds
) -> tuple[list[Candidate], list[RuledOut]]:
    """Every setting that the machine allows, best prediction first, and those it does not."""
    item_bytes = bytes_of_an_item(probes)
    found: list[Candidate] = []
    out: list[RuledOut] = []
    items = min(probes.subject.items or objective.items, objective.items)
    sizes, counts = wish.batch_sizes(None, items), _worker_counts(bounds, wish)
    if wish.batch_size is None:  # what lies above a bound is ruled out by name; below it there has to be something
        least = Setting(batch_size=sizes[0], accumulate=2 if wish.global_batch else 1)
        sizes = sorted({*sizes, *wish.batch_sizes(_bearable(item_bytes, bounds, least), items)})
    pairs = [(size, workers) for size in sizes for workers in counts]
    if wish.current is not None:
        pairs.append((wish.current.batch_size, wish.current.num_workers))
    for size, workers in dict.fromkeys(pairs):
        setting = wish.accumulating(msgspec.structs.replace(base, batch_size=size, num_workers=workers), size in sizes)
        now = wish.current is not None and (wish.current.batch_size, wish.current.num_workers) == (size, workers)
        if now and wish.current is not None:
            setting = msgspec.structs.replace(setting, prefetch_factor=wish.current.prefetch_factor)
        broken = ruled_out(setting, item_bytes, bounds)
        if broken is not None and not now and broken.bound in _BY_PREFETCH:
            setting = msgspec.structs.replace(setting, prefetch_factor=1)
            broken = ruled_out(setting, item_bytes, bounds) and broken
        if broken is not None:
            out.append(broken)
        if broken is None or (now and broken.bound == "CPUs"):
            found.append(candidate_of(setting, wish, predictor, objective, asked_for=size in sizes, seeds=_FEW_SEEDS))
    found.sort(key=lambda each: each.predicted_s)
    for place, each in enumerate(found):
        same = wish.current is not None and each.setting.batch_size == wish.current.batch_size
        if place < _LOOKED_AT or same:
            found[place] = candidate_of(each.setting, wish, predictor, objective, asked_for=each.asked_for)
    found.sort(key=lambda each: each.predicted_s)
    further = [_further(each, wish, predictor, objective, bounds, item_bytes) for each in found[:_FURTHER]]
    return sorted([*found, *filter(None, further)], key=lambda each: each.predicted_s), out


_BY_PREFETCH = ("/dev/shm", "host memory", "file descriptors")
"""Bounds that workers may keep by loading only one batch ahead."""


def _further(
    near: Candidate, wish: Request, predictor: Predictor, objective: Objective, bounds: Bounds, item_bytes: float
) -> Candidate | None:
    """The same with workers that load further ahead, where that is predicted to pay: a batch that takes long then keeps
    fewer others waiting. The least of those that bring about as much."""
    best: Candidate | None = None
    for ahead in _PREFETCHES if near.setting.num_workers else ():
        setting = msgspec.structs.replace(near.setting, prefetch_factor=ahead)
        if ahead <= near.setting.prefetch_factor or ruled_out(setting, item_bytes, bounds) is not None:
            continue
        found = candidate_of(setting, wish, predictor, objective, asked_for=near.asked_for)
        if found.predicted_s < (best or near).predicted_s * (1 - _WORTH):
            best = found
    return best


def larger(wish: Request, base: Setting, predictor: Predictor, objective: Objective, most: int) -> int | None:
    """A size some times the largest that is considered, where none was asked for and it is predicted to save time."""
    sizes = wish.batch_sizes(None, most)
    size = min(_TIMES * sizes[-1], most)
    if (wish.batch_size, wish.max_batch, wish.global_batch) != (None, None, None) or size < 2 * sizes[-1]:
        return None
    counts = sorted({0, 1, 2, max(1, int(predictor.costs.cores))})

    def best_s(size: int) -> float:
        settings = (msgspec.structs.replace(base, batch_size=size, num_workers=count) for count in counts)
        return min(candidate_of(each, wish, predictor, objective, seeds=_FEW_SEEDS).predicted_s for each in settings)

    return size if best_s(size) < (1 - _WORTH) * min(map(best_s, sizes)) else None


def _bearable(item_bytes: float, bounds: Bounds, least: Setting) -> int | None:
    """The largest batch that the machine bears without workers, where it bears not even the least one."""
    size = least.batch_size
    while size > 1 and ruled_out(msgspec.structs.replace(least, batch_size=size), item_bytes, bounds) is not None:
        size -= 1
    return None if size == least.batch_size else size


def candidate_of(
    setting: Setting,
    wish: Request,
    predictor: Predictor,
    objective: Objective,
    *,
    asked_for: bool = True,
    seeds: int = SEEDS,
) -> Candidate:
    setting = wish.accumulating(setting, asked_for)
    predicted = predictor.predict(setting, objective.items, epochs=objective.epochs, seeds=seeds)
    return Candidate(
        setting=setting,
        predicted_s=prediction_s(objective, predicted),
        predicted=predicted,
        asked_for=asked_for,
    )


def _worker_counts(bounds: Bounds, wish: Request) -> list[int]:
    """Up to twice what pays, so that what is ruled out is seen; and what the person has now."""
    most = 2 * workers_that_pay(bounds)
    counts = {count for count in _WORKERS if count <= most} | {workers_that_pay(bounds)}
    if wish.current is not None:
        counts.add(wish.current.num_workers)
    return sorted(counts)


def bytes_of_an_item(probes: Probes) -> float:
    """What an item takes in a batch, from the largest that was seen."""
    rows = [(size, count) for run in probes.runs for size, count in zip(run.bytes, run.items, strict=False) if count]
    return max((size / count for size, count in rows), default=0.0)


def parse_current(text: str) -> Setting:
    """`batch=64,workers=4`, and where it matters `prefetch=2`."""
    names = {"batch": "batch_size", "workers": "num_workers", "prefetch": "prefetch_factor"}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in names or not value.strip().isdecimal():
            raise InputError(f"{text!r} is no setting; write it like batch=64,workers=4")
        values[names[name]] = int(value)
    if not {"batch_size", "num_workers"} <= values.keys():
        raise InputError(f"{text!r} is half a setting; write it like batch=64,workers=4")
    return Setting(**values)


def with_measured(found: Sequence[Candidate], seen: dict[int, Measured | None]) -> list[Candidate]:
    """Candidates with what their runs said, by their place; the best measured first, then by prediction."""
    done = [msgspec.structs.replace(each, measured=seen.get(place)) for place, each in enumerate(found)]
    return sorted(done, key=lambda each: (each.measured is None, each.seconds))
