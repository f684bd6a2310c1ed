"""Messages between processes: tagged frames on a pipe. Nothing that a child sends is unpickled.

A frame is a tag of one byte, the length of its payload, and the payload, which is JSON. A call writes any number of
EVENT frames, then one RESULT or one ERROR.
"""

import os
import socket
import struct
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from stoker.errors import StokerError
from stoker.records import encode

T = TypeVar("T")

EVENT, RESULT, ERROR = b"E", b"R", b"X"
_HEADER = struct.Struct("!cI")


class Failure(msgspec.Struct):
    """An error that ended a call. `kind` is the class name of a `StokerError`, and empty for any other error."""

    kind: str
    sentence: str
    trace: str = ""


def failure_of(error: BaseException) -> Failure:
    """The error as something that another process can read."""
    return Failure(
        kind=type(error).__name__ if isinstance(error, StokerError) else "",
        sentence=str(error) or type(error).__name__,
        trace="".join(traceback.format_exception(error)),
    )


def write_frame(fd: int, tag: bytes, payload: bytes) -> None:
    """Write a whole frame, however the pipe splits it."""
    data = memoryview(_HEADER.pack(tag, len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


def write_outcome(fd: int, call: Callable[[], Any]) -> None:
    """Make the call and write what it returns as a RESULT, or what it raises as an ERROR."""
    try:
        write_frame(fd, RESULT, encode(call()))
    except BaseException as error:
        write_frame(fd, ERROR, encode(failure_of(error)))


class FrameReader:
    """Puts frames together again from the parts in which a pipe delivers them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add a part; the (tag, payload) of each frame that is complete now."""
        self._buffer += part
        while len(self._buffer) >= _HEADER.size:
            tag, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield tag, payload


def read_outcome(tag: bytes, payload: bytes, kind: type[T]) -> T | Failure:
    """The result of a RESULT frame, checked against `kind`, or the failure of an ERROR frame.

    A frame that cannot be read is a failure too: something else wrote into the pipe.
    """
    try:
        if tag == RESULT:
            return msgspec.json.decode(payload, type=kind)
        return msgspec.json.decode(payload, type=Failure)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return unreadable(error)


def unreadable(error: Exception) -> Failure:
    """The failure of a child whose messages cannot be read."""
    return Failure(kind="MachineError", sentence=f"what the run's process reported cannot be read: {error}")


def receive(sock: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes, or fewer if the other end closed.

    They are read into one buffer: to free large parts would change how malloc serves the process from then on.
    """
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        received = sock.recv_into(view[got:])
        if not received:
            break
        got += received
    view.release()
    return data if got == count else data[:got]
