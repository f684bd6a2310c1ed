"""Pages that several tests look at: from published figures, from real runs on record, and with hostile names."""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from stoker.analysis import published
from stoker.analysis.verdict import verdict
from stoker.records import Limit, Plan, Probes, Record, Trial, parse, read
from stoker.report.html import Page
from stoker.report.pages import limit_page, plan_page, study_page, trial_page
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
