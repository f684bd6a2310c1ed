"""What training runs with two batch sizes say, on numbers that were chosen by hand."""

import pytest

from stoker.analysis.convergence import curve, difference, epoch_means, sentences
from stoker.analysis.student import estimate
from stoker.records import Checkpoint, Convergence, Problem, Setting, Subject, TrainingRun

SUBJECT = Subject(name="net", model="Net", data="numbers", mode="train", device="cpu", items=100)


def run(size: int, seed: int, losses: list[float], *, metric: float | None = None, epoch_s: float = 1.0) -> TrainingRun:
    """A training whose loss is one of `losses` at each checkpoint; the metric begins at 0.1 and ends at `metric`."""
    last = len(losses) - 1
    checkpoints = tuple(
        Checkpoint(
            epochs=place,
            updates=place * 10,
            items=place * 100,
            train_s=epoch_s if place else 0.0,
            validation_s=0.1,
            validation_loss=loss,
            metric=None if metric is None else (metric if place == last else 0.1),
        )
        for place, loss in enumerate(losses)
    )
    return TrainingRun(batch_size=size, seed=seed, outcome="done", checkpoints=checkpoints)


def found(*runs: TrainingRun, seeds: int = 3) -> Convergence:
    return Convergence(
        workload=SUBJECT, batch_size=64, against=256, seeds=tuple(range(seeds)), setting=Setting(), epochs=2, runs=runs
    )


def with_metrics(before: list[float], after: list[float], **more: float) -> Convergence:
    runs = [run(64, seed, [3.0, 2.0, 1.0], metric=value) for seed, value in enumerate(before)]
    runs += [run(256, seed, [3.0, 2.0, 1.0], metric=value, **more) for seed, value in enumerate(after)]
    return found(*runs, seeds=len(before))


def test_the_interval_is_students() -> None:
    seen = estimate([1.0, 2.0, 3.0])
    assert seen.mean == 2.0
    assert seen.margin == pytest.approx(4.3027 * 1.0 / 3**0.5, rel=1e-4)
    assert estimate([1.0]).margin is None


def test_a_loss_of_points_is_said_with_its_interval() -> None:
    answer = with_metrics([0.900, 0.910, 0.905], [0.888, 0.899, 0.892])
    seen = difference(answer)
    assert seen.metric is not None
    assert seen.metric_scale == 100
    assert seen.metric.mean == pytest.approx(-1.2)
    assert sentences(answer)[0] == "batch 256 loses 1.20 ± 0.25 points against batch 64"


def test_differences_that_point_both_ways_are_none() -> None:
    answer = with_metrics([0.90, 0.91, 0.90], [0.91, 0.90, 0.90])
    assert sentences(answer)[0].startswith("no difference can be seen in 3 seeds: +0")


def test_one_seed_proves_nothing() -> None:
    first = sentences(with_metrics([0.90], [0.80]))[0]
    assert first == "one seed proves nothing: here batch 256 ends 10.00 points below batch 64; run at least 3 seeds"


def test_a_metric_that_is_no_share_has_no_points() -> None:
    answer = with_metrics([20.0, 21.0, 20.5], [25.0, 26.1, 25.4])
    assert sentences(answer)[0].startswith("batch 256 gains 5.00 ±")
    assert "points" not in sentences(answer)[0]


def test_the_same_loss_sooner() -> None:
    slow = [run(64, seed, [3.0, 2.0, 1.0, 0.9], epoch_s=1.0 + seed / 100) for seed in range(3)]
    fast = [run(256, seed, [3.0, 2.0, 1.0, 0.9], epoch_s=0.8 * (1.0 + seed / 100)) for seed in range(3)]
    answer = found(*slow, *fast)
    seen = difference(answer)
    assert seen.same_loss is not None
    assert seen.same_loss.mean == pytest.approx(0.8)
    assert sentences(answer)[-1] == "batch 256 reaches the same loss in 0.80 of the time (0.80 to 0.80)"


def test_an_interval_that_holds_everything_is_not_told() -> None:
    times = {64: (1.0, 1.0), 256: (0.05, 2.0)}
    runs = [run(size, seed, [3.0, 2.0, 1.0], epoch_s=times[size][seed]) for size in times for seed in (0, 1)]
    told = sentences(found(*runs, seeds=2))[-1]
    assert told == "the time to the same loss differs too much between 2 seeds to be compared: here 0.32 of the time"


def test_the_same_loss_is_the_lowest_that_both_reach() -> None:
    answer = found(run(64, 0, [3.0, 1.0, 0.5]), run(256, 0, [3.0, 2.0, 1.5]), seeds=1)
    seen = difference(answer)
    assert seen.same_loss is not None
    assert seen.same_loss.values[0] == pytest.approx(2.0 / 0.75)


def test_without_a_metric_the_loss_is_compared() -> None:
    runs = [run(64, seed, [3.0, 1.0 + seed / 100]) for seed in range(3)]
    runs += [run(256, seed, [3.0, 1.5 + seed / 100 + seed % 2 / 100]) for seed in range(3)]
    answer = found(*runs)
    assert sentences(answer)[0].startswith("batch 256 ends with a validation loss 0.50 ± 0.014 above that of batch 64")


def test_divergence_comes_first_and_leaves_its_seed_out() -> None:
    answer = with_metrics([0.9, 0.9, 0.9], [0.9, 0.9, 0.9])
    broken = TrainingRun(batch_size=256, seed=2, outcome="done", diverged=True)
    kept = [each for each in answer.runs if (each.batch_size, each.seed) != (256, 2)]
    answer = found(*kept, broken)
    assert sentences(answer)[0] == "batch 256 diverged in 1 of 3 seeds: its loss was no finite number"
    assert difference(answer).pairs == 2


def test_what_has_not_learned_is_named() -> None:
    idle = with_metrics([0.1, 0.1, 0.1], [0.1, 0.1, 0.1])
    assert "train longer" in sentences(idle)[1]
    assert difference(with_metrics([0.9, 0.8, 0.9], [0.9, 0.8, 0.9])).learned == {64: True, 256: True}


def test_runs_that_failed_cannot_be_compared() -> None:
    failed = TrainingRun(batch_size=256, seed=0, outcome="oom", problem=Problem(sentence="out of memory"))
    assert sentences(found(run(64, 0, [1.0, 0.5]), failed, seeds=1)) == [
        "no seed finished with both batch sizes, so they cannot be compared"
    ]
    assert difference(found(seeds=1)).pairs == 0


def test_means_and_curves() -> None:
    rows = epoch_means(found(run(64, 0, [3.0, 1.0]), run(64, 1, [2.0, 0.5]), seeds=2))
    assert [(row["updates"], row["validation_loss"], row["seeds"]) for row in rows] == [(0, 2.5, 2), (10, 0.75, 2)]
    assert curve(run(64, 0, [3.0, 2.0, 1.0])) == [(0.0, 3.0), (1.0, 2.0), (2.0, 1.0)]
