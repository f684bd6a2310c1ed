"""What ranks wait for, on numbers: a run of three ranks, each step written out."""

import pytest

from stoker.analysis import ranks
from stoker.analysis.series import rank_rows
from stoker.analysis.spans import steady
from stoker.analysis.verdict import verdict
from stoker.records import Extent, RankLog, Setting, Stage, Subject, Timeline, Trial
from stoker.report.html import Page
from stoker.report.pages import trial_page

STEPS = 6
EXCHANGE_S = 0.01


def log(rank: int, wait_s: list[float], period_s: list[float]) -> RankLog:
    """A rank that waits so long for data, computes 0.1 s, and spends what is left of each step in the exchange."""
    spent = [period - wait - 0.1 for period, wait in zip(period_s, wait_s, strict=True)]
    stages = {
        "wait": Stage(clock="loop", samples_s=tuple(wait_s)),
        "backward": Stage(clock="loop", samples_s=(0.1,) * STEPS),
        "exchange": Stage(clock="loop", samples_s=tuple(spent)),
        "other": Stage(clock="loop", samples_s=(0.0,) * (STEPS + 1)),
    }
    line = Timeline(items=(4,) * STEPS, batches=(STEPS,), asked_s=(0.0,) * STEPS, got_s=(0.0,) * STEPS)
    return RankLog(rank=rank, items=4 * STEPS, total_s=sum(period_s), start_s=0.0, stages=stages, timeline=line)


def run(*waits_s: list[float]) -> Trial:
    """A trial of ranks that wait so long for their data, step by step."""
    period_s = [max(each) + 0.1 + EXCHANGE_S for each in zip(*waits_s, strict=True)]
    logs = tuple(log(rank, list(waits), period_s) for rank, waits in enumerate(waits_s))
    trial = Trial(
        outcome="done",
        workload=Subject(name="w", model="m", data="d", mode="train", device="cpu", items=100),
        setting=Setting(batch_size=4, ranks=len(logs)),
        extent=Extent(warmup=0),
        timeline=logs[0].timeline,
        rank_logs=logs,
    )
    pace = ranks.pace_rank(logs, trial)
    own = logs[pace]
    return Trial(
        **{
            **{name: getattr(trial, name) for name in trial.__struct_fields__},
            "stages": own.stages,
            "timeline": own.timeline,
            "total_s": own.total_s,
            "items": sum(each.items for each in logs),
            "pace_rank": pace,
        }
    )


def test_waiting_for_a_slow_rank_is_no_work_of_the_others() -> None:
    found = ranks.figures(run([0.0] * STEPS, [0.3] * STEPS, [0.1] * STEPS))
    assert [each.own_s for each in found] == pytest.approx([0.1, 0.4, 0.2])
    assert [each.idle_s for each in found] == pytest.approx([0.3, 0.0, 0.2])
    assert [each.exchange_s for each in found] == pytest.approx([EXCHANGE_S] * 3)
    assert [each.held_s for each in found] == pytest.approx([0.0, 0.2, 0.0]), "until the second has come, too"
    assert {round(each.period_s, 9) for each in found} == {0.41}
    assert ranks.imbalance(found) == pytest.approx(0.4 / (0.7 / 3))


def test_the_rank_that_others_wait_for_is_named_with_its_stage() -> None:
    trial = run([0.0] * STEPS, [0.3] * STEPS, [0.1] * STEPS)
    found = ranks.figures(trial)
    pace = ranks.sets_pace(found)
    assert pace is not None
    assert pace.rank == trial.pace_rank == 1
    stage, more_s = ranks.excess(found, pace)
    assert (stage, round(more_s, 9)) == ("wait", 0.25)
    judged = verdict(trial)
    assert judged is not None
    assert judged.rank == 1
    assert judged.sentence.startswith(
        "rank 1 sets the pace of 3: in a step of 410 ms the others wait 200 ms for it (49%)"
    )


def test_ranks_that_are_late_in_turns_set_no_pace() -> None:
    trial = run([0.2, 0.0] * 3, [0.0, 0.2] * 3)
    found = ranks.figures(trial)
    assert ranks.imbalance(found) == pytest.approx(1.0)
    assert [each.idle_s for each in found] == pytest.approx([0.1, 0.1]), "each waits for the other"
    judged = verdict(trial)
    assert judged is not None
    assert judged.rank is None


def test_a_rate_counts_the_items_of_all_ranks() -> None:
    trial = run([0.0] * STEPS, [0.3] * STEPS)
    span = steady(trial)
    assert span is not None
    assert span.items == trial.items == 2 * 4 * STEPS
    assert trial.items_per_s == pytest.approx(8 / 0.41)


def test_an_exchange_is_what_the_last_rank_spends_on_it() -> None:
    assert ranks.exchange_samples(run([0.0] * STEPS, [0.3] * STEPS)) == pytest.approx((EXCHANGE_S,) * STEPS)


def test_one_rank_has_no_figures() -> None:
    trial = run([0.0] * STEPS, [0.3] * STEPS)
    alone = Trial(**{**{name: getattr(trial, name) for name in trial.__struct_fields__}, "rank_logs": ()})
    assert ranks.figures(alone) == []
    assert rank_rows(alone) == []


def test_the_page_shows_every_rank() -> None:
    trial = run([0.0] * STEPS, [0.3] * STEPS)
    page: Page = trial_page(trial, verdict(trial))
    section = next(each for each in page.sections if each.title == "Ranks")
    assert section.figures[0].title == "The others wait 300 ms of each 410 ms for rank 1"
    assert [row[0] for row in section.tables[0].rows] == ["0", "1"]
    assert {row["stage"] for row in rank_rows(trial)} == {"wait", "backward", "idle", "exchange"}
