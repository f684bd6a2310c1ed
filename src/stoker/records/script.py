"""What `stoker run` answers about an unchanged script."""

from statistics import median

from stoker.records.answers import Remedy, VerifiedRemedy
from stoker.records.base import Record
from stoker.records.trial import Trial
from stoker.units import format_seconds


class Edit(Record, frozen=True):
    """One change of the user's own code: in a file, at a line, what stands there and what should."""

    file: str
    line: int
    before: str
    after: str

    @property
    def sentence(self) -> str:
        return f"{self.file}:{self.line} `{self.before}` → `{self.after}`"


class Proposal(Record, frozen=True):
    """A setting of the training loader that is predicted to be faster, and how to get it.

    `remedy` has the seconds of one batch, once steady, before and after. `arguments` are words to add to the command,
    where the script takes the setting from there. `how` says what to do where no line to change was found.
    """

    remedy: Remedy
    edits: tuple[Edit, ...] = ()
    arguments: tuple[str, ...] = ()
    how: str = ""
    verified: VerifiedRemedy | None = None

    @property
    def gain(self) -> float:
        """How many times as fast, as predicted."""
        return self.remedy.before_s / max(self.remedy.after_s, 1e-12)


class Headroom(Record, frozen=True):
    """Steps with batches that were loaded before: what a loader that never lets the loop wait would give.

    `before_s` is what a batch took with the loader, once steady; `step_s` has the periods of the replayed batches.
    """

    before_s: float
    step_s: tuple[float, ...]

    @property
    def after_s(self) -> float:
        return median(self.step_s)

    @property
    def gain(self) -> float:
        return self.before_s / max(self.after_s, 1e-12)

    @property
    def sentence(self) -> str:
        return (
            f"a perfect loader: {format_seconds(self.before_s)} → {format_seconds(self.after_s)} a batch, "
            f"{self.gain:.2f} times as fast"
        )


class ScriptAnswer(Record, frozen=True):
    """What was observed of a script and what would make it faster.

    `training` is the trial of the loader that trains, or of the one that was read most; `ranks` are the same loader's
    trials in other processes, `others` those of other loaders. `status` is the script's, None while it still runs.
    `problems` says what could not be observed, `notes` what else was seen.
    """

    command: tuple[str, ...]
    status: int | None = None
    training: Trial | None = None
    ranks: tuple[Trial, ...] = ()
    others: tuple[Trial, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    headroom: Headroom | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
