"""Search over a predicate of the batch size: the largest that holds, and one shown to fail just above it."""

from collections.abc import Callable
from typing import NamedTuple

from stoker.records import Record

_NEAR = 4
"""Gaps within which what is the most likely was seen to say something of the edge."""


_TOLD = 4
"""How many sizes are told ahead at most: each that is begun and not needed is in the way of the others."""


class Bracket(Record, frozen=True):
    """`ran` is the largest size shown to hold with a failure right above it (0: none), `failed` that failure's size.

    `failed` is None where the ceiling was reached. Holding need not be monotone: a larger size may have held too.
    """

    ran: int
    failed: int | None


def close(
    holds: Callable[[int], bool],
    *,
    guess: int,
    ceiling: int,
    tolerance: float = 0.01,
    ahead: Callable[[list[int]], int | None] | None = None,
) -> Bracket:
    """Close in on the edge from a guess: the better the guess, the fewer tries.

    Ends when a size that held and one that failed lie within `tolerance`, or one apart. Before each try `ahead` is told
    its size and those that may come next, the nearest first. It may answer with the largest size that is likely at all.
    """
    state, most = _State(0, None, max(1, min(guess, ceiling)), 0), None
    while True:
        if ahead:
            most = ahead(_coming(state, tolerance, ceiling, most))
        state = _after(state, holds(state.size), tolerance, ceiling, most)
        if _is_over(state, tolerance, ceiling):
            return Bracket(ran=state.ran, failed=state.failed)


class _State(NamedTuple):
    """Between two tries: what is known, what comes next, and by how many gaps the one after that would stride (0: by
    one, for the first time)."""

    ran: int
    failed: int | None
    size: int
    stride: int


def _coming(state: _State, tolerance: float, ceiling: int, most: int | None) -> list[int]:
    """This size and those that may follow it: two ahead from a guess and below what failed, else one.

    While none has failed, only what follows if they hold: what a good guess will not need would be in the way.
    """
    sizes, states = [state.size], [state]
    for _ in range(1 if state.ran else 2):
        ways = (True, False) if state.failed is not None else (True,)
        after = [_after(each, held, tolerance, ceiling, most) for each in states for held in ways]
        states = [each for each in after if not _is_over(each, tolerance, ceiling)]
        sizes += [each.size for each in states]
    return list(dict.fromkeys(sizes))[:_TOLD]


def _after(state: _State, held: bool, tolerance: float, ceiling: int, most: int | None) -> _State:
    ran, failed, size, stride = state
    if held:
        ran, stride = size, stride if failed is None else 1
    else:
        failed = size
    return _State(ran, failed, *_next(ran, failed, stride, tolerance, ceiling, most))


def _is_over(state: _State, tolerance: float, ceiling: int) -> bool:
    return (state.failed is None and state.ran >= ceiling) or _is_closed(state.ran, state.failed, tolerance)


def _is_closed(ran: int, failed: int | None, tolerance: float) -> bool:
    return failed is not None and failed - ran <= _gap(ran, tolerance)


def _gap(size: int, tolerance: float) -> int:
    return max(1, int(size * tolerance))


def _next(
    ran: int, failed: int | None, stride: int, tolerance: float, ceiling: int, most: int | None
) -> tuple[int, int]:
    """Where to look next: outwards by one gap, again by one, then in strides that double until both ends are known, and
    between them from there.

    A guess is rarely farther off than two gaps. Where the largest likely size is near, the edge lies between the two,
    and half of that way is gone, in whole gaps.
    """
    longer = 2 * stride or 1
    stride = max(1, stride)
    gap = _gap(ran, tolerance)
    if failed is None:
        to = ran + stride * gap
        if most is not None and ran < most < max(to, ran + _NEAR * gap + 1):
            return min(ceiling, ran - (ran - most) // (2 * gap) * gap), 1
        return min(ceiling, to), longer
    if not ran:
        gap = _gap(failed - _gap(failed, tolerance), tolerance)  # of the size below: what holds there closes it
        return max(1, failed - stride * gap), longer
    return _between(ran, failed, gap), stride


def _between(ran: int, failed: int, gap: int) -> int:
    """The middle, in whole gaps from above: what holds there may close it at once."""
    gaps = -(-(failed - ran) // gap)
    return max(ran + 1, failed - gap * (gaps // 2))


def doubled(holds: Callable[[int], bool], *, start: int, ceiling: int) -> Bracket:
    """By factors of two until one fails; where already the first does, downwards until one holds."""
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
