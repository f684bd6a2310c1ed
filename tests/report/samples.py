"""Pages that several tests look at: from published figures, from real runs on record, and with hostile names."""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stoker.analysis import published
from stoker.analysis.verdict import verdict
from stoker.ranking.combine import ModelScores, rank
from stoker.records import (
    CandidateStages,
    CandidateTrial,
    Limit,
    Plan,
    Probes,
    Problem,
    Ranking,
    Record,
    ScoreSample,
    StaticFigure,
    Trial,
    parse,
    read,
)
from stoker.report.html import Page
from stoker.report.pages import limit_page, plan_page, ranking_page, study_page, trial_page
from stoker.report.pages.study import StudyAbout

ANSWERS = Path(__file__).parents[1] / "answers"
SAVED = Path(__file__).parent / "saved"

HOSTILE = (
    "<script>window.hit = 1</script>",
    "\"><img src=x onerror='window.hit = 1'>",
    "</script><script>window.hit = 1</script>",
    "a'b\"c`d\\e&amp;<!--",
    "n" * 10_000,
    "\u202eright to left\u202c שלום",
    "👩\u200d🔬 🚀",
    "=cmd|' /C calc'!A0",
    "nul\x00 and \ud800",
)


@cache
def trials() -> tuple[Trial, ...]:
    """Five real runs: two of them on a GPU, with workers and without."""
    lines = gzip.decompress((ANSWERS / "trials.jsonl.gz").read_bytes()).splitlines()
    return tuple(msgspec.json.decode(line, type=Trial) for line in lines)


@cache
def a_trial() -> Trial:
    """A real run with workers."""
    return next(trial for trial in trials() if trial.setting.num_workers and trial.workers.worker)


def a_plan() -> Plan:
    found = read(SAVED / "plan.json")
    assert isinstance(found, Plan)
    return found


def probes() -> Probes:
    data = gzip.decompress((ANSWERS / "probes" / "resnet18-infer-jpeg-cuda.json.gz").read_bytes())
    found: Record = parse(data)
    assert isinstance(found, Probes)
    return found


def a_limit() -> Limit:
    answers = msgspec.json.decode((ANSWERS / "limits.json").read_bytes())["answers"]
    return next(msgspec.convert(each, Limit) for each in answers.values() if each.get("bytes_per_item"))


@cache
def grid_page() -> Page:
    """The published grid: 1,080 trials of twelve models."""
    return study_page(published.grid(), StudyAbout(name="batch-and-workers"))


def a_ranking(
    names: tuple[str, ...] = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16"), *, static: bool = True
) -> Ranking:
    """A search of some candidates: the first is the best and as good as the second, and one more has failed."""
    candidates = [_candidate(name, place, static=static) for place, name in enumerate(names)]
    models = [ModelScores(model=each.model, scores=each.scores, static=each.static) for each in candidates]
    problem = Problem(sentence="the weights file does not fit", remedy="name the model that it was saved from")
    failed = CandidateTrial(model=f"{names[0]}@other.pt", outcome="failed", problem=problem)
    return Ranking(
        data="pets",
        device="cpu",
        part="full",
        scores=("nleep", "logme"),
        labels="classes",
        ranked=rank(models),
        candidates=(*candidates, failed),
        wall_s=sum(each.total_s for each in candidates),
    )


def _candidate(name: str, place: int, *, static: bool) -> CandidateTrial:
    random = np.random.default_rng(place)
    value = -float(max(place, 1))  # the first two are equal but for what was drawn
    stages = CandidateStages(
        read_s=(0.5,),
        read_resident=0.0,
        read_wait_s=0.1,
        build_s=0.2,
        load_s=(0.5, 0.1),
        infer_s=(0.3 + place, 0.3 + place),
        batch_items=(32, 32),
        score_s={"nleep": 0.2, "logme": 0.1},
        resample_s={"nleep": 0.4, "logme": 0.2},
    )
    draws = [tuple(value + 0.05 * random.standard_normal(40)) for _ in range(2)]
    return CandidateTrial(
        model=name,
        outcome="done",
        items=64,
        classes=4,
        batch_size=32,
        stages=stages,
        scores=tuple(
            ScoreSample(score=score, value=value - 0.001 * place, resampled=drawn)
            for score, drawn in zip(("nleep", "logme"), draws, strict=True)
        ),
        static=StaticFigure(accuracy=80.0 - max(place, 1), dataset="ImageNet-1K") if static else StaticFigure(),
        total_s=sum(stages.totals_s.values()) + 0.05,
    )


@cache
def all_pages() -> dict[str, Page]:
    trial = a_trial()
    return {
        "grid": grid_page(),
        "impact": study_page(published.batch_impact(), StudyAbout(name="batch-impact")),
        "loader": study_page(published.loader_runs(), StudyAbout(name="data-loading")),
        "limits": study_page(published.max_batches(), StudyAbout(name="max-batch", kind="limit")),
        "trial": trial_page(trial, verdict(trial)),
        "plan": plan_page(a_plan()),
        "limit": limit_page(a_limit()),
        "ranking": ranking_page(a_ranking()),
        "stages": study_page(published.stage_trials(), StudyAbout(name="search-bottlenecks", kind="search")),
    }


def rows(
    workloads: tuple[str, ...], *, data: tuple[str, ...] = ("jpeg",), seconds: float = 1.0
) -> list[dict[str, Any]]:
    """A trial for each workload, kind of data, two batch sizes and three worker counts; the largest cell fails."""
    found = []
    for place, workload in enumerate(workloads):
        for kind in data:
            for batch_size in (8, 64):
                for num_workers in (0, 2, 4):
                    failed = batch_size == 64 and num_workers == 4
                    time_s = (1 + place) * (8 / (1 + num_workers) + batch_size / 64)
                    found.append(
                        {
                            "workload": workload,
                            "data": kind,
                            "items": 256,
                            "batch_size": batch_size,
                            "num_workers": num_workers,
                            "outcome": "oom" if failed else "done",
                            "seconds": None if failed else time_s,
                            "first_batch_s": None if failed else 0.1 * (1 + num_workers),
                            "wait_s": None if failed else time_s * 0.5,
                            "forward_s": None if failed else time_s * 0.4,
                            "decode_s": None if failed else time_s * 0.9,
                            "predicted_s": time_s * 1.1,
                            "problem": f"out of memory in {workload}" if failed else None,
                        }
                    )
    return found


def hostile_page() -> Page:
    """A study whose workloads, data and problems have names that try to break out of the page."""
    names = tuple(name.encode(errors="replace").decode() for name in HOSTILE)
    frame = pl.DataFrame(rows(names, data=(names[0], names[1])), infer_schema_length=None)
    return study_page(frame, StudyAbout(name=HOSTILE[0], title=HOSTILE[1], about={HOSTILE[2]: HOSTILE[3]}))


def hostile_ranking() -> Page:
    """A search whose candidates, data and problems have such names."""
    names = tuple(name.encode(errors="replace").decode() for name in HOSTILE)
    found = a_ranking(names)
    return ranking_page(msgspec.structs.replace(found, data=names[0], notes=names, unfinished=(names[2],)))
