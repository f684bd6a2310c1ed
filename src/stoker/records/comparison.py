"""What changed between two sides of saved results."""

from statistics import fmean, geometric_mean
from typing import Literal

from stoker.errors import InputError
from stoker.records.base import Record
from stoker.units import format_seconds

Answer = Literal["faster", "slower", "cannot_tell"]
Unit = Literal["batch", "item", "run"]
Basis = Literal["steady", "run", "objective"]
ChangeKind = Literal["task", "setting", "version"]


class Difference(Record, frozen=True):
    """Seconds of one thing on both sides, and how many times as long it takes on side B.

    `a_s` and `b_s` have a value for each run; where several tasks are compared, one for each task. `ratio` is that of
    the geometric means, and the true ratio lies in `interval` with the confidence of the comparison. Both are None for
    what was not measured on both sides, and for what takes too little of the time to be compared.
    """

    name: str
    unit: Unit
    clock: Literal["loop", "worker", "run"] = "loop"
    a_s: tuple[float, ...] = ()
    b_s: tuple[float, ...] = ()
    ratio: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def answer(self) -> Answer:
        """Whether B is faster or slower: only if the whole interval is on one side of 1."""
        if self.interval is None:
            return "cannot_tell"
        low, high = self.interval
        return "slower" if low > 1 else "faster" if high < 1 else "cannot_tell"

    @property
    def a_mean_s(self) -> float | None:
        """The geometric mean, as in `ratio`."""
        return _mean(self.a_s)

    @property
    def b_mean_s(self) -> float | None:
        return _mean(self.b_s)


def _mean(values: tuple[float, ...]) -> float | None:
    if not values:
        return None
    return geometric_mean(values) if min(values) > 0 else fmean(values)


class Change(Record, frozen=True):
    """Something that was asked, set or installed differently on the two sides."""

    name: str
    kind: ChangeKind
    a: str
    b: str


class Side(Record, frozen=True):
    """One side: where its results came from, how many runs finished, and what was left out, a sentence each."""

    sources: tuple[str, ...]
    runs: int
    tasks: int = 1
    disturbed: int = 0
    machines: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Comparison(Record, frozen=True):
    """Whether side B is faster or slower than side A, and where.

    `total` is an average batch (or item) once steady, the whole run where runs have no steady part, or a plan's
    objective: `basis` says which. `stages` are the parts of it, `tasks` the same for each task where several were
    compared. `spread` is by how much runs of one task differ (a standard deviation, as a share): measured from
    these runs with `freedom` degrees of freedom, or the machine's known one (`spread_known`). `reference` is the fixed
    job that was timed before each run; if it `drifted`, the machine itself was faster or slower.
    """

    a: Side
    b: Side
    what: str
    basis: Basis
    total: Difference
    stages: tuple[Difference, ...] = ()
    tasks: tuple[Difference, ...] = ()
    changes: tuple[Change, ...] = ()
    confidence: float = 0.95
    spread: float = 0.0
    spread_known: bool = False
    freedom: int = 0
    reference: Difference | None = None
    drifted: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line: the samples would fill pages."""
        return f"<Comparison of {self.what}: {self.sentence}>"

    @property
    def answer(self) -> Answer:
        return self.total.answer

    @property
    def sentence(self) -> str:
        """`Faster by 12 % (9–15)`, `Slower by 5 % (3–7)`, or `Cannot tell: …`."""
        return difference_sentence(self.total)

    def slower_than(self, allowed: float) -> bool | None:
        """Whether B is slower than A by more than the share `allowed` (0.05 is 5 %); None if that cannot be told.

        It is if it is surely slower at all, and by more than that as far as can be measured. It is not if the whole
        interval is within what is allowed.
        """
        if not 0 <= allowed < 100:
            raise InputError(f"what is allowed must be a share from 0 on, such as 0.05 for 5%, got {allowed:g}")
        if self.total.ratio is None or self.total.interval is None:
            return None
        if self.answer == "slower" and self.total.ratio > 1 + allowed:
            return True
        return False if self.total.interval[1] <= 1 + allowed else None


def difference_sentence(found: Difference) -> str:
    """The answer in one sentence, without its full stop."""
    if found.ratio is None or found.interval is None:
        return "Cannot tell: not measured on both sides"
    low, high = found.interval
    if found.answer == "slower":
        return f"Slower by {_range(found.ratio - 1, low - 1, high - 1)}"
    if found.answer == "faster":
        return f"Faster by {_range(1 - found.ratio, 1 - high, 1 - low)}"
    digits = _digits(high - low)
    return f"Cannot tell: between {_bound(low, digits)} and {_bound(high, digits)}"


def _bound(ratio: float, digits: int) -> str:
    number = f"{100 * abs(ratio - 1):.{digits}f}"
    if not float(number):
        return "no difference"
    return f"{number} % {'slower' if ratio > 1 else 'faster'}"


def _range(middle: float, low: float, high: float) -> str:
    digits = _digits(high - low)
    return f"{100 * middle:.{digits}f} % ({100 * low:.{digits}f}–{100 * high:.{digits}f})"


def _digits(width: float) -> int:
    """As many decimals as the interval's width justifies."""
    return 0 if width >= 0.03 else 1 if width >= 0.003 else 2


def times_text(found: Difference) -> str:
    """`41.2 ms → 36.3 ms`."""
    if found.a_mean_s is None or found.b_mean_s is None:
        return "–"
    return f"{format_seconds(found.a_mean_s)} → {format_seconds(found.b_mean_s)}"
