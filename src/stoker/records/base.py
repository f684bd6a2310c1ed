"""The base of all records, and their JSON."""

from importlib import import_module
from typing import Any, TypeVar

import msgspec

from stoker.errors import InputError

HTML_RENDERERS: dict[str, str] = dict.fromkeys(
    ("Trial", "Stalls", "Plan", "Limit", "MethodComparison", "Prediction", "Probes", "Machine"),
    "stoker.integrations.notebook:record_html",
)
"""The function that makes the HTML of a record in a notebook, as `module:function`, by the name of the record's class.

Strings, because these functions are in layers above this one. They are imported when a record is shown.
"""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record. A notebook shows the answer and the charts of one whose class is in `HTML_RENDERERS`."""

    def _repr_html_(self) -> str | None:
        renderer = HTML_RENDERERS.get(type(self).__name__)
        if renderer is None:
            return None
        module, _, function = renderer.partition(":")
        return str(getattr(import_module(module), function)(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        found = {"text/plain": str(self), "text/html": self._repr_html_()}
        return {kind: text for kind, text in found.items() if text is not None}


T = TypeVar("T")


def encode(record: Any) -> bytes:
    """As JSON. A file's name may be no text that JSON can hold: a question mark stands for what it cannot."""
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
    """Read a record back; what does not fit is the reader's to see, in one sentence."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InputError(f"no {kind.__name__.lower()} that this version can read: {error}") from None
