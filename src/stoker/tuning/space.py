"""Which settings are considered: the grids of batch sizes, workers and prefetch, and what each setting would cost."""

from collections.abc import Sequence

import msgspec

from stoker.analysis.objective import prediction_s
from stoker.forecast.constraints import WORKER_COUNTS, Bounds, ruled_out, workers_that_pay
from stoker.forecast.predictor import RULES as PREDICTION
from stoker.forecast.predictor import Predictor
from stoker.forecast.samples import item_bytes_of
from stoker.records import Bound, Candidate, Measured, Mode, Objective, Record, RuledOut, Setting
from stoker.tuning.request import TuneRequest


class SpaceRules(Record, frozen=True):
    """The grids, and how much care each candidate gets."""

    smallest_batch: int = 8
    """No smaller batch is considered if this one fits."""
    largest_batch: int = 512
    """The largest batch if nothing bounds it."""
    larger_times: int = 8
    """Where larger batches seem to pay, the next size is this many times as large."""
    divisors: int = 8
    """Of the sizes that divide an effective batch, this many of the largest are considered."""
    rough_seeds: int = 3
    """All settings are predicted with this many seeds first: with all seeds, a slow core would take seconds."""
    careful: int = 16
    """This many of the best are predicted again with all seeds."""
    prefetches: tuple[int, ...] = (4, 8)
    """Larger prefetch factors than PyTorch's default of 2..."""
    compared: tuple[float, ...] = (0.5, 4)
    """Sizes that are probed and compared with one that is kept, as multiples of it..."""
    between: tuple[float, ...] = (2,)
    """... and those that are only predicted first."""
    further: int = 6
    """... are considered for this many of the best settings."""
    worth: float = 0.03
    """A change must save this share of the time to be worth its memory, or to be named at all."""


RULES = SpaceRules()

_HELPED_BY_PREFETCH: tuple[Bound, ...] = ("shm", "host_memory", "open_files")
"""Bounds that workers may keep by loading only one batch ahead."""


class Space(Record, frozen=True):
    """The batch sizes that a request allows. If nothing bounds them, they go up to `largest`."""

    request: TuneRequest
    largest: int = RULES.largest_batch
    keeps: int | None = None
    """The size that is kept, if one is..."""
    compares: bool = False
    """... and whether others are run beside it, to show what they would bring."""

    @classmethod
    def of(cls, request: TuneRequest, mode: Mode) -> "Space":
        """The sizes that a request allows in this mode."""
        keeps = request.kept_batch(mode)
        compares = keeps is not None and mode == "train" and request.planner == "simulate"
        return cls(request=request, keeps=keeps, compares=compares and request.global_batch is None)

    def batch_sizes(self, ceiling: int | None, items: int | None) -> list[int]:
        """The sizes to consider, in ascending order. None is above the ceiling of the device or the number of items."""
        request = self.request
        if self.kept is not None:
            return [self.kept]
        most = min(size for size in (request.max_batch or self.largest, ceiling, items) if size is not None)
        if request.global_share is not None:
            share = request.global_share
            sizes = [size for size in range(1, min(share, most) + 1) if share % size == 0]
            return sizes[-RULES.divisors :]
        least = RULES.smallest_batch if most >= RULES.smallest_batch else 1
        sizes = [2**power for power in range(least.bit_length() - 1, 31) if 2**power <= most]
        if most < RULES.smallest_batch or (request.max_batch is not None and request.max_batch <= most):
            sizes.append(most)
        if request.current is not None and request.current.batch_size <= most:
            sizes.append(request.current.batch_size)
        return sorted(set(sizes))

    def probe_sizes(self, ceiling: int | None) -> list[int]:
        """The least, a middle and the largest size. What lies between is interpolated."""
        if self.keeps is not None and self.compares:
            return sorted({self.keeps, *self.other_sizes(ceiling)})
        sizes = self.batch_sizes(ceiling, None)
        return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})

    @property
    def kept(self) -> int | None:
        """The only size that may be chosen, if there is one."""
        return self.request.fixed_batch if self.keeps is None else self.keeps

    def other_sizes(self, most: int | None) -> list[int]:
        """Sizes beside the one that is kept, none above `most`: only to show what they would bring."""
        if self.keeps is None or not self.compares:
            return []
        sizes = {int(self.keeps * times) for times in RULES.compared}
        return sorted(size for size in sizes if size >= 1 and (most is None or size <= most))

    def worker_counts(self, bounds: Bounds) -> list[int]:
        """Numbers of workers up to twice what pays, so that the plan shows what is ruled out; and the current one."""
        paying = workers_that_pay(bounds)
        counts = {count for count in WORKER_COUNTS if count <= 2 * paying} | {paying}
        if self.request.current is not None:
            counts.add(self.request.current.num_workers)
        return sorted(counts)


def candidates_of(
    space: Space, base: Setting, predictor: Predictor, objective: Objective, bounds: Bounds
) -> tuple[list[Candidate], list[RuledOut]]:
    """Every setting that the machine allows, best prediction first, and those that it does not allow."""
    request, item_bytes = space.request, item_bytes_of(predictor.probes)
    items = min(predictor.probes.subject.items or objective.items, objective.items)
    sizes = space.batch_sizes(None, items)
    if space.kept is None:  # larger sizes are ruled out by name, but below them there has to be something
        least = Setting(batch_size=sizes[0], accumulate=2 if request.global_batch else 1)
        sizes = sorted({*sizes, *space.batch_sizes(_size_that_fits(item_bytes, bounds, least), items)})
    others = _compared(space, items, bounds.max_batch)
    pairs = [(size, workers) for size in (*sizes, *others) for workers in space.worker_counts(bounds)]
    if request.current is not None:
        pairs.append((request.current.batch_size, request.current.num_workers))
    found: list[Candidate] = []
    out: list[RuledOut] = []
    for size, workers in dict.fromkeys(pairs):
        asked_for = size in sizes
        setting = msgspec.structs.replace(base, batch_size=size, num_workers=workers)
        setting, broken = _allowed(request.accumulating(setting, asked_for=asked_for), request, item_bytes, bounds)
        is_current = request.is_current(setting)
        if broken is not None and size not in others:
            out.append(broken)
        if broken is None or (is_current and broken.bound == "cpus"):
            found.append(
                candidate_of(setting, request, predictor, objective, asked_for=asked_for, seeds=RULES.rough_seeds)
            )
    found = _with_care(found, request, predictor, objective)
    further = [_further(each, request, predictor, objective, bounds, item_bytes) for each in found[: RULES.further]]
    kinds = [
        candidate_of(setting, request, predictor, objective, asked_for=each.asked_for)
        for each in found[: RULES.further]
        for setting in _worker_kinds(each.setting, request, predictor)
    ]
    return sorted([*found, *filter(None, further), *kinds], key=lambda each: each.predicted_s), out


def _compared(space: Space, items: int, ceiling: int | None) -> list[int]:
    """Sizes that are predicted beside the one that is kept."""
    most = min(size for size in (items, ceiling) if size is not None)
    probed = space.other_sizes(most)
    if not probed or space.keeps is None:
        return []
    between = {int(space.keeps * times) for times in RULES.between}
    return sorted({*probed, *(size for size in between if size <= most)})


def _worker_kinds(setting: Setting, request: TuneRequest, predictor: Predictor) -> list[Setting]:
    """The setting with each start method and number of threads that was asked for and probed."""
    if not setting.num_workers:
        return []
    methods = [method for method in request.start_methods if method in predictor.starts]
    threads = [count for count in request.worker_threads if count in predictor.thread_shares]
    kinds = [
        msgspec.structs.replace(
            setting,
            multiprocessing_context=method or setting.multiprocessing_context,
            worker_threads=count or setting.worker_threads,
        )
        for method in (None, *methods)
        for count in (None, *threads)
    ]
    return kinds[1:]


def _allowed(
    setting: Setting, request: TuneRequest, item_bytes: float, bounds: Bounds
) -> tuple[Setting, RuledOut | None]:
    """The setting and the bound that it breaks. It loads fewer batches ahead if that helps. The current setting keeps
    its own prefetch factor."""
    now = request.current
    if now is not None and (now.batch_size, now.num_workers) == (setting.batch_size, setting.num_workers):
        setting = msgspec.structs.replace(setting, prefetch_factor=now.prefetch_factor)
        return setting, ruled_out(setting, item_bytes, bounds)
    broken = ruled_out(setting, item_bytes, bounds)
    if broken is not None and broken.bound in _HELPED_BY_PREFETCH:
        setting = msgspec.structs.replace(setting, prefetch_factor=1)
        if ruled_out(setting, item_bytes, bounds) is None:
            return setting, None
    return setting, broken


def _with_care(
    found: Sequence[Candidate], request: TuneRequest, predictor: Predictor, objective: Objective
) -> list[Candidate]:
    """The candidates by their predictions. The best, and those with the current batch size, are predicted again with
    all seeds."""
    rough = sorted(found, key=lambda each: each.predicted_s)
    careful = [
        candidate_of(each.setting, request, predictor, objective, asked_for=each.asked_for)
        if place < RULES.careful or (request.current and each.setting.batch_size == request.current.batch_size)
        else each
        for place, each in enumerate(rough)
    ]
    return sorted(careful, key=lambda each: each.predicted_s)


def _further(
    near: Candidate,
    request: TuneRequest,
    predictor: Predictor,
    objective: Objective,
    bounds: Bounds,
    item_bytes: float,
) -> Candidate | None:
    """The same setting with a larger prefetch factor, if that is predicted to pay: a slow batch then delays fewer
    others. The least factor that brings as much."""
    best: Candidate | None = None
    for ahead in RULES.prefetches if near.setting.num_workers else ():
        setting = msgspec.structs.replace(near.setting, prefetch_factor=ahead)
        if ahead <= near.setting.prefetch_factor or ruled_out(setting, item_bytes, bounds) is not None:
            continue
        found = candidate_of(setting, request, predictor, objective, asked_for=near.asked_for)
        if found.predicted_s < (best or near).predicted_s * (1 - RULES.worth):
            best = found
    return best


def larger_size(space: Space, base: Setting, predictor: Predictor, objective: Objective, most: int) -> int | None:
    """A size well above the largest that is considered, if the request bounds nothing and the size is predicted to
    save time."""
    sizes = space.batch_sizes(None, most)
    size = min(RULES.larger_times * sizes[-1], most)
    if space.request.bounds_the_batch or size < 2 * sizes[-1]:
        return None
    counts = sorted({0, 1, 2, max(1, int(predictor.costs.cores))})

    def best_s(size: int) -> float:
        settings = (msgspec.structs.replace(base, batch_size=size, num_workers=count) for count in counts)
        found = (candidate_of(each, space.request, predictor, objective, seeds=RULES.rough_seeds) for each in settings)
        return min(each.predicted_s for each in found)

    return size if best_s(size) < (1 - RULES.worth) * min(map(best_s, sizes)) else None


def _size_that_fits(item_bytes: float, bounds: Bounds, least: Setting) -> int | None:
    """The largest batch that fits without workers, if the least size does not. None if it does."""
    size = least.batch_size
    while size > 1 and ruled_out(msgspec.structs.replace(least, batch_size=size), item_bytes, bounds) is not None:
        size -= 1
    return None if size == least.batch_size else size


def candidate_of(
    setting: Setting,
    request: TuneRequest,
    predictor: Predictor,
    objective: Objective,
    *,
    asked_for: bool = True,
    seeds: int = PREDICTION.seeds,
) -> Candidate:
    """A setting with its predicted cost."""
    setting = request.accumulating(setting, asked_for=asked_for)
    predicted = predictor.predict(setting, objective.items, epochs=objective.epochs, seeds=seeds)
    return Candidate(
        setting=setting,
        predicted_s=prediction_s(objective, predicted),
        predicted=predicted,
        asked_for=asked_for,
    )


def with_measured(found: Sequence[Candidate], measured: dict[int, Measured | None]) -> list[Candidate]:
    """The candidates with what their runs measured, by position; the best measured first, then by prediction."""
    done = [msgspec.structs.replace(each, measured=measured.get(place)) for place, each in enumerate(found)]
    return sorted(done, key=lambda each: (each.measured is None, each.seconds))
