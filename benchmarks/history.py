"""Recorded allocation histories of a real GPU: replayed through the model of the allocator, and compared with our log.

A history is what torch's allocator wrote down while a model was made and a few steps ran. Every error of a prediction
shows in one of two places: the replay of the history misses the recorded peaks (the allocator's model is wrong), or the
births and deaths of the history are not those of the log (the log is wrong), and the difference names the operator.
"""

import gzip
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from stoker.memory.allocator import Allocator, Block, OutOfMemory, rounded
from stoker.memory.replay import Replay
from stoker.memory.trace.log import AllocationLog
from stoker.records import Mode, Precision, Record

_UNLIMITED = 2**60


class Stats(Record, frozen=True):
    """Torch's own counters at the end of the recorded run."""

    allocated_peak: int
    reserved_peak: int
    allocated_end: int
    reserved_end: int
    retries: int


class History(Record, frozen=True):
    """One recorded run. An event is an action of torch's snapshot, an address, a size and the operator it came from;
    `marks` says at which event each phase begins: model, optimizer, step1, step2, step3, end."""

    name: str
    batch_size: int
    mode: Mode
    precision: Precision
    optimizer: str | None
    steps: int
    torch: str
    cudnn: int | None
    cap_bytes: int | None
    marks: dict[str, int]
    stats: Stats
    events: tuple[tuple[str, int, int, str], ...]
    channels_last: bool = False


def load(path: Path) -> History:
    data = path.read_bytes()
    return msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data, type=History)


def replay_history(history: History) -> Replay:
    """The recorded requests and releases, replayed in their order."""
    allocator = Allocator(history.cap_bytes or _UNLIMITED)
    blocks: dict[int, Block] = {}
    fits = True
    for action, address, size, _ in history.events:
        try:
            if action == "alloc":
                blocks[address] = allocator.allocate(size)
            elif action == "free_completed" and address in blocks:
                allocator.release(blocks.pop(address))
            elif action == "oom":
                _refused(allocator, size)
        except OutOfMemory:
            fits = False
            break
    return Replay(
        batch_size=history.batch_size,
        fits=fits,
        allocated_peak_bytes=allocator.allocated_peak_bytes,
        reserved_peak_bytes=allocator.reserved_peak_bytes,
        retries=allocator.retries,
    )


def _refused(allocator: Allocator, size: int) -> None:
    """A request that failed and that the run survived, as a convolution can. It empties the cache all the same."""
    try:
        allocator.release(allocator.allocate(size))
    except OutOfMemory:
        return


# ---------------------------------------------------------------- lives of pieces of memory


class Life(Record, frozen=True):
    """One piece of memory: its size, the operator it came from, and how many births came before its own birth and its
    death (None: it outlived the record)."""

    size: int
    operator: str
    born: int
    died: int | None


def lives_of_history(history: History, phase: str = "step2") -> list[Life]:
    """What was born in one phase of a recorded run."""
    names = sorted(history.marks, key=history.marks.__getitem__)
    begin = history.marks[phase]
    end = history.marks[names[names.index(phase) + 1]] if phase != names[-1] else len(history.events)
    return _lives(_recorded(history.events[begin:end]))


def lives_of_log(log: AllocationLog, batch_size: int, phase: str = "step2", *, scratch: bool = False) -> list[Life]:
    """What is born in one phase of a log, with sizes for one batch size. `model` is what `init` makes."""
    events = {"model": log.init, "step1": log.first}.get(phase, log.steady)

    def said() -> Iterator[tuple[int, int, int, str]]:
        for event in events:
            number = event if event >= 0 else -event - 1
            allocation = log.allocations[number]
            if allocation.kind != "scratch" or scratch:
                yield (1 if event >= 0 else -1), number, allocation.at(batch_size), allocation.operator

    return _lives(said())


def _recorded(events: Iterable[tuple[str, int, int, str]]) -> Iterator[tuple[int, int, int, str]]:
    for action, address, size, operator in events:
        if action == "alloc":
            yield 1, address, size, operator
        elif action == "free_completed":
            yield -1, address, size, operator


def _lives(events: Iterable[tuple[int, int, int, str]]) -> list[Life]:
    """Births and deaths by key, as lives in the order of birth; deaths of what was born before are left out."""
    found: list[Life] = []
    open_lives: dict[int, int] = {}
    for sign, key, size, operator in events:
        if sign > 0:
            open_lives[key] = len(found)
            found.append(Life(size=rounded(size), operator=operator, born=len(found), died=None))
        elif key in open_lives:
            number = open_lives.pop(key)
            found[number] = msgspec.structs.replace(found[number], died=len(found))
    return found


# ---------------------------------------------------------------- the difference


class Longer(Record, frozen=True):
    """A piece of memory that both have, which outlives the other's by so many births that both have."""

    size: int
    recorded_operator: str
    logged_operator: str
    births: int


class Peak(Record, frozen=True):
    """What is alive at once, at the worst moment: how much, after which birth, and how often each size."""

    size: int
    born: int
    operator: str
    sizes: dict[int, int]


class Difference(Record, frozen=True):
    """What a recorded run has that a log has not, and the other way round."""

    matched: int
    only_recorded: tuple[Life, ...]
    only_logged: tuple[Life, ...]
    longer: tuple[Longer, ...]
    recorded_peak: Peak
    logged_peak: Peak


def difference(recorded: Sequence[Life], logged: Sequence[Life], *, least_bytes: int = 0) -> Difference:
    """Align two sequences of births by size, and say what is only in one of them and what lives longer in one.

    Pieces smaller than `least_bytes` are left out on both sides.
    """
    recorded = [life for life in recorded if life.size >= least_bytes]
    logged = [life for life in logged if life.size >= least_bytes]
    pairs = _aligned([life.size for life in recorded], [life.size for life in logged])
    left, right = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    return Difference(
        matched=len(pairs),
        only_recorded=tuple(life for place, life in enumerate(recorded) if place not in left),
        only_logged=tuple(life for place, life in enumerate(logged) if place not in right),
        longer=tuple(_longer(recorded, logged, pairs)),
        recorded_peak=peak(recorded),
        logged_peak=peak(logged),
    )


def _aligned(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    return [
        (block.a + offset, block.b + offset) for block in matcher.get_matching_blocks() for offset in range(block.size)
    ]


def _longer(recorded: Sequence[Life], logged: Sequence[Life], pairs: list[tuple[int, int]]) -> Iterator[Longer]:
    """Deaths are compared on one clock: how many of the births that both have came before them."""
    left_clock = _clock([recorded[a].born for a, _ in pairs])
    right_clock = _clock([logged[b].born for _, b in pairs])
    for a, b in pairs:
        births = left_clock(recorded[a].died) - right_clock(logged[b].died)
        if births:
            yield Longer(
                size=recorded[a].size,
                recorded_operator=recorded[a].operator,
                logged_operator=logged[b].operator,
                births=births,
            )


def _clock(births: Sequence[int]) -> Callable[[int | None], int]:
    """How many of some births came before a moment; all of them and one more before one that never comes."""
    return lambda moment: len(births) + 1 if moment is None else bisect_left(births, moment)


def peak(lives: Sequence[Life]) -> Peak:
    """The moment at which the most is alive, of what these lives are."""
    dying: list[tuple[int, int]] = []
    alive: Counter[int] = Counter()
    size, best = 0, Peak(size=0, born=0, operator="", sizes={})
    for life in lives:
        while dying and dying[0][0] <= life.born:
            _, dead = heappop(dying)
            size -= dead
            alive[dead] -= 1
        size += life.size
        alive[life.size] += 1
        if life.died is not None:
            heappush(dying, (life.died, life.size))
        if size > best.size:
            best = Peak(size=size, born=life.born, operator=life.operator, sizes=dict(+alive))
    return best
