"""What items usually take, from runs that may disagree."""

import numpy as np
import pytest

from stoker.forecast.samples import mean_item_s, usual_item_s
from stoker.records import Run

ITEMS, BATCH = 256, 16


def run(item_s: np.ndarray, items: int = ITEMS) -> Run:
    """A run over the first items, of batches that take what their items take."""
    sums = item_s[:items].reshape(-1, BATCH).sum(axis=1)
    ends = np.cumsum(sums)
    zeros = (0.0,) * len(sums)
    return Run(
        kind="load",
        batch_size=BATCH,
        num_workers=0,
        prefetch_factor=2,
        pinned=False,
        total_s=float(ends[-1]),
        start_s=0.0,
        asked_s=tuple(ends - sums),
        got_s=tuple(ends),
        done_s=tuple(ends),
        items=(BATCH,) * len(sums),
        bytes=(1,) * len(sums),
        began_s=tuple(ends - sums),
        ended_s=tuple(ends),
        cpu_s=tuple(sums),
        collate_s=zeros,
        item_s=tuple(item_s[:items]),
    )


def slow_half() -> np.ndarray:
    """Items of the second half take three times as long."""
    return np.where(np.arange(ITEMS) < ITEMS // 2, 0.001, 0.003)


def test_what_two_runs_agree_on_is_kept() -> None:
    usual = usual_item_s([run(slow_half()), run(slow_half() * 1.01)])
    assert usual[200] / usual[20] == pytest.approx(3, rel=0.05)


def test_a_run_over_the_quick_half_is_scaled_to_all_items() -> None:
    whole, half = run(slow_half()), run(slow_half(), ITEMS // 2)
    usual = usual_item_s([whole, run(slow_half())])
    assert mean_item_s([half], usual, lambda one: one.load_s).at(BATCH) == pytest.approx(0.002, rel=0.05)


def test_differences_that_no_other_run_saw_are_noise() -> None:
    noise = np.random.default_rng(0)
    runs = [run(0.001 * noise.uniform(0.5, 1.5, ITEMS)) for _ in range(2)]
    usual = list(usual_item_s(runs).values())
    assert np.std(usual) < 0.1 * np.mean(usual)


def test_a_cold_first_batch_counts_for_nothing() -> None:
    cold = np.full(ITEMS, 0.001)
    cold[:BATCH] = 0.1
    usual = usual_item_s([run(cold), run(cold)])
    assert max(usual.values()) == pytest.approx(0.001)
