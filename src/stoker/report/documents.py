"""JSON documents: a record and figures derived from its samples. Reading a document back ignores derived figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.analysis.convergence import difference, sentences
from stoker.analysis.spans import Span, steady, whole
from stoker.analysis.stalls import fetch_share, preparation_share
from stoker.analysis.verdict import verdict
from stoker.atomic import write_whole
from stoker.errors import InputError
from stoker.records import (
    CandidateTrial,
    Comparison,
    Convergence,
    Disk,
    Machine,
    Plan,
    Ranking,
    Record,
    Remedy,
    ScriptAnswer,
    Stalls,
    Trial,
    VerifiedRemedy,
    encode,
    labelled,
)


def trial_document(
    trial: Trial,
    remedies: Sequence[Remedy],
    *,
    second: Trial | None = None,
    verified: Sequence[VerifiedRemedy] = (),
) -> dict[str, Any]:
    """A trial with the total and share of each stage, the average of each gauge, the verdict and the remedies.

    `second` is the run at another batch size, `verified` are the remedies that were run.
    """
    span = whole(trial)
    document: dict[str, Any] = msgspec.to_builtins(trial)
    document["first_batch_s"] = trial.first_batch_s
    document["items_per_s"] = trial.items_per_s
    for name, stage in document["stages"].items():
        stage["total_s"] = trial.stages[name].total_s
        stage["share"] = span.share(name)
    for name, gauge in document["gauges"].items():
        gauge["average"] = trial.gauges[name].average
        gauge["maximum"] = trial.gauges[name].maximum
    document["device_busy"] = span.busy if trial.items else None
    document["steady"] = _steady_document(steady(trial))
    judged = verdict(trial)
    document["verdict"] = msgspec.to_builtins(judged) if judged else None
    document["remedies"] = [_remedy_document(remedy) for remedy in remedies]
    document["verified"] = [_verified_document(each) for each in verified]
    if second is not None:
        document["second"] = msgspec.to_builtins(second)
    return labelled(trial, document)


def script_document(answer: ScriptAnswer) -> dict[str, Any]:
    """The trial of a script's training loader, with the trials of its other loaders and ranks, and the proposals. Read
    back, it is the trial. Raises InputError where there is no trial."""
    if answer.training is None:
        raise InputError("no loader was observed")
    verified = [each.verified for each in answer.proposals if each.verified is not None]
    document = trial_document(answer.training, answer.remedies, verified=verified)
    rows = []
    for each in answer.proposals:
        edits = [{**msgspec.to_builtins(edit), "sentence": edit.sentence} for edit in each.edits]
        row = {**msgspec.to_builtins(each), "edits": edits, "gain": each.gain}
        if each.verified is not None:
            row["verified"] = _verified_document(each.verified)
        rows.append(row)
    document["command"], document["status"] = list(answer.command), answer.status
    document["proposals"] = rows
    document["loaders"] = [trial_document(each, ()) for each in answer.others]
    document["ranks"] = [trial_document(each, ()) for each in answer.ranks]
    document["problems"] = list(answer.problems)
    if answer.headroom is not None:
        gain = {"after_s": answer.headroom.after_s, "gain": answer.headroom.gain}
        document["headroom"] = {**msgspec.to_builtins(answer.headroom), **gain}
    return document


def _verified_document(each: VerifiedRemedy) -> dict[str, Any]:
    gains = {"predicted_gain": each.predicted_gain, "measured_gain": each.measured_gain}
    return {**msgspec.to_builtins(each), **gains}


def _remedy_document(remedy: Remedy) -> dict[str, Any]:
    return {**msgspec.to_builtins(remedy), "sentence": remedy.sentence}


def _steady_document(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    return {
        "batches": span.batches,
        "items": span.items,
        "seconds": span.seconds,
        "items_per_s": span.items_per_s,
        "device_busy": span.busy,
        "shares": {name: span.share(name) for name in (*span.loop_s, *span.worker_s)},
    }


def stalls_document(stalls: Stalls, remedies: Mapping[str, Sequence[Remedy]]) -> dict[str, Any]:
    """The three trials and the shares of their stalls. `remedies` holds those of each trial by its source."""
    document = {
        "preparation_share": preparation_share(stalls) if stalls.finished else None,
        "fetch_share": fetch_share(stalls) if stalls.finished else None,
        "trials": {
            name: trial_document(getattr(stalls, name), remedies.get(name, ())) for name in ("memory", "cached", "cold")
        },
    }
    return labelled(stalls, document)


def document_of(record: Record) -> dict[str, Any]:
    """A record without derived figures."""
    return labelled(record, msgspec.to_builtins(record))


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan with the figures derived from its samples."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    document["gain"] = plan.gain
    document["line"] = plan.line
    if plan.measured is not None:
        document["measured"]["total_s"] = plan.measured.total_s
    rows = [*zip(document["candidates"], plan.candidates, strict=True), (document["current"], plan.current)]
    for row, candidate in rows:
        if candidate is not None and candidate.measured is not None:
            row["measured"]["total_s"] = candidate.measured.total_s
    document["remedies"] = [_remedy_document(remedy) for remedy in plan.remedies]
    document["verified"] = [_verified_document(each) for each in plan.verified]
    return labelled(plan, document)


def convergence_document(found: Convergence) -> dict[str, Any]:
    """The runs, with the differences between the two batch sizes and the answer in sentences."""
    seen = difference(found)
    derived = {"difference": msgspec.to_builtins(seen, str_keys=True), "sentences": sentences(found, seen)}
    return labelled(found, {**msgspec.to_builtins(found), **derived})


def candidate_document(trial: CandidateTrial) -> dict[str, Any]:
    """A candidate of a search with the totals of its stages, one by one and in groups."""
    document: dict[str, Any] = msgspec.to_builtins(trial)
    document["stages"]["totals_s"] = trial.stages.totals_s
    document["stages"]["groups_s"] = trial.stages.groups_s
    document["other_s"] = trial.other_s
    return labelled(trial, document)


def ranking_document(found: Ranking) -> dict[str, Any]:
    """A ranking with the totals of its candidates' stages."""
    document: dict[str, Any] = msgspec.to_builtins(found)
    document["candidates"] = [candidate_document(each) for each in found.candidates]
    return labelled(found, document)


def machine_document(machine: Machine) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(machine)
    if machine.disk is not None:
        _add_speeds(document["disk"], machine.disk)
    return labelled(machine, document)


def comparison_document(
    found: Comparison, *, allowed: float | None = None, is_slower: bool | None = None
) -> dict[str, Any]:
    """A comparison with its answer, and what follows for the share that B is `allowed` to be slower."""
    document: dict[str, Any] = msgspec.to_builtins(found)
    for place, each in (("total", found.total), ("reference", found.reference)):
        if each is not None:
            document[place]["answer"] = each.answer
    for name in ("stages", "tasks"):
        for row, each in zip(document[name], getattr(found, name), strict=True):
            row["answer"] = each.answer
    document = {"answer": found.answer, "sentence": found.sentence, **document}
    if allowed is not None:
        document |= {"allowed": allowed, "slower_than_allowed": is_slower}
    return labelled(found, document)


def _add_speeds(document: dict[str, Any], disk: Disk) -> None:
    for name in ("sequential_cold", "sequential_cached", "small_cold", "small_cached"):
        speed = getattr(disk, name)
        if speed is not None:
            document[name]["bytes_per_s"] = speed.bytes_per_s
            document[name]["reads_per_s"] = speed.reads_per_s


def _encoded(document: Any) -> bytes:
    return encode(msgspec.to_builtins(document, enc_hook=str, str_keys=True))


def to_json(document: Any) -> str:
    return msgspec.json.format(_encoded(document), indent=2).decode()


def save(document: Any, path: Path) -> None:
    """Write a document whole or not at all. Raises InputError or MachineError if the file cannot be written."""
    write_whole(path, f"{to_json(document)}\n".encode())
