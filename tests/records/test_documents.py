"""Saved documents come back as their records; what is not one of ours is refused in one sentence."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stoker
from stoker.errors import InputError
from stoker.ranking.combine import ModelScores, rank
from stoker.records import (
    KINDS,
    SCHEMA,
    Attempt,
    Candidate,
    CandidateStages,
    CandidateTrial,
    Change,
    Comparison,
    Convergence,
    Difference,
    Extent,
    Facts,
    InterruptedTune,
    Limit,
    Measured,
    MethodComparison,
    MethodRow,
    Objective,
    Plan,
    Prediction,
    Probes,
    Problem,
    Ranking,
    Record,
    Remedy,
    Run,
    ScoreSample,
    Setting,
    Side,
    Stage,
    Stalls,
    StaticFigure,
    Subject,
    Task,
    Trial,
    Verdict,
    WorkloadSpec,
    encode,
    parse,
    read,
)
from stoker.report.documents import (
    candidate_document,
    comparison_document,
    document_of,
    machine_document,
    plan_document,
    ranking_document,
    save,
    stalls_document,
    trial_document,
)

SUBJECT = Subject(name="net", model="Net", data="set", mode="infer", device="cpu", items=8)
TRIAL = Trial(
    outcome="done",
    workload=SUBJECT,
    setting=Setting(num_workers=1),
    extent=Extent(batches=2),
    items=8,
    total_s=2.0,
    stages={"wait": Stage(clock="loop", samples_s=(0.5, 0.5))},
    interference=0.25,
    idle_cpus=1.5,
    task=Task(workload=WorkloadSpec(spec="resnet18"), options={"gpu_memory": 1}),
    when=datetime(2026, 11, 18, 12, 0, tzinfo=UTC),
    reference_s=(0.001,) * 5,
)
PREDICTION = Prediction(
    setting=Setting(),
    items=8,
    epochs=1,
    total_s=1.0,
    interval_s=(0.9, 1.1),
    first_batch_s=0.1,
    first_batch_interval_s=(0.05, 0.15),
    steady_items_per_s=8.0,
    wait_share=0.2,
    limited_by="decode",
)
RUN = Run(
    kind="load",
    batch_size=4,
    num_workers=0,
    prefetch_factor=2,
    pinned=False,
    total_s=1.0,
    start_s=0.0,
    asked_s=(0.0,),
    got_s=(0.5,),
    done_s=(1.0,),
    items=(4,),
    bytes=(16,),
)
PROBES = Probes(
    subject=SUBJECT,
    machine=Facts(usable_cores=2.0, available_bytes=1, shm_free_bytes=None, open_files=1024),
    setting=Setting(),
    runs=(RUN,),
)
MEASURED = Measured(samples_s=(1.0,), run_s=(1.0,), items=8, first_batch_s=0.1, steady_items_per_s=8.0)
CANDIDATE = Candidate(setting=Setting(), predicted_s=1.0, predicted=PREDICTION, measured=MEASURED)
PLAN = Plan(
    batch_size=4,
    num_workers=0,
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    accumulate=1,
    gpus=1,
    batch_sampler=False,
    workload="net",
    mode="infer",
    planner="simulate",
    objective=Objective(items=8),
    predicted=PREDICTION,
    predicted_s=1.0,
    measured=MEASURED,
    current=CANDIDATE,
    candidates=(CANDIDATE,),
    ruled_out=(),
    verdict=Verdict(bottleneck="decode", share=0.5, sentence="decoding takes half of the time"),
    remedies=(Remedy(change="workers 0 → 1", before_s=1.0, after_s=0.5),),
    notes=("a note",),
    seconds=3.0,
    probe_s=1.0,
)
LIMIT = Limit(
    max_batch=8,
    interval=(8, 9),
    comfortable_batch=7,
    method="trace",
    gpu_memory_bytes=1,
    peak_bytes_at_max=1,
    bytes_per_item=1,
    fixed_bytes=1,
    workload="net",
    mode="train",
    precision="fp32",
    optimizer=None,
    probes=(Attempt(batch_size=8, outcome="done"),),
)
STALLS = Stalls(memory=TRIAL, cached=TRIAL, cold=TRIAL)
COMPARISON = MethodComparison(workload="net", rows=(MethodRow(method="trace", limit=LIMIT, error=0.0),))
CONVERGED = Convergence(
    workload=SUBJECT, batch_size=16, against=8, seeds=(0,), setting=Setting(batch_size=16), epochs=1
)
COMPARED = Comparison(
    a=Side(sources=("a.json",), runs=1),
    b=Side(sources=("b.json",), runs=2, left_out=("c.json: it crashed",)),
    what="net",
    basis="steady",
    total=Difference(name="total", unit="batch", a_s=(1.0,), b_s=(1.2, 1.2), ratio=1.2, interval=(1.1, 1.3)),
    stages=(Difference(name="wait", unit="batch"),),
    changes=(Change(name="num_workers", kind="setting", a="0", b="2"),),
    reference=Difference(name="reference job", unit="run"),
)
EXAMINED = CandidateTrial(
    model="net@one.pt",
    outcome="done",
    stages=CandidateStages(
        read_s=(0.1,), read_resident=0.5, load_s=(0.2, 0.1), batch_items=(8, 4), score_s={"nleep": 1.0}
    ),
    scores=(ScoreSample(score="nleep", value=0.5, resampled=(0.4, None)),),
    static=StaticFigure(accuracy=70.0, dataset="ImageNet-1K", parameters=1000),
)
RANKING = Ranking(
    data="birds",
    device="cpu",
    part="full",
    scores=("nleep",),
    labels="classes",
    ranked=rank([ModelScores(model="net@one.pt", scores=EXAMINED.scores)], combined=("nleep",)),
    candidates=(EXAMINED, CandidateTrial(model="other", outcome="crashed", problem=Problem(sentence="it died"))),
    unfinished=("third",),
    stopped="the budget is spent",
)
DOCUMENTS: dict[str, tuple[Record, dict[str, Any]]] = {
    "trial": (TRIAL, trial_document(TRIAL, PLAN.remedies)),
    "stalls": (STALLS, stalls_document(STALLS, {})),
    "limit": (LIMIT, document_of(LIMIT)),
    "method_comparison": (COMPARISON, document_of(COMPARISON)),
    "probes": (PROBES, document_of(PROBES)),
    "prediction": (PREDICTION, document_of(PREDICTION)),
    "plan": (PLAN, plan_document(PLAN)),
    "convergence": (CONVERGED, document_of(CONVERGED)),
    "comparison": (COMPARED, comparison_document(COMPARED, allowed=0.05, is_slower=True)),
    "candidate_trial": (EXAMINED, candidate_document(EXAMINED)),
    "ranking": (RANKING, ranking_document(RANKING)),
    "interrupted_tune": (
        InterruptedTune(interrupted=True, runs=(RUN,), probes=PROBES, trials=(TRIAL,)),
        document_of(InterruptedTune(interrupted=True, runs=(RUN,), probes=PROBES, trials=(TRIAL,))),
    ),
}


NEW = ("comparison", "convergence", "candidate_trial", "ranking")
"""Kinds that have been numbered since there were any."""


def test_every_kind_is_tested() -> None:
    assert set(DOCUMENTS) | {"machine"} == set(KINDS)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_saved_document_comes_back_as_its_record(kind: str, tmp_path: Path) -> None:
    record, document = DOCUMENTS[kind]
    assert (document["kind"], document["schema"]) == (kind, SCHEMA)
    path = tmp_path / "saved.json"
    save(document, path)
    assert read(path) == record
    assert stoker.read(str(path)) == record


def test_this_machine_comes_back(tmp_path: Path) -> None:
    machine = stoker.doctor()
    save(machine_document(machine), tmp_path / "machine.json")
    assert read(tmp_path / "machine.json") == machine


@pytest.mark.parametrize("kind", [kind for kind in DOCUMENTS if kind not in NEW])
def test_documents_from_before_there_were_numbers_are_recognised(kind: str) -> None:
    record, document = DOCUMENTS[kind]
    old = {name: value for name, value in document.items() if name not in ("kind", "schema")}
    assert parse(msgspec.json.encode(old)) == record


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"not json", "not a JSON document"),
        (b"\xff\xfe", "not a JSON document"),
        (b"[1, 2]", "Stoker did not save it"),
        (b'{"name": "somebody else"}', "Stoker did not save it"),
        (b'{"kind": "trial", "schema": 99}', "its schema is 99"),
        (b'{"kind": "trial", "schema": "new"}', "its schema is 'new'"),
        (b'{"kind": "poem", "schema": 1}', "its kind is 'poem'"),
        (b'{"kind": "trial", "schema": 1}', "this trial cannot be read: .*outcome"),
    ],
)
def test_what_is_not_ours_is_refused_in_one_sentence(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        read(path)


def test_a_plan_from_before_bounds_were_codes_is_read() -> None:
    row = {"batch_size": 8, "num_workers": 9, "bound": "CPUs", "sentence": "9 workers only take turns"}
    plan = parse(encode({**msgspec.to_builtins(PLAN), "planner": "thesis", "ruled_out": [row]}))
    assert isinstance(plan, Plan)
    assert (plan.planner, plan.ruled_out[0].bound) == ("algebra", "cpus")
    with pytest.raises(InputError, match="this plan cannot be read"):
        parse(encode({**msgspec.to_builtins(PLAN), "ruled_out": [{**row, "bound": "luck"}]}))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*nothing\.json: No such file"):
        read(tmp_path / "nothing.json")


def test_a_record_with_a_value_out_of_range_is_refused() -> None:
    document = {**DOCUMENTS["trial"][1]}
    document["setting"] = {**document["setting"], "batch_size": 0}
    with pytest.raises(InputError, match="batch size must be at least 1, got 0"):
        parse(json.dumps(document, default=str).encode())
