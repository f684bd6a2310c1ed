"""Saved documents: every one has a `kind` and a `schema`, and `read` gives its record back."""

from pathlib import Path
from typing import Any

import msgspec

from stoker.errors import InputError
from stoker.records.answers import InterruptedTune, Limit, MethodComparison, Plan, Prediction, Stalls
from stoker.records.base import Record
from stoker.records.comparison import Comparison
from stoker.records.convergence import Convergence
from stoker.records.machine import Machine
from stoker.records.probes import Probes
from stoker.records.ranking import CandidateTrial, Ranking
from stoker.records.trial import Trial

SCHEMA = 1
"""The number of the present schema. Documents without a number are of schema 0, from before there were numbers."""

KINDS: dict[str, type[Record]] = {
    "trial": Trial,
    "stalls": Stalls,
    "limit": Limit,
    "method_comparison": MethodComparison,
    "probes": Probes,
    "prediction": Prediction,
    "plan": Plan,
    "interrupted_tune": InterruptedTune,
    "machine": Machine,
    "comparison": Comparison,
    "convergence": Convergence,
    "candidate_trial": CandidateTrial,
    "ranking": Ranking,
}
"""Every kind of document that Stoker saves."""

_MARKS = (
    ("plan", ("planner", "candidates")),
    ("trial", ("outcome", "extent")),
    ("stalls", ("preparation_share", "fetch_share")),
    ("limit", ("max_batch", "interval")),
    ("method_comparison", ("rows", "workload")),
    ("interrupted_tune", ("interrupted", "trials")),
    ("probes", ("runs", "subject")),
    ("prediction", ("limited_by", "setting")),
    ("machine", ("cpu", "host")),
)
"""Fields by which a document of schema 0 is recognised, the first match counts."""


def kind_of(record: Record) -> str:
    """The kind of a record's document."""
    return next(name for name, kind in KINDS.items() if type(record) is kind)


def labelled(record: Record, document: dict[str, Any]) -> dict[str, Any]:
    """The document with its kind and schema first."""
    return {"kind": kind_of(record), "schema": SCHEMA, **document}


def read(path: str | Path) -> Record:
    """The record in a saved file. Raises InputError if the file cannot be read or holds no document of ours."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return parse(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse(data: bytes) -> Record:
    """The record in the bytes of a saved document."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InputError("this is not a JSON document") from None
    if not isinstance(document, dict):
        raise InputError("Stoker did not save it")
    schema = document.get("schema", 0)
    if not isinstance(schema, int) or not 0 <= schema <= SCHEMA:
        raise InputError(f"its schema is {schema!r}, and this Stoker reads up to {SCHEMA}: update Stoker")
    kind = document.get("kind") if schema else _recognised(document)
    if kind not in KINDS:
        raise InputError(f"its kind is {kind!r}, which this Stoker does not know" if kind else "Stoker did not save it")
    if kind == "stalls" and "trials" in document:
        document = {**document, **document["trials"]}
    if kind == "plan":
        document = _plan_with_codes(document)
    try:
        return msgspec.convert(document, type=KINDS[kind], strict=True)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"this {kind} cannot be read: {error}") from None


_OLD_BOUNDS = {
    "device memory": "device_memory",
    "/dev/shm": "shm",
    "host memory": "host_memory",
    "file descriptors": "open_files",
    "CPUs": "cpus",
}
"""Bounds in plans from before they were codes."""


def _plan_with_codes(document: dict[str, Any]) -> dict[str, Any]:
    """A plan with the present names of its planner and its bounds."""
    if document.get("planner") == "thesis":
        document = {**document, "planner": "algebra"}
    rows = document.get("ruled_out")
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        new = [{**row, "bound": _OLD_BOUNDS.get(str(row.get("bound")), row.get("bound"))} for row in rows]
        document = {**document, "ruled_out": new}
    return document


def _recognised(document: dict[str, Any]) -> str | None:
    return next((kind for kind, fields in _MARKS if all(name in document for name in fields)), None)
