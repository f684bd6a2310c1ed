"""Search over a predicate: any edge is found, whatever the guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.memory.bracket import Bracket, bisected, close, doubled

EDGES = st.integers(0, 5000)
GUESSES = st.integers(1, 6000)


@given(EDGES, GUESSES)
def test_a_closed_bracket_has_the_edge_in_it_and_is_as_tight_as_asked(edge: int, guess: int) -> None:
    tried: list[int] = []
    found = close(lambda size: tried.append(size) or size <= edge, guess=guess, ceiling=10**6)  # type: ignore[func-returns-value]
    assert found.failed is not None
    assert found.ran <= edge < found.failed
    assert found.failed - found.ran <= max(1, int(found.ran * 0.01))
    assert len(tried) == len(set(tried)), "no size is tried twice"


@given(st.integers(1, 5000))
def test_a_perfect_guess_takes_two_tries(edge: int) -> None:
    tried: list[int] = []
    close(lambda size: tried.append(size) or size <= edge, guess=edge, ceiling=10**6)  # type: ignore[func-returns-value]
    assert len(tried) == 2


@given(st.integers(2, 5000))
def test_a_guess_that_is_just_too_high_takes_two_tries(edge: int) -> None:
    tried: list[int] = []
    close(lambda size: tried.append(size) or size <= edge, guess=edge + 1, ceiling=10**6)  # type: ignore[func-returns-value]
    assert len(tried) == 2


@given(EDGES, GUESSES, st.integers(1, 300))
def test_the_ceiling_is_never_passed(edge: int, guess: int, ceiling: int) -> None:
    tried: list[int] = []
    found = close(lambda size: tried.append(size) or size <= edge, guess=guess, ceiling=ceiling)  # type: ignore[func-returns-value]
    assert max(tried) <= ceiling
    if edge >= ceiling:
        assert found == Bracket(ran=ceiling, failed=None)


@given(EDGES, st.sampled_from([1, 32, 1000]))
def test_doubling_then_bisection_finds_the_edge(edge: int, start: int) -> None:
    wide = doubled(lambda size: size <= edge, start=start, ceiling=10**6)
    assert wide.failed is not None
    assert wide.ran <= edge < wide.failed
    tight = bisected(lambda size: size <= edge, wide, tolerance=0)
    assert tight.ran == edge


@given(EDGES, GUESSES, st.integers(0, 6000))
def test_any_word_about_the_most_that_is_likely_leaves_the_edge_where_it_is(edge: int, guess: int, most: int) -> None:
    found = close(lambda size: size <= edge, guess=guess, ceiling=10**6, before_each=lambda state: most)
    assert found.failed is not None
    assert found.ran <= edge < found.failed
    assert found.failed - found.ran <= max(1, int(found.ran * 0.01))


@pytest.mark.parametrize(
    ("edge", "sizes", "last"),
    [
        (398, [397, 403, 400], (397, 400)),
        (402, [397, 403, 400], (400, 403)),
        (405, [397, 403, 407], (403, 407)),
        (410, [397, 403, 407, 411], (407, 411)),
        (460, [397, 403, 407, 411, 419, 435, 467, 451, 459, 463], (459, 463)),
    ],
)
def test_half_the_way_is_gone_to_the_most_that_is_likely_where_that_is_near(
    edge: int, sizes: list[int], last: tuple[int, int]
) -> None:
    tried: list[int] = []
    found = close(
        lambda size: tried.append(size) or size <= edge,  # type: ignore[func-returns-value]
        guess=397,
        ceiling=10**6,
        before_each=lambda state: 406,
    )
    assert tried == sizes
    assert found == Bracket(ran=last[0], failed=last[1])


@pytest.mark.parametrize(("edge", "sizes"), [(398, [397, 400]), (405, [397, 400, 404, 412, 408])])
def test_a_size_that_is_likely_at_most_and_lies_far_off_is_not_gone_to(edge: int, sizes: list[int]) -> None:
    tried: list[int] = []
    close(
        lambda size: tried.append(size) or size <= edge,  # type: ignore[func-returns-value]
        guess=397,
        ceiling=10**6,
        before_each=lambda state: 500,
    )
    assert tried == sizes
