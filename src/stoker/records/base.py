"""The base of all records, and their JSON."""

from importlib import import_module
from typing import Any, TypeVar

import msgspec

from stoker.errors import InputError

RENDERERS: dict[str, str] = {
    "Trial": "stoker.integrations.display:trial_text",
    "ScriptAnswer": "stoker.integrations.display:script_text",
    "Stalls": "stoker.integrations.display:stalls_text",
    "Plan": "stoker.integrations.display:plan_text",
    "Limit": "stoker.integrations.display:limit_text",
    "MethodComparison": "stoker.integrations.display:comparison_text",
    "Prediction": "stoker.integrations.display:prediction_text",
    "Probes": "stoker.integrations.display:probes_text",
    "Machine": "stoker.integrations.display:machine_text",
    "Comparison": "stoker.integrations.display:compared_text",
    "Convergence": "stoker.integrations.display:convergence_text",
    "CandidateTrial": "stoker.integrations.display:candidate_text",
    "Ranking": "stoker.integrations.display:ranking_text",
}
"""The function that makes the text of a record, as `module:function`, by the name of the record's class."""
HTML_RENDERERS: dict[str, str] = dict.fromkeys(
    (name for name in RENDERERS if name != "CandidateTrial"), "stoker.integrations.notebook:record_html"
)
"""The function that makes the HTML of a record in a notebook, likewise; one candidate alone has no charts.

Strings, because these functions are in layers above this one. They are imported when a record is shown.
"""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record. `str()` gives the command line's table if the class has one in `RENDERERS`, else `repr()`. A
    notebook shows the answer and the charts of one whose class is in `HTML_RENDERERS`."""

    def __str__(self) -> str:
        rendered = _rendered(RENDERERS, self)
        return repr(self) if rendered is None else rendered

    def _repr_html_(self) -> str | None:
        return _rendered(HTML_RENDERERS, self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        found = {"text/plain": str(self), "text/html": self._repr_html_()}
        return {kind: text for kind, text in found.items() if text is not None}


def _rendered(renderers: dict[str, str], record: "Record") -> str | None:
    """What the record's renderer makes of it; None if there is none."""
    place = renderers.get(type(record).__name__)
    if place is None:
        return None
    module, _, function = place.partition(":")
    return str(getattr(import_module(module), function)(record))


T = TypeVar("T")


def encode(record: Any) -> bytes:
    """The record as JSON. Question marks replace bytes of file names that are not valid text."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(record)))


def _as_text(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode(errors="replace").decode()
    if isinstance(data, dict):
        return {_as_text(name): _as_text(value) for name, value in data.items()}
    return [_as_text(each) for each in data] if isinstance(data, list | tuple) else data


def decode(data: bytes, kind: type[T]) -> T:
    """The record in this JSON. Raises InputError if it does not fit."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InputError(f"no {kind.__name__.lower()} that this version can read: {error}") from None
