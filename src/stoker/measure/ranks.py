"""Several ranks of one run: processes forked from this one, started together, and watched until the last has ended.

A rank that fails, hangs, is stopped or is killed ends the run. The problem names the first one to blame: the others
then only say that a connection broke, or wait.
"""

import contextlib
import os
import selectors
import signal
import tempfile
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from time import perf_counter, sleep
from typing import IO

import msgspec
import psutil

from stoker.analysis.ranks import pace_rank, shifted
from stoker.events import AnyEvent, BatchDone, ClockRead, JobTaken, LoopReady, OnEvent, SubjectKnown
from stoker.machine.host import out_of_memory_kills
from stoker.measure.group import Place, Steps, lost_another, remedy_of
from stoker.measure.interference import InterferenceGauge
from stoker.process import child, failures, stacks
from stoker.process.forkserver import die_with_parent
from stoker.process.tree import family
from stoker.process.wire import EVENT, Failure, FrameReader, read_outcome, write_frame, write_outcome
from stoker.records import Outcome, Problem, RankLog, Record, Subject, Trial, encode
from stoker.units import format_count, format_seconds


class RankRules(Record, frozen=True):
    """When a rank hangs, and how long others are waited for."""

    look_s: float = 0.1
    """How often the ranks are looked at."""
    hang_s: float = 10.0
    """A rank that the others have waited for so long hangs..."""
    hang_times: float = 20.0
    """... if that is so many times the longest step so far."""
    first_hang_s: float = 45.0
    """In its first step a rank may take longer: it loads a first batch, or compiles. A session gives up after a minute,
    and names no rank."""
    uneven_s: float = 5.0
    """Where a rank has come to its end, others that make no step for so long wait for it."""
    stopped_s: float = 1.0
    """A process that is stopped (SIGSTOP) for so long is not about to go on."""
    blame_s: float = 0.5
    """After a failure, how long other ranks may say that theirs came first."""
    leave_s: float = 5.0
    """How long the processes of ranks that are done may take to end."""


RULES = RankRules()

RunRank = Callable[[Place, Steps, IO[bytes], OnEvent], Trial]
"""Runs one rank in its own process: its place, the memory it shares, the pipe on which it is let go, its events."""


def run_ranks(ranks: int, run_rank: RunRank, begin: Callable[[], None], fallback: Trial, emit: OnEvent) -> Trial:
    """Run `ranks` processes, and put their trials together.

    `begin` is called once all are ready; then they begin together. `fallback` is the trial of a run of which nothing is
    known but what was asked. Raises what a rank raises before its loop runs.
    """
    kills = out_of_memory_kills()
    folder = tempfile.mkdtemp(prefix="ranks-", dir=util.get_temp_dir())
    crew = _Crew(ranks, run_rank, str(Path(folder) / "meeting"), emit)
    try:
        trial = crew.follow(begin, fallback, kills)
    finally:
        crew.close()
        for file in Path(folder).iterdir():
            file.unlink()
        Path(folder).rmdir()
    return crew.with_interference(trial)


class _RankProcess:
    """One rank, as the process that started it sees it."""

    def __init__(self, place: Place, steps: Steps, run_rank: RunRank, others: list["_RankProcess"]) -> None:
        self.rank = place.rank
        self.up, up_write = os.pipe()
        down_read, self.down = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (self.up, self.down, *(fd for other in others for fd in (other.up, other.down))):
                os.close(fd)
            _be_rank(place, steps, run_rank, up_write, down_read)
        os.close(up_write)
        os.close(down_read)
        os.set_blocking(self.up, False)
        self._frames = FrameReader()
        self.is_ready, self.is_open = False, True
        self.trial: Trial | None = None
        self.failure: Failure | None = None
        self.status: int | None = None
        self.subject: Subject | None = None
        self.clock: ClockRead | None = None
        self.seen_at = perf_counter()
        """When it last said something."""
        self.failed_at: float | None = None

    @property
    def is_done(self) -> bool:
        return self.trial is not None and self.trial.outcome == "done"

    def read(self) -> list[AnyEvent]:
        """What it has said since."""
        events: list[AnyEvent] = []
        while self.is_open:
            try:
                part = os.read(self.up, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                self.is_open = False
                break
            self.seen_at = perf_counter()
            for tag, payload in self._frames.feed(part):
                if tag == EVENT:
                    events.append(msgspec.json.decode(payload, type=AnyEvent))
                    continue
                outcome = read_outcome(tag, payload, Trial)
                if isinstance(outcome, Failure):
                    self.failure = outcome
                else:
                    self.trial = outcome
        if (self.failure or (self.trial and not self.is_done)) and self.failed_at is None:
            self.failed_at = perf_counter()
        return events

    def reap(self) -> None:
        """Note how the process ended, if it has."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                if not self.is_done and self.failed_at is None:
                    self.failed_at = perf_counter()

    def kill(self) -> None:
        for pid in reversed(family(self.pid)) if self.status is None else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)

    def release(self) -> None:
        """Let it go on: first to begin its loop, then to end."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.down, b"\n")

    def close(self) -> None:
        os.close(self.up)
        os.close(self.down)


class _Crew:
    """All ranks of a run."""

    def __init__(self, ranks: int, run_rank: RunRank, meeting: str, emit: OnEvent) -> None:
        self._emit = emit
        self._steps = Steps(ranks)
        self._ranks: list[_RankProcess] = []
        self._gauge: InterferenceGauge | None = None
        self._interference: tuple[float, float] | None = None
        self._watch = _HangWatch(self._steps)
        for rank in range(ranks):
            place = Place(rank=rank, of=ranks, meeting=meeting)
            self._ranks.append(_RankProcess(place, self._steps, run_rank, self._ranks))

    def follow(self, begin: Callable[[], None], fallback: Trial, kills: int) -> Trial:
        """The trial of the whole run, once the last rank has ended or one has failed."""
        has_begun = False
        with selectors.DefaultSelector() as selector:
            for each in self._ranks:
                selector.register(each.up, selectors.EVENT_READ, each)
            while not all(each.is_done for each in self._ranks):
                for key, _ in selector.select(RULES.look_s):
                    self._take(key.data)
                    if not key.data.is_open:
                        selector.unregister(key.fd)
                for each in self._ranks:
                    each.reap()
                if any(each.failed_at is not None for each in self._ranks):
                    return self._failed(fallback, kills)
                if not has_begun and all(each.is_ready for each in self._ranks):
                    has_begun = True
                    begin()
                    self._gauge = InterferenceGauge()
                    self._watch.begin()
                    for each in self._ranks:
                        each.release()
                hung = self._watch.look(self._ranks) if has_begun else None
                if hung is not None:
                    return _stopped_trial("timed_out", hung, self._known(fallback))
        self._leave()
        return self._merged()

    def with_interference(self, trial: Trial) -> Trial:
        """The trial with what processes other than the ranks used."""
        if self._interference is None:
            return msgspec.structs.replace(trial, interference=None, idle_cpus=None)
        interference, idle = self._interference
        return msgspec.structs.replace(trial, interference=interference, idle_cpus=idle)

    def close(self) -> None:
        """End what still runs of the ranks and of their workers."""
        for each in self._ranks:
            each.kill()
            each.close()
        if self._gauge is not None:  # only now is the CPU time of the ranks and their workers known
            self._interference = self._gauge.read()
        self._steps.close()

    def _take(self, rank: _RankProcess) -> None:
        for event in rank.read():
            match event:
                case LoopReady():
                    rank.is_ready = True
                case ClockRead():
                    rank.clock = event
                case JobTaken():
                    pass
                case _:
                    if isinstance(event, SubjectKnown):
                        rank.subject = event.subject
                    if rank.rank == 0 or isinstance(event, BatchDone):
                        self._emit(event)

    def _leave(self) -> None:
        """Let all ranks end by themselves: one that ended earlier would break the connections of the others."""
        for each in self._ranks:
            each.release()
        deadline = perf_counter() + RULES.leave_s
        while perf_counter() < deadline and any(each.status is None for each in self._ranks):
            sleep(RULES.look_s / 10)
            for each in self._ranks:
                each.reap()

    def _merged(self) -> Trial:
        trials = [each.trial for each in self._ranks if each.trial is not None]
        clocks = [each.clock for each in self._ranks if each.clock is not None]
        began_s = min(clock.began_s for clock in clocks)
        self._emit(ClockRead(began_s=began_s, over_s=max(clock.over_s for clock in clocks)))
        logs = tuple(
            shifted(
                RankLog(
                    rank=place,
                    items=trial.items,
                    total_s=trial.total_s,
                    start_s=trial.start_s,
                    stages=trial.stages,
                    timeline=trial.timeline,
                    workers=trial.workers,
                    peaks=trial.peaks,
                ),
                clock.began_s - began_s,
            )
            for place, (trial, clock) in enumerate(zip(trials, clocks, strict=True))
        )
        pace = pace_rank(logs, trials[0])
        own = trials[pace]
        notes = dict.fromkeys(note for trial in trials for note in trial.notes)
        peaks = {name: max(trial.peaks.get(name, 0) for trial in trials) for name in own.peaks}
        return msgspec.structs.replace(
            own,
            workload=trials[0].workload,
            items=sum(trial.items for trial in trials),
            rank_logs=logs,
            pace_rank=pace,
            notes=tuple(notes),
            peaks=peaks,
        )

    # ------------------------------------------------------------ failures

    def _failed(self, fallback: Trial, kills: int) -> Trial:
        """The trial of a run whose first rank failed; the others may have more to say about it."""
        until = perf_counter() + RULES.blame_s
        while perf_counter() < until and not all(each.status is not None for each in self._ranks):
            sleep(RULES.look_s / 10)
            for each in self._ranks:
                self._take(each)
                each.reap()
        known = self._known(fallback)
        failed = [each for each in self._ranks if each.failed_at is not None]
        failed.sort(key=lambda each: each.failed_at or 0.0)
        for each in failed:
            if each.failure is not None and each.failure.kind and not lost_another(each.failure.sentence):
                raise child.error_of(each.failure)
        judged = [(each, *_judge(each, kills)) for each in failed]
        to_blame = [found for found in judged if not lost_another(found[2].sentence)] or judged
        rank, outcome, problem = to_blame[0]
        if outcome == "timed_out":  # the time of all ranks was up
            return _stopped_trial(outcome, problem, known)
        remedy = remedy_of(f"{problem.sentence} {problem.detail or ''}") or problem.remedy
        named = msgspec.structs.replace(
            problem, sentence=f"rank {rank.rank}: {problem.sentence}", rank=rank.rank, remedy=remedy
        )
        return _stopped_trial(outcome, named, known)

    def _known(self, fallback: Trial) -> Trial:
        """What is known of a run that did not end well."""
        subject = next((each.subject for each in self._ranks if each.subject is not None), fallback.workload)
        return msgspec.structs.replace(fallback, workload=subject)


def _stopped_trial(outcome: Outcome, problem: Problem, known: Trial) -> Trial:
    return msgspec.structs.replace(known, outcome=outcome, problem=problem)


def _judge(rank: _RankProcess, kills: int) -> tuple[Outcome, Problem]:
    """Why a rank failed."""
    if rank.trial is not None and rank.trial.problem is not None:
        return rank.trial.outcome, rank.trial.problem
    if rank.failure is not None:
        return failures.of_trace(rank.failure.sentence, rank.failure.trace)
    if out_of_memory_kills() > kills:
        sentence = "the kernel killed it for want of host memory"
        return "oom", Problem(sentence=sentence, remedy="use a smaller batch, fewer workers or less prefetch")
    status = rank.status or 0
    name = failures.signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    return failures.of_signal(name, "", who="its process")


class _HangWatch:
    """Sees that a rank makes no progress while the others wait for it."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._before: list[tuple[int, int]] = []
        self._moved_at: list[float] = []
        self._longest_s = 0.0
        self._stopped: dict[int, float] = {}

    def begin(self) -> None:
        self._before = self._steps.read()
        self._moved_at = [perf_counter()] * len(self._before)

    def look(self, ranks: list[_RankProcess]) -> Problem | None:
        """What is wrong, if something is."""
        now, steps = perf_counter(), self._steps.read()
        for place, (before, after) in enumerate(zip(self._before, steps, strict=True)):
            if before != after:
                if before[1]:  # the first step may take long: it is not one of many
                    self._longest_s = max(self._longest_s, now - self._moved_at[place])
                self._moved_at[place] = now
        self._before = steps
        return self._of_stopped(ranks, now) or self._of_uneven(ranks, now) or self._of_hung(ranks, now)

    def _of_stopped(self, ranks: list[_RankProcess], now: float) -> Problem | None:
        for each in ranks:
            if each.is_done or not _is_stopped(each.pid):
                self._stopped.pop(each.rank, None)
            elif now - self._stopped.setdefault(each.rank, now) > RULES.stopped_s:
                return Problem(sentence=f"rank {each.rank}: its process was stopped (SIGSTOP)", rank=each.rank)
        return None

    def _of_uneven(self, ranks: list[_RankProcess], now: float) -> Problem | None:
        """A rank that has no more batches, while others wait for its next step."""
        over = [each for each in ranks if each.is_done]
        left = [each for each in ranks if not each.is_done]
        came = [count for count, _ in self._before]
        if not over or not left or not any(came):
            return None
        waits = [each for each in left if came[each.rank] > came[over[0].rank]]
        if not waits or now - max(self._moved_at[each.rank] for each in left) < RULES.uneven_s:
            return None
        count = format_count(len(over[0].trial.timeline.items) if over[0].trial else 0, "batch", "batches")
        return Problem(
            sentence=f"rank {over[0].rank}: it has no more than {count}, and the other ranks wait for it",
            remedy="give every rank as many batches, or bound the run by --batches",
            rank=over[0].rank,
        )

    def _of_hung(self, ranks: list[_RankProcess], now: float) -> Problem | None:
        """The rank that others have waited for too long."""
        waiting = [each for each in ranks if self._before[each.rank][0] > self._before[each.rank][1]]
        busy = [each for each in ranks if each not in waiting and not each.is_done]
        if not waiting or not busy:
            return None
        late = min(busy, key=lambda each: self._moved_at[each.rank])
        waited_s = now - max(max(self._moved_at[each.rank] for each in waiting), late.seen_at)
        is_first = not all(left for _, left in self._before)
        if waited_s < (RULES.first_hang_s if is_first else max(RULES.hang_s, RULES.hang_times * self._longest_s)):
            return None
        limit = f"rank {late.rank}: nothing happened for {format_seconds(waited_s)}, and the other ranks wait for it"
        return msgspec.structs.replace(failures.of_hang(stacks.of_process(late.pid), limit), rank=late.rank)


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


# ---------------------------------------------------------------- in a rank


def _be_rank(place: Place, steps: Steps, run_rank: RunRank, up: int, down: int) -> None:
    """Run one rank, report its trial, wait until all have, and exit."""
    try:
        die_with_parent()
        with os.fdopen(down, "rb", buffering=0) as pipe:
            write_outcome(up, lambda: run_rank(place, steps, pipe, lambda event: write_frame(up, EVENT, encode(event))))
            pipe.readline()
    finally:
        for worker in psutil.Process().children():  # of a run that failed: nobody else would end them
            with contextlib.suppress(psutil.Error):
                worker.kill()
        os._exit(0)
