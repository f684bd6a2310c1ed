"""A model search: what each candidate cost and scored, and the ranking that follows."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field

from stoker.records.base import Record
from stoker.records.machine import Machine
from stoker.records.task import Setting, Task
from stoker.records.trial import Outcome, Problem
from stoker.units import format_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Labels = Literal["classes", "random"]
"""Where labels come from: the data's own classes, or drawn at random, for times alone."""
WeightsSource = Literal["file", "download_cache", "random", "workload"]
"""Where weights come from: a file that was named, torch's cache of earlier downloads, chance, or the user's code."""
ItemsSource = Literal["files", "decoded", "prepared", "memory"]
"""Where a candidate's items came from: their files, decoded images that an earlier candidate left in memory, its
prepared items, or batches that were loaded before the clock started."""

SEARCH_STAGES = ("read", "build", "move", "split", "prefix", "start", "load", "copy", "infer", "score", "resample")
STAGE_GROUPS: dict[str, tuple[str, ...]] = {
    "prepare": ("read", "build", "move", "split", "prefix"),
    "load data": ("start", "load"),
    "inference": ("copy", "infer"),
    "score": ("score", "resample"),
}
"""The stages of a candidate, in the groups of a breakdown."""


class ScoreSample(Record, frozen=True):
    """One score of one candidate. `resampled`: the score on each subset, None where it is not defined there; `scale`:
    what a deviation between subsets is multiplied with to become one of the whole set. `seconds` is the time of the
    score itself, `resample_s` that of the subsets."""

    score: str
    value: float
    resampled: tuple[float | None, ...] = ()
    scale: float = 1.0
    seconds: float = 0.0
    resample_s: float = 0.0

    def deviations(self, subsets: Sequence[int]) -> "NDArray[np.float64]":
        """Deviations on some subsets from their mean, scaled to the whole set."""
        import numpy as np

        values = np.array([self.resampled[each] for each in subsets], dtype=np.float64)
        return (values - values.mean()) * self.scale if len(values) else values

    def defined(self) -> set[int]:
        """The subsets on which the score is defined."""
        return {number for number, value in enumerate(self.resampled) if value is not None}


class StaticFigure(Record, frozen=True):
    """Published top-1 accuracy in per cent on `dataset`, and the number of parameters; None where unknown."""

    accuracy: float | None = None
    dataset: str | None = None
    parameters: int | None = None


class ScoreInterval(Record, frozen=True):
    """A score with its rank among the candidates, 1 for the best. `low`, `high`: 90 % interval over resampled items,
    None without resamples."""

    score: str
    value: float
    rank: float
    low: float | None = None
    high: float | None = None


class RankedModel(Record, frozen=True):
    """One line of a ranking. `place`: 1 for the best; models that cannot be told apart from the first of their group
    share its place. `mean_rank`: what decides, with its 90 % interval. `tied_with`: every model that it cannot be told
    apart from, in its group or not."""

    model: str
    place: int
    mean_rank: float
    scores: tuple[ScoreInterval, ...]
    static: StaticFigure
    static_rank: float | None = None
    low: float | None = None
    high: float | None = None
    tied_with: tuple[str, ...] = ()


class RankedModels(Record, frozen=True):
    """The candidates, best first. `combined`: what the mean rank was taken of. `static_used`: whether the static order
    is part of it; `static_missing` names the candidates without a figure, and `static_mixed` says that figures are of
    different data sets. `scores_add_nothing`: None without a static order; otherwise whether no pair that can be told
    apart stands in another order than the static one. `resamples`: 0 when there are too few for intervals; only equal
    mean ranks are ties then."""

    models: tuple[RankedModel, ...]
    combined: tuple[str, ...]
    static_used: bool
    static_missing: tuple[str, ...]
    static_mixed: bool
    scores_add_nothing: bool | None
    resamples: int


class CandidateStages(Record, frozen=True):
    """Raw samples of one candidate's stages, in seconds.

    `read_s` is the time of reading its weights file, which held a share of `read_resident` in the page cache before (0
    is cold, 1 is warm, None without a file); `read_wait_s` is how long the candidate waited for it: the rest ran beside
    the candidate before. `split_s`: dividing the model into blocks. `prefix_s`: for a part, running the blocks before
    it, a sample a batch, items included.

    `start_s` is opening the set: listing its files. `load_s`, `copy_s` and `infer_s` have a sample a batch,
    `batch_items` its items; `load_s` is how long the loop waited, with workers less than what loading took. `score_s`
    is by score, `resample_s` the same for the subsets of its interval.
    """

    read_s: tuple[float, ...] = ()
    read_resident: float | None = None
    read_wait_s: float = 0.0
    build_s: float = 0.0
    move_s: float = 0.0
    split_s: float = 0.0
    prefix_s: tuple[float, ...] = ()
    start_s: float = 0.0
    load_s: tuple[float, ...] = ()
    copy_s: tuple[float, ...] = ()
    infer_s: tuple[float, ...] = ()
    batch_items: tuple[int, ...] = ()
    score_s: dict[str, float] = field(default_factory=dict)
    resample_s: dict[str, float] = field(default_factory=dict)

    @property
    def totals_s(self) -> dict[str, float]:
        """Seconds of each of `SEARCH_STAGES` on the candidate's own clock: of reading, what it waited for."""
        found: dict[str, float] = {"read": self.read_wait_s}
        for name in SEARCH_STAGES[1:]:
            value: Any = getattr(self, f"{name}_s")
            values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            found[name] = float(sum(values))
        return found

    @property
    def groups_s(self) -> dict[str, float]:
        """Seconds of each group of a breakdown: prepare, load data, inference, score."""
        totals = self.totals_s
        return {group: sum(totals[name] for name in names) for group, names in STAGE_GROUPS.items()}


class CandidateTrial(Record, frozen=True):
    """One candidate of a search, run: its stages, its scores, and what is known of it without the data.

    `model` names it within the search, its weights file included. `items` were scored and `skipped` could not be read;
    `labels_digest` tells whether two candidates were scored on the same ones. `classes` are those of the labels. Of
    the model's `blocks` so many were run (`blocks_run`; of a joint model all heads count); both are None for a model
    that was not divided, as a full one is not. `whole_reason` says why a model could not be divided. `batch_size` and
    `num_workers` were used, and `setting_reason` says why. `score_problems` has the sentence of each score that could
    not be computed. `total_s` is the candidate's own time, from the moment that the one before was over.
    """

    model: str
    outcome: Outcome
    task: Task | None = None
    problem: Problem | None = None
    when: datetime | None = None
    machine: Machine | None = None
    interference: float | None = None
    idle_cpus: float | None = None
    reference_s: tuple[float, ...] = ()
    device: str = "cpu"
    data: str = ""
    items: int = 0
    skipped: int = 0
    classes: int = 0
    labels: Labels = "classes"
    labels_digest: str = ""
    weights: WeightsSource = "random"
    weights_file: str | None = None
    part: str = "full"
    blocks: int | None = None
    blocks_run: int | None = None
    whole_reason: str | None = None
    parameters: int | None = None
    feature_size: int | None = None
    image_size: int | None = None
    batch_size: int = 0
    num_workers: int = 0
    setting: Setting | None = None
    setting_reason: str = ""
    items_from: ItemsSource = "files"
    stages: CandidateStages = CandidateStages()
    scores: tuple[ScoreSample, ...] = ()
    score_problems: dict[str, str] = field(default_factory=dict)
    static: StaticFigure = StaticFigure()
    peaks: dict[str, int] = field(default_factory=dict)
    total_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line: raw samples would fill pages."""
        took = f", {self.items} items in {format_seconds(self.total_s)}" if self.items else ""
        return f"<CandidateTrial {self.outcome}: {self.model}{took}>"

    @property
    def other_s(self) -> float:
        """Seconds that belong to no stage."""
        return max(0.0, self.total_s - sum(self.stages.totals_s.values()))


class Ranking(Record, frozen=True):
    """What a search found: the candidates in order, and what each of them cost.

    `ranked` is None where no candidate could be ranked. `candidates` has one trial a candidate, also those that failed,
    in the order in which they were named. `unfinished` names those that were not run, because of what `stopped` says.
    `wall_s` is the time of this search, without trials that it found in its store: `reused` names those.
    """

    data: str
    device: str
    part: str
    scores: tuple[str, ...]
    labels: Labels
    ranked: RankedModels | None
    candidates: tuple[CandidateTrial, ...]
    unfinished: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    stopped: str | None = None
    notes: tuple[str, ...] = ()
    wall_s: float = 0.0
    machine: Machine | None = None
    when: datetime | None = None

    def __repr__(self) -> str:
        """One line: samples would fill pages."""
        best = f", best {self.ranked.models[0].model}" if self.ranked is not None else ""
        return f"<Ranking of {len(self.candidates)} candidates on {self.data}{best}>"

    @property
    def failed(self) -> tuple[CandidateTrial, ...]:
        """The candidates that did not end well."""
        return tuple(each for each in self.candidates if each.outcome != "done")
