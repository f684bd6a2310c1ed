"""Rankings: what the mean rank is taken of, ties, intervals, and when scores add nothing."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import InputError
from stoker.ranking.combine import ModelScores, rank
from stoker.ranking.resampling import ScoreSample, score_model
from stoker.ranking.static import StaticFigure
from stoker.records import RankedModels


def candidate(
    model: str,
    nleep: float,
    logme: float,
    accuracy: float | None = None,
    *,
    spread: float | None = None,
    dataset: str = "ImageNet-1K",
    more: tuple[ScoreSample, ...] = (),
) -> ModelScores:
    """Scores of one candidate; with a spread, 60 resamples that vary by it, independently of other candidates'."""
    random = np.random.default_rng(sum(map(ord, model)))

    def sample(name: str, value: float) -> ScoreSample:
        draws = () if spread is None else tuple(value + 1 + spread * random.standard_normal(60))
        return ScoreSample(score=name, value=value, resampled=draws)

    static = StaticFigure() if accuracy is None else StaticFigure(accuracy=accuracy, dataset=dataset, parameters=10)
    return ModelScores(model=model, scores=(sample("nleep", nleep), sample("logme", logme), *more), static=static)


def order(ranking: RankedModels) -> list[str]:
    return [each.model for each in ranking.models]


def test_the_mean_of_static_order_nleep_and_logme_decides() -> None:
    ranking = rank([candidate("a", 3, 1, 70), candidate("b", 2, 3, 90), candidate("c", 1, 2, 80)])
    assert order(ranking) == ["b", "a", "c"]  # a and c are equal, and stand by name
    assert [each.mean_rank for each in ranking.models] == pytest.approx([4 / 3, 7 / 3, 7 / 3])
    assert [each.place for each in ranking.models] == [1, 2, 2]
    assert [each.static_rank for each in ranking.models] == [1, 3, 2]
    assert ranking.combined == ("static", "nleep", "logme")
    assert ranking.static_used
    first = ranking.models[0].scores[0]
    assert (first.score, first.value, first.rank, first.low) == ("nleep", 2, 2, None)


def test_without_a_figure_of_one_candidate_the_scores_decide_alone() -> None:
    ranking = rank([candidate("a", 3, 2, 70), candidate("b", 2, 1, 90), candidate("c", 1, 0)])
    assert order(ranking) == ["a", "b", "c"]
    assert not ranking.static_used
    assert ranking.static_missing == ("c",)
    assert ranking.combined == ("nleep", "logme")
    assert ranking.scores_add_nothing is None
    assert ranking.models[1].static.accuracy == 90
    assert ranking.models[1].static_rank is None


def test_figures_of_different_data_sets_are_not_compared() -> None:
    ranking = rank([candidate("a", 1, 1, 90), candidate("b", 2, 2, 60, dataset="Kinetics-400")])
    assert ranking.static_mixed
    assert not ranking.static_used
    assert order(ranking) == ["b", "a"]


def test_static_order_can_be_left_out() -> None:
    assert not rank([candidate("a", 1, 1, 90), candidate("b", 2, 2, 60)], use_static=False).static_used


def test_models_that_resampled_items_do_not_tell_apart_are_tied() -> None:
    ranking = rank(
        [candidate("best", 25, 25, spread=0.5), candidate("one", 5, 5, spread=3), candidate("two", 4.9, 5.1, spread=3)]
    )
    assert order(ranking)[0] == "best"
    assert [each.place for each in ranking.models] == [1, 2, 2]
    one = next(each for each in ranking.models if each.model == "one")
    assert "two" in one.tied_with
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.mean_rank < one.high
    assert ranking.resamples == 60


def test_clear_differences_are_no_ties() -> None:
    ranking = rank(
        [candidate(name, value, value, spread=0.1) for name, value in zip("abcd", (1, 2, 3, 4), strict=True)]
    )
    assert order(ranking) == ["d", "c", "b", "a"]
    assert [each.place for each in ranking.models] == [1, 2, 3, 4]
    assert all(each.tied_with == () for each in ranking.models)
    assert [(each.low, each.high) for each in ranking.models] == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_places_are_shared_from_the_first_of_a_group() -> None:
    """b cannot be told from a, nor c from b, but c can be told from a: c begins a group of its own."""
    far = [("a", 10.0, 0.1), ("b", 7.5, 2.5), ("c", 5.0, 0.1)]
    ranking = rank([candidate(name, value, value, spread=spread) for name, value, spread in far])
    lines = {each.model: each for each in ranking.models}
    assert "c" not in lines["a"].tied_with
    assert lines["b"].tied_with == ("a", "c")
    assert [lines[name].place for name in "abc"] == [1, 1, 3]


def test_bias_of_subsets_does_not_move_the_intervals() -> None:
    ranking = rank([candidate("a", 3, 3, spread=0.1), candidate("b", 1, 1, spread=0.1)])  # their resamples are 1 higher
    for line in ranking.models:
        for score in line.scores:
            assert score.low is not None
            assert score.high is not None
            assert score.low < score.value < score.high < score.value + 0.5


def test_scores_add_nothing_where_no_certain_pair_leaves_the_static_order() -> None:
    agreeing = [candidate("a", 3, 3, 90, spread=0.1), candidate("b", 2, 2, 80, spread=0.1)]
    assert rank(agreeing).scores_add_nothing is True
    doubtful = [candidate("a", 3, 3, 90, spread=9), candidate("b", 3.1, 3.1, 80, spread=9)]
    assert rank(doubtful).scores_add_nothing is True
    opposed = [candidate("a", 1, 1, 90, spread=0.1), candidate("b", 2, 2, 80, spread=0.1)]
    assert rank(opposed).scores_add_nothing is False
    splitting = [candidate("a", 1, 1, 90, spread=0.1), candidate("b", 2, 2, 90, spread=0.1)]
    assert rank(splitting).scores_add_nothing is False


def test_few_resamples_give_no_intervals() -> None:
    few = tuple(float(each) for each in range(19))
    short = ModelScores(
        model="short",
        scores=tuple(ScoreSample(score=name, value=1, resampled=few) for name in ("nleep", "logme")),
    )
    ranking = rank([short, candidate("long", 2, 2, spread=0.1)])
    assert ranking.resamples == 0
    assert ranking.models[0].low is None
    assert ranking.models[0].scores[0].low is not None
    assert ranking.models[1].scores[0].low is None


def test_subsets_on_which_a_score_is_not_defined_are_left_out() -> None:
    holes = tuple(None if each % 3 == 0 else float(each % 5) for each in range(60))
    holed = ModelScores(
        model="holed",
        scores=tuple(ScoreSample(score=name, value=2, resampled=holes) for name in ("nleep", "logme")),
    )
    assert rank([holed, candidate("whole", 2, 2, spread=1)]).resamples == 40


def test_every_score_that_all_have_is_shown_and_any_can_be_combined() -> None:
    extra = ScoreSample(score="knn", value=0.5)
    ranking = rank(
        [
            candidate("a", 1, 5, more=(ScoreSample(score="knn", value=0.9), ScoreSample(score="leep", value=-1))),
            candidate("b", 2, 6, more=(extra,)),
        ],
        combined=["knn"],
    )
    assert order(ranking) == ["a", "b"]
    assert [each.score for each in ranking.models[0].scores] == ["nleep", "logme", "knn"]


def test_one_model_is_first() -> None:
    ranking = rank([candidate("only", 1, 1, 70, spread=1)])
    assert ranking.models[0].place == 1
    assert ranking.scores_add_nothing is True


@pytest.mark.parametrize(
    ("models", "combined", "sentence"),
    [
        ([], ["logme"], "there is no model to rank"),
        ([candidate("a", 1, 1)], [], "a ranking needs at least one score"),
        (
            [candidate("a", 1, 1), candidate("a", 2, 2)],
            ["logme"],
            "each model can be ranked once, got a more than once",
        ),
        ([candidate("a", 1, 1)], ["knn"], "a has no score knn; rank models that have the same scores"),
        ([candidate("a", 1, float("nan"))], ["logme"], "a has a score logme that is not finite"),
        ([candidate("a", 1, 1, spread=float("inf"))], ["logme"], "a has a score logme that is not finite"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(models: Any, combined: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        rank(models, combined=combined)


@given(
    st.lists(st.tuples(*[st.integers(-5, 5)] * 3), min_size=1, max_size=7),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_laws(values: list[tuple[int, int, int]], random: Any) -> None:
    models = [candidate(f"m{n}", a, b, 80 + c, spread=1.0) for n, (a, b, c) in enumerate(values)]
    ranking = rank(models)
    shuffled = list(models)
    random.shuffle(shuffled)
    again = rank(shuffled)
    assert [msgspec.structs.replace(each, tied_with=()) for each in ranking.models] == [
        msgspec.structs.replace(each, tied_with=()) for each in again.models
    ]
    # any increasing change of a static figure leaves the ranking as it is
    assert order(
        rank([msgspec.structs.replace(m, static=StaticFigure(accuracy=(m.static.accuracy or 0) ** 3)) for m in models])
    ) == order(ranking)
    means = [each.mean_rank for each in ranking.models]
    assert means == sorted(means)
    assert sum(means) == pytest.approx(len(models) * (len(models) + 1) / 2)
    assert [each.place for each in ranking.models] == sorted(each.place for each in ranking.models)
    ties = {each.model: set(each.tied_with) for each in ranking.models}
    assert all(one in ties[other] for one, others in ties.items() for other in others)


def test_a_ranking_survives_json() -> None:
    ranking = rank([candidate("a", 3, 1, 70, spread=1), candidate("b", 2, 3, 90, spread=1)])
    assert msgspec.json.decode(msgspec.json.encode(ranking), type=RankedModels) == ranking


def test_from_features_to_ranking() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 40)
    centres, noise = random.standard_normal((4, 10)), random.standard_normal((160, 10))
    twin = random.standard_normal((160, 10))
    features = {
        "good": 1.5 * centres[labels] + noise,
        "fair": 0.4 * centres[labels] + noise,
        "fair twin": 0.4 * centres[labels] + twin,
        "noise": noise,
    }
    ranking = rank(
        [ModelScores(model=name, scores=score_model(labels, features=each)) for name, each in features.items()]
    )
    lines = {each.model: each for each in ranking.models}
    assert order(ranking)[0] == "good"
    assert order(ranking)[-1] == "noise"
    assert lines["good"].tied_with == ()
    assert "fair twin" in lines["fair"].tied_with
    assert ranking.resamples == 60
