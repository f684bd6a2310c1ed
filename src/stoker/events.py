"""What long calls report while they run. Core code emits these events; only `report` draws them.

Every event crosses process boundaries as JSON, so each is a record with a tag.
"""

from collections.abc import Callable
from typing import Literal

from stoker.records import CandidateTrial, Probes, Record, Run, Setting, Subject, Trial


class Event(Record, frozen=True, tag_field="event"):
    """The base of all events."""


class Phase(Event, frozen=True, tag="phase"):
    """A new part of the work began. `name` is fixed, for code; `text` is for people."""

    name: Literal["preparing", "running", "over", "tracing", "building_model", "trying_batch"]
    text: str = ""


class Progress(Event, frozen=True, tag="progress"):
    """`done` of `of` units of some work are finished; `of` is 0 or None where nobody knows."""

    what: str
    done: int = 0
    of: int | None = None


class RunStarted(Event, frozen=True, tag="run_started"):
    """A run of a setting is about to begin. `purpose`: probing, trying a candidate, tuning a limit."""

    setting: Setting
    purpose: Literal["probe", "candidate", "study"]
    text: str = ""


class RunEnded(Event, frozen=True, tag="run_ended"):
    """A run is over, whatever became of it."""

    trial: Trial
    purpose: Literal["probe", "candidate", "study", "job"]


class SubjectKnown(Event, frozen=True, tag="subject"):
    """The workload has been opened: what it is called and how many items it has."""

    subject: Subject


class BatchDone(Event, frozen=True, tag="batch"):
    """The loop finished batch number `done`."""

    done: int
    of: int | None = None


class ClockRead(Event, frozen=True, tag="clock"):
    """When the measured loop began and ended, in seconds of the system-wide monotonic clock."""

    began_s: float
    over_s: float


class WorkersStarted(Event, frozen=True, tag="workers"):
    """An epoch's loader has started these worker processes."""

    pids: tuple[int, ...]


class GpuUsed(Event, frozen=True, tag="gpu"):
    """The run uses the GPU with this UUID."""

    uuid: str


class LoopReady(Event, frozen=True, tag="ready"):
    """A session's child is about to begin its loop, and waits until the caller has timed the reference job."""


class JobTaken(Event, frozen=True, tag="job"):
    """A session's child begins the job that it was handed."""


class ProbeDone(Event, frozen=True, tag="probed"):
    """One probe of a forecast is finished."""

    run: Run


class ProbesReady(Event, frozen=True, tag="probes"):
    """All probes of a forecast are finished."""

    probes: Probes


class CandidateStarted(Event, frozen=True, tag="candidate"):
    """A search begins candidate number `index` of those that its process was given."""

    index: int
    model: str


class CandidateEnded(Event, frozen=True, tag="candidate_ended"):
    """A candidate of a search is over, whatever became of it."""

    index: int
    trial: CandidateTrial


AnyEvent = (
    Phase
    | Progress
    | RunStarted
    | RunEnded
    | SubjectKnown
    | BatchDone
    | ClockRead
    | GpuUsed
    | WorkersStarted
    | LoopReady
    | JobTaken
    | ProbeDone
    | ProbesReady
    | CandidateStarted
    | CandidateEnded
)
"""Every event, for decoding."""

OnEvent = Callable[[AnyEvent], None]
"""A listener. It may raise to stop the work."""

OnProgress = Callable[[str, int, int], None]
"""Called by work in this process: what is being done, how much is finished, of how much."""


def silent(what: str, done: int, of: int) -> None:
    """An `OnProgress` that shows nothing."""
