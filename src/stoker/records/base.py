"""The base of all records, and their JSON."""

from typing import Any, TypeVar

import msgspec

from stoker.errors import InputError


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record."""


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
