"""Notes of a plan, from candidates with made-up runs."""

import pytest

from stoker.tuning.contest import knee
from stoker.tuning.notes import choice_notes, not_the_quickest_notes
from tests.tuning.test_contest import candidate, ran


def test_a_plan_that_is_not_the_quickest_says_why() -> None:
    lucky, chosen = ran(candidate(1, 0.92), 0.88, 1.13), ran(candidate(2, 0.75), 0.92)
    [said] = not_the_quickest_notes(chosen, [lucky, chosen])
    assert said.startswith("batch 8 with 1 worker was 5% faster in few runs, and is slower by runs and predictions")
    lean, quick = ran(candidate(1, 1.0), 1.11, 1.11), ran(candidate(2, 1.01), 1.08, 1.08)
    assert knee([lean, quick]) is lean
    [said] = not_the_quickest_notes(lean, [lean, quick])
    assert "less than 2% faster" in said
    assert not list(not_the_quickest_notes(quick, [lean, quick]))
    assert not list(not_the_quickest_notes(candidate(1, 1.0), [candidate(1, 1.0)])), "nothing was run"


@pytest.mark.parametrize(("took_s", "said"), [(1.2, False), (9.0, True), (0.1, True)])
def test_a_plan_that_was_predicted_far_off_says_so(took_s: float, said: bool) -> None:
    best = ran(candidate(0, 1.0), took_s)
    assert any("times what was predicted" in note for note in choice_notes(best, [best])) == said
