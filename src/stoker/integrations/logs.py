"""Reads the files of observed processes back: which loaders each of them read, and every batch and step as it was.

Here the raw rows of `bootstrap.observer` become steps: from a batch until the loop asks the same loader for the next
one, without the time that the loop spent with other loaders meanwhile.
"""

import bisect
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from stoker.errors import InputError
from stoker.integrations.bootstrap import hooks
from stoker.integrations.bootstrap.journal import VERSION
from stoker.records import Record

_S = 1e-9


class Step(Record, frozen=True):
    """One batch: when the loop asked for it, had it, and was done with it. `done_s` is None for the last batch of a
    loop that was left or not seen to its end; `nested_s`, the time with other loaders, is not part of the step."""

    iteration: int
    asked_s: float
    got_s: float
    done_s: float | None = None
    nested_s: float = 0.0
    before_s: float | None = None
    copy_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    updates: int = 0
    unpacked_s: float = 0.0
    gpu_s: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def wait_s(self) -> float:
        return self.got_s - self.asked_s

    @property
    def step_s(self) -> float | None:
        """Until the next batch was asked for, without other loaders."""
        return None if self.done_s is None else self.done_s - self.got_s - self.nested_s


class Fetch(Record, frozen=True):
    """One batch that was loaded: by a worker, or (None) by the loop itself. `stages_s` are own times; what is left of
    the items' time is their `item`. Without `item_s`, the dataset loads whole batches. `send_s` is what packing the
    batch for the loop took, in a worker."""

    iteration: int
    worker: int | None
    number: int
    began_s: float
    loaded_s: float
    ended_s: float
    cpu_s: float
    items: int
    bytes: int
    item_s: tuple[float, ...] = ()
    stages_s: dict[str, float] = msgspec.field(default_factory=dict)
    send_s: float = 0.0

    @property
    def items_s(self) -> float:
        return self.loaded_s - self.began_s

    @property
    def collate_s(self) -> float:
        return self.ended_s - self.loaded_s


class Iterated(Record, frozen=True):
    """One `iter(loader)`: when it began and returned. `ended_s` is when the loader said there are no more batches."""

    number: int
    began_s: float
    started_s: float
    ended_s: float | None = None
    workers: tuple[int, ...] = ()
    grad: bool = True
    main_thread: bool = True


class LoaderLog(Record, frozen=True):
    """All that was seen of one loader. `site` has the user's frames, innermost first: file, line, function. It is empty
    for a loader that was made before anyone looked: `read_at` has the frames where that one is read. `streams` are the
    module and file of a stream, of what it holds and of what begins its workers."""

    number: int
    kind: str
    site: tuple[tuple[str, int, str], ...]
    made_by: tuple[str, ...]
    arguments: dict[str, Any]
    batch_size: int | None
    sampler: str
    batch_sampler: str
    dataset: str
    dataset_file: str | None
    items: int | None
    iterable: bool
    source: int | None
    overridden: dict[str, tuple[Any, Any]]
    iterations: tuple[Iterated, ...] = ()
    steps: tuple[Step, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    send_s: tuple[float, ...] = ()
    read_at: tuple[tuple[str, int, str], ...] = ()
    streams: tuple[tuple[str, str | None], ...] = ()
    shards: int | None = None

    @property
    def trains(self) -> bool:
        """Whether an optimizer stepped in its steps."""
        return any(step.updates for step in self.steps)


class GaugeReading(Record, frozen=True):
    """What a process held at one moment."""

    at_s: float
    cpu_s: float
    rss_bytes: int | None = None
    cuda_bytes: int | None = None


class ProcessLog(Record, frozen=True):
    """One process that read loaders: the script, or one of its ranks. `ended` is "batches", "exit", or None where the
    process ended without notice. `replay_s` is what each batch took that was handed out again, without loading."""

    pid: int
    ppid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    argv: tuple[str, ...]
    executable: str
    python: str
    torch: str
    script: str | None
    sha256: str | None
    host: str
    clock_s: float
    unix_s: float
    ended: str | None = None
    ended_s: float | None = None
    loaders: tuple[LoaderLog, ...] = ()
    gauges: tuple[GaugeReading, ...] = ()
    replay_s: tuple[float, ...] = ()

    @property
    def training(self) -> LoaderLog | None:
        """The loader that trains: of several, the one with most steps."""
        return max((each for each in self.loaders if each.trains), key=lambda each: len(each.steps), default=None)


class RunLog(Record, frozen=True):
    """A whole run: its processes by rank, what could not be observed, a sentence each, and loads of some batches by
    other numbers of workers, after the script had been stopped."""

    processes: tuple[ProcessLog, ...]
    problems: tuple[str, ...] = ()
    probes: tuple[ProcessLog, ...] = ()


def read_logs(paths: Iterable[Path]) -> RunLog:
    """The run that these files were written by; raises `InputError` for a file that is no such log."""
    by_role: dict[str, list[list[dict[str, Any]]]] = {"loop": [], "probe": [], "worker": []}
    problems = []
    for path in paths:
        lines = list(_lines(path))
        role = path.name.partition("-")[0]
        if role == "problem":
            problems += [f"{line['what']}: {line['error']}" for line in lines]
        elif lines and (lines[0].get("role") != role or role not in by_role):
            raise InputError(f"{path.name} is no log of an observed process")
        elif lines:
            if lines[0].get("version", VERSION) != VERSION:
                raise InputError(f"{path.name} is a log of version {lines[0].get('version')}; this reads {VERSION}")
            by_role[role].append(lines)
    processes, probes = ([_process(lines, by_role["worker"]) for lines in by_role[role]] for role in ("loop", "probe"))
    order = sorted(processes, key=lambda each: (each.rank if each.rank is not None else 0, each.clock_s))
    return RunLog(processes=tuple(order), problems=tuple(dict.fromkeys(problems)), probes=tuple(probes))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file. The last one may have been cut off when its process ended."""
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, text in enumerate(texts):
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError:
            if number == len(texts) - 1:
                return
            raise InputError(f"line {number + 1} of {path.name} is not JSON") from None
        if not isinstance(line, dict):
            raise InputError(f"line {number + 1} of {path.name} is no JSON object")
        yield line


def _of(kind: str, lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("kind") == kind]


def _rows(kind: str, lines: Iterable[dict[str, Any]]) -> list[list[Any]]:
    return [row for line in _of(kind, lines) for row in line["rows"]]


def _process(lines: list[dict[str, Any]], workers: list[list[dict[str, Any]]]) -> ProcessLog:
    head, end = lines[0], (_of("end", lines) or [{}])[-1]
    iterations = {line["iteration"]: line for line in _of("iteration", lines)}
    rows = _rows("row", lines)
    gpu: dict[int, dict[str, float]] = {}
    for asked, stage, spent in _rows("gpu", lines):
        gpu.setdefault(asked, {})[stage] = spent * _S
    replays = _rows("replay", lines)
    over = end["ns"] if end.get("reason") == "batches" else None
    steps = _steps(rows, iterations, gpu, replays[0][hooks.ASKED] if replays else over)
    fetches = [_fetch(row, None, row[0]) for row in _rows("fetch", lines)]
    sends: dict[int, list[float]] = {}
    for worker in workers:
        _add_worker(worker, iterations, fetches, sends)
    ends = {row[hooks.ITERATION]: row[hooks.GOT] for row in rows if row[hooks.OUTCOME] == hooks.END}
    return ProcessLog(
        **{name: head[name] for name in ("pid", "ppid", "rank", "local_rank", "world_size", "executable")},
        **{name: head[name] for name in ("python", "torch", "script", "sha256", "host", "unix_s")},
        argv=tuple(head["argv"]),
        clock_s=head["clock_ns"] * _S,
        ended=end.get("reason"),
        ended_s=end["ns"] * _S if end else None,
        loaders=tuple(_loader(line, iterations, ends, steps, fetches, sends) for line in _of("loader", lines)),
        gauges=tuple(_gauge(line) for line in _of("gauge", lines)),
        replay_s=_periods(replays, over),
    )


def _periods(rows: list[list[int]], over: int | None) -> tuple[float, ...]:
    """From one batch that the loop asked for to the next, and from the last one to the end."""
    asked = [row[hooks.ASKED] for row in rows] + ([over] if rows and over is not None else [])
    return tuple((after - before) * _S for before, after in pairwise(asked))


def _gauge(line: dict[str, Any]) -> GaugeReading:
    held = {name: line[name] for name in ("rss_bytes", "cuda_bytes")}
    return GaugeReading(at_s=line["ns"] * _S, cpu_s=line["cpu_ns"] * _S, **held)


def _loader(
    line: dict[str, Any],
    iterations: dict[int, dict[str, Any]],
    ends: dict[int, int],
    steps: list[Step],
    fetches: list[Fetch],
    sends: dict[int, list[float]],
) -> LoaderLog:
    own = {number for number, each in iterations.items() if each["loader"] == line["loader"]}
    dataset = line["dataset"]
    return LoaderLog(
        number=line["loader"],
        kind=line["class"],
        site=tuple((file, at, function) for file, at, function in line["site"]),
        read_at=tuple((file, at, function) for file, at, function in line.get("read_at", ())),
        made_by=tuple(line["made_by"]),
        overridden={name: (before, after) for name, (before, after) in line["overridden"].items()},
        **{name: line[name] for name in ("arguments", "batch_size", "sampler", "batch_sampler", "source")},
        dataset=dataset["class"],
        dataset_file=dataset["file"],
        items=dataset["items"],
        iterable=dataset["iterable"],
        streams=tuple((module, file) for module, file in dataset.get("streams", ())),
        shards=dataset.get("shards"),
        iterations=tuple(_iterated(iterations[number], ends.get(number)) for number in sorted(own)),
        steps=tuple(step for step in steps if step.iteration in own),
        fetches=tuple(sorted((each for each in fetches if each.iteration in own), key=lambda each: each.began_s)),
        send_s=tuple(spent for number in sorted(own) for spent in sends.get(number, ())),
    )


def _iterated(line: dict[str, Any], ended: int | None) -> Iterated:
    return Iterated(
        number=line["iteration"],
        began_s=line["began_ns"] * _S,
        started_s=line["ended_ns"] * _S,
        ended_s=None if ended is None else ended * _S,
        workers=tuple(line["workers"]),
        grad=line["grad"],
        main_thread=line["main_thread"],
    )


def _add_worker(
    lines: list[dict[str, Any]],
    iterations: dict[int, dict[str, Any]],
    fetches: list[Fetch],
    sends: dict[int, list[float]],
) -> None:
    """What one worker loaded, for the iterations of this process that it worked for."""
    head = lines[0]
    own = [number for number, line in sorted(iterations.items()) if head["pid"] in line["workers"]]
    own = [number for number in own if iterations[number]["began_ns"] <= head["began_ns"]][-1:] + [
        number for number in own if iterations[number]["began_ns"] > head["began_ns"]
    ]  # its number may have been that of another worker before
    sent = sorted(map(tuple, _rows("send", lines)))
    for row in _rows("fetch", lines):
        if row[0] < len(own):
            place = bisect.bisect_left(sent, (row[4], 0))
            took = sent[place][1] * _S if place < len(sent) else 0.0
            fetches += [_fetch(row, head["worker"], own[row[0]], took)]
    begins = [iterations[number]["began_ns"] for number in own]
    for began, spent in sent:
        place = bisect.bisect_right(begins, began) - 1
        if place >= 0:
            sends.setdefault(own[place], []).append(spent * _S)


def _fetch(row: list[Any], worker: int | None, iteration: int, send_s: float = 0.0) -> Fetch:
    _, number, began, loaded, ended, cpu, items, size, item_ns, stages = row
    return Fetch(
        iteration=iteration,
        worker=worker,
        number=number,
        began_s=began * _S,
        loaded_s=loaded * _S,
        ended_s=ended * _S,
        cpu_s=cpu * _S,
        items=items,
        bytes=size,
        item_s=tuple(each * _S for each in item_ns),
        stages_s={name: each * _S for name, each in stages.items()},
        send_s=send_s,
    )


# ---------------------------------------------------------------- steps


def _steps(
    rows: list[list[int]],
    iterations: dict[int, dict[str, Any]],
    gpu: dict[int, dict[str, float]],
    over: int | None,
) -> list[Step]:
    """The steps of all loaders; `over` is when the last one ended, where the observer saw that."""
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row[hooks.ITERATION], []).append(place)
    began = sorted((line["began_ns"], line["ended_ns"], number) for number, line in iterations.items())
    steps = []
    for number, own in places.items():
        for place, following in zip(own, [*own[1:], None], strict=True):
            if rows[place][hooks.OUTCOME] == hooks.BATCH:
                others = [] if following is None else rows[place + 1 : following]
                done = over if place == len(rows) - 1 else None
                done = done if following is None else rows[following][hooks.ASKED]
                last = {each: rows[many[-1]][hooks.GOT] for each, many in places.items()}
                away, inside = _away(rows[place], others, done, iterations, began, last)
                steps.append(_step(number, [rows[place], *inside], done, away, gpu))
    return sorted(steps, key=lambda step: step.asked_s)


def _away(
    row: list[int],
    others: list[list[int]],
    done: int | None,
    iterations: dict[int, dict[str, Any]],
    began: list[tuple[int, int, int]],
    last: dict[int, int],
) -> tuple[int, list[list[int]]]:
    """How long a step was with other loaders, and the rows of theirs whose time after the batch is the step's own.

    A loop over another loader inside the step, as for validation, is away as a whole. A loader that is read side by
    side with this one is away only while the loop waits for it.
    """
    if done is None:
        return 0, []
    got = row[hooks.GOT]
    away, inside = [], []
    first = bisect.bisect_left(began, (got, 0, 0))
    for start, end, _ in began[first : bisect.bisect_left(began, (done, 0, 0))]:
        away.append((start, end))
    for other in others:
        number = other[hooks.ITERATION]
        start = iterations[number]["began_ns"]
        if start >= got and last[number] <= done:
            away.append((start, other[hooks.GOT]))
            if other[hooks.OUTCOME] != hooks.BATCH:
                inside.append(other)
        else:
            away.append((other[hooks.ASKED], other[hooks.GOT]))
            inside.append(other)
    return _length(away), inside


def _length(spans: list[tuple[int, int]]) -> int:
    """How much time the spans cover together."""
    covered, end = 0, 0
    for start, stop in sorted(spans):
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered


def _step(number: int, rows: list[list[int]], done: int | None, away: int, gpu: dict[int, dict[str, float]]) -> Step:
    row = rows[0]
    first = next((each[hooks.FORWARD_AT] for each in rows if each[hooks.FORWARD_AT]), None)
    spent = {
        name: sum(each[column] for each in rows) * _S
        for name, column in (
            ("copy_s", hooks.COPY),
            ("forward_s", hooks.FORWARD),
            ("backward_s", hooks.BACKWARD),
            ("update_s", hooks.UPDATE),
        )
    }
    return Step(
        iteration=number,
        asked_s=row[hooks.ASKED] * _S,
        got_s=row[hooks.GOT] * _S,
        done_s=None if done is None else done * _S,
        nested_s=away * _S,
        before_s=None if first is None else (first - row[hooks.GOT]) * _S,
        updates=sum(each[hooks.UPDATES] for each in rows),
        unpacked_s=row[hooks.UNPACKED] * _S,
        gpu_s=gpu.get(row[hooks.ASKED], {}),
        **spent,
    )
