"""Searches over a predicate of the batch size: the largest size that holds, and one just above it that fails."""

from collections.abc import Callable
from typing import NamedTuple

from stoker.records import Record


class BracketRules(Record, frozen=True):
    """Numbers of the search."""

    near_gaps: int = 4
    """Within so many gaps, the largest likely size was a good hint of where the edge lies."""


RULES = BracketRules()


class Bracket(Record, frozen=True):
    """`ran` is the largest size shown to hold with a failure right above it (0: none), `failed` that failure's size.

    `failed` is None if the ceiling was reached. Holding need not be monotone: a larger size may have held too.
    """

    ran: int
    failed: int | None


class Gallop(NamedTuple):
    """The state between two tries of `close`: what is known (`ran`, `failed`), and the `size` to try next.

    `stride` is how many gaps the search goes outwards at the next step; 0 before the first. `most` is the largest size
    that is likely to hold, if that is known.
    """

    size: int
    tolerance: float
    ceiling: int
    ran: int = 0
    failed: int | None = None
    stride: int = 0
    most: int | None = None

    @property
    def is_over(self) -> bool:
        reached = self.failed is None and self.ran >= self.ceiling
        return reached or _is_closed(self.ran, self.failed, self.tolerance)

    def after(self, held: bool) -> "Gallop":
        """The state once the current size has held or failed."""
        if held:
            known = self._replace(ran=self.size, stride=self.stride if self.failed is None else 1)
        else:
            known = self._replace(failed=self.size)
        size, stride = known._next()
        return known._replace(size=size, stride=stride)

    def _next(self) -> tuple[int, int]:
        """Gallop outwards from the guess (1, 1, 2, 4 … gaps) until it is bracketed, then bisect.

        If the largest likely size is near, the edge lies between it and the current size: go half of that way.
        """
        longer, stride = 2 * self.stride or 1, max(1, self.stride)
        gap = _gap(self.ran, self.tolerance)
        if self.failed is None:
            to = self.ran + stride * gap
            if self.most is not None and self.ran < self.most < max(to, self.ran + RULES.near_gaps * gap + 1):
                return min(self.ceiling, self.ran - (self.ran - self.most) // (2 * gap) * gap), 1
            return min(self.ceiling, to), longer
        if not self.ran:
            below = self.failed - _gap(self.failed, self.tolerance)
            return max(1, self.failed - stride * _gap(below, self.tolerance)), longer
        return _between(self.ran, self.failed, gap), stride


def close(
    holds: Callable[[int], bool],
    *,
    guess: int,
    ceiling: int,
    tolerance: float = 0.01,
    before_each: Callable[[Gallop], int | None] | None = None,
) -> Bracket:
    """Close in on the edge from a guess: the better the guess, the fewer tries.

    Ends when a size that held and one that failed lie within `tolerance`, or one apart. `before_each` is called with
    the state before each try. It may return the largest size that is likely to hold.
    """
    state = Gallop(size=max(1, min(guess, ceiling)), tolerance=tolerance, ceiling=ceiling)
    while not state.is_over:
        if before_each is not None:
            state = state._replace(most=before_each(state))
        state = state.after(holds(state.size))
    return Bracket(ran=state.ran, failed=state.failed)


def doubled(holds: Callable[[int], bool], *, start: int, ceiling: int) -> Bracket:
    """Double from `start` until a size fails. If already the first fails, halve until one holds."""
    ran, failed, size = 0, None, min(start, ceiling)
    while failed is None and ran < ceiling:
        if holds(size):
            ran, size = size, min(ceiling, size * 2)
        else:
            failed = size
    while not ran and failed is not None and failed > 1:
        if holds(failed // 2):
            ran = failed // 2
        else:
            failed //= 2
    return Bracket(ran=ran, failed=failed)


def bisected(holds: Callable[[int], bool], between: Bracket, *, tolerance: float) -> Bracket:
    """The edge inside a bracket, to within `tolerance`."""
    ran, failed = between.ran, between.failed
    while ran and failed is not None and not _is_closed(ran, failed, tolerance):
        middle = _between(ran, failed, _gap(ran, tolerance))
        if holds(middle):
            ran = middle
        else:
            failed = middle
    return Bracket(ran=ran, failed=failed)


def _is_closed(ran: int, failed: int | None, tolerance: float) -> bool:
    return failed is not None and failed - ran <= _gap(ran, tolerance)


def _gap(size: int, tolerance: float) -> int:
    return max(1, int(size * tolerance))


def _between(ran: int, failed: int, gap: int) -> int:
    """The middle, in whole gaps from above, so that a size that holds there may close the bracket at once."""
    gaps = -(-(failed - ran) // gap)
    return max(ran + 1, failed - gap * (gaps // 2))
