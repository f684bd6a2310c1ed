"""The page of a model search: the best candidate, how sure that is, every score, and what finding out has cost."""

from functools import partial

from stoker.analysis.breakdown import candidate_rows, most_spent
from stoker.records import CandidateTrial, RankedModel, RankedModels, Ranking, ScoreInterval
from stoker.report import charts
from stoker.report.html import Card, Figure, Page, Section, Table
from stoker.report.pages.parts import capital, counted, figure, machine_facts, moment, percent, short_names, times
from stoker.units import format_bytes, format_seconds

_NAMES = {"nleep": "NLEEP", "logme": "LogME", "static": "static order", "knn": "kNN", "gbc": "GBC", "nce": "NCE"}
_NAMES |= {"leep": "LEEP", "parc": "PARC", "h_score": "H-score", "h_score_regularised": "H-score, regularised"}


def ranking_page(ranking: Ranking) -> Page:
    """The candidates in order, their scores, and where the time went. Candidates that failed have their reasons."""
    names = short_names([*(each.model for each in ranking.candidates), *ranking.unfinished])
    names |= short_names(each.model for each in ranking.ranked.models) if ranking.ranked is not None else {}
    sections = [
        Section("Ranking", _ranks(ranking.ranked, names), tables=_table(ranking.ranked, names)),
        Section("Scores", _scores(ranking.ranked, names)),
        Section("Where the time went", _stages(ranking, names), tables=_every_stage(ranking, names)),
        Section("What failed", tables=_failures(ranking, names)),
    ]
    drawn = [section for section in sections if section.figures or section.tables]
    about = f"{counted(len(ranking.candidates), 'candidate')} on {ranking.data}, {_part(ranking.part)}"
    facts = {
        **machine_facts(ranking.machine),
        "date": moment(ranking.when),
        "device": ranking.device,
        "labels": "of the data" if ranking.labels == "classes" else "drawn at random: scores mean nothing",
        "time": format_seconds(ranking.wall_s) if ranking.wall_s else "",
    }
    return Page("model search", ranking.data, about, _cards(ranking, names), drawn, facts, _notes(ranking, names))


def _part(part: str) -> str:
    return "full models" if part == "full" else part


def score_name(score: str) -> str:
    """A score as people write it."""
    return _NAMES.get(score, score)


# ---------------------------------------------------------------- the answer


def _cards(ranking: Ranking, names: dict[str, str]) -> list[Card]:
    cards = []
    if ranking.ranked is not None:
        first = ranking.ranked.models[0]
        cards.append(
            Card(about="best candidate", answer=names[first.model], detail=_lead(first, ranking.ranked, names))
        )
        cards.append(_basis(ranking.ranked))
    spent = most_spent(ranking.candidates)
    if spent is not None:
        whole = sum(each.total_s for each in ranking.candidates)
        detail = f"of {format_seconds(whole)} for {counted(len(ranking.candidates), 'candidate')}"
        cards.append(Card(about="most of the time", answer=f"{capital(spent[0])}: {percent(spent[1])}", detail=detail))
    if ranking.failed:
        failed = f"{len(ranking.failed)} of {counted(len(ranking.candidates), 'candidate')}"
        cards.append(Card(about="failed", answer=failed, detail="The reasons are below."))
    return cards


def _lead(first: RankedModel, ranked: RankedModels, names: dict[str, str]) -> str:
    """How far the first is ahead."""
    if len(ranked.models) == 1:
        return "It is the only candidate that could be ranked."
    rank = f"Its mean rank is {_rank(first)}."
    if not ranked.resamples:
        return f"{rank} There are too few items for intervals."
    tied = [names[each] for each in first.tied_with]
    if tied:
        return f"{rank} It cannot be told apart from {_listed(tied)}."
    return f"{rank} It is ahead of every other candidate in at least 95 % of the resamples."


def _rank(model: RankedModel) -> str:
    interval = "" if model.low is None or model.high is None else f" ({model.low:.2g} to {model.high:.2g})"
    return f"{model.mean_rank:.2g}{interval}"


def _listed(names: list[str], most: int = 4) -> str:
    shown = names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _basis(ranked: RankedModels) -> Card:
    """What the order rests on, and whether the scores say more than the static order does."""
    answer = capital(_listed([score_name(each) for each in ranked.combined]))
    if ranked.static_used:
        nothing = "The scores add nothing: no pair of candidates that can be told apart stands in another order."
        something = "The scores change the order of candidates that can be told apart."
        return Card(about="ranked by", answer=answer, detail=nothing if ranked.scores_add_nothing else something)
    if ranked.static_mixed:
        detail = "Without the static order: published accuracies are of different data sets."
    elif ranked.static_missing:
        detail = f"Without the static order: {_listed(list(ranked.static_missing))} has no published accuracy."
        detail = detail.replace(" has no", " have no") if len(ranked.static_missing) > 1 else detail
    else:
        detail = "Without the static order, as asked."
    return Card(about="ranked by", answer=answer, detail=detail)


def _notes(ranking: Ranking, names: dict[str, str]) -> list[str]:
    notes = list(ranking.notes)
    if ranking.stopped:
        notes.insert(0, f"The search is not complete: {ranking.stopped}.")
    if ranking.unfinished:
        notes.insert(
            1 if ranking.stopped else 0, f"Not run: {_listed([names[each] for each in ranking.unfinished], 8)}."
        )
    if ranking.reused:
        notes.append(f"{capital(counted(len(ranking.reused), 'candidate'))} had a result in the store.")
    for trial in ranking.candidates:
        notes += [f"{names[trial.model]}: {each}" for each in (*trial.notes, *_whole(trial))]
        notes += [f"{names[trial.model]}, {score_name(name)}: {text}" for name, text in trial.score_problems.items()]
    return notes


def _whole(trial: CandidateTrial) -> list[str]:
    return [f"it runs whole, because {trial.whole_reason}"] if trial.whole_reason else []


# ---------------------------------------------------------------- ranks and scores


def _ranks(ranked: RankedModels | None, names: dict[str, str]) -> list[Figure]:
    if ranked is None or len(ranked.models) < 2:
        return []
    rows = [
        {
            "model": names[each.model],
            "place": each.place,
            "mean_rank": each.mean_rank,
            "low": each.low,
            "high": each.high,
        }
        for each in ranked.models
    ]
    first = [row for row in rows if row["place"] == 1]
    title = (
        f"{rows[0]['model']} is first of {counted(len(rows), 'candidate')}"
        if len(first) == 1
        else f"{capital(counted(len(first), 'candidate'))} of {len(rows)} share the first place"
    )
    line = f"Line: 90 % interval over {ranked.resamples} resamples of the items." if ranked.resamples else ""
    note = f"Mean of the ranks by {_listed([score_name(each) for each in ranked.combined])}. {line}".strip()
    return [figure(title, rows, charts.rank_intervals, note=note, alt="Mean rank of each candidate")]


def _scores(ranked: RankedModels | None, names: dict[str, str]) -> list[Figure]:
    if ranked is None:
        return []
    rows = [
        {
            "model": names[model.model],
            "score": score_name(score.score),
            "value": score.value,
            "rank": score.rank,
            "low": score.low,
            "high": score.high,
        }
        for model in ranked.models
        for score in model.scores
    ]
    if not rows or len(ranked.models) < 2:
        return []
    title = (
        "Every score has the same first candidate"
        if set.intersection(*_first_by_score(ranked))
        else "The scores do not agree on the first candidate"
    )
    note = "Higher is better. Values of different scores do not compare."
    return [figure(title, rows, charts.score_intervals, note=note, alt="Scores of each candidate")]


def _first_by_score(ranked: RankedModels) -> list[set[str]]:
    """The candidates with the least rank by each score; several where their scores are equal."""
    ranks: dict[str, dict[str, float]] = {}
    for model in ranked.models:
        for score in model.scores:
            ranks.setdefault(score.score, {})[model.model] = score.rank
    return [{name for name, rank in each.items() if rank == min(each.values())} for each in ranks.values()]


def _table(ranked: RankedModels | None, names: dict[str, str]) -> list[Table]:
    if ranked is None:
        return []
    scores = [score.score for score in ranked.models[0].scores]
    head = [
        "place",
        "candidate",
        "mean rank",
        "published accuracy",
        "parameters",
        *map(score_name, scores),
        "tied with",
    ]
    lines = []
    for each in ranked.models:
        accuracy, parameters = each.static.accuracy, each.static.parameters
        lines.append(
            [
                str(each.place),
                names[each.model],
                _rank(each),
                "–" if accuracy is None else f"{accuracy:.1f} %",
                "–" if parameters is None else f"{parameters:,}",
                *(_score(score) for score in each.scores),
                ", ".join(names[other] for other in each.tied_with) or "–",
            ]
        )
    return [Table("", head, lines)]


def _score(score: ScoreInterval) -> str:
    interval = "" if score.low is None or score.high is None else f" ({score.low:.4g} to {score.high:.4g})"
    return f"{score.value:.4g}{interval}"


# ---------------------------------------------------------------- time


def _stages(ranking: Ranking, names: dict[str, str]) -> list[Figure]:
    rows = [{**row, "model": names[row["model"]]} for row in candidate_rows(ranking.candidates)]
    if not rows:
        return []
    totals: dict[str, float] = {}
    for row in rows:
        totals[row["model"]] = totals.get(row["model"], 0.0) + row["seconds"]
    slowest, fastest = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
    title = f"{slowest} takes {format_seconds(totals[slowest])}"
    if len(totals) > 1 and totals[fastest]:
        title += f", {times(totals[slowest] / totals[fastest])} as long as {fastest}"
    draw = partial(charts.stage_bars, x="model", x_title="candidate")
    note = "Reading weights counts for what a candidate waited for it."
    return [
        figure(title, rows, draw, note=note, alt="Stages stacked", half=True),
        figure(
            "Shares of each candidate's time", rows, partial(draw, normalised=True), alt="Shares stacked", half=True
        ),
    ]


def _every_stage(ranking: Ranking, names: dict[str, str]) -> list[Table]:
    done = [each for each in ranking.candidates if each.outcome == "done"]
    if not done:
        return []
    used = [name for name in done[0].stages.totals_s if any(each.stages.totals_s[name] > 0 for each in done)]
    head = ["candidate", "items", "batch, workers", "items from", "weights", *used, "total"]
    lines = [
        [
            names[each.model],
            f"{each.items:,}",
            f"{each.batch_size:,}, {each.num_workers}",
            each.items_from,
            _weights(each),
            *(format_seconds(each.stages.totals_s[name]) for name in used),
            format_seconds(each.total_s),
        ]
        for each in done
    ]
    return [Table("Every stage", head, lines)]


def _weights(trial: CandidateTrial) -> str:
    """How the weights were read: what it took, also beside the candidate before, and from where."""
    read_s, resident = sum(trial.stages.read_s), trial.stages.read_resident
    if not read_s:
        return trial.weights.replace("_", " ")
    where = "" if resident is None else ", cached" if resident > _CACHED else ", from the disk"
    return f"read in {format_seconds(read_s)}{where}"


_CACHED = 0.5
"""Of a file that lies in the page cache by more than this share, reading is said to be cached."""


def _failures(ranking: Ranking, names: dict[str, str]) -> list[Table]:
    lines = []
    for each in ranking.failed:
        remedy = each.problem.remedy if each.problem and each.problem.remedy else ""
        sentence = each.problem.sentence if each.problem else ""
        peak = each.peaks.get("rss_bytes")
        memory = f"; it had {format_bytes(peak)} of memory" if peak and each.outcome == "oom" else ""
        lines.append([names[each.model], each.outcome.replace("_", " "), f"{sentence}{memory}", remedy])
    return [Table("", ["candidate", "outcome", "reason", "what to do"], lines)] if lines else []
